"""The batches of a sealed segment, read in chunks and checked: the input of a cleaning. One thread a walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from barnabas.broker.log.batch_scan import READ_BUFFERS, impossible
from barnabas.broker.log.segment import Segment
from barnabas.protocol.record_batch import (
    BATCH_LENGTH,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    check_batch,
)

_PAUSE_BATCHES: Final = 64

Pause = Callable[[int], None]
"""Called between batches, with the bytes read or written since the last call; ends a cleaning by raising."""


class Chunk(NamedTuple):
    """Whole, checked batches of a segment."""

    data: bytes
    batches: list[tuple[int, BatchHeader]]
    """Each with its position in the data."""
    position: int
    """Of the data in the segment."""

    @property
    def end(self) -> int:
        """The position after the last batch in the segment."""
        return self.position + len(self.data)


def read_chunks(segment: Segment, position: int, end: int, read_bytes: int, pause: Pause) -> Iterator[Chunk]:
    """The batches from a position to an end, in chunks of at most `read_bytes`, or of one larger batch.

    Raises CORRUPT_MESSAGE and INVALID_RECORD as `check_batch`, and as `SegmentFile.read_into`.
    """
    least = length = max(read_bytes, HEADER_BYTES)
    while position < end:
        data = _read(segment, position, min(length, end - position))
        pause(len(data))
        batches: list[tuple[int, BatchHeader]] = []
        at = 0
        while len(data) - at >= HEADER_BYTES:
            size = LOG_OVERHEAD_BYTES + BATCH_LENGTH.unpack_from(data, at)[0]
            if size < HEADER_BYTES or position + at + size > end:
                raise impossible(position + at, size, end)
            if at + size > len(data):
                break
            batches.append((at, check_batch(data, at, origin=position)))
            at += size
            if not len(batches) % _PAUSE_BATCHES:
                pause(0)
        if batches:
            yield Chunk(data[:at], batches, position)
            position += at
            length = least
        elif end - position < HEADER_BYTES:
            raise impossible(position, end - position, end)
        else:
            length = size


def _read(segment: Segment, position: int, length: int) -> bytes:
    buffer = READ_BUFFERS.exactly(length)
    segment.file.read_into(buffer, position)
    return bytes(buffer)
