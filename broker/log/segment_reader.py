"""Finds batches of a segment by offset and by time, through the mapping or by `preadv`.

Any thread, no lock: size and next offset are one tuple that is published last. Bytes that this process wrote
lately are served as views of the page cache. Others are read into memory of their own; NotCached is raised if
that would wait for the disk and the caller may not.
"""

from __future__ import annotations

import logging
import struct
import threading
from abc import abstractmethod
from typing import Final, NamedTuple

from barnabas.broker.log.batch_scan import (
    READ_BUFFERS,
    Bytes,
    batches_end,
    find_batch,
    find_batch_in,
    impossible,
    iter_headers,
)
from barnabas.broker.log.indexes import OffsetIndex, TimeIndex
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.protocol.record_batch import (
    HEADER_BYTES,
    MIN_BATCH_LENGTH,
    NO_TIMESTAMP,
    BatchHeader,
    parse_header,
)
from barnabas.protocol.records import decode_records

logger = logging.getLogger(__name__)

_JUMP_BYTES: Final = 32 * 1024
"""A longer read finds its end in the index; for a shorter one a walk is as fast."""
_WALKED_BATCHES: Final = 64
"""A read of fewer batches of the first one's size also walks, because an index in a file costs several
reads."""
NO_HINT: Final = (-1, -1)
_BASE_OFFSET: Final = struct.Struct(">q")
_BATCH_LENGTH: Final = struct.Struct(">8xi")
_LEAST_READ_BYTES: Final = 16 * 1024
"""A shorter read costs the same."""
REBUILD_LOCK: Final = threading.Lock()
"""Keeps two readers that find the same damage from writing the same files. One lock, since it is rare."""
_MOST_COPIED_BYTES: Final = 64 * 1024
"""Bounds the copying of a caller that may not wait: 1 MB takes up to half a millisecond."""


class ReadResult(NamedTuple):
    """Whole batches out of one segment.

    `records` is a view that stays valid as long as it is held. `start_offset` is the base offset of the first
    batch (it may be below the requested offset), `next_offset` the offset of the next read. `is_copied`: the
    records are in memory of their own, not in the page cache.
    """

    records: memoryview
    start_offset: int
    next_offset: int
    segment_base_offset: int
    position: int
    is_copied: bool = False


class TimestampAndOffset(NamedTuple):
    """A record found by its timestamp, and the leader epoch of its batch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class SegmentReader:
    """The parts of a segment and the lookups in them; `Segment` changes them."""

    __slots__ = (
        "_append_hint",
        "_end",
        "_has_checked_indexes",
        "_index_interval_bytes",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "_read_hint",
        "base_offset",
        "file",
        "offset_index",
        "time_index",
    )

    def __init__(
        self,
        file: SegmentFile,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        *,
        next_offset: int,
        index_interval_bytes: int,
        is_new: bool,
    ) -> None:
        self.base_offset = offset_index.base_offset
        self.file = file
        self.offset_index = offset_index
        self.time_index = time_index
        self._index_interval_bytes = index_interval_bytes
        self._end = (file.size, next_offset)
        self._has_checked_indexes = is_new
        self._max_timestamp: int | None = NO_TIMESTAMP if is_new else None
        self._offset_of_max_timestamp = self.base_offset
        # The start of the last append and the end of the last read: a follower at the log's end requests
        # one of them.
        self._append_hint = NO_HINT
        self._read_hint = NO_HINT

    @property
    def size(self) -> int:
        """Bytes of whole batches."""
        return self._end[0]

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self._end[1]

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in ms, or -1. In a sealed segment it is the last entry of the time index."""
        if self._max_timestamp is None:
            self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last()
        return self._max_timestamp

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the batch with the largest timestamp."""
        return self._offset_of_max_timestamp if self.max_timestamp != NO_TIMESTAMP else self.base_offset

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        upper_bound_offset: int,
        min_one_batch: bool,
        *,
        may_wait: bool = True,
    ) -> ReadResult | None:
        """Whole batches from the batch with an offset on, below the bound and the size limit.

        None if all batches here are older than the offset. Raises as `SegmentFile.mapping`, NotCached if it
        would wait for the disk and may not, and CORRUPT_MESSAGE if the bytes are no batches.
        """
        size, next_offset = self._end
        if start_offset >= next_offset or not size:
            return None
        file = self.file
        for hinted_offset, hinted_position in (self._append_hint, self._read_hint):
            # A truncation may have left a stale hint, so the batch at its position decides.
            if hinted_offset == start_offset and hinted_position < size:
                if not file.is_hot(hinted_position):
                    result = self._read_file(
                        hinted_position,
                        start_offset,
                        max_bytes,
                        upper_bound_offset,
                        min_one_batch,
                        may_wait,
                        is_hint=True,
                    )
                    if result is not None:
                        return result
                    break
                data = file.mapping(size)
                if _BASE_OFFSET.unpack_from(data, hinted_position)[0] == start_offset:
                    return self._read_mapped(
                        data, hinted_position, start_offset, max_bytes, upper_bound_offset, min_one_batch
                    )
        position = self.position_before(start_offset, may_wait=may_wait)
        if not file.is_hot(position):
            return self._read_file(
                position, start_offset, max_bytes, upper_bound_offset, min_one_batch, may_wait
            )
        data = file.mapping(size)
        position, base_offset = find_batch(data, position, size, start_offset)
        if base_offset >= 0:
            return self._read_mapped(
                data, position, base_offset, max_bytes, upper_bound_offset, min_one_batch
            )
        if position < size:
            raise impossible(position, size - position, size)
        return None

    def _read_mapped(
        self,
        data: Bytes,
        position: int,
        base_offset: int,
        max_bytes: int,
        upper_bound_offset: int,
        min_one_batch: bool,
    ) -> ReadResult:
        """Read from a batch in the hot tail."""
        size, next_offset = self._end
        limit = position + max_bytes
        if limit >= size and upper_bound_offset >= next_offset:
            end, following = size, next_offset
        else:
            end, following = self._read_end(
                data, 0, position, min(limit, size), upper_bound_offset, may_wait=True
            )
            if following < 0 and min_one_batch:
                length = parse_header(memoryview(data), position).size_bytes
                end, following = batches_end(data, position, size, position + length, upper_bound_offset)
            if following < 0:
                following = base_offset
        self._read_hint = (following, end)
        return ReadResult(memoryview(data)[position:end], base_offset, following, self.base_offset, position)

    def _read_file(
        self,
        position: int,
        start_offset: int,
        max_bytes: int,
        upper_bound_offset: int,
        min_one_batch: bool,
        may_wait: bool,
        *,
        is_hint: bool = False,
    ) -> ReadResult | None:
        """Read into memory of its own, from a position where a batch begins.

        It may return less than requested, but at least the first batch. None if the hint's batch does not
        hold the offset.
        """
        size, _ = self._end
        while True:
            if position + HEADER_BYTES > size:
                if position < size:
                    raise impossible(position, size - position, size)
                return None
            length = max(max_bytes + self._index_interval_bytes, _LEAST_READ_BYTES)
            length = min(length, size - position)
            if length > _MOST_COPIED_BYTES and not may_wait:
                raise NotCached
            data = READ_BUFFERS.lease(length)
            count = self.file.read_into(data, position, may_wait=may_wait)
            if is_hint and (count < HEADER_BYTES or _BASE_OFFSET.unpack_from(data)[0] != start_offset):
                return None
            first, base_offset = find_batch(data, 0, count, start_offset)
            if base_offset >= 0:
                break
            if not first and count < HEADER_BYTES:
                raise NotCached
            position += first
        limit = position + min(first + max_bytes, count)
        end, following = self._read_end(
            data[:count], position, position + first, limit, upper_bound_offset, may_wait=may_wait
        )
        records = data[first : end - position]
        position += first
        if following < 0:
            header = parse_header(data, first)
            following, records = base_offset, data[:0]
            if header.last_offset < upper_bound_offset and (min_one_batch or header.size_bytes <= max_bytes):
                records = self._read_batch(position, header, may_wait=may_wait)
                following = header.next_offset
            end = position + len(records)
        if may_wait:
            # The next read finds it in the page cache.
            self.file.will_need(end, min(max_bytes, size - end))
        self._read_hint = (following, end)
        return ReadResult(
            records.toreadonly(), base_offset, following, self.base_offset, position, is_copied=True
        )

    def _read_batch(self, position: int, header: BatchHeader, *, may_wait: bool = True) -> memoryview:
        """A whole batch, in memory of its own. Raises as `read`."""
        size, length = self.size, header.batch_length
        if length < MIN_BATCH_LENGTH or position + header.size_bytes > size:
            raise impossible(position, length, size)
        data = READ_BUFFERS.exactly(header.size_bytes)
        if self.file.read_into(data, position, may_wait=may_wait) < len(data):
            raise NotCached
        return data

    def _read_end(
        self,
        data: Bytes,
        origin: int,
        position: int,
        limit: int,
        upper_bound_offset: int,
        *,
        may_wait: bool,
    ) -> tuple[int, int]:
        """Find the `batches_end`, beginning the walk close to it, at a position from the index.

        `data` are the bytes of the segment from `origin`, at least up to `limit`.
        """
        start = position
        length = limit - position
        if (
            length > _JUMP_BYTES
            and length > _WALKED_BATCHES * _BATCH_LENGTH.unpack_from(data, position - origin)[0]
        ):
            # All batches before an entry's are below its offset and end at its position at the latest.
            start = self.offset_index.lookup_position(limit - 1, may_wait=may_wait).position
            if upper_bound_offset < self.next_offset:
                by_offset = self.offset_index.lookup(upper_bound_offset - 1, may_wait=may_wait)
                start = min(start, by_offset.position)
            start = max(position, start)
            if start - origin + _BASE_OFFSET.size > len(data):
                # The batch begins so close to the limit that its offset is beyond the bound.
                start = position
        end, following = batches_end(data, start - origin, limit - origin, limit - origin, upper_bound_offset)
        if following < 0 and start > position:
            return start, _BASE_OFFSET.unpack_from(data, start - origin)[0]
        return end + origin, following

    def find_by_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
        """The first record not older than a time and not below an offset. Raises what `read` raises."""
        size, _ = self._end
        if not size or self.max_timestamp < timestamp_ms:
            return None
        older = self.time_index.lookup_below(timestamp_ms)
        position = self.position_before(max(older.offset, start_offset))
        for at, header in iter_headers(self.file, position, size):
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
                continue
            for record in decode_records(self._read_batch(at, header)):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                    return TimestampAndOffset(
                        record.timestamp_ms, record.offset, header.partition_leader_epoch
                    )
        return None

    def position_before(self, offset: int, *, may_wait: bool = True) -> int:
        """Where a batch begins, at or before the batch that holds an offset, and at most a short walk away.

        Raises NotCached unless it may wait for the disk.
        """
        if not self._has_checked_indexes:
            self._check_indexes(may_wait)
        return self.offset_index.lookup(max(offset, self.base_offset), may_wait=may_wait).position

    def batch_start(self, offset: int) -> int:
        """The base offset of the batch that holds an offset, or the offset itself if no batch does."""
        size, next_offset = self._end
        if offset >= next_offset or not size:
            return offset
        position, base_offset = find_batch_in(self.file, self.position_before(offset), size, offset)
        return min(offset, base_offset) if position < size else offset

    def _check_indexes(self, may_wait: bool) -> None:
        """Check the indexes before the first lookup in a segment sealed before this start: a start opens
        thousands of segments by their names and sizes alone.
        """
        if not self.offset_index.is_sane(self.size, may_wait=may_wait):
            if not may_wait:
                raise NotCached
            with REBUILD_LOCK:
                if not self._has_checked_indexes:
                    logger.warning("%s does not fit its segment and is rebuilt", self.offset_index.path)
                    self._rebuild_indexes()
                    self._has_checked_indexes = True
        self._has_checked_indexes = True

    @abstractmethod
    def _rebuild_indexes(self) -> None:
        """Replace the index files; readers may continue meanwhile."""
