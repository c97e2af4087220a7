"""Each compression there and back, other writers' shapes, bombs and damage."""

import gzip
import random
import zlib

import cramjam
import pytest

from barnabas.protocol.compression import (
    MAX_EXPANSION,
    Compression,
    compress,
    decompress,
    decompressed_pieces,
)
from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration

PACKED = [member for member in Compression if member is not Compression.NONE]
TEXT = b"the same words again and again; " * 20_000
NOISE = random.Random(7).randbytes(300_000)


# Zlib's, liblz4's and zstd's extremes, in the ranges of Kafka's settings.
LEVELS = [
    *[(compression, None) for compression in Compression],
    *[(Compression.GZIP, level) for level in (-1, 1, 9)],
    *[(Compression.LZ4, level) for level in (1, 2, 8, 9, 10, 17)],
    *[(Compression.ZSTD, level) for level in (-131_072, -1, 0, 3, 22)],
]


@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE], ids=["empty", "one byte", "text", "noise"])
@pytest.mark.parametrize(("compression", "level"), LEVELS)
def test_data_of_every_level_comes_back(compression: Compression, level: int | None, data: bytes) -> None:
    packed = compress(compression, memoryview(data), level)
    assert bytes(decompress(compression, memoryview(bytes(packed)), len(data) + 1)) == data


@pytest.mark.parametrize(
    ("compression", "weak", "strong"),
    [(Compression.GZIP, 1, 9), (Compression.LZ4, 9, 17), (Compression.ZSTD, -5, 19)],
)
def test_a_stronger_level_packs_more(compression: Compression, weak: int, strong: int) -> None:
    chosen = random.Random(1)
    data = b" ".join(
        chosen.choice((b"alpha", b"beta")) + b"%d" % chosen.randrange(999) for _ in range(20_000)
    )
    sizes = [len(compress(compression, data, level)) for level in (weak, None, strong)]
    assert sizes[2] < sizes[1] <= sizes[0]
    assert sizes[2] < 0.95 * sizes[0]


def test_lz4_of_every_level_has_the_blocks_that_javas_reader_takes() -> None:
    """Version 1 and independent blocks of 64 KiB; a checksum for each block is allowed."""
    for level in range(1, 18):
        packed = bytes(compress(Compression.LZ4, TEXT, level))
        assert bytes(cramjam.lz4.decompress(packed)) == TEXT
        head = packed[:6]
        assert head[:4] == bytes.fromhex("04224d18")
        assert head[4] & 0b1110_1111 == 0b0110_0000
        assert head[5] == 0b0100_0000


@pytest.mark.parametrize("compression", PACKED)
def test_exactly_the_limit_passes_and_one_byte_more_is_refused(compression: Compression) -> None:
    packed = bytes(compress(compression, TEXT))
    assert len(decompress(compression, packed, len(TEXT))) == len(TEXT)
    with pytest.raises(ApiError) as caught:
        decompress(compression, packed, len(TEXT) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("unit", [b"\0", bytes(range(7)), b"ab" * 40], ids=["zeros", "7 bytes", "80 bytes"])
@pytest.mark.parametrize("compression", list(Compression))
def test_nothing_decompresses_to_more_than_its_format_allows(compression: Compression, unit: bytes) -> None:
    data = unit * (4_000_000 // len(unit))
    packings = [bytes(compress(compression, data))]
    if compression is Compression.ZSTD:
        packings.append(bytes(cramjam.zstd.compress(data, level=19)))
    if compression is Compression.GZIP:
        packings.append(gzip.compress(data, compresslevel=9))
    if compression is Compression.LZ4:
        packings.append(bytes(cramjam.lz4.compress(data, level=9)))
    if compression is Compression.SNAPPY:
        packings.append(bytes(cramjam.snappy.compress_raw(data)))
    for packed in packings:
        assert len(data) <= len(packed) * MAX_EXPANSION[compression]


@pytest.mark.parametrize("compression", PACKED)
def test_nonsense_and_data_cut_short_are_refused(compression: Compression) -> None:
    for wrong in (bytes(compress(compression, TEXT))[:-9], b"\x00nonsense" * 10):
        with pytest.raises(ApiError, match=f"{len(wrong)} bytes of .* cannot be decompressed") as caught:
            decompress(compression, wrong, len(TEXT))
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [-1, 0, 6, 1 << 30])
def test_a_block_of_snappy_with_an_impossible_length_is_named(length: int) -> None:
    packed = bytes(compress(Compression.SNAPPY, b"abc"))
    wrong = packed[:16] + length.to_bytes(4, "big", signed=True) + packed[20:]
    with pytest.raises(ApiError, match=f"a snappy block of {length} bytes at 20 of 25"):
        decompress(Compression.SNAPPY, wrong)


def test_plain_snappy_without_the_java_framing_is_read_up_to_the_limit() -> None:
    packed = bytes(cramjam.snappy.compress_raw(TEXT))
    assert bytes(decompress(Compression.SNAPPY, packed, len(TEXT))) == TEXT
    with pytest.raises(ApiError, match=f"more than {len(TEXT) - 1} bytes"):
        decompress(Compression.SNAPPY, packed, len(TEXT) - 1)


@pytest.mark.parametrize("behind", [b"x", bytes(40), None], ids=["a byte", "zeros", "a stream"])
@pytest.mark.parametrize("compression", PACKED)
def test_a_stream_that_must_be_alone_has_nothing_behind_it(
    compression: Compression, behind: bytes | None
) -> None:
    packed = bytes(compress(compression, TEXT))
    alone = decompressed_pieces(compression, packed, len(TEXT), 1_000, is_alone=True)
    assert b"".join(alone) == TEXT
    followed = packed + (packed if behind is None else behind)
    with pytest.raises(ApiError) as caught:
        list(decompressed_pieces(compression, followed, 2 * len(TEXT), 1_000, is_alone=True))
    assert caught.value.code is (
        ErrorCode.CORRUPT_MESSAGE
        if compression is Compression.SNAPPY and behind == bytes(40)
        else ErrorCode.INVALID_RECORD
    )


@pytest.mark.parametrize("size", [0, 1, 200, 5_000, 300_000])
def test_a_gzip_member_of_any_size_may_follow_another(size: int) -> None:
    plain = random.Random(size).randbytes(size)
    members = gzip.compress(b"first ") + gzip.compress(plain) + gzip.compress(b"") + gzip.compress(b" last")
    assert decompress(Compression.GZIP, members) == b"first " + plain + b" last"
    with pytest.raises(ApiError, match="cut short"):
        decompress(Compression.GZIP, members[:-1])
    with pytest.raises(ApiError, match=f"more than {size + 10} bytes"):
        decompress(Compression.GZIP, members, size + 10)


def test_gzip_members_cost_by_their_bytes_not_by_the_square_of_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = 0

    class Counting:
        """A decompressor that counts the bytes after the member, which it has to copy."""

        def __init__(self, wbits: int) -> None:
            self._worker = real(wbits=wbits)

        def decompress(self, data: memoryview, limit: int) -> bytes:
            nonlocal copied
            part: bytes = self._worker.decompress(data, limit)
            copied += len(self._worker.unused_data)
            return part

        def __getattr__(self, name: str) -> object:
            return getattr(self._worker, name)

    real = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    members = gzip.compress(b"") * 2_000
    assert decompress(Compression.GZIP, members) == b""
    assert copied < 20 * len(members)


def test_snappy_is_framed_as_snappy_java_does() -> None:
    packed = bytes(compress(Compression.SNAPPY, b"abc"))
    assert packed.hex() == "82534e41505059000000000100000001" + "00000005" + "0308616263"


def test_names_are_parsed_and_unknown_ones_refused_by_name() -> None:
    assert Compression.parse(" lz4") is Compression.LZ4
    with pytest.raises(InvalidConfiguration, match=r"'brotli'.*none, gzip, snappy, lz4, zstd"):
        Compression.parse("brotli")
