"""Produce, Fetch, ListOffsets and OffsetForLeaderEpoch, from bytes to bytes, over real logs."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.protocol.messages.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import decode_records
from tests.support.building import THREE, TP, TWO, state
from tests.support.serving import EXTERNAL, INTERNAL, Connection, Serving, batch


def produce(serving: Serving, *records: bytes | None, acks: int = 1, topic: str = TP.topic) -> Connection:
    """One request with each of the records for partition 0, 1, 2…"""
    data = [PartitionProduceData(index=index, records=one) for index, one in enumerate(records)]
    return serving.send(
        ProduceRequest(
            acks=acks, timeout_ms=1_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
    )


def outcome(connection: Connection, index: int = 0) -> Any:
    return connection.response.responses[0].partition_responses[index]


def fetch(
    serving: Serving,
    offset: int,
    *,
    replica: int = -1,
    listener: str = INTERNAL,
    max_wait_ms: int = 0,
    **fields: Any,
) -> Connection:
    asked = FetchPartition(
        **{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **fields}
    )
    return serving.send(
        FetchRequest(
            replica_id=replica,
            replica_epoch=5,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            topics=[FetchTopic(topic=TP.topic, partitions=[asked])],
        ),
        listener,
    )


def found(connection: Connection) -> Any:
    return connection.response.responses[0].partitions[0]


def commit(serving: Serving) -> None:
    """The followers have everything."""
    end = serving.managed.manager.partition(TP).log_end_offset
    for replica in (TWO, THREE):
        fetch(serving, end, replica=replica)


# Produce


def test_a_batch_is_written_and_its_offset_told(leading: Serving) -> None:
    assert outcome(produce(leading, batch(b"a", b"b"))).base_offset == 0
    second = outcome(produce(leading, batch(b"c") + batch(b"d")))
    assert (second.error_code, second.base_offset, second.log_append_time_ms) == (0, 2, -1)
    assert leading.managed.manager.partition(TP).log_end_offset == 4


def test_acks_all_is_answered_later_and_once(leading: Serving) -> None:
    connection = produce(leading, batch(b"a"), acks=-1)
    assert not connection.is_answered
    commit(leading)
    assert (outcome(connection).error_code, outcome(connection).base_offset) == (0, 0)
    leading.managed.pass_time(100_000)
    assert len(connection.answers) == 1


def test_acks_0_is_not_answered(leading: Serving) -> None:
    connection = produce(leading, batch(b"a"), acks=0)
    assert connection.answers == [b""]
    assert leading.managed.manager.partition(TP).log_end_offset == 1


def test_acks_0_that_fails_closes_the_connection(leading: Serving) -> None:
    connection = produce(leading, batch(b"a"), acks=0, topic="nowhere")
    assert connection.closed is not None
    assert "nowhere-0: UNKNOWN_TOPIC_OR_PARTITION" in connection.closed


@pytest.mark.parametrize("acks", [2, -2])
def test_other_acks_are_refused(leading: Serving, acks: int) -> None:
    answer = outcome(produce(leading, batch(b"a"), acks=acks))
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert f"acks is {acks}" in answer.error_message
    assert leading.managed.manager.partition(TP).log_end_offset == 0


def test_errors_are_told_per_partition(leading: Serving) -> None:
    connection = produce(leading, batch(b"a"), batch(b"b"))
    assert outcome(connection, 0).error_code == ErrorCode.NONE
    missing = outcome(connection, 1)
    assert (missing.error_code, missing.base_offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


def damaged() -> bytes:
    whole = bytearray(batch(b"a"))
    whole[-1] ^= 1
    return bytes(whole)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (damaged(), ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a")[:-3], ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.INVALID_RECORD),
        (None, ErrorCode.INVALID_RECORD),
        (batch(b"a") + b"\x00" * 8, ErrorCode.CORRUPT_MESSAGE),
        (batch(b"x" * 1_100_000), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["damaged", "cut short", "empty", "null", "trailing bytes", "too large"],
)
def test_bad_records_are_refused_and_nothing_is_written(
    leading: Serving, records: bytes | None, code: ErrorCode
) -> None:
    answer = outcome(produce(leading, records))
    assert (answer.error_code, answer.base_offset) == (code, -1)
    assert answer.error_message
    assert leading.managed.manager.partition(TP).log_end_offset == 0


def test_a_replica_that_does_not_lead_says_so(leading: Serving) -> None:
    leading.managed.tell(state(leader=2, epoch=1))
    assert outcome(produce(leading, batch(b"a"))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# Fetch


def test_a_consumer_gets_what_is_committed_as_it_was_written(leading: Serving) -> None:
    produce(leading, batch(b"a", b"b"))
    commit(leading)
    produce(leading, batch(b"c"))
    answer = found(fetch(leading, 0, listener=EXTERNAL))
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 2, 2)
    (one,) = [answer.records[position:] for position, _ in iter_batches(answer.records)]
    assert [(record.offset, record.value) for record in decode_records(one)] == [(0, b"a"), (1, b"b")]


def test_the_brokers_own_limit_bounds_a_consumer_but_never_to_nothing(leading: Serving) -> None:
    for _ in range(3):
        produce(leading, batch(b"x" * 1_500))
    commit(leading)
    assert len(list(iter_batches(found(fetch(leading, 0)).records))) == 1
    assert len(list(iter_batches(found(fetch(leading, 0, replica=TWO)).records))) == 3
    produce(leading, batch(b"x" * 9_000))
    commit(leading)
    assert len(found(fetch(leading, 3)).records) > 9_000


def test_a_follower_by_another_listener_is_refused(leading: Serving) -> None:
    connection = fetch(leading, 0, replica=TWO, listener=EXTERNAL)
    assert connection.response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert connection.response.responses == []


def test_a_long_poll_is_answered_by_the_append(leading: Serving) -> None:
    connection = fetch(leading, 0, replica=TWO, max_wait_ms=1_000, log_start_offset=0)
    assert not connection.is_answered
    produce(leading, batch(b"a"))
    leading.managed.manager.wake_followers()
    assert len(found(connection).records) == len(batch(b"a"))


@pytest.mark.parametrize("replica", [-1, TWO])
def test_nobody_is_kept_waiting_for_weeks(leading: Serving, replica: int) -> None:
    connection = fetch(leading, 0, replica=replica, max_wait_ms=2**31 - 1, log_start_offset=0)
    leading.managed.reaper.expire_due(int(leading.managed.now_ms()) + 599_000)
    assert not connection.is_answered
    leading.managed.reaper.expire_due(int(leading.managed.now_ms()) + 600_001)
    assert connection.is_answered


def test_a_diverging_follower_is_told_where(leading: Serving) -> None:
    produce(leading, batch(b"a"))
    leading.managed.tell(state(leader=2, epoch=1))
    leading.managed.tell(state(epoch=3))
    produce(leading, batch(b"b"))
    answer = found(fetch(leading, 2, replica=TWO, last_fetched_epoch=2, current_leader_epoch=3))
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 1)
    assert len(answer.records) == 0


def test_a_follower_that_is_left_behind_is_told_where_the_log_begins(leading: Serving) -> None:
    for _ in range(3):
        produce(leading, batch(b"a"))
    commit(leading)
    leading.managed.manager.partition(TP).log.increment_log_start_offset(2)
    answer = found(fetch(leading, 0, replica=TWO))
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"fetch_offset": 9}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"current_leader_epoch": 4}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"partition": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_an_error_is_answered_at_once(leading: Serving, fields: dict[str, int], code: ErrorCode) -> None:
    assert found(fetch(leading, 0, max_wait_ms=10_000, **fields)).error_code == code


# ListOffsets


def offsets(serving: Serving, timestamp: int, *, replica: int = -1, **fields: int) -> Any:
    asked = ListOffsetsPartition(**{"partition_index": 0, "timestamp": timestamp, **fields})
    answer = serving.call(
        ListOffsetsRequest(replica_id=replica, topics=[ListOffsetsTopic(name=TP.topic, partitions=[asked])])
    )
    return answer.topics[0].partitions[0]


def place(answer: Any) -> tuple[int, int, int]:
    assert answer.error_code == ErrorCode.NONE
    return answer.offset, answer.timestamp, answer.leader_epoch


def test_offsets_by_position_and_by_time(leading: Serving) -> None:
    produce(leading, batch(b"a", b"b", b"c", timestamp_ms=1_000))
    produce(leading, batch(b"d", timestamp_ms=500))
    commit(leading)
    produce(leading, batch(b"later", timestamp_ms=9_000))
    assert place(offsets(leading, EARLIEST_TIMESTAMP)) == (0, -1, 0)
    assert place(offsets(leading, LATEST_TIMESTAMP)) == (4, -1, 0)
    assert place(offsets(leading, LATEST_TIMESTAMP, replica=2)) == (5, -1, 0)
    assert place(offsets(leading, 0)) == (0, 1_000, 0)
    assert place(offsets(leading, 1_001)) == (1, 1_001, 0)
    # What is not committed is not there for a consumer.
    assert place(offsets(leading, 5_000)) == (-1, -1, -1)
    assert place(offsets(leading, 5_000, replica=2)) == (4, 9_000, 0)
    assert place(offsets(leading, MAX_TIMESTAMP, replica=2)) == (4, 9_000, 0)
    leading.managed.manager.partition(TP).log.increment_log_start_offset(1)
    assert place(offsets(leading, EARLIEST_TIMESTAMP)) == (1, -1, 0)


def test_a_new_leader_that_does_not_know_the_end_yet_says_so(leading: Serving) -> None:
    produce(leading, batch(b"a"))
    leading.managed.tell(state(leader=2, epoch=1))
    leading.managed.tell(state(epoch=2))
    assert offsets(leading, LATEST_TIMESTAMP).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert place(offsets(leading, EARLIEST_TIMESTAMP)) == (0, -1, 0)
    for replica in (TWO, THREE):
        fetch(leading, 1, replica=replica)
    assert place(offsets(leading, LATEST_TIMESTAMP)) == (1, -1, 2)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"current_leader_epoch": 7}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"partition_index": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_offsets_of_what_is_not_led_here(leading: Serving, fields: dict[str, int], code: ErrorCode) -> None:
    assert offsets(leading, LATEST_TIMESTAMP, **fields).error_code == code


# OffsetForLeaderEpoch


def test_where_an_epoch_ends(leading: Serving) -> None:
    produce(leading, batch(b"a", b"b"))
    leading.managed.tell(state(epoch=3))
    produce(leading, batch(b"c"))

    def ask(epoch: int, current: int = -1, partition: int = 0) -> tuple[int, int, int]:
        asked = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        answer = leading.call(
            OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=TP.topic, partitions=[asked])])
        )
        one = answer.topics[0].partitions[0]
        return one.error_code, one.leader_epoch, one.end_offset

    assert ask(0) == (0, 0, 2)
    assert ask(2, current=3) == (0, 0, 2)
    assert ask(3) == (0, 3, 3)
    assert ask(8) == (0, -1, -1)
    assert ask(0, current=1) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert ask(0, current=4) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert ask(0, partition=9) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
