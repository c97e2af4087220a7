"""Walks over the batches of a segment's file, which is read by `preadv` through a reused window of memory.

For recovery and other work beside the hot path. Waits for the disk, without the interpreter lock. Any thread;
a window belongs to one walk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from barnabas.broker.log.batch_scan import find_batch, impossible
from barnabas.broker.log.read_buffers import READ_BUFFERS, ReadBuffers
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.protocol.record_batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MIN_BATCH_LENGTH,
    BatchHeader,
)

_WINDOW_BYTES: Final = 256 * 1024
_STEP_BYTES: Final = 4 * 1024
"""The size of reads after a batch longer than the window: the next ones are probably as long, and a walk
needs only headers."""
_PRODUCER: Final = struct.Struct(">qi11xi16xq")
"""base_offset, batch_length, last_offset_delta, producer_id."""


class Window:
    """The bytes of a file from `origin`, as far as they were read; `cover` moves it forward."""

    def __init__(self, file: SegmentFile, end: int, buffers: ReadBuffers = READ_BUFFERS) -> None:
        self.data = memoryview(b"")
        self.origin = 0
        self._file = file
        self._end = end
        self._buffers = buffers

    def cover(self, position: int, length: int) -> int:
        """The index in `data` of a position, with `length` bytes after it, or all up to the end.

        Raises as `SegmentFile.read_into`.
        """
        stop = min(position + length, self._end)
        read_to = self.origin + len(self.data)
        if self.origin <= position and stop <= read_to:
            return position - self.origin
        wanted = _WINDOW_BYTES if position <= read_to else _STEP_BYTES
        wanted = min(max(wanted, stop - position), self._end - position)
        # The old memory is freed first, so that the new one may reuse it.
        self.data = memoryview(b"")
        data = self._buffers.exactly(wanted)
        self._file.read_into(data, position)
        self.data, self.origin = data, position
        return 0


def iter_headers(file: SegmentFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch from a position; `end` must be the end of a batch.

    Raises CORRUPT_MESSAGE if a batch would end after it, and as `SegmentFile.read_into`.
    """
    window = Window(file, end)
    while position < end:
        if position + HEADER_BYTES > end:
            raise impossible(position, end - position, end)
        at = window.cover(position, HEADER_BYTES)
        header = BatchHeader._make(HEADER.unpack_from(window.data, at))
        following = position + LOG_OVERHEAD_BYTES + header.batch_length
        if header.batch_length < MIN_BATCH_LENGTH or following > end:
            raise impossible(position, header.batch_length, end)
        yield position, header
        position = following


def iter_produced(file: SegmentFile, position: int, end: int, offset: int) -> Iterator[BatchHeader]:
    """The headers of the batches from a position that have a producer id and end at or after an offset.

    As `iter_headers`, but several times as fast over batches without a producer id.
    """
    unpack = _PRODUCER.unpack_from
    window = Window(file, end)
    while position < end:
        if position + HEADER_BYTES > end:
            raise impossible(position, end - position, end)
        window.cover(position, HEADER_BYTES)
        data, origin = window.data, window.origin
        last = origin + len(data) - HEADER_BYTES
        while position <= last:
            base_offset, length, last_delta, producer_id = unpack(data, position - origin)
            following = position + LOG_OVERHEAD_BYTES + length
            if length < MIN_BATCH_LENGTH or following > end:
                raise impossible(position, length, end)
            if producer_id >= 0 and base_offset + last_delta >= offset:
                yield BatchHeader._make(HEADER.unpack_from(data, position - origin))
            position = following


def find_batch_in(file: SegmentFile, position: int, end: int, offset: int) -> tuple[int, int]:
    """As `find_batch`, in a file; (end, -1) if there is no such batch. Raises what `iter_headers` raises."""
    window = Window(file, end)
    while position < end:
        if position + HEADER_BYTES > end:
            raise impossible(position, end - position, end)
        at = window.cover(position, HEADER_BYTES)
        found, base_offset = find_batch(window.data, at, len(window.data), offset)
        if base_offset >= 0:
            return window.origin + found, base_offset
        position = window.origin + found
    return end, -1
