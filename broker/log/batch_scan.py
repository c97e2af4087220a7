"""Walking over batch headers in a segment's bytes, as short as Python allows. Pure functions, any thread.

Every step goes forward by at least a header, whatever the bytes say, so a walk always ends; a length that no
batch has raises CORRUPT_MESSAGE.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Final

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.record_batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MIN_BATCH_LENGTH,
    BatchHeader,
)

Bytes = mmap.mmap | memoryview | bytes | bytearray

_FRAME: Final = struct.Struct(">qi11xi")
"""base_offset, batch_length, last_offset_delta."""
_unpack = _FRAME.unpack_from
_PRODUCER: Final = struct.Struct(">qi11xi16xq")
"""base_offset, batch_length, last_offset_delta, producer_id."""


def _impossible(position: int, length: int, end: int) -> Exception:
    return api_error(
        ErrorCode.CORRUPT_MESSAGE, f"a batch length of {length} at byte {position} of {end} in a segment"
    )


def find_batch(data: Bytes, position: int, end: int, offset: int) -> tuple[int, int]:
    """The first batch from a position on whose last offset is at least this one: (position, base offset).

    (end, -1) when there is none before `end`, which must be where a batch ends.
    """
    while position < end:
        if position + HEADER_BYTES > end:
            raise _impossible(position, end - position, end)
        base_offset, length, last_delta = _unpack(data, position)
        if base_offset + last_delta >= offset:
            return position, base_offset
        if length < MIN_BATCH_LENGTH:
            raise _impossible(position, length, end)
        position += LOG_OVERHEAD_BYTES + length
    return end, -1


def batches_end(data: Bytes, position: int, end: int, limit: int, upper_bound_offset: int) -> tuple[int, int]:
    """Where the whole batches from a position on end: (position, next offset).

    Counted are those that end at `limit` at the latest and lie below the upper bound. The next offset is -1
    when there is not a single one.
    """
    next_offset = -1
    while position < end:
        if position + HEADER_BYTES > end:
            raise _impossible(position, end - position, end)
        base_offset, length, last_delta = _unpack(data, position)
        if length < MIN_BATCH_LENGTH:
            raise _impossible(position, length, end)
        following = position + LOG_OVERHEAD_BYTES + length
        if following > limit or base_offset + last_delta >= upper_bound_offset:
            break
        position = following
        next_offset = base_offset + last_delta + 1
    return position, next_offset


def iter_headers(data: Bytes, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch from a position on; `end` must be where a batch ends.

    Raises CORRUPT_MESSAGE when a batch would end behind it.
    """
    while position < end:
        if position + HEADER_BYTES > end:
            raise _impossible(position, end - position, end)
        header = BatchHeader._make(HEADER.unpack_from(data, position))
        following = position + LOG_OVERHEAD_BYTES + header.batch_length
        if header.batch_length < MIN_BATCH_LENGTH or following > end:
            raise _impossible(position, header.batch_length, end)
        yield position, header
        position = following


def iter_produced(data: Bytes, position: int, end: int, offset: int) -> Iterator[BatchHeader]:
    """The headers of the batches from a position on that have a producer id and end at or behind an offset.

    As `iter_headers`, but several times as fast over those that have none.
    """
    unpack = _PRODUCER.unpack_from
    while position < end:
        if position + HEADER_BYTES > end:
            raise _impossible(position, end - position, end)
        base_offset, length, last_delta, producer_id = unpack(data, position)
        following = position + LOG_OVERHEAD_BYTES + length
        if length < MIN_BATCH_LENGTH or following > end:
            raise _impossible(position, length, end)
        if producer_id >= 0 and base_offset + last_delta >= offset:
            yield BatchHeader._make(HEADER.unpack_from(data, position))
        position = following
