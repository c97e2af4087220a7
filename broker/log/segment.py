"""One segment of a log: its file and its indexes.

Changed under the log's lock, and only there. Read by any thread without a lock: size and next offset are one
tuple. It is published after the bytes of an append, and before its largest timestamp and index entries, which
name batches below `size`; a truncation publishes it before it overwrites bytes. A reader that finds a damaged
index raises IndexDamaged, since it cannot tell damage from a change; the log rebuilds the index.

Bytes that this process wrote lately are served as views of the page cache. Others are read into memory of
their own; NotCached is raised if that would wait for the disk and the caller may not.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import logging
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.appending import Appendable
from barnabas.broker.log.batch_scan import (
    READ_BUFFERS,
    Bytes,
    TimestampAndOffset,
    batches_end,
    ends_at,
    find_batch,
    find_end_before,
    find_record_since,
    has_batch,
    impossible,
    impossible_end,
    iter_headers,
    last_offset_at,
)
from barnabas.broker.log.file_system import (
    FILE_SYSTEM,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    FileSystem,
    segment_name,
)
from barnabas.broker.log.indexes import (
    MAX_RELATIVE_OFFSET,
    IndexDamaged,
    IndexFile,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
)
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.retention import SegmentAge
from barnabas.broker.log.segment_file import SegmentFile, create_segment_file
from barnabas.broker.log.storage_errors import Gone, Operation, disk_work
from barnabas.broker.log.transaction_index import AbortedTransaction, TransactionIndex
from barnabas.protocol.errors import CorruptMessageError
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import (
    BATCH_LENGTH,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MIN_BATCH_LENGTH,
    NO_TIMESTAMP,
    BatchHeader,
    parse_header,
)

logger = logging.getLogger(__name__)

_JUMP_BYTES: Final = 32 * 1024
"""A longer read finds its end in the index; for a shorter one a walk is as fast."""
_WALKED_BATCHES: Final = 64
"""A read of fewer batches of the first one's size also walks, because an index in a file costs several
reads."""
_NO_HINT: Final = (-1, -1)
_BASE_OFFSET: Final = struct.Struct(">q")
_LEAST_READ_BYTES: Final = 16 * 1024
"""A shorter read costs the same."""
_REBUILDS: Final = itertools.count(1)
_MOST_COPIED_BYTES: Final = 64 * 1024
"""Bounds the copying of a caller that may not wait: 1 MB takes up to half a millisecond."""


class ReadRequest(NamedTuple):
    """Whole batches of one segment, beginning with the batch that holds an offset.

    All their offsets are below the upper bound. A first batch larger than `max_bytes` is read alone, or,
    without `min_one_batch`, not at all. `may_wait`: for the disk.
    """

    start_offset: int
    max_bytes: int
    upper_bound_offset: int
    min_one_batch: bool = True
    may_wait: bool = True


class ReadResult(NamedTuple):
    """Whole batches out of one segment.

    `records` is a view that stays valid as long as it is held. `start_offset` is the base offset of the first
    batch (it may be below the requested offset, or above it after a gap), `next_offset` the offset of the
    next read. Without records both are the requested offset. `is_without_records`: a consumer has read every
    record below the upper bound, and these batches hold none for it.
    """

    records: memoryview
    start_offset: int
    next_offset: int
    is_without_records: bool = False


class Segment:
    """The batches from a base offset on, with gaps: see `Log`."""

    __slots__ = (
        "_append_hint",
        "_bytes_since_entry",
        "_end",
        "_first_timestamp",
        "_is_age_checked",
        "_is_first_loading",
        "_largest",
        "_read_hint",
        "base_offset",
        "created_ms",
        "file",
        "has_checked_indexes",
        "index_interval_bytes",
        "offset_index",
        "time_index",
        "transaction_index",
    )

    rebuilds: ClassVar[int] = 0
    """The number of the last rebuild of indexes, which may change a sealed segment's largest timestamp."""

    def __init__(
        self,
        folder: Path,
        base_offset: int,
        size: int,
        next_offset: int,
        created_ms: int,
        config: TopicConfig,
        files: FileSystem = FILE_SYSTEM,
        *,
        is_new: bool = False,
        has_transaction_index: bool = False,
    ) -> None:
        """A segment that is on disk; reads only the names and sizes of its files. Raises LogDirFailure."""
        offsets, times = (
            folder / segment_name(base_offset, suffix) for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )
        self.base_offset = base_offset
        self.file = SegmentFile(folder / segment_name(base_offset), size, files)
        self.offset_index = OffsetIndex(offsets, base_offset, is_new=is_new, files=files)
        self.time_index = TimeIndex(times, base_offset, is_new=is_new, files=files)
        self.transaction_index = TransactionIndex.beside(self.offset_index) if has_transaction_index else None
        """None while no transaction was aborted here: thousands of segments have no such index."""
        self.created_ms = created_ms
        self.index_interval_bytes = config.index_interval_bytes
        self._end = (size, next_offset)
        self.has_checked_indexes = self._is_age_checked = is_new
        self._largest = TimestampOffset(NO_TIMESTAMP, base_offset) if is_new else None
        """The largest timestamp; None if only the time index knows it. A reader does not set it: by then, a
        truncation may have."""
        # The start of the last append and the end of the last read: a follower at the log's end requests
        # one of them.
        self._append_hint = self._read_hint = _NO_HINT
        self._bytes_since_entry = 0
        self._first_timestamp: int | None = None
        self._is_first_loading = False

    @classmethod
    def create(
        cls, folder: Path, base_offset: int, created_ms: int, config: TopicConfig, files: FileSystem
    ) -> Segment:
        """Create an empty segment on disk. Raises LogDirFailure."""
        create_segment_file(folder / segment_name(base_offset), files)
        return cls(folder, base_offset, 0, base_offset, created_ms, config, files, is_new=True)

    @property
    def size(self) -> int:
        """Bytes of whole batches."""
        return self._end[0]

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self._end[1]

    @property
    def largest(self) -> TimestampOffset:
        """The largest timestamp, and the last offset of its batch; (-1, base offset) without timestamps.

        In a sealed segment it is the last entry of the time index.
        """
        largest = self._largest
        return self.time_index.last() if largest is None else largest

    # Reading: any thread, no lock

    def read(self, request: ReadRequest) -> ReadResult | None:
        """None if all batches here are older than the offset.

        Raises as `SegmentFile.mapping`, NotCached if it would wait for the disk and may not, and
        CORRUPT_MESSAGE if the bytes are no batches.
        """
        size, next_offset = self._end
        start_offset = request.start_offset
        if start_offset >= next_offset or not size:
            return None
        file = self.file
        for hinted_offset, hinted_position in (self._append_hint, self._read_hint):
            # A truncation may have left a stale hint, so the batch at its position decides.
            if hinted_offset == start_offset and hinted_position < size:
                if not file.is_hot(hinted_position):
                    result = self._read_file(hinted_position, request, is_hint=True)
                    if result is not None:
                        return result
                    break
                data = file.mapping(size)
                if _BASE_OFFSET.unpack_from(data, hinted_position)[0] == start_offset:
                    return self._read_mapped(data, hinted_position, start_offset, request)
        position = self.position_before(start_offset, may_wait=request.may_wait)
        if not file.is_hot(position):
            return self._read_file(position, request)
        data = file.mapping(size)
        position, base_offset = find_batch(data, position, size, start_offset)
        if base_offset >= 0:
            return self._read_mapped(data, position, base_offset, request)
        if position < size:
            raise impossible(position, size - position, size)
        return None

    def _read_mapped(self, data: Bytes, position: int, base_offset: int, request: ReadRequest) -> ReadResult:
        """Read from a batch in the hot tail."""
        size, next_offset = self._end
        upper_bound_offset = request.upper_bound_offset
        limit = position + request.max_bytes
        if limit >= size and upper_bound_offset >= next_offset:
            end, following = size, next_offset
        else:
            end, following = self._read_end(data, 0, position, min(limit, size), request)
            if following < 0 and request.min_one_batch:
                length = parse_header(memoryview(data), position).size_bytes
                end, following = batches_end(data, position, size, position + length, upper_bound_offset)
            if following < 0:
                # Not beyond the bound, which may lie in a gap before the batch.
                base_offset = following = request.start_offset
        self._read_hint = (following, end)
        return ReadResult(memoryview(data)[position:end], base_offset, following)

    def _read_file(self, position: int, request: ReadRequest, *, is_hint: bool = False) -> ReadResult | None:
        """Read into memory of its own, from a position where a batch begins.

        It may return less than requested, but at least the first batch. None if the hint's batch does not
        hold the offset.
        """
        size, _ = self._end
        start_offset, max_bytes, upper_bound_offset, min_one_batch, may_wait = request
        while True:
            if position + HEADER_BYTES > size:
                if position < size:
                    raise impossible(position, size - position, size)
                return None
            length = max(max_bytes + self.index_interval_bytes, _LEAST_READ_BYTES)
            length = min(length, size - position)
            if not may_wait and (length > _MOST_COPIED_BYTES or READ_BUFFERS.is_short):
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
        end, following = self._read_end(data[:count], position, position + first, limit, request)
        records = data[first : end - position]
        position += first
        if following < 0:
            header = parse_header(data, first)
            if header.last_offset < upper_bound_offset and (min_one_batch or header.size_bytes <= max_bytes):
                records = self._read_batch(position, header, may_wait=may_wait)
                following = header.next_offset
            elif header.last_offset >= self.next_offset:
                raise impossible_end(position, header.last_offset, self.next_offset)
            else:
                records, base_offset, following = data[:0], start_offset, start_offset
            end = position + len(records)
        if may_wait:
            # The next read finds it in the page cache.
            self.file.will_need(end, min(max_bytes, size - end))
        self._read_hint = (following, end)
        return ReadResult(records.toreadonly(), base_offset, following)

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
        self, data: Bytes, origin: int, position: int, limit: int, request: ReadRequest
    ) -> tuple[int, int]:
        """Find the `batches_end`, beginning the walk close to it, at a position from the index.

        `data` are the bytes of the segment from `origin`, at least up to `limit`.
        """
        start = position
        length = limit - position
        upper_bound_offset, may_wait = request.upper_bound_offset, request.may_wait
        if (
            length > _JUMP_BYTES
            and length > _WALKED_BATCHES * BATCH_LENGTH.unpack_from(data, position - origin)[0]
        ):
            # All batches before an entry's are below its offset and end at its position at the latest.
            entry = self.offset_index.lookup_position(limit - 1, may_wait=may_wait)
            if upper_bound_offset < self.next_offset:
                by_offset = self.offset_index.lookup(upper_bound_offset - 1, may_wait=may_wait)
                entry = min(entry, by_offset)
            start = max(position, entry.position)
            if start > position and last_offset_at(data, start - origin) != entry.offset:
                # The batch begins so close to the limit that it is beyond the bound, or the entry is damaged.
                start = position
        end, following = batches_end(data, start - origin, limit - origin, limit - origin, upper_bound_offset)
        if following < 0 and start > position:
            return start, _BASE_OFFSET.unpack_from(data, start - origin)[0]
        return end + origin, following

    def find_by_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
        """The first record not older than a time and not below an offset. Raises what `read` raises."""
        size, _ = self._end
        if not size:
            return None
        older = self.time_index.lookup_below(timestamp_ms)
        position = self.position_before(max(older.offset, start_offset))
        return find_record_since(self.file, position, size, timestamp_ms, start_offset)

    def position_before(self, offset: int, *, may_wait: bool = True) -> int:
        """Where a batch begins, at or before the batch that holds an offset, and at most a short walk away.

        Raises IndexDamaged, or NotCached unless it may wait for the disk.
        """
        index, offset = self.offset_index, max(offset, self.base_offset)
        if not (self.has_checked_indexes or index.is_loaded):
            # At the first lookup: a start opens thousands of segments by name and size alone.
            if not index.is_sane(self.size, may_wait=may_wait):
                raise IndexDamaged(index) if may_wait else NotCached
            self.has_checked_indexes = True
        entry = index.lookup(offset, may_wait=may_wait)
        if not entry.position or ends_at(
            self.file, entry.position, self.size, entry.offset, may_wait=may_wait
        ):
            return entry.position
        # The entry is damaged. A batch begins at 0; the index of the active segment is its appender's.
        if not may_wait or not index.is_loaded:
            raise IndexDamaged(index) if may_wait else NotCached
        return 0

    def first_timestamp_ms(self, *, may_wait: bool = True) -> int:
        """The largest timestamp of the first batch, as Kafka counts the age of a segment; -1 without one.

        Raises as `SegmentFile.read_into`.
        """
        if self.size < HEADER_BYTES:
            return NO_TIMESTAMP
        data = bytearray(HEADER_BYTES)
        self.file.read_into(memoryview(data), 0, may_wait=may_wait)
        return parse_header(data).max_timestamp

    def rebuilt(self) -> Segment:
        """A copy of this segment with new indexes, which are in memory, for `take_indexes`.

        It reads the whole segment. Raises as `read`.
        """
        new = copy.copy(self)
        new.offset_index = self.offset_index.emptied()
        new.time_index = self.time_index.emptied()
        new.transaction_index = None
        new.start_rebuild()
        for position, header in iter_headers(self.file, 0, new.size):
            new.note(header, position)
        new.time_index.maybe_append(*new.largest)
        return new

    # Changing, and reading what a change would make wrong: under the log's lock

    @property
    def indexes(self) -> tuple[IndexFile, ...]:
        transactions = () if self.transaction_index is None else (self.transaction_index,)
        return (self.offset_index, self.time_index, *transactions)

    @property
    def needs_seal(self) -> bool:
        """Whether anything is only in memory until `seal`."""
        return self.file.is_written or any(index.is_dirty for index in self.indexes)

    def age(self) -> SegmentAge:
        """The size and age by which retention decides. The age counts from the last write if no record has a
        timestamp, or if the segment is damaged and cannot be read.

        Raises LogDirFailure.
        """
        size, next_offset = self._end
        try:
            self._check_max_timestamp()
            timestamp_ms = self.largest.timestamp_ms
        except CorruptMessageError as error:
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
        indexes are read.
        """
        size, next_offset = self._end
        if self._is_age_checked or not size:
            return
        tail = iter_headers(self.file, self.locate(next_offset - 1), size)
        youngest = max((header.max_timestamp for _, header in tail if header.record_count), default=-1)
        largest, last_offset = self.largest
        start = self.locate(last_offset)
        if youngest > largest or not has_batch(self.file, start, size, last_offset, largest):
            self.take_indexes(self.rebuilt())
        # Only the next change may make it wrong, so it is read no more.
        self._largest = self.largest
        self._is_age_checked = True

    def should_roll(
        self, added_bytes: int, batches: Sequence[Appendable], now_ms: int, config: TopicConfig
    ) -> bool:
        """Whether these batches need a new segment: by size, offset range, a full index, or age.

        Size and age wait while the file is held beyond its size, so a segment may exceed its size by one
        batch.
        """
        size = self._end[0]
        last = batches[-1][1]
        if last.base_offset + last.last_offset_delta - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if not size:
            return False
        # An index has at most an entry for each batch.
        most_index_bytes = ((size + added_bytes) // HEADER_BYTES + 1) * self.time_index.entry.size
        if most_index_bytes > config.segment_index_bytes and self._are_indexes_full(
            added_bytes, len(batches), config
        ):
            return True
        is_due = size + added_bytes > config.segment_bytes
        if not is_due:
            age_ms = self._roll_age_ms(last.max_timestamp, now_ms)
            is_due = age_ms > config.least_roll_ms and _is_old(age_ms, self.file.path, config)
        return is_due and not self.file.is_held_beyond_size()

    def _are_indexes_full(self, added_bytes: int, batches: int, config: TopicConfig) -> bool:
        entries = 1 if batches == 1 else min(batches, 1 + added_bytes // (self.index_interval_bytes + 1))
        offsets, times, limit_bytes = self.offset_index, self.time_index, config.segment_index_bytes
        # Sealing the segment may add an entry of time.
        return (
            offsets.size_bytes + entries * offsets.entry.size > limit_bytes
            or times.size_bytes + (entries + 1) * times.entry.size > limit_bytes
        )

    def _roll_age_ms(self, timestamp_ms: int, now_ms: int) -> int:
        """As in Kafka, from the first batch's timestamp to the new batch's; without them the clock counts."""
        if self._first_timestamp is None:
            self._first_timestamp = self._read_first_timestamp()
        if self._first_timestamp is None:
            return 0
        if self._first_timestamp >= 0 and timestamp_ms >= 0:
            return timestamp_ms - self._first_timestamp
        return now_ms - self.created_ms

    def append(
        self, data: memoryview, batches: Sequence[Appendable], size_limit: int, *, preallocate: bool = False
    ) -> int:
        """Write batches with one call; `batches` are (position in the data, header with its final offsets).

        Returns the new end. Raises LogDirFailure and leaves everything as it was.
        """
        size, next_offset = self._end
        last = batches[-1][1]
        end_offset = last.base_offset + last.last_offset_delta + 1
        invariant(
            next_offset <= batches[0][1].base_offset < end_offset,
            "offsets %d to %d are appended to a log that ends at %d",
            batches[0][1].base_offset,
            end_offset - 1,
            next_offset,
        )
        # Before the write: it may fail, and no batch may stay without its entry.
        self.offset_index.load()
        self.time_index.load()
        if self.transaction_index is not None:
            self.transaction_index.load()
        self.file.write(data, size_limit, preallocate=preallocate)
        self._append_hint = (next_offset, size)
        self._end = (size + len(data), end_offset)
        # After the batches are published: a reader of the new largest timestamp finds its record.
        for position, header in batches:
            self.note(header, size + position)
        return end_offset

    def note(self, header: BatchHeader, position: int) -> None:
        """Add a batch to the indexes; batches come in order."""
        timestamp_ms = header.max_timestamp
        if not position:
            self._first_timestamp = timestamp_ms
        largest = self._largest or self.largest
        if timestamp_ms > largest.timestamp_ms and header.record_count:
            self._largest = TimestampOffset(timestamp_ms, header.last_offset)
        if self._bytes_since_entry > self.index_interval_bytes:
            self.offset_index.append(header.last_offset, position)
            self.time_index.maybe_append(*self.largest)
            self._bytes_since_entry = 0
        self._bytes_since_entry += LOG_OVERHEAD_BYTES + header.batch_length

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Add a transaction whose marker is here to the index."""
        if self.transaction_index is None:
            self.transaction_index = TransactionIndex.beside(self.offset_index, is_new=True)
        self.transaction_index.append(aborted)

    def locate(self, offset: int) -> int:
        """As `position_before`, but a damaged index is rebuilt."""
        try:
            return self.position_before(offset)
        except IndexDamaged:
            self.take_indexes(self.rebuilt())
        return self.position_before(offset)

    def take_indexes(self, new: Segment) -> None:
        """Replace the indexes by those of `rebuilt`; readers may continue meanwhile. Raises LogDirFailure."""
        self.file.check_exists()
        logger.warning("%s does not fit its segment and is rebuilt", self.offset_index.path)
        new.offset_index.seal(keeps_file=new.time_index.count > 0, durable=True)
        new.time_index.seal(durable=True)
        self.offset_index, self.time_index, self._largest = new.offset_index, new.time_index, new.largest
        # Counted last. Each number is given once, so that no log takes another's rebuild for its own.
        Segment.rebuilds = next(_REBUILDS)

    def _read_first_timestamp(self) -> int | None:
        """The first batch's timestamp; None while the system loads the batch into the page cache."""
        try:
            return self.first_timestamp_ms(may_wait=self._is_first_loading)
        except NotCached:
            self._is_first_loading = True
            self.file.will_need(0, HEADER_BYTES)
            return None

    def end_before(self, offset: int) -> tuple[int, int]:
        """Size and next offset without the batch that holds an offset and all later ones."""
        size, next_offset = self._end
        if offset >= next_offset or not size:
            return size, next_offset
        # The batch of an index entry below the offset stays, so its end is seen.
        start = self.locate(offset - 1)
        return find_end_before(self.file, start, size, offset, self.base_offset)

    def hide_after(self, size: int, next_offset: int) -> None:
        """Let readers see only the batches up to an `end_before`; `truncate` drops the others."""
        if size < self.size:
            self._read_hint = self._append_hint = _NO_HINT
            self._end = (size, next_offset)

    def truncate(self) -> None:
        """Drop the hidden batches. Raises LogDirFailure."""
        size, next_offset = self._end
        if size < self.file.size:
            self.file.truncate(size)
            self.offset_index.truncate(size)
            self.time_index.truncate(next_offset)
            if self.transaction_index is not None:
                self.transaction_index.truncate(next_offset)
            self.load_tail(next_offset)

    def load_tail(self, least_next_offset: int) -> None:
        """Read the batches after the last index entry, and restore the next offset and the timestamps.

        Raises CORRUPT_MESSAGE when the bytes there are no batches.
        """
        size, _ = self._end
        self._first_timestamp = None
        self._bytes_since_entry = 0
        next_offset, largest = least_next_offset, self.time_index.last()
        if size:
            start = self.offset_index.last().position
            for _, header in iter_headers(self.file, start, size):
                self._bytes_since_entry += header.size_bytes
                next_offset = max(next_offset, header.next_offset)
                if header.max_timestamp > largest.timestamp_ms and header.record_count:
                    largest = TimestampOffset(header.max_timestamp, header.last_offset)
        # Published at once: a reader takes a record above the largest timestamp for missing.
        self._largest = largest
        self._end = (size, next_offset)

    def start_rebuild(self) -> None:
        """Drop the indexes; `note` every batch and add the aborted transactions, then `finish_rebuild`."""
        for index in self.indexes:
            index.clear()
        self.has_checked_indexes = True
        self._largest = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self._bytes_since_entry = 0

    def finish_rebuild(self, size: int, next_offset: int) -> None:
        """Set the end of the noted batches, and cut off the bytes after it, which no reader has seen.

        Raises LogDirFailure.
        """
        self.file.cut_to(size)
        self._end = (size, next_offset)

    def seal(self, *, durable: bool = False) -> None:
        """Write the indexes, cut the file to its size and close its descriptor. Raises LogDirFailure."""
        if self.transaction_index is not None:
            # First: a start that finds the offset index takes a missing one for a segment without.
            self.transaction_index.seal(durable=durable)
        if self.size:
            self.time_index.maybe_append(*self.largest)
        self.offset_index.seal(keeps_file=self.time_index.count > 0, durable=durable)
        self.time_index.seal(durable=durable)
        self.file.cut_tail()
        self.file.release()

    @property
    def is_synced(self) -> bool:
        return self.file.sync_state.is_synced and all(index.sync_state.is_synced for index in self.indexes)

    def fsync(self) -> None:
        """Force changed data and index files to disk; needs no lock. Raises OSError."""
        self.file.fsync()
        for index in self.indexes:
            index.fsync()

    def close(self) -> None:
        """Close descriptors and mappings without writing anything."""
        self.file.close()
        for index in self.indexes:
            index.close()

    def abandon(self, gone: Gone = Gone.LOG) -> None:
        """Close the segment of a deleted log, or of one that goes on with other files."""
        for index in self.indexes:
            index.abandon(gone)
        self.file.abandon(gone)

    def relocate(self, folder: Path) -> None:
        """The folder of the files has been renamed."""
        self.file.path = folder / self.file.path.name
        for index in self.indexes:
            index.path = folder / index.path.name

    def remove(self, gone: Gone = Gone.SEGMENT) -> None:
        """Delete the files; existing views stay valid. Raises LogDirFailure."""
        self.file.remove(gone)
        with disk_work(self.file.path, Operation.CHANGE):
            for index in self.indexes:
                index.remove(gone)


def _is_old(age_ms: int, segment: Path, config: TopicConfig) -> bool:
    """Whether a segment has reached the age at which it is rolled, which jitter makes lower.

    The jitter differs at random between segments, also of different partitions, so that not all are rolled at
    once. A segment keeps its own, at each call and after a restart.
    """
    most_ms, least_ms = config.max_segment_ms, config.least_roll_ms
    if age_ms > most_ms or age_ms <= least_ms:
        return age_ms > most_ms
    name = f"{segment.parent.name}/{segment.name}"
    chance = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest())
    return age_ms > most_ms - (chance * (most_ms - least_ms) >> 32)
