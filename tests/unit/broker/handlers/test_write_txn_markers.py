"""WriteTxnMarkers and DescribeProducers, over real logs; version None is the native protocol.

Broker 1 leads "topic" with 2 and 3 in sync.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from barnabas.broker.handlers.transactions import TIMEOUT_MS
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.describe_transactions import DescribeProducersRequest
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import WritableTxnMarker, WriteTxnMarkersRequest
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import Marker, MarkerType, decode_marker, decode_records
from barnabas.protocol.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.support.building import TP, led_by, metadata, state
from tests.support.group_requests import lead, learn
from tests.support.logs import PRODUCER_ID
from tests.support.record_requests import catch_up, produce
from tests.support.serving import EXTERNAL, Connection, Serving, batch
from tests.support.transactions import OTHER_ID, end, write

VERSIONS = [None, 0, 1]


def marker(
    producer_id: int = PRODUCER_ID,
    *topics: tuple[str, list[int]],
    epoch: int = 0,
    committed: bool = True,
    coordinator_epoch: int = 0,
    version: int = 0,
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=committed,
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
        topics=[
            TopicPartitionIndexes(name=name, partition_indexes=indexes)
            for name, indexes in topics or [(TP.topic, [0])]
        ],
    )


def send(serving: Serving, *markers: WritableTxnMarker, version: int | None = None) -> Connection:
    return serving.send(WriteTxnMarkersRequest(markers=list(markers)), EXTERNAL, version=version)


def outcomes(connection: Connection) -> list[tuple[int, dict[tuple[str, int], int]]]:
    """For each marker its producer id and the error of each partition."""
    return [
        (
            result.producer_id,
            {
                (topic.name, partition.partition_index): partition.error_code
                for topic in result.topics
                for partition in topic.partitions
            },
        )
        for result in connection.response.markers
    ]


@pytest.mark.parametrize(("version", "committed"), [(None, True), (0, False), (1, True)])
def test_a_marker_is_answered_when_all_replicas_in_sync_have_it_and_may_be_repeated(
    leading: Serving, version: int | None, committed: bool
) -> None:
    partition = leading.managed.manager.partition(TP)
    write(partition)
    catch_up(leading)
    for end_offset in (2, 3):
        waiting = send(leading, marker(committed=committed, coordinator_epoch=3), version=version)
        assert (partition.log_end_offset, waiting.is_answered) == (end_offset, False)
        catch_up(leading)
        assert outcomes(waiting) == [(PRODUCER_ID, {TP: ErrorCode.NONE})]
        assert partition.last_stable_offset == end_offset
    [(position, header), *_] = iter_batches(partition.log.read(1, 1_000).records)
    (record, *_) = decode_records(
        partition.log.read(1, 1_000).records[position : position + header.size_bytes]
    )
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    kind = MarkerType.COMMIT if committed else MarkerType.ABORT
    assert decode_marker(record.key, record.value) == Marker(kind, 3)


def test_every_marker_and_partition_has_its_own_error(leading: Serving) -> None:
    leading.managed.tell(state(index=1, isr=(1,)))
    leading.managed.tell(state(index=2, isr=(1,)), topic="safe", min_insync_replicas=2)
    leading.managed.metadata.update(metadata({1: 0, 2: 5, 3: 5}, led_by(2, index=3)))
    partition = leading.managed.manager.partition(TopicPartition("topic", 1))
    write(partition, epoch=4)
    end(partition, committed=True, producer_id=OTHER_ID)
    connection = send(
        leading,
        marker(PRODUCER_ID, ("topic", [1, 3, 9]), ("nowhere", [0]), epoch=3),
        marker(OTHER_ID, ("topic", [1]), coordinator_epoch=-1),
        marker(PRODUCER_ID, ("topic", [1]), epoch=4, version=2),
        marker(PRODUCER_ID, ("topic", [1]), epoch=5, version=2),
        marker(OTHER_ID + 1),
    )
    assert not connection.is_answered
    leading.managed.pass_time(TIMEOUT_MS)
    assert outcomes(connection) == [
        (
            PRODUCER_ID,
            {
                ("topic", 1): ErrorCode.INVALID_PRODUCER_EPOCH,
                ("topic", 3): ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ("topic", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            },
        ),
        (OTHER_ID, {("topic", 1): ErrorCode.TRANSACTION_COORDINATOR_FENCED}),
        (PRODUCER_ID, {("topic", 1): ErrorCode.INVALID_PRODUCER_EPOCH}),
        (PRODUCER_ID, {("topic", 1): ErrorCode.NONE}),
        (OTHER_ID + 1, {("topic", 0): ErrorCode.REQUEST_TIMED_OUT}),
    ]
    refused = send(leading, marker(PRODUCER_ID, ("safe", [2])))
    assert outcomes(refused) == [(PRODUCER_ID, {("safe", 2): ErrorCode.NOT_ENOUGH_REPLICAS})]


def test_a_request_without_markers_or_partitions_is_answered(leading: Serving) -> None:
    assert outcomes(send(leading)) == []
    nothing = WritableTxnMarker(
        producer_id=1, producer_epoch=0, transaction_result=True, topics=[], coordinator_epoch=0
    )
    assert outcomes(send(leading, nothing)) == [(1, {})]


@pytest.mark.parametrize("version", VERSIONS)
def test_no_client_fences_the_coordinators_that_this_broker_knows(
    leading: Serving, version: int | None
) -> None:
    leading.managed.tell(state(isr=(1,), epoch=1))
    known = [led_by(2, 3), led_by(3, 7, index=1)]
    leading.managed.metadata.update(metadata({1: 0, 2: 5, 3: 5}, *known, topic=TRANSACTIONS_TOPIC))
    partition = leading.managed.manager.partition(TP)
    write(partition)
    codes = {
        epoch: outcomes(send(leading, marker(coordinator_epoch=epoch), version=version))[0][1]["topic", 0]
        for epoch in (2**31 - 1, 8, 7)
    }
    assert codes == {
        2**31 - 1: ErrorCode.UNKNOWN_LEADER_EPOCH,
        8: ErrorCode.UNKNOWN_LEADER_EPOCH,
        7: ErrorCode.NONE,
    }
    assert partition.last_stable_offset == partition.log_end_offset == 2


def test_offsets_of_a_transaction_count_from_its_replicated_marker_on(serving: Serving) -> None:
    serving.partitions_in_zookeeper = 1
    learn(serving)
    lead(serving)
    ended: list[tuple[dict[int, int], int, bool]] = []
    trouble: list[Exception] = []

    def transaction_ended(marker_offsets: Mapping[int, int], producer_id: int, committed: bool) -> None:
        ended.append((dict(marker_offsets), producer_id, committed))
        if trouble:
            raise trouble[0]

    serving.managed.manager.markers.listeners.append(transaction_ended)
    answer = send(serving, marker(5, (OFFSETS_TOPIC, [0, 9]), committed=False), marker(6, ("topic", [0])))
    assert ended == [({0: 0}, 5, False)]
    assert outcomes(answer)[0][1] == {
        (OFFSETS_TOPIC, 0): ErrorCode.NONE,
        (OFFSETS_TOPIC, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    # The coordinator writes the marker again.
    trouble.append(ValueError("a bug"))
    answer = send(serving, marker(5, (OFFSETS_TOPIC, [0])))
    assert outcomes(answer) == [(5, {(OFFSETS_TOPIC, 0): ErrorCode.UNKNOWN_SERVER_ERROR})]


# DescribeProducers


def describe(serving: Serving, version: int | None, topic: str, *indexes: int) -> list[Any]:
    topics = [TopicPartitionIndexes(name=topic, partition_indexes=list(indexes))]
    (answer,) = serving.call(DescribeProducersRequest(topics=topics), version=version).topics
    assert answer.name == topic
    return list(answer.partitions)


@pytest.mark.parametrize("version", [None, 0])
def test_the_producers_of_a_partition_are_described(leading: Serving, version: int | None) -> None:
    partition = leading.managed.manager.partition(TP)
    produce(leading, batch(b"a"))
    write(partition, epoch=3, count=2, timestamp_ms=50)
    write(partition, producer_id=OTHER_ID, timestamp_ms=60)
    end(partition, committed=True, producer_id=OTHER_ID)
    (answer,) = describe(leading, version, "topic", 0)
    assert (answer.partition_index, answer.error_code) == (0, ErrorCode.NONE)
    ongoing, ended = answer.active_producers
    assert (ongoing.producer_id, ongoing.producer_epoch, ongoing.last_sequence) == (PRODUCER_ID, 3, 1)
    assert (ongoing.last_timestamp, ongoing.current_txn_start_offset) == (50, 1)
    assert (ongoing.coordinator_epoch, ended.coordinator_epoch) == (-1, 0)
    assert (ended.producer_id, ended.current_txn_start_offset) == (OTHER_ID, -1)


def test_a_follower_describes_its_producers_too(leading: Serving) -> None:
    write(leading.managed.manager.partition(TP))
    leading.managed.tell(state(leader=2, epoch=1))
    (answer,) = describe(leading, 0, "topic", 0)
    assert [producer.producer_id for producer in answer.active_producers] == [PRODUCER_ID]


def test_partitions_that_cannot_be_described_have_an_error(leading: Serving) -> None:
    leading.managed.metadata.update(metadata({1: 0, 2: 5, 3: 5}, led_by(2, index=3)))
    codes = [answer.error_code for answer in describe(leading, 0, "topic", 0, 3, 9)]
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    (nowhere,) = describe(leading, 0, "nowhere", 0)
    (invalid,) = describe(leading, 0, "no/topic", 0)
    assert (nowhere.error_code, nowhere.active_producers) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
    assert invalid.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "'no/topic' is invalid" in invalid.error_message


def test_a_marker_is_written_once_to_a_partition_that_is_named_again(leading: Serving) -> None:
    partition = leading.managed.manager.partition(TP)
    write(partition)
    before = partition.log_end_offset
    send(leading, marker(PRODUCER_ID, (TP.topic, [0, 0, 0]), (TP.topic, [0])))
    assert partition.log_end_offset == before + 1
