"""A log in memory, in the shape of `Log` and `LogManager` as far as replicas use them.

A record is 20 bytes: offset, leader epoch, value; each is a batch of its own. A value may name an idempotent
producer and a sequence (`idempotent`). The epochs are kept by the real `EpochCache`, only without its file,
and the producers by the real `ProducerStates`, only without snapshots: a restart reads the log. `reopened` is
the end of a process, which loses nothing; with `keep_until` it is a power cut, which loses unflushed records.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.log.appending import AppendResult, ProducedBatches
from barnabas.broker.log.epoch_cache import EpochCache, EpochEntry
from barnabas.broker.log.log_segments import LogSegments
from barnabas.broker.log.producer_state import ProducerStates
from barnabas.broker.log.storage_errors import UnexpectedAppendOffset
from barnabas.broker.log.transaction_index import AbortedTransaction
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicId, TopicPartition
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import BatchHeader
from tests.support.defaults import log_config

RECORD = struct.Struct(">qiq")
"""Offset, leader epoch, value."""


SEQUENCE_BITS = 31


class Entry(NamedTuple):
    epoch: int
    value: int

    def header(self, offset: int) -> BatchHeader:
        """As the header of its batch."""
        producer_id = self.value >> SEQUENCE_BITS or -1
        sequence = self.value & ((1 << SEQUENCE_BITS) - 1) if producer_id > 0 else -1
        return BatchHeader(
            offset, 0, self.epoch, 2, 0, 0, 0, 0, 0, producer_id, min(0, sequence), sequence, 1
        )


def idempotent(producer_id: int, sequence: int) -> int:
    """The value of a record that a producer, an id from 1 on, gives this sequence number."""
    return producer_id << SEQUENCE_BITS | sequence


class MemoryRead(NamedTuple):
    records: memoryview
    start_offset: int
    next_offset: int
    is_without_records: bool = False


class MemoryEpochs(EpochCache):
    """Epochs without a file."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Path("memory"))

    def _replace(self, entries: tuple[EpochEntry, ...]) -> None:
        self.entries = entries

    def fsync(self) -> None:
        return


def encode(*values: int) -> ProducedBatches:
    """Records as a producer sends them."""
    return ProducedBatches(memoryview(b"".join(RECORD.pack(0, -1, value) for value in values)), [])


def decode(records: memoryview) -> list[tuple[int, Entry]]:
    """(offset, entry) of each record."""
    return [(offset, Entry(epoch, value)) for offset, epoch, value in RECORD.iter_unpack(records)]


class MemoryLog:
    """One partition's log."""

    def __init__(
        self, topic_partition: TopicPartition, topic_id: TopicId | None = None, start: int = 0
    ) -> None:
        self.topic_partition = topic_partition
        self.config = log_config()
        self.topic_id = topic_id
        self.folder = Path("memory") / str(topic_partition)
        self.lock = threading.RLock()
        self.epoch_cache = MemoryEpochs()
        self.flushed = start
        self._first = start
        self._log_start = start
        self._entries: list[Entry] = []
        self.producers = ProducerStates()
        self.must_flush = False
        self.log_segments = LogSegments(())

    def reopened(self, keep_until: int | None = None) -> MemoryLog:
        """The log that the next process opens."""
        reopened = MemoryLog(self.topic_partition, self.topic_id)
        end = self.log_end_offset if keep_until is None else max(keep_until, self._log_start)
        reopened._first, reopened._log_start = self._first, self._log_start
        reopened._entries = self._entries[: end - self._first]
        reopened._read_producers()
        reopened.flushed = min(self.flushed, end)
        for epoch, start in self.epoch_cache.entries:
            # As recovery does: an epoch that begins at the very end is still known.
            if start <= end:
                reopened.epoch_cache.assign(epoch, start)
        return reopened

    def between(self, start: int, end: int) -> list[Entry]:
        return self._entries[start - self._first : end - self._first]

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self._log_start)

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self._first + len(self._entries))

    @property
    def size_bytes(self) -> int:
        return len(self._entries) * RECORD.size

    def assign_topic_id(self, topic_id: TopicId) -> None:
        self.topic_id = topic_id

    def first_unstable_offset(self, high_watermark: int) -> None:
        """No record here is in a transaction."""
        return

    def aborted_transactions(
        self, start_offset: int, end_offset: int, *, may_wait: bool = True
    ) -> list[AbortedTransaction]:
        return []

    def append_as_leader(
        self, produced: ProducedBatches, leader_epoch: int, now_ms: int, **options: object
    ) -> AppendResult:
        if not len(produced.view):
            raise api_error(ErrorCode.INVALID_RECORD, "there is no batch in the request")
        entries = [Entry(leader_epoch, entry.value) for _, entry in decode(produced.view)]
        duplicates = self.producers.check([(0, entry.header(0)) for entry in entries])
        if not duplicates:
            return self._append(entries, leader_epoch)
        base = Offset(duplicates[0].base_offset)
        last = Offset(duplicates[-1].last_offset)
        if len(duplicates) < len(entries):
            return self._append(entries[len(duplicates) :], leader_epoch)._replace(base_offset=base)
        start, end = self.log_start_offset, self.log_end_offset
        return AppendResult(base, last, end, start, -1, 0, 0, LeaderEpoch(leader_epoch))

    def append_as_follower(
        self, records: memoryview, now_ms: int, newest_epoch: LeaderEpoch | None = None
    ) -> AppendResult:
        entries = decode(records)
        for expected, (offset, entry) in enumerate(entries, self.log_end_offset):
            if newest_epoch is not None and entry.epoch > newest_epoch:
                raise api_error(
                    ErrorCode.UNKNOWN_LEADER_EPOCH, f"epoch {entry.epoch}, at most {newest_epoch}"
                )
            if offset != expected:
                raise UnexpectedAppendOffset(f"offset {offset}, expected {expected}")
        return self._append([entry for _, entry in entries])

    def _append(self, entries: list[Entry], leader_epoch: int = NO_LEADER_EPOCH) -> AppendResult:
        base = self.log_end_offset
        for entry in entries:
            self.epoch_cache.assign(entry.epoch, self.log_end_offset)
            self._note(entry, self.log_end_offset)
            self._entries.append(entry)
        end = self.log_end_offset
        return AppendResult(
            base,
            Offset(end - 1),
            end,
            self.log_start_offset,
            -1,
            len(entries) * RECORD.size,
            len(entries),
            LeaderEpoch(leader_epoch),
        )

    def _note(self, entry: Entry, offset: int) -> None:
        header = entry.header(offset)
        if header.producer_id >= 0:
            self.producers.note(header, 0)

    def _read_producers(self) -> None:
        self.producers = ProducerStates()
        for offset, entry in enumerate(self._entries, self._first):
            self._note(entry, offset)

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        *,
        upper_bound_offset: int,
        min_one_batch: bool,
        may_wait: bool = True,
        for_consumer: bool = False,
    ) -> MemoryRead:
        count = max(max_bytes // RECORD.size, 1 if min_one_batch else 0)
        end = min(upper_bound_offset, start_offset + count)
        entries = self.between(start_offset, end)
        packed = [RECORD.pack(offset, *entry) for offset, entry in enumerate(entries, start_offset)]
        return MemoryRead(memoryview(b"".join(packed)), start_offset, start_offset + len(entries))

    def truncate_to(self, offset: int) -> bool:
        if offset >= self.log_end_offset:
            return False
        invariant(offset >= self._log_start, "truncation to %d, below the start %d", offset, self._log_start)
        del self._entries[offset - self._first :]
        self.flushed = min(self.flushed, offset)
        self.epoch_cache.truncate_from_end(offset)
        if not self.producers.cut(offset):
            self._read_producers()
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self._first = self._log_start = self.flushed = offset
        self._entries = []
        self.producers = ProducerStates()
        self.epoch_cache.clear()

    def increment_log_start_offset(self, offset: int) -> bool:
        if offset <= self._log_start:
            return False
        invariant(offset <= self.log_end_offset, "start %d beyond the end", offset)
        self._log_start = offset
        self.flushed = max(self.flushed, offset)
        self.epoch_cache.truncate_from_start(offset)
        return True


class MemoryLogs:
    """One broker's disk: it outlives the broker."""

    has_online_dir = True

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, MemoryLog] = {}
        self.high_watermarks: dict[TopicPartition, Offset] = {}
        self.deleted: list[TopicPartition] = []
        self.strays: dict[tuple[TopicPartition, TopicId | None], MemoryLog] = {}
        self.offline_partitions: dict[TopicPartition, Exception] = {}
        self.on_dir_failed: object = None

    def get(self, name: TopicPartition) -> MemoryLog | None:
        return self.logs.get(name)

    def get_or_open(self, name: TopicPartition, now_ms: int) -> MemoryLog | None:
        return self.logs.get(name)

    def all_logs(self) -> list[MemoryLog]:
        return list(self.logs.values())

    def get_or_create_without_id(
        self, name: TopicPartition, topic_id: TopicId | None, now_ms: int, *, is_new: bool = False
    ) -> MemoryLog:
        if name not in self.logs:
            key = (name, topic_id)
            self.logs[name] = self.strays.pop(key) if key in self.strays else MemoryLog(name, topic_id)
        return self.logs[name]

    def update_config(self, topics: Collection[str] | None) -> None:
        return

    def set_aside(self, name: TopicPartition, now_ms: int) -> None:
        log = self.logs.pop(name)
        self.strays[name, log.topic_id] = log

    def delete(self, name: TopicPartition, now_ms: int, topic_id: TopicId | None = None) -> bool:
        log = self.logs.get(name)
        if log is not None and topic_id is not None and log.topic_id not in (None, topic_id):
            log = None
        self.strays.pop((name, topic_id), None)
        self.deleted.append(name)
        if log is None:
            return False
        del self.logs[name]
        return True

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        self.high_watermarks = dict(high_watermarks)

    def load_high_watermarks(self) -> dict[TopicPartition, Offset]:
        return dict(self.high_watermarks)

    def retention_pass(self, now_ms: int, high_watermark_of: Callable[[TopicPartition], int | None]) -> int:
        return 0
