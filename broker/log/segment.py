"""One segment of a log: its file and its two indexes, and every change of them.

Invariant: every index entry names a batch below `size`, or one that is just being appended and that no reader
can request yet, because size and next offset are published last, as one tuple. Changed under the log's lock;
read by any thread without a lock, see `SegmentReader`.
"""

from __future__ import annotations

import copy
import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.broker.log.batch_scan import find_batch_in, iter_headers, iter_produced
from barnabas.broker.log.file_system import (
    FILE_SYSTEM,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    FileSystem,
    segment_name,
)
from barnabas.broker.log.indexes import OffsetIndex, TimeIndex
from barnabas.broker.log.log_config import LogConfig
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.retention import SegmentAge
from barnabas.broker.log.segment_file import SegmentFile, create_segment_file
from barnabas.broker.log.segment_reader import (
    NO_HINT,
    REBUILD_LOCK,
    ReadResult,
    SegmentReader,
    TimestampAndOffset,
)
from barnabas.broker.log.storage_errors import Operation, disk_work
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    parse_header,
)

logger = logging.getLogger(__name__)

_MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1


class Segment(SegmentReader):
    """The batches from a base offset on."""

    __slots__ = (
        "_bytes_since_entry",
        "_first_timestamp",
        "_is_age_checked",
        "_is_first_loading",
        "created_ms",
    )

    def __init__(
        self,
        folder: Path,
        base_offset: int,
        size: int,
        next_offset: int,
        created_ms: int,
        config: LogConfig,
        files: FileSystem = FILE_SYSTEM,
        *,
        is_new: bool = False,
    ) -> None:
        """A segment that is on disk; reads only the names and sizes of its files. Raises LogDirFailure."""
        offsets, times = (
            folder / segment_name(base_offset, suffix) for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )
        super().__init__(
            SegmentFile(folder / segment_name(base_offset), size, files),
            OffsetIndex(offsets, base_offset, is_new=is_new, files=files),
            TimeIndex(times, base_offset, is_new=is_new, files=files),
            next_offset=next_offset,
            index_interval_bytes=config.index_interval_bytes,
            is_new=is_new,
        )
        self.created_ms = created_ms
        self._bytes_since_entry = 0
        self._first_timestamp: int | None = None
        self._is_first_loading = False
        self._is_age_checked = is_new

    @classmethod
    def create(
        cls,
        folder: Path,
        base_offset: int,
        created_ms: int,
        config: LogConfig,
        files: FileSystem = FILE_SYSTEM,
    ) -> Segment:
        """Create an empty segment on disk. Raises LogDirFailure."""
        create_segment_file(folder / segment_name(base_offset), files)
        return cls(folder, base_offset, 0, base_offset, created_ms, config, files, is_new=True)

    @property
    def needs_seal(self) -> bool:
        """Whether anything is only in memory until `seal`."""
        return self.file.is_written or self.offset_index.is_dirty or self.time_index.is_dirty

    def age(self) -> SegmentAge:
        """The size and age by which retention decides. The age counts from the last write if no record has a
        timestamp, or if the segment is damaged and cannot be read.

        Raises LogDirFailure.
        """
        size, next_offset = self._end
        try:
            self._check_max_timestamp()
            timestamp_ms = self.max_timestamp
        except ApiError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            logger.error("the age of %s is counted from its last write: %s", self.file.path, error)
            timestamp_ms = NO_TIMESTAMP
        if timestamp_ms < 0 < size:
            with disk_work(self.file.path, Operation.READ):
                timestamp_ms = self.file.path.stat().st_mtime_ns // 1_000_000
        return SegmentAge(next_offset, size, timestamp_ms)

    def _check_max_timestamp(self) -> None:
        """Compare the largest timestamp, which a start takes from the time index, with batches.

        Retention deletes by it, so a damaged index must not make a segment look old. The last entry has to
        agree with its batch, and no later batch may be younger: the batches after the last entry of both
        indexes are read. Under the log's lock.
        """
        size, next_offset = self._end
        if self._is_age_checked or not size:
            return
        tail = iter_headers(self.file, self.position_before(next_offset - 1), size)
        if max(header.max_timestamp for _, header in tail) > self.max_timestamp or not self._has_batch_of(
            self.max_timestamp, self.offset_of_max_timestamp
        ):
            logger.warning("%s does not fit its segment and is rebuilt", self.time_index.path)
            with REBUILD_LOCK:
                self._rebuild_indexes()
        self._is_age_checked = True

    def _has_batch_of(self, timestamp_ms: int, last_offset: int) -> bool:
        size, next_offset = self._end
        if timestamp_ms == NO_TIMESTAMP:
            return True
        if not self.base_offset <= last_offset < next_offset:
            return False
        position, _ = find_batch_in(self.file, self.position_before(last_offset), size, last_offset)
        _, header = next(iter(iter_headers(self.file, position, size)))
        return (header.max_timestamp, header.last_offset) == (timestamp_ms, last_offset)

    def must_roll(
        self, added_bytes: int, last_offset: int, timestamp_ms: int, now_ms: int, config: LogConfig
    ) -> bool:
        """Whether these batches need a new segment: by size, offset range, a full index, or age.

        As in Kafka, the age is the time from the first batch's timestamp to the new batch's; without
        timestamps the clock counts. Size and age wait while the file is held beyond its size, so a segment
        may exceed its size by one batch.
        """
        size = self.size
        if last_offset - self.base_offset > _MAX_RELATIVE_OFFSET:
            return True
        if not size:
            return False
        if (
            self.offset_index.size_bytes + self.offset_index.entry.size > config.segment_index_bytes
            or self.time_index.size_bytes + self.time_index.entry.size > config.segment_index_bytes
        ):
            return True
        is_due = (
            size + added_bytes > config.segment_bytes
            or self._age_ms(timestamp_ms, now_ms) > config.segment_ms
        )
        return is_due and not self.file.is_held_beyond_size()

    def _age_ms(self, timestamp_ms: int, now_ms: int) -> int:
        if self._first_timestamp is None:
            self._first_timestamp = self._read_first_timestamp()
        if self._first_timestamp is None:
            return 0
        if self._first_timestamp >= 0 and timestamp_ms >= 0:
            return timestamp_ms - self._first_timestamp
        return now_ms - self.created_ms

    def append(self, data: memoryview, batches: Iterable[tuple[int, BatchHeader]], size_limit: int) -> None:
        """Write batches with one call; `batches` are (position in the data, header with its final offsets).

        Raises LogDirFailure and leaves everything as it was.
        """
        size, next_offset = self._end
        # Before the write: it may fail, and no batch may stay without its entry.
        self.offset_index.load()
        self.time_index.load()
        self.file.write(data, size_limit)
        last_offset = next_offset - 1
        for position, header in batches:
            last_offset = header.base_offset + header.last_offset_delta
            self.note(header, size + position)
        invariant(last_offset >= next_offset, "offset %d does not follow %d", last_offset, next_offset - 1)
        self._append_hint = (next_offset, size)
        self.file.publish(size + len(data))
        self._end = (size + len(data), last_offset + 1)

    def note(self, header: BatchHeader, position: int) -> None:
        """Add a batch to the indexes; batches come in order."""
        last_offset = header.base_offset + header.last_offset_delta
        if not position:
            self._first_timestamp = header.max_timestamp
        if header.max_timestamp > self.max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._offset_of_max_timestamp = last_offset
        if self._bytes_since_entry > self._index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self._offset_of_max_timestamp)
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.size_bytes

    def trust_indexes(self) -> None:
        """Skip the check of the indexes: they agree with the segment."""
        self._has_checked_indexes = True

    def _rebuild_indexes(self) -> None:
        """Replace the index files; readers may continue meanwhile."""
        new = copy.copy(self)
        new.offset_index = self.offset_index.emptied()
        new.time_index = self.time_index.emptied()
        new.start_rebuild()
        for position, header in iter_headers(self.file, 0, self.size):
            new.note(header, position)
        new.time_index.maybe_append(new.max_timestamp, new.offset_of_max_timestamp)
        new.offset_index.seal()
        new.time_index.seal()
        self.offset_index, self.time_index = new.offset_index, new.time_index
        self._max_timestamp, self._offset_of_max_timestamp = new.max_timestamp, new.offset_of_max_timestamp

    def _read_first_timestamp(self) -> int | None:
        """The first batch's timestamp; None while the system loads the batch into the page cache."""
        data = bytearray(HEADER_BYTES)
        try:
            self.file.read_into(memoryview(data), 0, may_wait=self._is_first_loading)
        except NotCached:
            self._is_first_loading = True
            self.file.will_need(0, HEADER_BYTES)
            return None
        return parse_header(data).max_timestamp

    def truncate_to(self, offset: int) -> int:
        """Drop the batch that holds an offset and all later ones; returns the new next offset.

        Raises LogDirFailure.
        """
        size, next_offset = self._end
        if offset >= next_offset or not size:
            return next_offset
        position, base_offset = find_batch_in(self.file, self.position_before(offset), size, offset)
        if position < size:
            offset = min(offset, base_offset)
        self._read_hint = self._append_hint = NO_HINT
        self._end = (position, offset)
        self.file.truncate(position)
        self.offset_index.truncate(position)
        self.time_index.truncate(offset)
        self.load_tail(offset)
        return offset

    def load_tail(self, least_next_offset: int) -> None:
        """Read the batches after the last index entry, and restore the next offset and the timestamps.

        Raises CORRUPT_MESSAGE when the bytes there are no batches.
        """
        size, _ = self._end
        self._first_timestamp = None
        self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last()
        self._bytes_since_entry = 0
        next_offset = least_next_offset
        if size:
            start = self.offset_index.last().position
            for _, header in iter_headers(self.file, start, size):
                self._bytes_since_entry += header.size_bytes
                next_offset = max(next_offset, header.next_offset)
                if header.max_timestamp > self._max_timestamp:
                    self._max_timestamp = header.max_timestamp
                    self._offset_of_max_timestamp = header.last_offset
        self._end = (size, next_offset)

    def start_rebuild(self) -> None:
        """Drop both indexes; `note` every batch again, then call `finish_rebuild`."""
        self.offset_index.clear()
        self.time_index.clear()
        self._has_checked_indexes = True
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = self.base_offset
        self._bytes_since_entry = 0

    def finish_rebuild(self, size: int, next_offset: int) -> None:
        """Set the end of the noted batches, and cut off the bytes after it, which no reader has seen.

        Raises LogDirFailure.
        """
        self.file.cut_to(size)
        self._end = (size, next_offset)

    def seal(self) -> None:
        """Write the indexes, cut the file to its size and close its descriptor. Raises LogDirFailure."""
        if self.size:
            self.time_index.maybe_append(self.max_timestamp, self.offset_of_max_timestamp)
        self.offset_index.seal()
        self.time_index.seal()
        self.file.cut_tail()
        self.file.release()

    @property
    def is_synced(self) -> bool:
        """Whether all files are on disk as they are."""
        parts = (self.file, self.offset_index, self.time_index)
        return all(part.sync_state.is_synced for part in parts)

    def fsync(self) -> None:
        """Force changed data and index files to disk; needs no lock. Raises OSError."""
        self.file.fsync()
        self.offset_index.fsync()
        self.time_index.fsync()

    def close(self) -> None:
        """Close descriptors and mappings without writing anything."""
        self.file.close()
        self.offset_index.close()
        self.time_index.close()

    def abandon(self) -> None:
        """Close the segment of a deleted log: later reads raise LogGone."""
        self.offset_index.abandon()
        self.time_index.abandon()
        self.file.abandon()

    def remove(self) -> None:
        """Delete the files; existing views stay valid. Raises LogDirFailure."""
        self.file.remove()
        with disk_work(self.file.path, Operation.CHANGE):
            self.offset_index.remove()
            self.time_index.remove()


class LogSegments(NamedTuple):
    """All segments of a log, oldest first, with their base offsets: one immutable value, without a lock."""

    all: tuple[Segment, ...]
    bases: tuple[int, ...]

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> LogSegments:
        return cls(tuple(segments), tuple(segment.base_offset for segment in segments))

    @property
    def active(self) -> Segment:
        """The newest segment, which grows."""
        return self.all[-1]

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        upper_bound_offset: int,
        min_one_batch: bool,
        may_wait: bool,
    ) -> ReadResult | None:
        """`Segment.read` from the segment that holds the offset, or from the next one with batches."""
        for segment in self.all[max(0, bisect_right(self.bases, start_offset) - 1) :]:
            result = segment.read(
                start_offset, max_bytes, upper_bound_offset, min_one_batch, may_wait=may_wait
            )
            if result is not None:
                return result
        return None

    def find_by_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
        """The first record that is not older than a time and not before an offset."""
        for segment in self.all:
            record = segment.find_by_timestamp(timestamp_ms, start_offset)
            if record is not None:
                return record
        return None

    def max_timestamp(self) -> int:
        """The largest timestamp in ms, or -1."""
        return max((segment.max_timestamp for segment in self.all), default=NO_TIMESTAMP)

    def produced_from(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches with a producer id that end at or after an offset."""
        for segment in self.all[max(0, bisect_right(self.bases, offset) - 1) :]:
            size = segment.size
            if size:
                yield from iter_produced(segment.file, segment.position_before(offset), size, offset)
