"""Logs of every kind that a broker writes, one builder each: `LOGS`. Each log has several files."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from barnabas.broker.compaction.cleaning import clean
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.config.topic_config import COMPACT, TopicConfig
from barnabas.broker.coordinators.groups.records import (
    GroupMetadataMember,
    GroupMetadataValue,
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    to_bytes,
)
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from barnabas.protocol.consumer_protocol import Subscription, encode_assignment, encode_subscription
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.records import MarkerType, Record
from tests.support.batches import build_batch, stamp
from tests.support.defaults import log_config
from tests.support.gaps import follow as follow_gaps
from tests.support.gaps import kept_of, stamped
from tests.support.logs import append_batches, log_files, marker, produced

SMALL = log_config(segment_bytes=2_000, index_interval_bytes=100)
TIMESTAMP_MS = 1_700_000_000_000


def opened(folder: Path, config: TopicConfig = SMALL, **options: Any) -> Log:
    return Log.open(TopicPartition("t", 0), LogLoader(folder, config, now_ms=0, **options))


def follow(log: Log, batches: Iterable[bytearray], leader_epoch: int = 5) -> None:
    """Append batches, also those that no producer may send, as a follower does."""
    for data in batches:
        stamp(data, 0, log.log_end_offset, leader_epoch)
        log.append_as_follower(data, 0)


def idempotent(folder: Path) -> Log:
    log = opened(folder)
    for sequence in range(0, 60, 2):
        append_batches(log, produced(sequence, 2, producer_id=4711, epoch=3, timestamp_ms=1_000), 5)
    append_batches(log, produced(2**31 - 2, 4, producer_id=4712, timestamp_ms=1_001), 5)
    return log


def of_one_batch(folder: Path) -> Log:
    log = opened(folder)
    append_batches(log, build_batch([(b"k", b"v")], timestamp_ms=TIMESTAMP_MS))
    return log


def empty(folder: Path) -> Log:
    return opened(folder, log_start_offset=7)


def without_index_entries(folder: Path) -> Log:
    log = opened(folder, replace(SMALL, index_interval_bytes=4_096))
    for number in range(40):
        append_batches(log, build_batch([(b"k", b"v" * 100)], timestamp_ms=TIMESTAMP_MS + number))
    return log


def compressed_with_headers(folder: Path) -> Log:
    log = opened(folder)
    for number, compression in enumerate(list(Compression) * 4):
        builder = RecordBatchBuilder(compression=compression)
        for index in range(20):
            key = None if index % 5 == 0 else b"key%d" % index
            value = None if index % 7 == 0 else b"value" * index
            headers = [("a", b"1"), ("b", None)][: index % 3]
            builder.append(key, value, headers, TIMESTAMP_MS + number * 10 - index)
        append_batches(log, builder.build())
    return log


def stamped_by_the_broker(folder: Path) -> Log:
    log = opened(folder, replace(SMALL, message_timestamp_type="LogAppendTime"))
    for number in range(30):
        batch = build_batch([(b"k", b"v" * 50)] * 3, timestamp_ms=number)
        append_batches(log, batch, now_ms=TIMESTAMP_MS + number // 3)
    return log


def with_times_in_any_order(folder: Path) -> Log:
    log = opened(folder)
    for number in range(60):
        time = -1 if number % 9 == 0 else TIMESTAMP_MS + number * 7 % 50
        append_batches(log, build_batch([(b"k", b"v" * 30)] * 2, timestamp_ms=time))
    return log


def transactional(folder: Path) -> Log:
    log = opened(folder)
    for number in range(24):
        producer_id = 7 + number % 2
        kind = MarkerType.COMMIT if number % 3 else MarkerType.ABORT
        data = produced(number // 2 * 3, 3, producer_id=producer_id, is_transactional=True)
        follow(log, [data, marker(kind, producer_id=producer_id, coordinator_epoch=number)])
    return log


def with_open_transactions(folder: Path) -> Log:
    """Two producers end each transaction with a marker of the next epoch; the third never ends its own."""
    log = opened(folder)
    for number in range(30):
        producer_id, epoch = 7 + number % 3, number // 3
        if producer_id == 9:
            follow(log, [produced(3 * epoch, 3, producer_id=9, is_transactional=True)])
            continue
        kind = MarkerType.ABORT if number % 2 else MarkerType.COMMIT
        data = produced(0, 3, producer_id=producer_id, epoch=epoch, is_transactional=True)
        follow(log, [data, marker(kind, producer_id=producer_id, epoch=epoch + 1, coordinator_epoch=number)])
    follow(log, [produced(0, 1, producer_id=8, epoch=10, is_transactional=True)])
    return log


def truncated(folder: Path) -> Log:
    log = idempotent(folder)
    log.truncate_to(41)
    log.roll(0)
    log.truncate_to(37)
    for sequence in range(36, 60, 2):
        append_batches(log, produced(sequence, 2, producer_id=4711, epoch=3, timestamp_ms=2_000), 6)
    return log


def recovered(folder: Path) -> Log:
    """Opened again after a stop that tore the last batch."""
    idempotent(folder).abandon()
    newest = sorted(folder.glob("*.log"))[-1]
    newest.write_bytes(newest.read_bytes().rstrip(b"\0")[:-3])
    log = opened(folder)
    append_batches(log, build_batch([(b"after", b"recovery")], timestamp_ms=TIMESTAMP_MS), 6)
    return log


def rolled_by_time(folder: Path) -> Log:
    log = opened(folder, replace(SMALL, segment_ms=10))
    for number in range(6):
        batch = build_batch([(b"k", b"v" * 30)], timestamp_ms=TIMESTAMP_MS + 8 * number)
        append_batches(log, batch, now_ms=TIMESTAMP_MS + 8 * number)
    assert len(log_files(log)) > 2
    return log


def rolled_by_a_full_index(folder: Path) -> Log:
    log = opened(
        folder, replace(SMALL, segment_bytes=1 << 20, segment_index_bytes=40, index_interval_bytes=0)
    )
    for number in range(30):
        append_batches(log, build_batch([(b"k", b"v" * 30)], timestamp_ms=TIMESTAMP_MS + number))
    assert len(log_files(log)) > 2
    return log


def of_which_records_were_deleted(folder: Path) -> Log:
    log = idempotent(folder)
    log.increment_log_start_offset(41)
    assert log.delete_old_segments(0, 60)
    return log


def of_high_offsets(folder: Path) -> Log:
    log = opened(folder, log_start_offset=1 << 40)
    for number in range(60):
        append_batches(log, build_batch([(b"k", b"v" * 30)], timestamp_ms=TIMESTAMP_MS + number), 1 << 20)
    return log


def generation_of_one() -> GroupMetadataValue:
    """A generation of a group, whose only member is assigned t-3."""
    member = GroupMetadataMember(
        member_id="m-1",
        client_id="c",
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        subscription=encode_subscription(Subscription(("t",))),
        assignment=encode_assignment([TopicPartition("t", 3)]),
    )
    return GroupMetadataValue(
        protocol_type="consumer", generation=2, protocol="range", leader="m-1", members=[member]
    )


def consumer_offsets(folder: Path) -> Log:
    log = opened(folder)
    generation = generation_of_one()
    for number in range(30):
        commit = OffsetAndMetadata(number, TIMESTAMP_MS, 5, "note")
        timed = replace(commit, expire_timestamp_ms=TIMESTAMP_MS + 1)
        key = TopicPartition("t", number)
        records: list[Any] = [
            OffsetRecord("g", key, commit),
            OffsetRecord("g", key, timed),
            OffsetRecord("g", key, None),
            GroupRecord(f"g{number}", generation),
            GroupRecord(f"g{number}", None),
        ]
        append_batches(log, build_batch(map(to_bytes, records), timestamp_ms=TIMESTAMP_MS))
    for number, kind in ((40, MarkerType.COMMIT), (41, MarkerType.ABORT), (42, None)):
        commit = OffsetAndMetadata(number, TIMESTAMP_MS, 5, "in a transaction")
        record = OffsetRecord("g", TopicPartition("t", number), commit)
        follow(log, [of_transaction([to_bytes(record)], 7)], 0)
        if kind is not None:
            follow(log, [marker(kind, producer_id=7)], 0)
    return log


def of_transaction(records: Iterable[tuple[bytes | None, bytes | None]], producer_id: int) -> bytearray:
    """A batch as TxnOffsetCommit leads to: without sequence numbers."""
    builder = RecordBatchBuilder()
    for key, value in records:
        builder.append(key, value, None, TIMESTAMP_MS)
    return builder.build(producer_id=producer_id, producer_epoch=0, base_sequence=-1, is_transactional=True)


def with_gaps(folder: Path) -> Log:
    """A log as its leader's cleaner left it, fetched by a follower."""
    log = opened(folder, replace(SMALL, index_interval_bytes=0))
    for number in range(60):
        compression = list(Compression)[number % 5]
        builder = RecordBatchBuilder(compression=compression)
        for index in range(6):
            value = None if index == 3 else b"value" * 9
            builder.append(b"k%d" % index, value, None, TIMESTAMP_MS + number * 10 - index)
        first = 6 * number
        batch = stamped(builder.build(producer_id=7, producer_epoch=0, base_sequence=first), first, 5)
        kept = ((0, 2, 3), (), (3,), (), (1, 5))[number // 5 % 5]
        horizon_ms = TIMESTAMP_MS + 86_400_000 if 3 in kept else None
        if number % 7:
            keeps = partial(is_at, offsets={first + delta for delta in kept})
            follow_gaps(log, [kept_of(batch, keeps, delete_horizon_ms=horizon_ms)])
    return log


def is_at(record: Record, offsets: set[int]) -> bool:
    return record.offset in offsets


def cleaned(folder: Path) -> Log:
    """Cleaned twice by the cleaner's own run, with a map too small for one pass."""
    log = opened(folder, replace(SMALL, cleanup_policy=(COMPACT,), index_interval_bytes=0))
    for half in (range(40), range(40, 80)):
        for number in half:
            builder = RecordBatchBuilder(compression=list(Compression)[number // 5 % 5])
            for index in range(6):
                key = b"%d" % (number * index % 37)
                headers = [("a", b"1")] if index == 2 else None
                value = None if (number + index) % 11 == 0 else b"value %d" % number
                builder.append(key, value, headers, TIMESTAMP_MS + number)
            producer_id = number % 5
            batch = builder.build(
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=number // 5 * 6,
                is_transactional=producer_id == 3,
            )
            kind = MarkerType.ABORT if number % 3 else MarkerType.COMMIT
            follow(log, [batch, marker(kind, producer_id=3)] if producer_id == 3 else [batch])
        log.roll(0)
        stats = clean(
            log,
            log.log_end_offset,
            offset_map=OffsetMap(4_000),
            now_ms=TIMESTAMP_MS + 1_000,
            pause=lambda size: None,
            high_watermark=log.log_end_offset,
        )
        assert stats.records_kept < stats.records_read
        assert stats.delete_horizon_ms is not None
    assert stats.passes > 1
    return log


LOGS = (
    idempotent,
    of_one_batch,
    empty,
    without_index_entries,
    compressed_with_headers,
    stamped_by_the_broker,
    with_times_in_any_order,
    transactional,
    with_open_transactions,
    truncated,
    recovered,
    rolled_by_time,
    rolled_by_a_full_index,
    of_which_records_were_deleted,
    of_high_offsets,
    consumer_offsets,
    with_gaps,
    cleaned,
)
