"""Logs for tests: records, ways to append and read them, and damage to their files."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.appending import AppendResult, parse_produced
from barnabas.broker.log.indexes import OffsetIndex, TimeIndex
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_manager import LogManager
from barnabas.protocol.batch_builder import RecordBatchBuilder, build_marker
from barnabas.protocol.compression import Buffer
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from barnabas.protocol.record_batch import BatchHeader, iter_batches, parse_header
from barnabas.protocol.records import MarkerType
from tests.support.batches import build_batch, stamp

OpenLog = Callable[..., Log]
PRODUCER_ID = 7
TOPIC_ID = TopicId(uuid.uuid4())


def batch(count: int = 1, size: int = 10, timestamp_ms: int = 0) -> bytearray:
    """One batch of a producer without an id."""
    return build_batch([(None, b"v" * size)] * count, timestamp_ms=timestamp_ms)


def produced(
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = PRODUCER_ID,
    epoch: int = 0,
    timestamp_ms: int = 0,
    size: int = 20,
    is_transactional: bool = False,
    value: bytes | None = None,
) -> bytearray:
    """One batch of an idempotent producer."""
    builder = RecordBatchBuilder()
    for _ in range(count):
        builder.append(None, b"v" * size if value is None else value, None, timestamp_ms)
    return builder.build(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def marker(
    marker_type: MarkerType,
    *,
    producer_id: int = PRODUCER_ID,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    timestamp_ms: int = 0,
) -> bytearray:
    """The control batch that ends a transaction."""
    return build_marker(producer_id, epoch, marker_type, coordinator_epoch, timestamp_ms)


def written(offset: int, sequence: int, count: int = 1, **options: Any) -> BatchHeader:
    """The header of such a batch in the log."""
    data = produced(sequence, count, **options)
    stamp(data, 0, offset, 0)
    return parse_header(data)


def append_batches(log: Log, records: Buffer, leader_epoch: int = 0, now_ms: int = 0) -> AppendResult:
    """Append batches as the leader does with a producer's request."""
    return log.append_as_leader(parse_produced(records), leader_epoch, now_ms)


def headers_of(log: Log) -> list[BatchHeader]:
    """The headers of all batches from the log start to the log end."""
    headers: list[BatchHeader] = []
    offset = int(log.log_start_offset)
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20)
        headers += [header for _, header in iter_batches(read.records)]
        offset = read.next_offset
    return headers


def index_entries(index: OffsetIndex | TimeIndex) -> list[tuple[int, int]]:
    """All entries of an index."""
    buffer, count = index._all()
    size = index.entry.size
    return [index._as_entry(index.entry.unpack_from(buffer, at)) for at in range(0, count * size, size)]


def open_dirs(*dirs: Path, config: TopicConfig, broker_id: int = 1, now_ms: int = 0) -> LogManager:
    """The logs of a broker, all with one configuration."""
    return LogManager.open(
        list(dirs),
        broker_id=BrokerId(broker_id),
        cluster_id="cluster",
        config_of=lambda topic: config,
        now_ms=now_ms,
    )


def online(manager: LogManager, key: TopicPartition) -> Log:
    """The log of a partition, which must be online."""
    log = manager.get(key)
    assert log is not None, manager.offline_partitions
    return log


def spy(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> list[Any]:
    """Record the first argument of each call of a method, also of `FileSystem`."""
    firsts: list[Any] = []
    real = getattr(owner, method)

    def recorded(self: object, first: Any, *rest: Any, **options: Any) -> Any:
        firsts.append(first)
        return real(self, first, *rest, **options)

    monkeypatch.setattr(owner, method, recorded)
    return firsts


def get_or_create(
    manager: LogManager, key: TopicPartition, topic_id: TopicId | None, now_ms: int, *, is_new: bool = False
) -> Log:
    """The log of a partition, with its topic id on disk."""
    log = manager.get_or_create_without_id(key, topic_id, now_ms, is_new=is_new)
    if topic_id is not None:
        log.assign_topic_id(topic_id)
    return log


def crash(manager: LogManager) -> None:
    """Release a manager as a kill of its process does: nothing is written, the locks are free."""
    for log in (*manager.all_logs(), *(future.log for future in manager.all_futures())):
        log.abandon()
    for log_dir in manager._dirs.values():
        log_dir.release()


def log_files(log: Log) -> list[Path]:
    return sorted(log.folder.glob("*.log"))


def flip_bits(path: Path, position: int, mask: int = 1) -> None:
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def failing(error_number: int) -> Callable[..., int]:
    """A call of the operating system that fails."""

    def fail(*_: object, **__: object) -> int:
        raise OSError(error_number, os.strerror(error_number))

    return fail
