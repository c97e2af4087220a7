"""One segment of a log: its file and its two indexes, and what is looked up in them.

Invariant: every index entry names a batch below `size`, or one that is just being appended and that no reader
can ask for yet, since size and next offset are published last, as one tuple. Changed under the log's lock;
read by any thread without one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.broker.log.batch_scan import Bytes, batches_end, find_batch, iter_headers
from barnabas.broker.log.disk_verdicts import Operation
from barnabas.broker.log.file_system import FILE_SYSTEM, FileSystem
from barnabas.broker.log.log_config import LogConfig
from barnabas.broker.log.log_files import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from barnabas.broker.log.offset_index import OffsetIndex
from barnabas.broker.log.retention import SegmentAge
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import storage_error
from barnabas.broker.log.time_index import TimeIndex
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import NO_TIMESTAMP, BatchHeader
from barnabas.protocol.records import decode_records

_MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
_JUMP_BYTES: Final = 32 * 1024
"""A read longer than this finds its end by the index; a shorter one walks there as fast."""
_NO_HINT: Final = (-1, -1)
_BASE_OFFSET: Final = struct.Struct(">q")


class ReadResult(NamedTuple):
    """Whole batches out of one segment.

    `records` is a read-only view that stays valid as long as it is held. `start_offset` is the base offset of
    the first batch (it may lie before the offset asked for), `next_offset` the one to read next.
    """

    records: memoryview
    start_offset: int
    next_offset: int
    segment_base_offset: int
    position: int


class TimestampAndOffset(NamedTuple):
    """A record found by its timestamp, and the leader epoch of its batch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class Segment:
    """The batches from a base offset on."""

    __slots__ = (
        "_append_hint",
        "_bytes_since_entry",
        "_end",
        "_first_timestamp",
        "_index_interval_bytes",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "_read_hint",
        "base_offset",
        "created_ms",
        "file",
        "offset_index",
        "time_index",
    )

    def __init__(
        self,
        folder: Path,
        base_offset: int,
        file: SegmentFile,
        *,
        next_offset: int,
        created_ms: int,
        config: LogConfig,
        is_new: bool,
        files: FileSystem,
    ) -> None:
        self.base_offset = base_offset
        self.file = file
        self.created_ms = created_ms
        self.offset_index = OffsetIndex(
            folder / segment_name(base_offset, OFFSET_INDEX_SUFFIX), base_offset, is_new=is_new, files=files
        )
        self.time_index = TimeIndex(
            folder / segment_name(base_offset, TIME_INDEX_SUFFIX), base_offset, is_new=is_new, files=files
        )
        self._index_interval_bytes = config.index_interval_bytes
        self._end = (file.size, next_offset)
        self._bytes_since_entry = 0
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = NO_TIMESTAMP if is_new else None
        self._offset_of_max_timestamp = base_offset
        # Where the last append began and the last read ended: a follower at the log's end asks for just
        # these.
        self._append_hint = _NO_HINT
        self._read_hint = _NO_HINT

    @classmethod
    def create(
        cls,
        folder: Path,
        base_offset: int,
        created_ms: int,
        config: LogConfig,
        files: FileSystem = FILE_SYSTEM,
    ) -> Segment:
        """A new, empty one on disk. Raises LogDirFailure."""
        file = SegmentFile.create(folder / segment_name(base_offset), files)
        return cls(
            folder,
            base_offset,
            file,
            next_offset=base_offset,
            created_ms=created_ms,
            config=config,
            is_new=True,
            files=files,
        )

    @classmethod
    def existing(
        cls,
        folder: Path,
        base_offset: int,
        size: int,
        next_offset: int,
        created_ms: int,
        config: LogConfig,
        files: FileSystem = FILE_SYSTEM,
    ) -> Segment:
        """One that is on disk; only what the names and sizes of its files say is looked at."""
        file = SegmentFile(folder / segment_name(base_offset), size, files)
        return cls(
            folder,
            base_offset,
            file,
            next_offset=next_offset,
            created_ms=created_ms,
            config=config,
            is_new=False,
            files=files,
        )

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
        """The largest timestamp in ms, or -1. A sealed segment has it as the last entry of its time index."""
        if self._max_timestamp is None:
            self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last()
        return self._max_timestamp

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the batch that brought the largest timestamp."""
        return self._offset_of_max_timestamp if self.max_timestamp != NO_TIMESTAMP else self.base_offset

    @property
    def needs_seal(self) -> bool:
        """Whether there is something that only `seal` puts on disk."""
        return self.file.is_open or self.offset_index.is_dirty or self.time_index.is_dirty

    def age(self) -> SegmentAge:
        """What retention goes by; where no record has a timestamp, the time of the last write does.

        Raises LogDirFailure.
        """
        size, next_offset = self._end
        timestamp_ms = self.max_timestamp
        if timestamp_ms < 0 < size:
            try:
                timestamp_ms = self.file.path.stat().st_mtime_ns // 1_000_000
            except OSError as error:
                raise storage_error(self.file.path, error, Operation.READ) from error
        return SegmentAge(next_offset, size, timestamp_ms)

    def must_roll(
        self, added_bytes: int, last_offset: int, timestamp_ms: int, now_ms: int, config: LogConfig
    ) -> bool:
        """Whether these batches belong into a new segment: size, offset range, a full index, or age.

        Age counts, as in Kafka, from the timestamp of the first batch to that of the new one, and by the
        clock where there are no timestamps.
        """
        size = self.size
        if not size:
            return last_offset - self.base_offset > _MAX_RELATIVE_OFFSET
        if self._first_timestamp is None:
            self._first_timestamp = next(iter_headers(self.file.mapping(size), 0, size))[1].max_timestamp
        if self._first_timestamp >= 0 and timestamp_ms >= 0:
            age_ms = timestamp_ms - self._first_timestamp
        else:
            age_ms = now_ms - self.created_ms
        return (
            size + added_bytes > config.segment_bytes
            or last_offset - self.base_offset > _MAX_RELATIVE_OFFSET
            or self.offset_index.size_bytes + self.offset_index.entry.size > config.segment_index_bytes
            or self.time_index.size_bytes + self.time_index.entry.size > config.segment_index_bytes
            or age_ms > config.segment_ms
        )

    def append(self, data: memoryview, batches: Iterable[tuple[int, BatchHeader]], size_limit: int) -> None:
        """Write batches in one go; `batches` are (position within data, header with its final offsets).

        Raises LogDirFailure and leaves everything as it was.
        """
        size, next_offset = self._end
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
        """Take a batch into account in the indexes; batches come in order."""
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

    def read(
        self, start_offset: int, max_bytes: int, upper_bound_offset: int, min_one_batch: bool
    ) -> ReadResult | None:
        """The whole batches from the one that holds an offset on, below the bound and within so many bytes.

        None when all batches here are older than the offset. Raises as `SegmentFile.mapping`, and
        CORRUPT_MESSAGE when the bytes are no batches.
        """
        size, next_offset = self._end
        if start_offset >= next_offset or not size:
            return None
        data = self.file.mapping(size)
        position = -1
        for hinted_offset, hinted_position in (self._append_hint, self._read_hint):
            # A hint may be stale after a truncation, so what it points at has the last word.
            if (
                hinted_offset == start_offset
                and hinted_position < size
                and _BASE_OFFSET.unpack_from(data, hinted_position)[0] == start_offset
            ):
                position, base_offset = hinted_position, start_offset
                break
        else:
            entry_position = self.offset_index.lookup(start_offset).position
            position, base_offset = find_batch(data, entry_position, size, start_offset)
            if position == size:
                return None
        limit = position + max_bytes
        if limit >= size and upper_bound_offset >= next_offset:
            end, following = size, next_offset
        else:
            end, following = self._read_end(data, position, size, min(limit, size), upper_bound_offset)
            if following < 0 and min_one_batch:
                length = next(iter_headers(data, position, size))[1].size_bytes
                end, following = batches_end(data, position, size, position + length, upper_bound_offset)
            if following < 0:
                following = base_offset
        self._read_hint = (following, end)
        return ReadResult(memoryview(data)[position:end], base_offset, following, self.base_offset, position)

    def _read_end(
        self, data: Bytes, position: int, size: int, limit: int, upper_bound_offset: int
    ) -> tuple[int, int]:
        """As `batches_end`, but begun close to the end, where the index knows a place there."""
        start = position
        if limit - position > _JUMP_BYTES:
            # All batches before an entry's are below its offset and end at its position at the latest.
            by_size = self.offset_index.lookup_position(limit - 1).position
            by_offset = self.offset_index.lookup(upper_bound_offset - 1).position
            start = max(position, min(by_size, by_offset))
        end, following = batches_end(data, start, size, limit, upper_bound_offset)
        if following < 0 and start > position:
            return start, _BASE_OFFSET.unpack_from(data, start)[0]
        return end, following

    def find_by_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
        """The first record that is not older than a time and not before an offset. Raises as `read`."""
        size, _ = self._end
        if not size or self.max_timestamp < timestamp_ms:
            return None
        older = self.time_index.lookup_below(timestamp_ms)
        position = self.offset_index.lookup(max(older.offset, start_offset)).position
        data = self.file.mapping(size)
        for at, header in iter_headers(data, position, size):
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
                continue
            for record in decode_records(self.file.view(at, at + header.size_bytes)):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                    return TimestampAndOffset(
                        record.timestamp_ms, record.offset, header.partition_leader_epoch
                    )
        return None

    def batch_start(self, offset: int) -> int:
        """The base offset of the batch that holds an offset, or the offset itself where there is none."""
        size, next_offset = self._end
        if offset >= next_offset or not size:
            return offset
        entry_position = self.offset_index.lookup(max(offset, self.base_offset)).position
        position, base_offset = find_batch(self.file.mapping(size), entry_position, size, offset)
        return min(offset, base_offset) if position < size else offset

    def truncate_to(self, offset: int) -> int:
        """Drop the batch that holds an offset and all after it; returns the new next offset.

        Raises LogDirFailure.
        """
        size, next_offset = self._end
        if offset >= next_offset or not size:
            return next_offset
        data = self.file.mapping(size)
        entry_position = self.offset_index.lookup(max(offset, self.base_offset)).position
        position, base_offset = find_batch(data, entry_position, size, offset)
        if position < size:
            offset = min(offset, base_offset)
        self._read_hint = self._append_hint = _NO_HINT
        self._end = (position, offset)
        self.file.truncate(position)
        self.offset_index.truncate(position)
        self.time_index.truncate(offset)
        self.load_tail(offset)
        return offset

    def load_tail(self, least_next_offset: int) -> None:
        """Find out, from the last index entry on, what else is known only in memory: next offset, timestamps.

        Raises CORRUPT_MESSAGE when the bytes there are no batches.
        """
        size, _ = self._end
        self._first_timestamp = None
        self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last()
        self._bytes_since_entry = 0
        next_offset = least_next_offset
        if size:
            start = self.offset_index.last().position
            for _, header in iter_headers(self.file.mapping(size), start, size):
                self._bytes_since_entry += header.size_bytes
                next_offset = max(next_offset, header.next_offset)
                if header.max_timestamp > self._max_timestamp:
                    self._max_timestamp = header.max_timestamp
                    self._offset_of_max_timestamp = header.last_offset
        self._end = (size, next_offset)

    def start_rebuild(self) -> None:
        """Forget both indexes; `note` every batch anew, then `finish_rebuild`."""
        self.offset_index.clear()
        self.time_index.clear()
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = self.base_offset
        self._bytes_since_entry = 0

    def finish_rebuild(self, size: int, next_offset: int) -> None:
        """What was noted ends here; bytes behind, which nobody can have seen yet, are cut off.

        Raises LogDirFailure.
        """
        self.file.cut_to(size)
        self._end = (size, next_offset)

    def seal(self) -> None:
        """Write the indexes, cut the file to its size and let its descriptor go. Raises LogDirFailure."""
        if self.size:
            self.time_index.maybe_append(self.max_timestamp, self.offset_of_max_timestamp)
        self.offset_index.seal()
        self.time_index.seal()
        self.file.cut_tail()
        self.file.release()

    def fsync(self) -> None:
        """Force data and index files to disk; needs no lock. Raises OSError."""
        self.file.fsync()
        self.offset_index.fsync()
        self.time_index.fsync()

    def close(self) -> None:
        """Let go of descriptors and mappings without writing anything."""
        self.file.close()

    def abandon(self) -> None:
        """As `close`, for a log that is gone, as readers are told from now on."""
        self.offset_index.abandon()
        self.time_index.abandon()
        self.file.abandon()

    def remove(self) -> None:
        """Delete the files; views that were handed out stay valid. Raises LogDirFailure."""
        self.file.remove()
        try:
            self.offset_index.remove()
            self.time_index.remove()
        except OSError as error:
            raise storage_error(self.file.path, error, Operation.CHANGE) from error
