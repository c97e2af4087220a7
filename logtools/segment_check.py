"""Reads one segment whole, and checks its batches, its indexes and, if asked, its records. Changes nothing.

A check depends on this segment's files alone, so segments are checked in any order and by several processes;
`verification` joins the results, and compares what only several segments or the other files of a log show.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.broker.log.batch_scan import BatchWalk
from barnabas.broker.log.epoch_cache import EpochStart
from barnabas.broker.log.file_system import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from barnabas.broker.log.indexes import OffsetIndex, TimeIndex
from barnabas.broker.log.producer_state import MAX_SEQUENCE
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import Operation, StorageError, storage_error
from barnabas.logtools.transaction_check import SegmentTransactions, TransactionStep, read_index
from barnabas.protocol.compression import framing_fault
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.record_batch import HEADER_BYTES, BatchHeader, TimestampType
from barnabas.protocol.records import decode_records, marker_of

_NO_EPOCH: Final = -1


class Severity(StrEnum):
    DAMAGE = "damage"
    """The next start does not repair it, and records are lost, or may be read wrongly."""
    REPAIRED = "repaired"
    """The next start repairs it."""
    DOUBTFUL = "doubtful"
    """Nothing is lost, but a broker with correct clients does not leave it after a clean stop."""


class Finding(NamedTuple):
    """A fault of a file, with position and offset if it is within the records."""

    path: Path
    reason: str
    position: int | None = None
    offset: int | None = None
    severity: Severity = Severity.DAMAGE

    @property
    def is_damage(self) -> bool:
        return self.severity is Severity.DAMAGE


class SegmentTask(NamedTuple):
    """A segment to check."""

    path: Path
    base_offset: int
    snapshots: tuple[int, ...]
    """The offsets of the snapshots above its base, at or below the next segment's; they rise."""
    is_deep: bool
    """Whether to decode the records."""
    needs_keys: bool
    """Whether the topic is known to be compacted, so that every record has a key."""
    recovery_point: int


class Produced(NamedTuple):
    """A batch of an idempotent producer."""

    epoch: int
    base_sequence: int
    last_sequence: int
    last_offset: int
    position: int
    missing: int
    """How many offsets the segment lacks before it: a batch of the producer may have been among them."""


LastBatches = dict[int, Produced]
"""The last batch of each producer, by producer id."""


class SegmentReport(NamedTuple):
    """The result of a check."""

    path: Path
    base_offset: int
    size_bytes: int
    next_offset: int
    """The end of the sound batches."""
    position: int
    """Where they end in the file."""
    fault: str | None
    """Why the walk ended before the file."""
    is_unreadable: bool
    """Whether the walk ended because the file, or a part of it, cannot be read."""
    is_zero_tail: bool
    """Whether only zeros follow the sound batches."""
    is_damaged_below: bool
    """Whether the walk ended below the recovery point; see `BatchWalk.is_damaged_below`."""
    epochs: list[EpochStart]
    missing: int
    """The number of missing offsets."""
    first_batches: dict[int, Produced]
    """The first batch of each producer, by producer id."""
    last_batches: LastBatches
    at_snapshots: dict[int, LastBatches]
    """The last batches below each snapshot's offset."""
    transactions: SegmentTransactions
    findings: list[Finding]


def sequence_fault(before: Produced, after: Produced, missing: int) -> str | None:
    """Why a producer's batch cannot follow its former one, if `missing` offsets lie between them.

    The batches of a coordinator, offsets in transactions, have an epoch but no sequence.
    """
    if after.epoch < before.epoch:
        return f"its producer's epoch falls from {before.epoch} to {after.epoch}"
    if missing or after.base_sequence < 0:
        return None
    expected = (before.last_sequence + 1) & MAX_SEQUENCE if after.epoch == before.epoch else 0
    if after.base_sequence == expected:
        return None
    return f"it has sequence {after.base_sequence}, expected {expected} of its producer"


def check_segment(task: SegmentTask) -> SegmentReport:
    """Never raises for the content of the files, nor if they cannot be read: that is the report's fault."""
    return _SegmentCheck(task).run()


class _SegmentCheck:
    def __init__(self, task: SegmentTask) -> None:
        self._task = task
        self._path = task.path
        self._base_offset = task.base_offset
        self._findings: list[Finding] = []
        self._max_timestamp = -1
        self._missing = 0
        self._first: dict[int, Produced] = {}
        self._last: LastBatches = {}
        self._at_snapshots: dict[int, LastBatches] = {}
        self._snapshots = list(task.snapshots)
        self._steps: list[TransactionStep] = []
        self._ongoing: set[int] = set()
        """The producers with a transactional batch after their last marker here."""
        self._is_cleaned = False
        self._index = _Entries(task, OFFSET_INDEX_SUFFIX, OffsetIndex.entry)
        self._times = _Entries(task, TIME_INDEX_SUFFIX, TimeIndex.entry)
        self._unseen = {position: offset for offset, position in self._index.entries}
        self._unseen_times = {offset: timestamp for timestamp, offset in self._times.entries}

    def run(self) -> SegmentReport:
        size, fault = 0, None
        try:
            size = self._path.stat().st_size
        except OSError as error:
            fault = storage_error(self._path, error, Operation.READ)
        file = SegmentFile(self._path, size)
        walk = BatchWalk(file, self._base_offset)
        walk.fault = fault
        is_zero_tail = False
        try:
            for header in walk:
                self._check(walk, header)
            is_zero_tail = walk.fault is not None and fault is None and file.is_unused_from(walk.position)
        except ApiError as error:
            walk.fault = error
        for offset in self._snapshots:
            self._at_snapshots[offset] = self._last
        if walk.fault is None:
            self._findings += self._check_indexes(walk.next_offset)
        return SegmentReport(
            self._path,
            self._base_offset,
            file.size,
            walk.next_offset,
            walk.position,
            None if walk.fault is None else str(walk.fault),
            isinstance(walk.fault, StorageError),
            is_zero_tail,
            walk.is_damaged_below(self._task.recovery_point),
            walk.epochs,
            self._missing,
            self._first,
            self._last,
            self._at_snapshots,
            SegmentTransactions(
                self._steps,
                self._is_cleaned or self._missing > 0,
                *read_index(self._path, self._base_offset, walk.next_offset),
            ),
            self._findings,
        )

    def _check(self, walk: BatchWalk, header: BatchHeader) -> None:
        newest = walk.epochs[-1].epoch if walk.epochs else _NO_EPOCH
        if header.partition_leader_epoch < newest:
            text = f"a batch of leader epoch {header.partition_leader_epoch} after one of {newest}"
            walk.fault = api_error(ErrorCode.CORRUPT_MESSAGE, text)
            return
        self._missing += header.base_offset - walk.next_offset
        while self._snapshots and self._snapshots[0] <= header.base_offset:
            self._at_snapshots[self._snapshots.pop(0)] = dict(self._last)
        relative = header.last_offset - self._base_offset
        if self._unseen.get(walk.position) == relative:
            del self._unseen[walk.position]
        if self._unseen_times.get(relative) == header.max_timestamp:
            del self._unseen_times[relative]
        if header.record_count:
            self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        if header.producer_id >= 0 and not header.is_control:
            self._note_producer(walk.position, header)
        self._is_cleaned |= not header.record_count
        if header.is_transactional or header.is_control:
            self._note_transaction(walk, header)
        if self._task.is_deep:
            self._check_records(walk, header)

    def _note_producer(self, position: int, header: BatchHeader) -> None:
        first = header.base_sequence
        batch = Produced(
            header.producer_epoch,
            first,
            (first + header.last_offset_delta) & MAX_SEQUENCE if first >= 0 else first,
            header.last_offset,
            position,
            self._missing,
        )
        before = self._last.get(header.producer_id)
        self._last[header.producer_id] = batch
        if before is None:
            self._first[header.producer_id] = batch
            return
        fault = sequence_fault(before, batch, batch.missing - before.missing)
        if fault is not None:
            self._doubt(fault, position, header.base_offset)

    def _note_transaction(self, walk: BatchWalk, header: BatchHeader) -> None:
        producer_id = header.producer_id
        if not header.is_control:
            if producer_id not in self._ongoing:
                self._ongoing.add(producer_id)
                self._steps.append(TransactionStep(producer_id, header.base_offset, None))
            return
        try:
            marker = marker_of(walk.batch(header))
        except ApiError as error:
            reason = f"the marker cannot be decoded: {error}"
            self._findings.append(Finding(self._path, reason, walk.position, header.base_offset))
            return
        if marker is not None:
            self._ongoing.discard(producer_id)
            self._steps.append(TransactionStep(producer_id, header.base_offset, marker.type))

    def _check_records(self, walk: BatchWalk, header: BatchHeader) -> None:
        try:
            batch = walk.batch(header)
            framing = framing_fault(header.compression, batch[HEADER_BYTES:])
            if framing is not None:
                raise api_error(ErrorCode.CORRUPT_MESSAGE, framing)
            records = decode_records(batch, check_crc=False)
        except ApiError as error:
            reason = f"the records cannot be decoded: {error}"
            self._findings.append(Finding(self._path, reason, walk.position, header.base_offset))
            return
        if header.timestamp_type is TimestampType.CREATE_TIME:
            late = next((record for record in records if record.timestamp_ms > header.max_timestamp), None)
            if late is not None:
                reason = f"a record has time {late.timestamp_ms}, its batch at most {header.max_timestamp}"
                self._doubt(reason, walk.position, late.offset)
        if self._task.needs_keys and not header.is_control:
            without = next((record for record in records if record.key is None), None)
            if without is not None:
                self._doubt("a record of a compacted topic has no key", walk.position, without.offset)

    def _doubt(self, reason: str, position: int, offset: int) -> None:
        self._findings.append(Finding(self._path, reason, position, offset, Severity.DOUBTFUL))

    def _check_indexes(self, next_offset: int) -> Iterator[Finding]:
        """Entries that name no batch, or are out of order. Only a segment without a fault can be checked."""
        index, times = self._index, self._times
        for entries in (index, times):
            if entries.fault is not None:
                yield Finding(entries.path, entries.fault, severity=Severity.REPAIRED)
            if entries.unused:
                reason = f"it ends with zeros in the place of {entries.unused} entries"
                yield Finding(entries.path, reason, severity=Severity.DOUBTFUL)
        for position, offset in self._unseen.items():
            offset += self._base_offset
            yield Finding(index.path, f"an entry names a missing batch: offset {offset} at {position}")
            break
        for name, entries, strictly in (("offset", index, 1), ("time", times, 0)):
            for before, after in pairwise(entries.entries):
                if not (after[0] > before[0] and after[1] >= before[1] + strictly):
                    yield Finding(entries.path, f"the {name} entry {after} does not rise above {before}")
                    break
        for offset, timestamp in self._unseen_times.items():
            offset += self._base_offset
            yield Finding(times.path, f"an entry names no batch: time {timestamp}, offset {offset}")
            break
        newest = times.entries[-1][0] if times.entries else -1
        if times.is_there and times.fault is None and not self._unseen_times and newest < self._max_timestamp:
            yield Finding(
                times.path,
                f"the last entry has time {newest}, the segment's largest is {self._max_timestamp}",
                severity=Severity.REPAIRED,
            )


class _Entries:
    """The entries of an index file; Kafka extends a file with zeros until it seals the segment."""

    def __init__(self, task: SegmentTask, suffix: str, entry: struct.Struct) -> None:
        # The indexes of an interrupted swap have its suffix too.
        self.path = task.path.with_name(task.path.name.replace(LOG_SUFFIX, suffix))
        self.fault: str | None = None
        self.is_there = True
        self.unused = 0
        """The number of entries of zeros at the end."""
        self.entries: list[tuple[int, int]] = []
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            self.is_there = False
            return
        except OSError as error:
            self.fault = f"it cannot be read: {error}"
            return
        if len(data) % entry.size:
            self.fault = f"its length is not a multiple of {entry.size}"
            return
        self.entries = [(first, second) for first, second in entry.iter_unpack(data)]
        # An index of one entry may have a record of time 0 in it.
        while len(data) > entry.size and self.entries and not any(self.entries[-1]):
            self.entries.pop()
            self.unused += 1
