"""Compression of the records of a batch: none, gzip, snappy, lz4 and zstd, in the formats of Kafka's clients.

Snappy has the framing of snappy-java (a 16-byte head, then blocks, each with its length); plain snappy is
read too, because some clients send it. LZ4 is the frame format with independent 64 KiB blocks, because Java's
reader rejects dependent ones. Decompression never produces more than its limit, so that a few hostile bytes
cannot fill the memory. Pure functions, any thread; the libraries release the interpreter lock.

Sources: https://kafka.apache.org/documentation/#recordbatch (attributes), the LZ4 frame format description
(github.com/lz4/lz4, doc/lz4_Frame_format.md), github.com/xerial/snappy-java (SnappyOutputStream).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam

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
# Version 1, independent blocks, 64 KiB blocks; 0x82 is the second byte of xxHash32 over the two before it.
_LZ4_HEAD: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_STORED: Final = 0x80000000
_GZIP_WBITS: Final = 31
_GZIP_PIECE_BYTES: Final = 256
_FIRST_GUESS_BYTES: Final = 64 * 1024
_GROWTH: Final = 4
_INT_BE: Final = struct.Struct(">i")
_UINT_LE: Final = struct.Struct("<I")


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
        return _compress_lz4(memoryview(data), level)
    return memoryview(cramjam.zstd.compress(data, level=level))


def decompress(
    compression: Compression, data: Buffer, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> Buffer:
    """Undo `compress`.

    Raises CORRUPT_MESSAGE if the data is malformed or would decompress to more than `max_bytes`.
    """
    if compression is Compression.NONE:
        return data
    try:
        if compression is Compression.GZIP:
            return _decompress_gzip(data, max_bytes)
        if compression is Compression.SNAPPY:
            return _decompress_snappy(memoryview(data), max_bytes)
        if compression is Compression.LZ4:
            return _decompress_growing(cramjam.lz4.decompress_into, data, max_bytes)
        return _decompress_growing(cramjam.zstd.decompress_into, data, max_bytes)
    except (cramjam.DecompressionError, zlib.error, struct.error, OSError) as error:
        name = compression.name.lower()
        raise api_error(
            ErrorCode.CORRUPT_MESSAGE, f"{len(data)} bytes of {name} cannot be decompressed: {error}"
        ) from error


def _too_large(max_bytes: int) -> Exception:
    return api_error(ErrorCode.CORRUPT_MESSAGE, f"the batch would decompress to more than {max_bytes} bytes")


def _compress_snappy(data: memoryview) -> bytes:
    parts: list[bytes] = [_SNAPPY_HEAD]
    for start in range(0, len(data), _BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _BLOCK_BYTES]))
        parts += (_INT_BE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, max_bytes: int) -> Buffer:
    if data[:_SNAPPY_MAGIC_BYTES] != _SNAPPY_HEAD[:_SNAPPY_MAGIC_BYTES]:
        if cramjam.snappy.decompress_raw_len(data) > max_bytes:
            raise _too_large(max_bytes)
        return bytes(cramjam.snappy.decompress_raw(data))
    parts: list[bytes] = []
    unfolded_bytes = 0
    position = len(_SNAPPY_HEAD)
    while position < len(data):
        (length,) = _INT_BE.unpack_from(data, position)
        position += _INT_BE.size
        if not 0 < length <= len(data) - position:
            raise zlib.error(f"a snappy block of {length} bytes at {position} of {len(data)}")
        block = data[position : position + length]
        unfolded_bytes += cramjam.snappy.decompress_raw_len(block)
        if unfolded_bytes > max_bytes:
            raise _too_large(max_bytes)
        parts.append(bytes(cramjam.snappy.decompress_raw(block)))
        position += length
    return b"".join(parts)


def _compress_lz4(data: memoryview, level: int) -> Buffer:
    if level != DEFAULT_LEVELS[Compression.LZ4]:
        # The block function has no levels. These frames have a checksum for each block besides.
        worker = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        worker.compress(bytes(data))
        return memoryview(worker.finish())
    parts: list[bytes] = [_LZ4_HEAD]
    for start in range(0, len(data), _BLOCK_BYTES):
        plain = data[start : start + _BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (_UINT_LE.pack(len(block)), block)
        else:
            parts += (_UINT_LE.pack(len(plain) | _LZ4_STORED), bytes(plain))
    parts.append(_UINT_LE.pack(0))
    return b"".join(parts)


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = []
    allowed_bytes = max_bytes
    position = 0
    # The library copies the bytes after a member. The first one, mostly the only one, gets everything at
    # once; later ones get pieces, because many small members would otherwise cost the square of their number.
    piece_bytes = len(view)
    while position < len(view):
        worker = zlib.decompressobj(wbits=_GZIP_WBITS)
        while not worker.eof:
            piece = view[position : position + piece_bytes]
            if not piece:
                raise zlib.error("the gzip stream is cut short")
            # Read one byte more than the limit: a batch of exactly the limit is allowed, a longer one is not.
            part = worker.decompress(piece, allowed_bytes + 1)
            if len(part) > allowed_bytes:
                raise _too_large(max_bytes)
            parts.append(part)
            allowed_bytes -= len(part)
            position += len(piece) - len(worker.unused_data)
            piece_bytes *= 2
        piece_bytes = _GZIP_PIECE_BYTES
    return b"".join(parts)


def _decompress_growing(
    decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, max_bytes: int
) -> memoryview:
    """Decompress into a buffer of bounded size, a larger one after each error.

    The library has one exception for all faults, so corrupt data is also tried up to the limit; that is
    cheap, because fresh memory is not touched until it is written.
    """
    capacity = min(max_bytes, max(_FIRST_GUESS_BYTES, _GROWTH * len(data)))
    while True:
        out = bytearray(capacity)
        try:
            return memoryview(out)[: decompress_into(data, out)]
        except cramjam.DecompressionError:
            if capacity >= max_bytes:
                raise
        del out
        capacity = min(max_bytes, capacity * _GROWTH)
