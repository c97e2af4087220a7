"""The disks of simulated brokers: the real `LogManager` and `Log` on a folder in memory, with faults.

A process that ends leaves everything it wrote. A power cut leaves the flushed bytes and a part of the rest,
which may end in the middle of a batch. A full or failing disk refuses appends, perhaps after a part of one.
An empty disk may replace a failed one. `LogView` decodes a log once for all comparisons.

In a compacted topic the records have keys, and each replica cleans its log by itself, at its own moments.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.broker.compaction.batch_chunks import Pause
from barnabas.broker.compaction.choice import assess
from barnabas.broker.compaction.cleaner import figures_of
from barnabas.broker.compaction.cleaning import clean
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.appending import ProducedBatches, parse_produced
from barnabas.broker.log.file_system import EPOCH_CHECKPOINT, FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.storage_errors import CleanedFilesFailed, LogDirFailure
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from barnabas.protocol.record_batch import BatchHeader, iter_batches
from barnabas.protocol.records import MarkerType, decode_fields, decode_marker
from tests.support.logs import crash
from tests.support.memory_folder import MEMORY
from tests.support.memory_log import SEQUENCE_BITS

_READ_BYTES = 1 << 20
SMALL_INDEX_BYTES = 1 << 12
CLUSTER_ID = "simulated"


def new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="barnabas-", dir=MEMORY))


# Records.


class Entry(NamedTuple):
    """A record and its leader epoch; `idempotent` makes values that name a producer too."""

    epoch: int
    key: bytes | None
    value: int | bytes | None
    writer: int | None = None
    """The producer id of a record in a transaction, or of a marker."""
    commits: bool | None = None
    """Whether a marker commits its transaction; None for all other records."""

    @property
    def producer(self) -> tuple[int, int] | None:
        """The idempotent producer, an id from 1 on, and the sequence number."""
        if self.key is not None or not isinstance(self.value, int) or not self.value >> SEQUENCE_BITS:
            return None
        return self.value >> SEQUENCE_BITS, self.value & ((1 << SEQUENCE_BITS) - 1)


def encode_batch(*values: int, has_keys: bool = False, timestamp_ms: int = 0) -> ProducedBatches:
    """One batch as a producer sends it."""
    return parse_produced(_build_batch(*values, has_keys=has_keys, timestamp_ms=timestamp_ms))


def is_tombstone(value: int) -> bool:
    """Whether a record with a key has no value in place of this one."""
    return value % 4 == 3


def _build_batch(*values: int, has_keys: bool = False, timestamp_ms: int = 0) -> bytearray:
    builder = RecordBatchBuilder(max_bytes=_READ_BYTES)
    for value in values:
        if has_keys:
            data = None if is_tombstone(value) else value.to_bytes(8)
            # A third of the records have keys of their own and stay; the others share one key.
            builder.append(b"%b%d" % (_KEY, 0 if value % 3 else value), data, None, timestamp_ms)
        else:
            builder.append(None, value.to_bytes(8), None, timestamp_ms)
    producer = Entry(-1, None, values[0]).producer
    if producer is None:
        return builder.build()
    return builder.build(producer_id=producer[0], producer_epoch=0, base_sequence=producer[1])


def encode(*values: int, has_keys: bool = False, timestamp_ms: int = 0) -> ProducedBatches:
    """A batch for each value."""
    batches = (_build_batch(value, has_keys=has_keys, timestamp_ms=timestamp_ms) for value in values)
    return parse_produced(bytearray().join(batches))


def encode_in_transaction(value: int, producer_id: int, producer_epoch: int) -> ProducedBatches:
    """A batch of one record in a transaction; as in a coordinator's, it has no sequence number."""
    builder = RecordBatchBuilder()
    builder.append(None, value.to_bytes(8), None, 0)
    batch = builder.build(producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True)
    return parse_produced(batch)


_KEY = b"key-"
BATCH_BYTES = len(_build_batch(0))


def decode(records: memoryview) -> list[tuple[int, Entry]]:
    """(offset, entry) of each record."""
    entries: list[tuple[int, Entry]] = []
    for at, header in iter_batches(records):
        entries += _entries_of(records, at, header)
    return entries


def _entries_of(records: memoryview, at: int, header: BatchHeader) -> list[tuple[int, Entry]]:
    epoch = header.partition_leader_epoch
    writer = header.producer_id if header.is_transactional else None
    entries = []
    for offset, _, key, value, _ in decode_fields(records[at : at + header.size_bytes]):
        number = int.from_bytes(value) if value is not None and _is_number(key) else value
        marker = decode_marker(key, value) if header.is_control else None
        commits = None if marker is None else marker.type is MarkerType.COMMIT
        entries.append((offset, Entry(epoch, key, number, writer, commits)))
    return entries


def _is_number(key: bytes | None) -> bool:
    """Whether the value of a record with this key is one of `encode`."""
    return key is None or key.startswith(_KEY)


class LogView:
    """The records of one log, decoded as they are appended and again after a truncation or a cleaning."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.agreed = 0
        """The records below this offset equal the committed ones; `Truth` sets it."""
        self.forget()

    def forget(self) -> None:
        """Decode the log again."""
        self._cuts = self.log.bounds.cuts
        self._first = self.log.log_start_offset
        self._entries: list[Entry | None] = []
        self.agreed = self._first

    def between(self, start: int, end: int) -> list[Entry | None]:
        """The records from one offset to another, both within the log; None for each that is missing."""
        self.refresh()
        return self._entries[start - self._first : end - self._first]

    @property
    def missing(self) -> int:
        """The number of records below the log's end that are not there."""
        self.refresh()
        return self._entries.count(None)

    def refresh(self) -> None:
        log = self.log
        if log.is_closed:
            return
        if self._cuts != log.bounds.cuts or self._first + len(self._entries) < log.log_start_offset:
            self.forget()
        position, log_end = self._first + len(self._entries), log.log_end_offset
        while position < log_end:
            read = log.read(position, _READ_BYTES)
            entries: list[Entry | None] = [None] * (read.next_offset - position)
            for offset, entry in decode(read.records):
                # A batch may begin before the requested offset.
                if offset >= position:
                    entries[offset - position] = entry
            self._entries += entries
            position = read.next_offset


# Disks.


class Fault(Enum):
    """The error of a disk, until its process restarts."""

    FULL = errno.ENOSPC
    BROKEN = errno.EIO


class _Files(FileSystem):
    """The file system of one disk: it refuses or delays changes, and records syncs of epoch checkpoints."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def pwrite(self, descriptor: int, data: memoryview | bytes, position: int) -> int:
        disk = self._disk
        if disk.slow_ms:
            disk.on_slow(disk.slow_ms)
        if disk.fault is not None:
            # A part of the data is written all the same.
            os.pwrite(descriptor, data[: len(data) // 2], position)
            raise _error(disk.fault)
        return os.pwrite(descriptor, data, position)

    def open(self, path: Path, flags: int) -> int:
        if self._disk.fault is not None:
            raise _error(self._disk.fault)
        return super().open(path, flags)

    def rename(self, source: Path, target: Path) -> None:
        if self._disk.fault is Fault.BROKEN:
            raise _error(Fault.BROKEN)
        super().rename(source, target)
        for path in [path for path in self._disk.durable_epochs if path.is_relative_to(source)]:
            del self._disk.durable_epochs[path]

    def fsync(self, file: int | Path) -> None:
        """Files in memory need no sync; a full disk fails at the write."""
        if self._disk.fault is Fault.BROKEN:
            raise _error(Fault.BROKEN)
        if isinstance(file, Path):
            if not file.exists():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            if file.name == EPOCH_CHECKPOINT:
                self._disk.durable_epochs[file] = file.read_bytes()


def _error(fault: Fault) -> OSError:
    return OSError(fault.value, os.strerror(fault.value))


class Disk:
    """One broker's log dir. It outlives the broker: `logs` is always open, ready for the next process."""

    def __init__(self, broker: BrokerId, folder: Path, config_of: Callable[[str], TopicConfig]) -> None:
        self.fault: Fault | None = None
        self.slow_ms = 0.0
        """The time that a write takes."""
        self.was_robbed = False
        """Whether it has ever lost data."""
        self.on_slow: Callable[[float], None] = lambda ms: None
        self.cleanings = 0
        self.deleted_ends: dict[tuple[TopicPartition, TopicId | None], int] = {}
        """The largest log ends of the replicas that were deleted."""
        self.durable_epochs: dict[Path, bytes] = {}
        """The synced contents of the epoch checkpoints, by path."""
        self._broker = broker
        self._folder = folder
        self._config_of = config_of
        self._files = _Files(self)
        self._views: dict[tuple[TopicPartition, TopicId | None], LogView] = {}
        self._last_ids: dict[TopicPartition, TopicId | None] = {}
        self._open()

    def _open(self) -> None:
        self.fault, self.slow_ms = None, 0.0
        self.logs = _Logs.open(
            [self._folder],
            broker_id=self._broker,
            cluster_id=CLUSTER_ID,
            config_of=self._config_of,
            now_ms=0,
            files=self._files,
        )
        self.logs.view, self.logs.deleted_ends = self.view, self.deleted_ends

    def view(self, name: TopicPartition, topic_id: TopicId | None = None) -> LogView | None:
        """The log of a partition, or None; with `topic_id`, only the log of that topic.

        A log that its manager took offline or set aside keeps its last view.
        """
        log = self.logs.get(name)
        if topic_id is None:
            topic_id = self._last_ids.get(name) if log is None else log.topic_id
        view = self._views.get((name, topic_id))
        if log is None or log.topic_id != topic_id:
            is_kept = name in self.logs.offline_partitions or self.has_stray(name, topic_id)
            return view if is_kept else None
        if view is None or view.log is not log:
            self._last_ids[name] = topic_id
            view = self._views[name, topic_id] = LogView(log)
        return view

    def has_stray(self, name: TopicPartition, topic_id: TopicId | None) -> bool:
        return any(stray.partition == name and stray.topic_id == topic_id for stray in self.logs.strays.all())

    @property
    def has_failed(self) -> bool:
        """Whether its process can no longer use it."""
        return self.fault is not None or not self.logs.has_online_dir

    def clean(
        self, name: TopicPartition, ends: tuple[int, int], now_ms: int, *, map_bytes: int, pause: Pause
    ) -> None:
        """Clean a log as the cleaner does; `ends` are its last stable offset and its high watermark.

        Raises LogDirFailure, and what `pause` raises.
        """
        log = self.logs.get(name)
        if log is None or self.has_failed:
            return
        assessed = assess(figures_of(log, ends[0]), log.config, now_ms)
        if assessed.clean_bytes or assessed.dirty_bytes:
            self.cleanings += 1
            try:
                clean(
                    log,
                    assessed.dirty_end,
                    offset_map=OffsetMap(map_bytes),
                    now_ms=now_ms,
                    pause=pause,
                    high_watermark=ends[1],
                )
            except CleanedFilesFailed:
                # The disk is full; the log has not changed.
                return
            finally:
                for view in self._views.values():
                    if view.log is log and not log.is_closed:
                        view.forget()

    def flush(self, name: TopicPartition) -> None:
        log = self.logs.get(name)
        if log is not None and not self.has_failed:
            log.flush(0)

    def close(self) -> None:
        crash(self.logs)

    # Faults.

    def reopen(self) -> None:
        """The process has ended; the page cache keeps everything it wrote."""
        self.close()
        self._open()

    def stop_cleanly(self) -> None:
        """The process shuts down, as cleanly as the disk allows."""
        self.logs.close(0)
        self._open()

    def lose_power(self, draw: random.Random) -> None:
        """A part of the unflushed bytes survives; it may end in the middle of a batch."""
        logs = self.logs.all_logs()
        self.close()
        self.was_robbed = True
        for log in logs:
            self._cut(log, draw)
        self._open()

    def wipe(self) -> None:
        """Replace the disk by an empty one; its process must have ended."""
        self.close()
        self.was_robbed = True
        shutil.rmtree(self._folder)
        self.durable_epochs.clear()
        self._open()

    def _cut(self, log: Log, draw: random.Random) -> None:
        flushed = log.recovery_point
        for segment in log.segments:
            if segment.next_offset <= flushed:
                continue
            kept = _position(segment, flushed) if segment.base_offset < flushed else 0
            end = draw.choice((kept, draw.randint(kept, segment.size), segment.size))
            os.truncate(segment.file.path, end)
        path = log.epoch_cache.path
        if draw.random() < 0.5:
            # The file is replaced without waiting for the disk.
            if path in self.durable_epochs:
                path.write_bytes(self.durable_epochs[path])
            else:
                path.unlink(missing_ok=True)


def _position(segment: Any, offset: int) -> int:
    """The position of the first batch that ends after an offset."""
    data = segment.file.path.read_bytes()[: segment.size]
    for at, header in iter_batches(memoryview(data)):
        if header.next_offset > offset:
            return at
    return len(data)


class _Logs(LogManager):
    """The real manager; it notes what a log held before the log is deleted, set aside or goes offline."""

    view: Callable[[TopicPartition], LogView | None]
    deleted_ends: dict[tuple[TopicPartition, TopicId | None], int]

    def delete(self, topic_partition: TopicPartition, now_ms: int, topic_id: TopicId | None = None) -> bool:
        log = self.get(topic_partition)
        if log is not None:
            key = topic_partition, log.topic_id
            self.deleted_ends[key] = max(log.log_end_offset, self.deleted_ends.get(key, 0))
        return super().delete(topic_partition, now_ms, topic_id)

    def set_aside(self, topic_partition: TopicPartition, now_ms: int) -> Path | None:
        view = self.view(topic_partition)
        if view is not None:
            view.refresh()
        return super().set_aside(topic_partition, now_ms)

    def fail_dir(self, failure: LogDirFailure) -> list[TopicPartition]:
        for log in self.all_logs():
            view = self.view(log.topic_partition)
            if view is not None:
                view.refresh()
        return super().fail_dir(failure)
