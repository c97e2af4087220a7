"""Walking over batch headers in a segment's bytes, as short as Python allows. Pure functions, any thread.

The bytes may be a part of the segment: a walk ends at a header that is cut off by their end, and the caller
knows whether more bytes follow. Every step moves forward by at least a header, so a walk always ends. A
length that is impossible for a batch raises CORRUPT_MESSAGE.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MIN_BATCH_LENGTH,
)

Bytes = mmap.mmap | memoryview | bytes | bytearray

_FRAME: Final = struct.Struct(">qi11xi")
"""base_offset, batch_length, last_offset_delta."""
_unpack = _FRAME.unpack_from


def impossible(position: int, length: int, end: int) -> Exception:
    return api_error(
        ErrorCode.CORRUPT_MESSAGE, f"a batch length of {length} at byte {position} of {end} in a segment"
    )


def find_batch(data: Bytes, position: int, end: int, offset: int) -> tuple[int, int]:
    """The first batch from a position on whose last offset is at least this one: (position, base offset).

    (where the walk ended, -1) when there is none whose header is whole before `end`.
    """
    last = end - HEADER_BYTES
    while position <= last:
        base_offset, length, last_delta = _unpack(data, position)
        if base_offset + last_delta >= offset:
            return position, base_offset
        if length < MIN_BATCH_LENGTH:
            raise impossible(position, length, end)
        position += LOG_OVERHEAD_BYTES + length
    return position, -1


def batches_end(data: Bytes, position: int, end: int, limit: int, upper_bound_offset: int) -> tuple[int, int]:
    """Where the whole batches from a position on end: (position, next offset).

    Counted are those that end at `limit` at the latest and lie below the upper bound. The next offset is -1
    when there is not a single one.
    """
    next_offset = -1
    last = end - HEADER_BYTES
    while position <= last:
        base_offset, length, last_delta = _unpack(data, position)
        if length < MIN_BATCH_LENGTH:
            raise impossible(position, length, end)
        following = position + LOG_OVERHEAD_BYTES + length
        if following > limit or base_offset + last_delta >= upper_bound_offset:
            break
        position = following
        next_offset = base_offset + last_delta + 1
    return position, next_offset
