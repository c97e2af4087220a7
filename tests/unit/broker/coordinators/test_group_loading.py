"""Loading: the last record of each key counts, over many segments; unreadable records are ignored."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.coordinators.coordinator_log import last_records, without_collection
from barnabas.broker.coordinators.group_records import (
    GroupMetadataValue,
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    Record,
    to_bytes,
)
from barnabas.broker.coordinators.group_shard import MAX_REPORTED, LoadedGroup, groups_of
from barnabas.broker.coordinators.offsets import CommittedOffset
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.batch_builder import RecordBatchBuilder, build_batch
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.records import decode_records
from tests.support.defaults import log_config
from tests.support.gaps import follow, kept_of
from tests.support.logs import append_batches, headers_of

PARTITION = TopicPartition("__consumer_offsets", 0)
TOPIC = TopicPartition("topic", 0)
STORED = GroupMetadataValue(protocol_type="consumer", generation=3, current_state_timestamp_ms=5)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log of small segments."""
    log = Log.open(PARTITION, LogLoader(tmp_path / "offsets-0", log_config(segment_bytes=2_000), now_ms=0))
    yield log
    log.abandon()


def offset(group: str, value: int | None, partition: TopicPartition = TOPIC) -> OffsetRecord:
    return OffsetRecord(group, partition, None if value is None else OffsetAndMetadata(value, 1_000))


def write(log: Log, *records: Record) -> None:
    append_batches(log, build_batch(to_bytes(record) for record in records))


def load(log: Log) -> dict[str, LoadedGroup]:
    records = last_records(log, lambda: True)
    assert records is not None
    return groups_of(records, PARTITION)


def test_a_compacted_log_gives_the_same_groups(log: Log, tmp_path: Path) -> None:
    for round_number in range(3):
        write(log, *(offset(f"group-{number}", round_number * 10 + number) for number in range(5)))
        write(log, *(offset(f"gone-{number}", None if round_number else 1) for number in range(3)))
    last = {
        record.key: record.offset
        for at in headers_of(log)
        for record in decode_records(log.read(at.base_offset, 1).records)
    }
    compacted = Log.open(PARTITION, LogLoader(tmp_path / "copy-0", log_config(), now_ms=0))
    for header in headers_of(log)[1:]:
        whole = log.read(header.base_offset, 1).records
        # Tombstones are gone too; the last batch is kept without records.
        left = kept_of(whole, lambda record: record.value is not None and last[record.key] == record.offset)
        if parse_header(left).record_count or header.next_offset == log.log_end_offset:
            follow(compacted, [left])
    assert (len(headers_of(compacted)), compacted.log_end_offset) == (2, log.log_end_offset)
    assert load(compacted) == load(log)
    assert len(load(log)) == 5
    compacted.abandon()


def test_an_empty_log_has_no_groups(log: Log) -> None:
    assert load(log) == {}


def test_the_last_record_of_each_key_counts_over_many_segments(log: Log) -> None:
    other = TopicPartition("topic", 1)
    for number in range(100):
        write(log, offset("a", number), offset("b", number), GroupRecord("a", STORED))
    write(log, offset("b", 7, other), offset("a", None))
    assert len(log.segments) > 5
    assert load(log) == {
        "a": LoadedGroup(STORED),
        "b": LoadedGroup(
            None,
            {
                TOPIC: CommittedOffset(OffsetAndMetadata(99, 1_000), 298),
                other: CommittedOffset(OffsetAndMetadata(7, 1_000), 300),
            },
        ),
    }


def test_a_group_with_only_tombstones_is_not_loaded(log: Log) -> None:
    write(log, GroupRecord("a", STORED), offset("a", 1))
    write(log, GroupRecord("a", None), offset("a", None), offset("never", None))
    assert load(log) == {}
    write(log, offset("a", 2))
    assert load(log) == {"a": LoadedGroup(None, {TOPIC: CommittedOffset(OffsetAndMetadata(2, 1_000), 5)})}


def test_loading_begins_at_the_log_start_offset(log: Log) -> None:
    write(log, offset("a", 1))
    write(log, offset("b", 2))
    log.increment_log_start_offset(1)
    assert list(load(log)) == ["b"]


def test_loading_ends_when_it_is_no_longer_wanted(log: Log) -> None:
    write(log, offset("a", 1))
    assert last_records(log, lambda: False) is None


def test_transactional_batches_are_ignored(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    write(log, offset("a", 1))
    builder = RecordBatchBuilder()
    builder.append(*to_bytes(offset("a", 2)), None, 0)
    batch = builder.build(
        base_offset=1,
        partition_leader_epoch=0,
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    log.append_as_follower(batch, 0)
    assert load(log)["a"].offsets == {TOPIC: CommittedOffset(OffsetAndMetadata(1, 1_000), 0)}
    assert "transactional batch at 1" in caplog.text


def test_a_limited_number_of_unreadable_records_is_reported(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    strange = [(b"\x00\x09%d" % number, b"value") for number in range(MAX_REPORTED + 5)]
    key, value = to_bytes(offset("a", 1))
    # A key with surplus bytes, and a value of a later version.
    strange += [(key[:-4] + b"x" + key[-4:], value), (key[:-1] + b"\x05", b"\x00\x63" + bytes(30))]
    append_batches(log, build_batch([*strange, (key, value)]))
    with caplog.at_level(logging.WARNING):
        assert load(log) == {
            "a": LoadedGroup(None, {TOPIC: CommittedOffset(OffsetAndMetadata(1, 1_000), 17)})
        }
    reported = [record.getMessage() for record in caplog.records]
    assert len(reported) == MAX_REPORTED + 1
    assert "the record at 0 is ignored: a key of version 9" in reported[0]
    assert "17 records are ignored in all" in reported[-1]


def test_the_garbage_collector_is_off_only_while_groups_are_loaded() -> None:
    assert gc.isenabled()
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
