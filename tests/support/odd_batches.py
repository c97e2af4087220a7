"""Batches as no correct producer makes them, with Apache Kafka's answer to each.

The codes are those of Apache Kafka 3.9.1, asked by Produce 7 on a topic with default settings; each batch
has a right CRC, and nothing but its records or its compression is wrong.
"""

import gzip
import struct
import zlib
from collections.abc import Iterable, Sequence

import cramjam
import lz4.frame
import xxhash
import zstandard

from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES, write_crc
from barnabas.protocol.varint import encode_varint

T0 = 1_700_000_000_000
VALUE = bytes(range(100))


def record(
    delta: int,
    *,
    key: bytes | None = None,
    value: bytes | None = VALUE,
    time: int = 0,
    attributes: int = 0,
    headers: Sequence[tuple[bytes | None, bytes | None]] = (),
    header_count: int | None = None,
    key_length: int | None = None,
    value_length: int | None = None,
    length: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """One record; the lengths and the count say what is asked for, whatever is true."""

    def sized(data: bytes | None, claim: int | None = None) -> bytes:
        true = -1 if data is None else len(data)
        return encode_varint(true if claim is None else claim) + (data or b"")

    body = bytes([attributes]) + encode_varint(time) + encode_varint(delta)
    body += sized(key, key_length) + sized(value, value_length)
    body += encode_varint(len(headers) if header_count is None else header_count)
    body += b"".join(sized(name) + sized(data) for name, data in headers) + tail
    return encode_varint(len(body) if length is None else length) + body


def batch(
    records: bytes | Iterable[bytes],
    count: int,
    *,
    compression: Compression = Compression.NONE,
    attributes: int = 0,
    packed: bytes | None = None,
    max_timestamp: int = T0,
    base_timestamp: int = T0,
    last_delta: int | None = None,
) -> bytes:
    """A batch with a right CRC; ``packed``: its bytes of records as they are sent."""
    plain = records if isinstance(records, bytes) else b"".join(records)
    data = bytes(compress(compression, plain)) if packed is None else packed
    head = HEADER.pack(
        0,
        HEADER_BYTES - LOG_OVERHEAD_BYTES + len(data),
        -1,
        2,
        0,
        attributes | compression,
        count - 1 if last_delta is None else last_delta,
        base_timestamp,
        max_timestamp,
        -1,
        -1,
        -1,
        count,
    )
    whole = bytearray(head + data)
    write_crc(whole)
    return bytes(whole)


THREE = [record(delta) for delta in range(3)]
PLAIN = b"".join(THREE)
MANY = [record(delta) for delta in range(3_000)]
GZIP, SNAPPY, LZ4, ZSTD = Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD


def packed(compression: Compression, data: bytes, count: int = 3) -> bytes:
    return batch(PLAIN, count, compression=compression, packed=data)


def lz4_frame(
    plain: bytes,
    *,
    linked: bool = False,
    block_checksum: bool = False,
    content_checksum: bool = False,
    content_size: bool = False,
    block_size: int = 4,
    version: int = 1,
    reserved: int = 0,
    header_checksum: int | None = None,
    wrong_block_checksum: bool = False,
    wrong_content_checksum: bool = False,
    wrong_content_size: bool = False,
    end: bytes = b"\0\0\0\0",
    stored: bool = False,
    pieces: int = 1,
    block_header: int | None = None,
) -> bytes:
    flags = version << 6 | (not linked) << 5 | block_checksum << 4 | content_size << 3
    flags |= content_checksum << 2 | reserved
    descriptor = bytes([flags, block_size << 4])
    if content_size:
        descriptor += struct.pack("<Q", len(plain) + wrong_content_size)
    check = xxhash.xxh32(descriptor).intdigest() >> 8 & 0xFF
    frame = b"\x04\x22\x4d\x18" + descriptor + bytes([check if header_checksum is None else header_checksum])
    step = -(-len(plain) // pieces)
    for at in range(0, len(plain), step):
        part = plain[at : at + step]
        block = part if stored else bytes(cramjam.lz4.compress_block(part, store_size=False))
        size = len(block) | (0x80000000 if stored else 0)
        frame += struct.pack("<I", size if block_header is None else block_header) + block
        if block_checksum:
            frame += struct.pack("<I", xxhash.xxh32(block).intdigest() ^ wrong_block_checksum)
    frame += end
    if content_checksum:
        frame += struct.pack("<I", xxhash.xxh32(plain).intdigest() ^ wrong_content_checksum)
    return frame


def xerial(*blocks: bytes, version: int = 1, compatible: int = 1) -> bytes:
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", version, compatible)
    return head + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def raw_snappy(plain: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(plain))


G = gzip.compress(PLAIN, mtime=0)
Z = zstandard.ZstdCompressor().compress(PLAIN)
ZC = zstandard.ZstdCompressor(write_checksum=True).compress(PLAIN)
S = raw_snappy(PLAIN)
HALF = len(PLAIN) // 2


def _padded(data: bytes, size: int) -> bytes:
    """A record whose length takes so many bytes."""
    length = (data[0] & 127 | data[1] << 7) if data[0] > 127 else data[0]
    rest = data[2:] if data[0] > 127 else data[1:]
    number = [length >> 7 * place & 127 | 128 for place in range(size)]
    number[-1] &= 127
    return bytes(number) + rest


CASES: dict[str, bytes] = {
    # Numbers of records
    "three records": batch(THREE, 3),
    "count one too high": batch(THREE, 4),
    "count one too low": batch(THREE, 2),
    "count far too high": batch(THREE, 40),
    "count of all that an int can say": batch(THREE, (1 << 31) - 1),
    "count of all that an int can say in zstd": batch(THREE, (1 << 31) - 1, compression=ZSTD),
    "count too low for gzip": batch(THREE, 2, compression=GZIP),
    "count too high for gzip": batch(THREE, 4, compression=GZIP),
    "count too high for snappy": batch(THREE, 4, compression=SNAPPY),
    "count too high for lz4": batch(THREE, 4, compression=LZ4),
    "count too high for zstd": batch(THREE, 4, compression=ZSTD),
    "count too low for zstd": batch(THREE, 2, compression=ZSTD),
    # Bytes behind the last record
    "three stray bytes": batch(PLAIN + b"\1\2\3", 3),
    "a zero byte behind": batch(PLAIN + b"\0", 3),
    "a whole record behind": batch([*THREE, record(3)], 3),
    "stray bytes in zstd": batch(PLAIN + b"\1\2\3", 3, compression=ZSTD),
    "stray bytes in lz4": batch(PLAIN + b"\1\2\3", 3, compression=LZ4),
    # Lengths
    "0xff instead of records": batch(b"\xff" * 200, 3),
    "zeros instead of records": batch(bytes(200), 3),
    "a cut last record": batch(PLAIN[:-5], 3),
    "a cut last record in gzip": batch(PLAIN[:-5], 3, compression=GZIP),
    "a cut last record in zstd": batch(PLAIN[:-5], 3, compression=ZSTD),
    "a key longer than its record": batch([record(0, key=b"k", key_length=500), *THREE[1:]], 3),
    "a value longer than its record": batch([record(0, value_length=103), *THREE[1:]], 3),
    "a value shorter than its record": batch([record(0, value_length=90), *THREE[1:]], 3),
    "a value longer than its record in lz4": batch(
        [record(0, value_length=103), *THREE[1:]], 3, compression=LZ4
    ),
    "a key length of -2": batch([record(0, key=b"", key_length=-2), *THREE[1:]], 3),
    "a value length of -2": batch([record(0, value=b"", value_length=-2), *THREE[1:]], 3),
    "a value length of -2 in gzip": batch(
        [record(0, value=b"", value_length=-2), *THREE[1:]], 3, compression=GZIP
    ),
    "a record length of 0": batch([b"\0", *THREE[1:]], 3),
    "a record length of -1": batch([record(0, length=-1), *THREE[1:]], 3),
    "a record one byte longer": batch([record(0, tail=b"x"), *THREE[1:]], 3),
    "a record one byte longer in gzip": batch([record(0, tail=b"x"), *THREE[1:]], 3, compression=GZIP),
    "a length of six bytes": batch([b"\xff\xff\xff\xff\xff\x01" + PLAIN], 3),
    "a length in five bytes, padded": batch([_padded(THREE[0], 5), *THREE[1:]], 3),
    "a length in six bytes, padded": batch([_padded(THREE[0], 6), *THREE[1:]], 3),
    # Headers
    "two headers": batch([record(0, headers=[(b"a", b"1"), (b"b", None)]), *THREE[1:]], 3),
    "a header count of -1": batch([record(0, header_count=-1), *THREE[1:]], 3),
    "a header too many": batch([record(0, header_count=1), *THREE[1:]], 3),
    "a header without a name": batch([record(0, headers=[(None, b"1")]), *THREE[1:]], 3),
    "a header without a name in zstd": batch(
        [record(0, headers=[(None, b"1")]), *THREE[1:]], 3, compression=ZSTD
    ),
    "a header with an empty name": batch([record(0, headers=[(b"", b"1")]), *THREE[1:]], 3),
    "a header's name that is not UTF-8": batch([record(0, headers=[(b"\xff\xfe", b"1")]), *THREE[1:]], 3),
    "bytes behind the headers": batch([record(0, headers=[(b"a", b"1")], tail=b"xy"), *THREE[1:]], 3),
    "a header's value too long": batch([record(0, header_count=1, tail=b"\x02a\x40b"), *THREE[1:]], 3),
    "a header count of a million": batch([record(0, header_count=1_000_000), *THREE[1:]], 3),
    # Offsets
    "offset deltas of 0": batch([record(0)] * 3, 3),
    "offset deltas of 0 in gzip": batch([record(0)] * 3, 3, compression=GZIP),
    "offset deltas that fall": batch(THREE[::-1], 3),
    "offset deltas that fall in zstd": batch(THREE[::-1], 3, compression=ZSTD),
    "an offset delta of 5": batch([THREE[0], THREE[1], record(5)], 3),
    "a negative offset delta": batch([record(-1), *THREE[1:]], 3),
    "deltas with a gap": batch([record(0), record(2), record(4)], 3, last_delta=4),
    # Attributes
    "record attributes of 1": batch([record(0, attributes=1), *THREE[1:]], 3),
    "record attributes of 1 in gzip": batch([record(0, attributes=1), *THREE[1:]], 3, compression=GZIP),
    "record attributes of 0x80": batch([record(0, attributes=0x80), *THREE[1:]], 3),
    "batch attributes of 0x80": batch(PLAIN, 3, attributes=0x80),
    "batch attributes of 0x4000 in zstd": batch(PLAIN, 3, attributes=0x4000, compression=ZSTD),
    "a batch cut in a record": batch(PLAIN, 3)[:-30],
    "a batch cut in its header": batch(PLAIN, 3)[:40],
    "a batch longer than the request": batch(PLAIN, 3)[:8] + b"\x00\x01" + batch(PLAIN, 3)[10:],
    "compression 5": batch(PLAIN, 3, attributes=5),
    # Times
    "a time delta beyond 32 bits": batch([record(0, time=1 << 33), *THREE[1:]], 3),
    "a time beyond 64 bits": batch([record(0, time=(1 << 63) - 1), *THREE[1:]], 3),
    "a time below zero": batch([record(0, time=-T0 - 500), *THREE[1:]], 3),
    # gzip
    "gzip": packed(GZIP, G),
    "gzip garbage": packed(GZIP, b"\xaa" * 100),
    "gzip cut": packed(GZIP, G[:-20]),
    "gzip cut by its trailer": packed(GZIP, G[:-8]),
    "gzip cut by one byte": packed(GZIP, G[:-1]),
    "gzip with a wrong CRC": packed(GZIP, G[:-8] + b"\1\2\3\4" + G[-4:]),
    "gzip with a wrong size": packed(GZIP, G[:-4] + b"\1\2\3\4"),
    "gzip of two members": packed(
        GZIP, gzip.compress(PLAIN[:HALF], mtime=0) + gzip.compress(PLAIN[HALF:], mtime=0)
    ),
    "gzip and garbage": packed(GZIP, G + b"garbage that is long enough to be seen!"),
    "gzip and one byte": packed(GZIP, G + b"x"),
    "gzip and zeros": packed(GZIP, G + bytes(40)),
    "gzip and an empty member": packed(GZIP, G + gzip.compress(b"", mtime=0)),
    "zlib for gzip": packed(GZIP, zlib.compress(PLAIN)),
    "no bytes of gzip": packed(GZIP, b""),
    # snappy
    "snappy, xerial": packed(SNAPPY, xerial(S)),
    "snappy, raw": packed(SNAPPY, S),
    "snappy, two blocks": packed(SNAPPY, xerial(raw_snappy(PLAIN[:HALF]), raw_snappy(PLAIN[HALF:]))),
    "snappy garbage": packed(SNAPPY, b"\xaa" * 100),
    "snappy garbage in a block": packed(SNAPPY, xerial(b"\xaa" * 100)),
    "snappy, a cut block": packed(SNAPPY, xerial(S)[:-10]),
    "snappy, a cut raw block": packed(SNAPPY, S[:-10]),
    "snappy, a cut head": packed(SNAPPY, xerial(S)[:10]),
    "snappy, one byte behind": packed(SNAPPY, xerial(S) + b"x"),
    "snappy, a length of 0": packed(SNAPPY, xerial(S) + b"\0\0\0\0"),
    "snappy, a block of no bytes": packed(SNAPPY, xerial(S, raw_snappy(b""))),
    "snappy, an incompatible version": packed(SNAPPY, xerial(S, version=0)),
    "snappy, version 2 compatible with 1": packed(SNAPPY, xerial(S, version=2)),
    "snappy, compatible with 0": packed(SNAPPY, xerial(S, compatible=0)),
    "snappy, two streams": packed(
        SNAPPY, xerial(raw_snappy(PLAIN[:HALF])) + xerial(raw_snappy(PLAIN[HALF:]))
    ),
    "no bytes of snappy": packed(SNAPPY, b""),
    "the head of snappy alone": packed(SNAPPY, xerial()),
    # lz4
    "lz4": packed(LZ4, lz4_frame(PLAIN)),
    "lz4 of python-lz4, many blocks": batch(
        MANY, 3_000, compression=LZ4, packed=lz4.frame.compress(b"".join(MANY), block_size=4)
    ),
    "lz4 of python-lz4, independent": packed(LZ4, lz4.frame.compress(PLAIN, block_linked=False)),
    "lz4 with linked blocks": packed(LZ4, lz4_frame(PLAIN, linked=True)),
    "lz4 with a wrong header checksum": packed(LZ4, lz4_frame(PLAIN, header_checksum=1)),
    "lz4 with block checksums": packed(LZ4, lz4_frame(PLAIN, block_checksum=True)),
    "lz4 with a wrong block checksum": packed(
        LZ4, lz4_frame(PLAIN, block_checksum=True, wrong_block_checksum=True)
    ),
    "lz4 with a content checksum": packed(LZ4, lz4_frame(PLAIN, content_checksum=True)),
    "lz4 with a wrong content checksum": packed(
        LZ4, lz4_frame(PLAIN, content_checksum=True, wrong_content_checksum=True)
    ),
    "lz4 without its content checksum": packed(LZ4, lz4_frame(PLAIN, content_checksum=True)[:-4]),
    "lz4 with its content's size": packed(LZ4, lz4_frame(PLAIN, content_size=True)),
    "lz4 with a wrong size of its content": packed(
        LZ4, lz4_frame(PLAIN, content_size=True, wrong_content_size=True)
    ),
    "lz4 of version 2": packed(LZ4, lz4_frame(PLAIN, version=2)),
    "lz4 with a dictionary bit": packed(LZ4, lz4_frame(PLAIN, reserved=1)),
    "lz4 with a reserved bit": packed(LZ4, lz4_frame(PLAIN, reserved=2)),
    "lz4 with block size 3": packed(LZ4, lz4_frame(PLAIN, block_size=3)),
    "lz4 with block size 7": packed(LZ4, lz4_frame(PLAIN, block_size=7)),
    "lz4 with block size 8": packed(LZ4, lz4_frame(PLAIN, block_size=8)),
    "lz4, a stored block": packed(LZ4, lz4_frame(PLAIN, stored=True)),
    "lz4, three blocks": packed(LZ4, lz4_frame(PLAIN, pieces=3)),
    "lz4 garbage": packed(LZ4, b"\xaa" * 100),
    "lz4 garbage in a block": packed(LZ4, lz4_frame(PLAIN)[:11] + b"\xaa" * 100),
    "lz4 with another magic number": packed(LZ4, b"\x05" + lz4_frame(PLAIN)[1:]),
    "lz4, cut in a block": packed(LZ4, lz4_frame(PLAIN)[:-20]),
    "lz4 without an end mark": packed(LZ4, lz4_frame(PLAIN, end=b"")),
    "lz4 with half an end mark": packed(LZ4, lz4_frame(PLAIN, end=b"\0\0")),
    "lz4 and garbage": packed(LZ4, lz4_frame(PLAIN) + b"garbage"),
    "lz4, two frames": packed(LZ4, lz4_frame(PLAIN[:HALF]) + lz4_frame(PLAIN[HALF:])),
    "lz4, a block above its frame's size": packed(LZ4, lz4_frame(PLAIN, block_header=70_000)),
    "lz4, a block that decompresses to too much": batch(
        [record(0, value=bytes(100_000))],
        1,
        compression=LZ4,
        packed=lz4_frame(record(0, value=bytes(100_000))),
    ),
    "lz4, a skippable frame": packed(LZ4, b"\x50\x2a\x4d\x18\x02\0\0\0ab" + lz4_frame(PLAIN)),
    "lz4, a head of four bytes": packed(LZ4, lz4_frame(PLAIN)[:4]),
    "no bytes of lz4": packed(LZ4, b""),
    # zstd
    "zstd": packed(ZSTD, Z),
    "zstd with a checksum": packed(ZSTD, ZC),
    "zstd with a wrong checksum": packed(ZSTD, ZC[:-1] + bytes([ZC[-1] ^ 1])),
    "zstd garbage": packed(ZSTD, b"\xaa" * 100),
    "zstd cut": packed(ZSTD, Z[:-10]),
    "zstd cut by one byte": packed(ZSTD, Z[:-1]),
    "zstd without its checksum": packed(ZSTD, ZC[:-4]),
    "zstd, two frames": packed(
        ZSTD, b"".join(zstandard.ZstdCompressor().compress(part) for part in (PLAIN[:HALF], PLAIN[HALF:]))
    ),
    "zstd and garbage": packed(ZSTD, Z + b"garbage"),
    "zstd and one byte": packed(ZSTD, Z + b"x"),
    "zstd, a skippable frame": packed(ZSTD, b"\x50\x2a\x4d\x18\x02\0\0\0ab" + Z),
    "zstd, a skippable frame behind": packed(ZSTD, Z + b"\x50\x2a\x4d\x18\x02\0\0\0ab"),
    "zstd and an empty frame": packed(ZSTD, Z + zstandard.ZstdCompressor().compress(b"")),
    "zstd without a content size": packed(
        ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(PLAIN)
    ),
    "no bytes of zstd": packed(ZSTD, b""),
    # Others' bytes
    "gzip named zstd": packed(ZSTD, G),
    "zstd named lz4": packed(LZ4, Z),
    "plain records named gzip": packed(GZIP, PLAIN),
    "plain records named snappy": packed(SNAPPY, PLAIN),
    "gzip named plain": packed(Compression.NONE, G),
    # The header's largest timestamp
    "a largest timestamp too low": batch([record(0, time=10), record(1, time=70)], 2, max_timestamp=T0),
    "a largest timestamp too high": batch(THREE, 3, max_timestamp=T0 + 600_000),
    "no largest timestamp": batch(THREE, 3, max_timestamp=-1),
}

_INVALID = frozenset(
    {
        "count one too high",
        "count one too low",
        "count far too high",
        "count of all that an int can say",
        "count of all that an int can say in zstd",
        "count too low for gzip",
        "count too high for gzip",
        "count too high for snappy",
        "count too high for lz4",
        "count too high for zstd",
        "count too low for zstd",
        "three stray bytes",
        "a zero byte behind",
        "a batch cut in a record",
        "a batch cut in its header",
        "a batch longer than the request",
        "a whole record behind",
        "stray bytes in zstd",
        "stray bytes in lz4",
        "zeros instead of records",
        "a cut last record",
        "a cut last record in gzip",
        "a cut last record in zstd",
        "a key longer than its record",
        "a value longer than its record",
        "a value shorter than its record",
        "a value longer than its record in lz4",
        "a record length of 0",
        "a record length of -1",
        "a record one byte longer",
        "a record one byte longer in gzip",
        "a header count of -1",
        "a header too many",
        "a header without a name",
        "a header without a name in zstd",
        "bytes behind the headers",
        "a header's value too long",
        "a header count of a million",
        "deltas with a gap",
        "the head of snappy alone",
        "lz4, two frames",
        "no bytes of zstd",
        "gzip named plain",
    }
)
_UNDECODABLE = frozenset(
    {
        "0xff instead of records",
        "a length of six bytes",
        "a length in six bytes, padded",
        "compression 5",
        "offset deltas of 0 in gzip",
        "offset deltas that fall in zstd",
        "gzip garbage",
        "gzip cut",
        "gzip cut by its trailer",
        "gzip cut by one byte",
        "gzip with a wrong CRC",
        "gzip with a wrong size",
        "zlib for gzip",
        "no bytes of gzip",
        "snappy garbage",
        "snappy garbage in a block",
        "snappy, a cut block",
        "snappy, a cut raw block",
        "snappy, a cut head",
        "snappy, a length of 0",
        "no bytes of snappy",
        "lz4 of python-lz4, many blocks",
        "lz4 with linked blocks",
        "lz4 with a wrong header checksum",
        "lz4 with a wrong block checksum",
        "lz4 without its content checksum",
        "lz4 of version 2",
        "lz4 with a dictionary bit",
        "lz4 with a reserved bit",
        "lz4 with block size 3",
        "lz4 with block size 8",
        "lz4 garbage",
        "lz4 garbage in a block",
        "lz4 with another magic number",
        "lz4, cut in a block",
        "lz4 without an end mark",
        "lz4 with half an end mark",
        "lz4, a block above its frame's size",
        "lz4, a block that decompresses to too much",
        "lz4, a skippable frame",
        "lz4, a head of four bytes",
        "no bytes of lz4",
        "zstd with a wrong checksum",
        "zstd garbage",
        "zstd cut",
        "zstd cut by one byte",
        "zstd without its checksum",
        "zstd and garbage",
        "zstd and one byte",
        "gzip named zstd",
        "zstd named lz4",
        "plain records named gzip",
        "plain records named snappy",
    }
)
_OTHERWISE: dict[str, ErrorCode] = {
    # Kafka assigns the offsets of an uncompressed batch without looking at its deltas, so readers see others.
    "offset deltas of 0": ErrorCode.INVALID_RECORD,
    "offset deltas that fall": ErrorCode.INVALID_RECORD,
    "an offset delta of 5": ErrorCode.INVALID_RECORD,
    "a negative offset delta": ErrorCode.INVALID_RECORD,
    # Java takes any negative length for null, others take it for damage.
    "a key length of -2": ErrorCode.INVALID_RECORD,
    "a value length of -2": ErrorCode.INVALID_RECORD,
    "a value length of -2 in gzip": ErrorCode.INVALID_RECORD,
    "a time beyond 64 bits": ErrorCode.INVALID_RECORD,
    # Java reads the bytes behind the first stream; other readers ignore them or fail at them.
    "gzip of two members": ErrorCode.INVALID_RECORD,
    "gzip and garbage": ErrorCode.INVALID_RECORD,
    "gzip and one byte": ErrorCode.INVALID_RECORD,
    "gzip and zeros": ErrorCode.INVALID_RECORD,
    "gzip and an empty member": ErrorCode.INVALID_RECORD,
    "snappy, one byte behind": ErrorCode.INVALID_RECORD,
    "snappy, two streams": ErrorCode.INVALID_RECORD,
    "lz4 and garbage": ErrorCode.INVALID_RECORD,
    "zstd, two frames": ErrorCode.INVALID_RECORD,
    "zstd, a skippable frame": ErrorCode.INVALID_RECORD,
    "zstd, a skippable frame behind": ErrorCode.INVALID_RECORD,
    "zstd and an empty frame": ErrorCode.INVALID_RECORD,
    # Kafka's code for these is that of bytes that cannot be decoded.
    "zstd and garbage": ErrorCode.INVALID_RECORD,
    "zstd and one byte": ErrorCode.INVALID_RECORD,
    # Kafka fails at these while it builds a batch of its own.
    "offset deltas of 0 in gzip": ErrorCode.INVALID_RECORD,
    "offset deltas that fall in zstd": ErrorCode.INVALID_RECORD,
    # Java does not look at these, liblz4 refuses them in every other reader.
    "lz4 with a wrong content checksum": ErrorCode.UNKNOWN_SERVER_ERROR,
    "lz4 with a wrong size of its content": ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Batches that Apache Kafka takes, and Barnabas refuses because not every reader can read them; and four
that Kafka refuses with another code."""


def kafka_code(name: str) -> ErrorCode:
    """Apache Kafka's answer to a case."""
    if name in _INVALID:
        return ErrorCode.INVALID_RECORD
    return ErrorCode.UNKNOWN_SERVER_ERROR if name in _UNDECODABLE else ErrorCode.NONE


def expected_code(name: str) -> ErrorCode:
    """Barnabas' answer to a case."""
    return _OTHERWISE.get(name, kafka_code(name))
