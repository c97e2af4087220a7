"""The batches of a sealed segment, read in chunks and checked: the input of a cleaning. One thread a walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from barnabas.broker.log.batch_scan import READ_BUFFERS, impossible
from barnabas.broker.log.segment import Segment
from barnabas.protocol.record_batch import HEADER_BYTES, BatchHeader, checked_batches, parse_header

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

    Raises what `check_batch` and `SegmentFile.read_into` raise; CORRUPT_MESSAGE for a batch beyond the end.
    """
    least = length = max(read_bytes, HEADER_BYTES)
    while position < end:
        data = _read(segment, position, min(length, end - position))
        pause(len(data))
        batches: list[tuple[int, BatchHeader]] = []
        for batch in checked_batches(data, position):
            batches.append(batch)
            if not len(batches) % _PAUSE_BATCHES:
                pause(0)
        if batches:
            at, last = batches[-1]
            size = at + last.size_bytes
            yield Chunk(data[:size], batches, position)
            position += size
            length = least
        elif len(data) < HEADER_BYTES:
            raise impossible(position, len(data), end)
        else:
            length = parse_header(data).size_bytes
            if position + length > end:
                raise impossible(position, length, end)


def _read(segment: Segment, position: int, length: int) -> bytes:
    buffer = READ_BUFFERS.exactly(length)
    segment.file.read_into(buffer, position)
    return bytes(buffer)
