"""Compression of the records of a batch: none, gzip, snappy, lz4 and zstd, in the formats of Kafka's clients.

Snappy has the framing of snappy-java (a 16-byte head, then blocks, each with its length); plain snappy is
read too, because some clients send it. LZ4 is the frame format with independent 64 KiB blocks, because Java's
reader rejects linked ones. Readers of a log read on behind the first stream as Java does: more gzip members
and zstd frames, but nothing after an LZ4 frame. No producer sends such batches, other readers fail at them: a
broker refuses them (`is_alone`). Decompression never produces more than its limit, in pieces if the
caller wants no more in memory. Pure functions, any thread; the libraries release the interpreter lock.

Sources: https://kafka.apache.org/documentation/#recordbatch (attributes), the LZ4 frame format description
(github.com/lz4/lz4, doc/lz4_Frame_format.md), github.com/xerial/snappy-java (SnappyOutputStream).
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, Final, Protocol

import cramjam
import lz4.frame

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from barnabas.protocol.errors import ErrorCode, InvalidConfiguration, api_error

Buffer = bytes | bytearray | memoryview

DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 128 * 1024 * 1024
"""The default limit for a decompressed batch; far above any sane `batch.size`."""


class Compression(IntEnum):
    """The compression of a batch: the lowest three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def parse(cls, name: str) -> Compression:
        """Read a `compression.type`; raises InvalidConfiguration naming the value."""
        compression = cls.__members__.get(name.strip().upper())
        if compression is None:
            names = ", ".join(member.name.lower() for member in cls)
            raise InvalidConfiguration(f"compression type {name!r} is unknown; expected one of {names}")
        return compression


MAX_EXPANSION: Final = (1, 1_032, 22, 255, 32_768)
"""The largest size that one byte can decompress to, by compression: the longest copy per byte of its code.

Deflate: 258 in two bits; snappy: 64 in three bytes; LZ4: 255 in one; zstd: 128 KiB in four."""

DEFAULT_LEVELS: Final = {Compression.GZIP: -1, Compression.LZ4: 9, Compression.ZSTD: 3}
"""Kafka's. As in its clients, 9 means the fast compressor of lz4, and any other level the strong one."""

_SNAPPY_HEAD: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_SNAPPY_MAGIC_BYTES: Final = 8
_BLOCK_BYTES: Final = 64 * 1024
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_FLAGS: Final = len(_LZ4_MAGIC)
_LZ4_INDEPENDENT: Final = 0b0010_0000
_LZ4_DICTIONARY: Final = 0b0000_0001
_GZIP_WBITS: Final = 31
_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_SLICE_BYTES: Final = 32 * 1024
_LEAST_SLICE_BYTES: Final = 256
_PIECE_BYTES: Final = 1024 * 1024
_INT_BE: Final = struct.Struct(">i")


def compress(compression: Compression, data: Buffer, level: int | None = None) -> Buffer:
    """The data in the format that readers of Kafka batches expect; NONE returns the data itself.

    The levels of gzip, lz4 and zstd are Kafka's; None is its default.
    """
    if compression is Compression.NONE:
        return data
    if level is None:
        level = DEFAULT_LEVELS.get(compression, 0)
    if compression is Compression.GZIP:
        worker = zlib.compressobj(level, wbits=_GZIP_WBITS)
        return worker.compress(data) + worker.flush()
    if compression is Compression.SNAPPY:
        return _compress_snappy(memoryview(data))
    if compression is Compression.LZ4:
        return _compress_lz4(data, level)
    packed: bytes = zstd.compress(data, level)
    return packed


def decompress(
    compression: Compression, data: Buffer, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> Buffer:
    """Undo `compress`. Raises as `decompressed_pieces`."""
    if compression is Compression.NONE:
        return data
    pieces = list(decompressed_pieces(compression, data, max_bytes, _PIECE_BYTES))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompressed_pieces(
    compression: Compression, data: Buffer, max_bytes: int, piece_bytes: int, *, is_alone: bool = False
) -> Iterator[bytes]:
    """The decompressed data, piece by piece, none of them empty.

    No piece is larger than `piece_bytes`, except for snappy, which decompresses only whole blocks: a piece is
    then at most 22 times as large as the data. Raises CORRUPT_MESSAGE if the data is malformed,
    MESSAGE_TOO_LARGE once it exceeds `max_bytes`, and with `is_alone` INVALID_RECORD if anything follows its
    first gzip member, snappy stream, LZ4 frame or zstd frame.
    """
    view = memoryview(data)
    pieces: Iterator[bytes]
    if compression is Compression.NONE:
        pieces = (bytes(view[at : at + piece_bytes]) for at in range(0, len(view), piece_bytes))
    elif compression is Compression.GZIP:
        pieces = _frames(_Gunzip, view, piece_bytes, _refuse if is_alone else _is_gzip)
    elif compression is Compression.SNAPPY:
        pieces = _unsnappy(view, max_bytes, is_alone=is_alone)
    elif compression is Compression.LZ4:
        ignore = _refuse if is_alone else lambda _: False
        pieces = _frames(lz4.frame.LZ4FrameDecompressor, view, piece_bytes, ignore)
    elif view:
        pieces = _frames(zstd.ZstdDecompressor, view, piece_bytes, _refuse if is_alone else lambda _: True)
    else:
        pieces = iter(())
    left = max_bytes
    try:
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise _too_large(max_bytes)
            if piece:
                yield piece
    except (cramjam.DecompressionError, zlib.error, struct.error, zstd.ZstdError, RuntimeError) as error:
        # RuntimeError is the one exception of the lz4 library.
        name = compression.name.lower()
        raise api_error(
            ErrorCode.CORRUPT_MESSAGE, f"{len(data)} bytes of {name} cannot be decompressed: {error}"
        ) from error


def framing_fault(compression: Compression, data: Buffer) -> str | None:
    """Why Java's reader rejects data that `decompress` accepts, or None.

    It knows neither linked LZ4 blocks nor dictionaries, and the frame must begin at the first byte.
    """
    if compression is not Compression.LZ4 or len(data) <= _LZ4_FLAGS:
        return None
    if data[:_LZ4_FLAGS] != _LZ4_MAGIC:
        return f"an LZ4 frame begins with the bytes {bytes(data[:_LZ4_FLAGS]).hex()}"
    if not data[_LZ4_FLAGS] & _LZ4_INDEPENDENT:
        return "the blocks of an LZ4 frame are linked; Kafka's readers need independent ones"
    if data[_LZ4_FLAGS] & _LZ4_DICTIONARY:
        return "an LZ4 frame needs a dictionary"
    return None


def snappy_blocks(data: memoryview, most: int) -> int:
    """The number of blocks, counted up to `most`; also an empty block takes time to decompress."""
    if data[:_SNAPPY_MAGIC_BYTES] != _SNAPPY_HEAD[:_SNAPPY_MAGIC_BYTES]:
        return 1
    blocks, position = 0, len(_SNAPPY_HEAD)
    while blocks < most and len(data) - position >= _INT_BE.size:
        # A negative length, as a second head is, ends the reading too.
        position += _INT_BE.size + max(0, *_INT_BE.unpack_from(data, position))
        blocks += 1
    return blocks


def _too_large(max_bytes: int) -> Exception:
    return api_error(
        ErrorCode.MESSAGE_TOO_LARGE, f"the batch would decompress to more than {max_bytes} bytes"
    )


def _refuse(rest: memoryview) -> bool:
    """Refuse what follows a stream that must be alone."""
    raise api_error(
        ErrorCode.INVALID_RECORD, f"{len(rest)} bytes follow the first stream of compressed records"
    )


def _compress_snappy(data: memoryview) -> bytes:
    parts: list[bytes] = [_SNAPPY_HEAD]
    for start in range(0, len(data), _BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _BLOCK_BYTES]))
        parts += (_INT_BE.pack(len(block)), block)
    return b"".join(parts)


def _unsnappy(data: memoryview, max_bytes: int, *, is_alone: bool) -> Iterator[bytes]:
    """The blocks, as snappy-java reads them: a second head may follow, and less than a length is ignored."""
    if len(data) < len(_SNAPPY_HEAD) or data[:_SNAPPY_MAGIC_BYTES] != _SNAPPY_HEAD[:_SNAPPY_MAGIC_BYTES]:
        yield _unsnappy_block(data, max_bytes)
        return
    position = 0
    while len(data) - position >= _INT_BE.size:
        if data[position : position + _SNAPPY_MAGIC_BYTES] == _SNAPPY_HEAD[:_SNAPPY_MAGIC_BYTES]:
            if position and is_alone:
                _refuse(data[position:])
            position += len(_SNAPPY_HEAD)
            continue
        (length,) = _INT_BE.unpack_from(data, position)
        position += _INT_BE.size
        if not 0 < length <= len(data) - position:
            raise zlib.error(f"a snappy block of {length} bytes at {position} of {len(data)}")
        yield _unsnappy_block(data[position : position + length], max_bytes)
        position += length
    if position < len(data) and is_alone:
        _refuse(data[position:])


def _unsnappy_block(block: memoryview, max_bytes: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > len(block) * MAX_EXPANSION[Compression.SNAPPY]:
        # The library would allocate what the block claims.
        raise zlib.error(f"a snappy block of {len(block)} bytes claims {size}")
    if size > max_bytes:
        raise _too_large(max_bytes)
    return bytes(cramjam.snappy.decompress_raw(block))


def _compress_lz4(data: Buffer, level: int) -> bytes:
    packed: bytes = lz4.frame.compress(
        data,
        compression_level=0 if level == DEFAULT_LEVELS[Compression.LZ4] else level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return packed


def _is_gzip(data: memoryview) -> bool:
    return bytes(data[: len(_GZIP_MAGIC)]) == _GZIP_MAGIC


class _Worker(Protocol):
    """The decompressor of one frame, as the standard library's have it."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: Any, max_length: int, /) -> bytes: ...


class _Gunzip:
    """The decompressor of one gzip member."""

    def __init__(self) -> None:
        self._worker = zlib.decompressobj(wbits=_GZIP_WBITS)

    @property
    def eof(self) -> bool:
        return self._worker.eof

    @property
    def needs_input(self) -> bool:
        return not self._worker.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._worker.unused_data

    def decompress(self, data: memoryview | bytes, max_length: int) -> bytes:
        return self._worker.decompress(data or self._worker.unconsumed_tail, max_length)


def _frames(
    make_worker: Callable[[], _Worker],
    view: memoryview,
    piece_bytes: int,
    is_frame: Callable[[memoryview], bool],
) -> Iterator[bytes]:
    """The content of the first frame, and of those after it as far as `is_frame` says there is one."""
    position = 0
    # The libraries copy the bytes after a frame, and the input for which a piece has no room. So they get
    # the input in slices, and small ones after a frame: many small frames must not cost their square.
    slice_bytes = _SLICE_BYTES
    while not position or (position < len(view) and is_frame(view[position:])):
        worker = make_worker()
        while not worker.eof:
            part = view[position : position + slice_bytes]
            if not part:
                raise zlib.error("it is cut short")
            piece = worker.decompress(part, piece_bytes)
            yield piece
            while not worker.eof and (not worker.needs_input or len(piece) == piece_bytes):
                piece = worker.decompress(b"", piece_bytes)
                yield piece
            position += len(part) - len(worker.unused_data or b"")
            slice_bytes = min(_SLICE_BYTES, 2 * slice_bytes)
        slice_bytes = _LEAST_SLICE_BYTES
