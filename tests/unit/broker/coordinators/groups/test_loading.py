"""Loading: the last record of each key counts, over many segments; unreadable records are ignored."""

import gc
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from barnabas.broker.compaction.cleaning import clean
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.coordinators.groups.coordinator import groups_of
from barnabas.broker.coordinators.groups.group import LoadedGroup
from barnabas.broker.coordinators.groups.offsets import CommittedOffset
from barnabas.broker.coordinators.groups.records import (
    OffsetAndMetadata,
    OffsetRecord,
    Record,
    to_bytes,
)
from barnabas.broker.coordinators.loading import MAX_REPORTED, last_records, without_collection
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.records import MarkerType, decode_records
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.gaps import follow, kept_of
from tests.support.logs import append_batches, headers_of
from tests.support.transactional_offsets import Entry, replay, write_marker, write_pending

PARTITION = TopicPartition("__consumer_offsets", 0)
TOPIC = TopicPartition("topic", 0)


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


# ---- transactions


def encoded(*records: Record) -> list[tuple[bytes, bytes | None]]:
    return [to_bytes(record) for record in records]


def committed(value: int, record_offset: int) -> CommittedOffset:
    return CommittedOffset(OffsetAndMetadata(value, 1_000), record_offset)


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        (None, LoadedGroup(None, {TOPIC: committed(1, 0)}, {5: {TOPIC: committed(2, 1)}})),
        (MarkerType.COMMIT, LoadedGroup(None, {TOPIC: committed(2, 1)})),
        (MarkerType.ABORT, LoadedGroup(None, {TOPIC: committed(1, 0)})),
    ],
)
def test_the_marker_decides_the_offsets_of_a_transaction(
    marker: MarkerType | None, expected: LoadedGroup, log: Log
) -> None:
    write(log, offset("a", 1))
    write_pending(log, 5, *encoded(offset("a", 2)))
    write_marker(log, 6, MarkerType.COMMIT)
    if marker is not None:
        write_marker(log, 5, marker)
    assert load(log) == {"a": expected}


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_tombstone_removes_the_offsets_that_were_pending(is_ended: bool, log: Log) -> None:
    write_pending(log, 5, *encoded(offset("a", 2), offset("b", 3)))
    write(log, offset("a", None))
    if is_ended:
        write_marker(log, 5, MarkerType.COMMIT)
    assert load(log) == {
        "b": LoadedGroup(None, {TOPIC: committed(3, 1)})
        if is_ended
        else LoadedGroup(None, {}, {5: {TOPIC: committed(3, 1)}})
    }


def test_an_unreadable_pending_record_is_ignored(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    strange = [
        (b"\x00\x09", b"value"),
        (b"\x00\x02\x00\x01a", b"value"),
        (to_bytes(offset("a", 1))[0], b"\x00\x63"),
    ]
    write_pending(log, 5, *strange)
    assert load(log) == {}
    assert caplog.text.count("is ignored") == 3


_KAFKAS_BATCHES: Final = [
    # A commit outside of transactions; two records of producer 5; one of producer 6; a commit marker of 5.
    "00000000000000000000006000000000026da75fc600000000000000000000000003e800000000000003e8ffffffffffffffffffffff"
    "ffffff000000015c0000001800010001670001740000000038000300000000000000010000000400046e6f746500000000000003e800",
    "00000000000000010000008f0000000002491285c000100000000100000000000003e800000000000003e80000000000000005000000"
    "000000000000025c0000001800010001670001740000000038000300000000000000020000000400046e6f746500000000000003e800"
    "5c0000021800010001670001740000000138000300000000000000030000000400046e6f746500000000000003e800",
    "0000000000000003000000600000000002ff63a3ce00100000000000000000000003e800000000000003e80000000000000006000700"
    "000000000000015c0000001800010001680001740000000038000300000000000000090000000400046e6f746500000000000003e800",
    "00000000000000040000004200000000028ad0583e00300000000000000000000003e800000000000003e800000000000000050000ff"
    "ffffff000000012000000008000000010c00000000000300",
]
"""By Kafka 3.9.1's MemoryRecords and GroupMetadataManager; its coordinator numbers every batch 0."""


def test_batches_of_kafkas_coordinator_are_loaded(log: Log) -> None:
    for batch in _KAFKAS_BATCHES:
        log.append_as_follower(bytearray.fromhex(batch), 0)

    def by_kafka(value: int, record_offset: int) -> CommittedOffset:
        metadata = OffsetAndMetadata(value, 1_000, leader_epoch=4, metadata="note")
        return CommittedOffset(metadata, record_offset)

    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    assert load(log) == {
        "g": LoadedGroup(None, {first: by_kafka(2, 1), second: by_kafka(3, 2)}),
        "h": LoadedGroup(None, {}, {6: {first: by_kafka(9, 3)}}),
    }


class History:
    """Random commits, transactions, tombstones and markers in a log and in a model of it."""

    def __init__(self, seed: int, log: Log) -> None:
        self.draw = random.Random(seed)
        self.log = log
        self.names = [TopicPartition("topic", index) for index in range(3)]
        self.entries: list[Entry] = []

    def step(self, value: int) -> None:
        name, producer_id = self.draw.choice(self.names), self.draw.choice((5, 6, 7))
        kind, at = self.draw.random(), len(self.entries)
        assert at == self.log.log_end_offset
        if kind < 0.3:
            self.entries.append(Entry(at, name, value))
            write(self.log, offset("a", value, name))
        elif kind < 0.65:
            self.entries.append(Entry(at, name, value, producer_id))
            write_pending(self.log, producer_id, *encoded(offset("a", value, name)))
        elif kind < 0.75:
            self.entries.append(Entry(at, name, None))
            write(self.log, offset("a", None, name))
        else:
            marker_type = self.draw.choice((MarkerType.COMMIT, MarkerType.ABORT))
            self.entries.append(Entry(at, None, None, producer_id, marker_type is MarkerType.COMMIT))
            write_marker(self.log, producer_id, marker_type)

    def check(self) -> None:
        group = load(self.log).get("a", LoadedGroup())
        offsets = {name: each.value.committed_offset for name, each in group.offsets.items()}
        pending: dict[TopicPartition, dict[int, int]] = {}
        for producer_id, of_producer in group.pending.items():
            for name, each in of_producer.items():
                pending.setdefault(name, {})[producer_id] = each.value.committed_offset
        assert (offsets, pending) == replay(self.entries)


@pytest.mark.parametrize("seed", range(30))
def test_any_history_of_transactions_is_loaded_as_a_replay_says(seed: int, log: Log) -> None:
    history = History(seed, log)
    for value in range(60):
        history.step(value)
        if value % 10 == 9:
            history.check()


@pytest.mark.parametrize("seed", range(30))
def test_a_compaction_changes_no_offset_of_a_transaction(seed: int, log: Log) -> None:
    """The last committed value survives, aborted values do not hide it, and pending ones stay pending."""
    history = History(seed, log)
    for value in range(60):
        history.step(value)
        if history.draw.random() < 0.15:
            log.roll(0)
            # At times late enough that tombstones and markers may go.
            now_ms = history.draw.choice((0, value * 1_000_000_000))
            end = int(log.log_end_offset)
            clean(
                log,
                end,
                offset_map=OffsetMap(1 << 20),
                now_ms=now_ms,
                pause=lambda _: None,
                high_watermark=end,
            )
            history.check()
    history.check()


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
