"""The requests of transactional producers through the handlers: versions, errors, answers that wait.

The rules of transactional ids are tested in `tests/unit/broker/coordinators`.
"""

import dataclasses
import uuid

import pytest

from barnabas.broker.coordinators.transactions.requests import AddPartitions
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from barnabas.protocol.messages.find_coordinator import CoordinatorType, FindCoordinatorRequest
from barnabas.protocol.messages.produce import InitProducerIdResponse
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    PrepareTxnRequest,
)
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.building import LIVE, NONE, led_by, metadata, state
from tests.support.group_requests import OFFSETS_ID, find
from tests.support.grouping import run_once
from tests.support.logs import headers_of
from tests.support.serving import INTERNAL, Serving
from tests.support.transaction_requests import (
    HERE,
    PARTITION,
    THERE,
    add,
    added,
    answer_markers,
    begin,
    end,
    errors,
    init,
    lead_transactions,
    stored,
    topics,
    work,
)

S = TransactionState


# Finding the coordinator


@pytest.mark.parametrize("version", [None, 1, 3, 4])
def test_the_coordinator_is_the_leader_of_the_ids_partition(
    coordinating: Serving, version: int | None
) -> None:
    several = version is None or version >= 4
    kind = CoordinatorType.TRANSACTION
    request = find("id", key_type=kind) if several else FindCoordinatorRequest(key="id", key_type=kind)
    response = coordinating.call(request, INTERNAL, version=version)
    (found,) = response.coordinators if several else [response]
    assert (found.error_code, found.node_id, found.host, found.port) == (NONE, 1, "host", 9001)


# InitProducerId


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (4, ErrorCode.PRODUCER_FENCED),
        (None, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_a_fenced_producer_learns_it_in_the_words_of_its_version(
    coordinating: Serving, version: int | None, code: ErrorCode
) -> None:
    old = coordinating.call(init())
    coordinating.call(init())
    coordinating.call(init())
    request = init(producer_id=old.producer_id, producer_epoch=old.producer_epoch)
    assert coordinating.call(request, version=version).error_code == code


# AddPartitionsToTxn


@pytest.mark.parametrize("version", [0, 3, 4, 5, None])
def test_partitions_are_added_in_all_versions(coordinating: Serving, version: int | None) -> None:
    producer = coordinating.call(init())
    request = add(producer, HERE, THERE)
    if version is not None and version < 4:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="id",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=topics(HERE, THERE),
        )
    assert errors(coordinating.call(request, version=version)) == {HERE: NONE, THERE: NONE}
    assert stored(coordinating).partitions == {HERE, THERE}


@pytest.mark.parametrize("version", [3, 4, None])
def test_no_client_adds_topics_of_the_brokers_or_unknown_partitions(
    coordinating: Serving, version: int | None
) -> None:
    know_offsets(coordinating)
    producer = coordinating.call(init())
    offsets_partition, unknown = TopicPartition(OFFSETS_TOPIC, 0), TopicPartition(HERE.topic, 9)
    is_old = version == 3
    for name in (PARTITION, unknown, offsets_partition):
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="id",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=topics(HERE, name),
        )
        answer = coordinating.call(request if is_old else add(producer, HERE, name), version=version)
        # A leader adds the partition of a group with version 4.
        if is_old or name != offsets_partition:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if name == unknown:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert errors(answer) == {HERE: ErrorCode.OPERATION_NOT_ATTEMPTED, name: code}
            assert stored(coordinating).state is S.EMPTY
        else:
            assert errors(answer) == {HERE: NONE, name: NONE}


@pytest.mark.parametrize("adds", [True, False])
def test_the_coordinator_adds_no_partition_that_only_its_own_broker_leads(
    coordinating: Serving, adds: bool
) -> None:
    """It leads before it has the metadata, and asks a coordinator in its own process without a request."""
    producer = coordinating.call(init())
    unknown = TopicPartition("new", 0)
    assert coordinating.managed.tell(state(), topic="new", topic_id=uuid.UUID(int=99)) == []
    request = AddPartitions(
        producer.producer_id, producer.producer_epoch, frozenset([unknown]), verify_only=not adds
    )
    outcomes: list[object] = []
    coordinating.transactions.apply("id", request, outcomes.append)
    refusal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcomes == [refusal if adds else {unknown: refusal}]
    assert stored(coordinating).state is S.EMPTY


def test_a_transaction_gets_no_partition_that_leaves_no_room_for_its_end(coordinating: Serving) -> None:
    log = coordinating.managed.manager.partition(PARTITION).log
    producer = begin(coordinating, HERE)
    size = list(headers_of(log))[-1].size_bytes
    coordinating.call(end(producer))
    log.config = dataclasses.replace(log.config, max_message_bytes=size)
    producer = coordinating.call(init("jd"))
    request = added(producer, HERE, transactional_id="jd")
    answer = coordinating.call(AddPartitionsToTxnRequest(transactions=[request]))
    assert errors(answer) == {HERE: ErrorCode.UNKNOWN_SERVER_ERROR}
    coordinating.managed.pass_time(60_000)
    assert coordinating.call(init("jd")).error_code == NONE


def test_brokers_verify_and_add_for_several_transactions_at_once(coordinating: Serving) -> None:
    producer = begin(coordinating, HERE)
    other = coordinating.call(init("other"))
    request = AddPartitionsToTxnRequest(
        transactions=[
            added(producer, HERE, THERE, verify_only=True),
            added(other, THERE, transactional_id="other"),
            added(other, THERE, transactional_id="unknown"),
            added(other, THERE, transactional_id=""),
        ]
    )
    answer = coordinating.call(request, version=4)
    found = {
        (result.transactional_id, partition.partition_index): ErrorCode(partition.partition_error_code)
        for result in answer.results_by_transaction
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
    assert found == {
        ("id", 0): NONE,
        ("id", 1): ErrorCode.TRANSACTION_ABORTABLE,
        ("other", 1): NONE,
        ("unknown", 1): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ("", 1): ErrorCode.INVALID_REQUEST,
    }
    assert stored(coordinating).partitions == {HERE}
    assert coordinating.call(AddPartitionsToTxnRequest()).results_by_transaction == []


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
def test_a_fenced_producer_adds_and_ends_nothing(
    coordinating: Serving, version: int, code: ErrorCode
) -> None:
    old = coordinating.call(init())
    coordinating.call(init())
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="id",
        v3_and_below_producer_id=old.producer_id,
        v3_and_below_producer_epoch=old.producer_epoch,
        v3_and_below_topics=topics(HERE),
    )
    assert errors(coordinating.call(request, version=version)) == {HERE: code}
    assert coordinating.call(end(old), version=version).error_code == code
    know_offsets(coordinating)
    assert coordinating.call(offsets(old), version=version).error_code == code


# AddOffsetsToTxn


def offsets(
    producer: InitProducerIdResponse, group: str = "g", transactional_id: str = "id"
) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        group_id=group,
    )


def know_offsets(serving: Serving) -> None:
    serving.managed.metadata.update(metadata(LIVE, led_by(2), topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID))
    # The first request has the partitions counted.
    serving.call(find("g"))
    while run_once(serving.groups):
        pass


def test_offsets_add_the_partition_of_their_group(coordinating: Serving) -> None:
    know_offsets(coordinating)
    producer = coordinating.call(init())
    assert coordinating.call(offsets(producer)).error_code == NONE
    assert stored(coordinating).partitions == {TopicPartition(OFFSETS_TOPIC, 0)}
    assert coordinating.call(offsets(producer, group="")).error_code == ErrorCode.INVALID_GROUP_ID
    assert coordinating.call(offsets(producer, transactional_id="")).error_code == ErrorCode.INVALID_REQUEST


def test_offsets_wait_for_the_offsets_topic(coordinating: Serving) -> None:
    producer = coordinating.call(init())
    waiting = coordinating.send(offsets(producer))
    assert coordinating.auto_created == [[OFFSETS_TOPIC]]
    assert not waiting.is_answered
    all_led = [led_by(2, index=index) for index in range(50)]
    coordinating.managed.metadata.update(metadata(LIVE, *all_led, topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID))
    assert waiting.response.error_code == NONE


def test_without_an_offsets_topic_no_offsets_are_added(coordinating: Serving) -> None:
    waiting = coordinating.send(offsets(coordinating.call(init())))
    coordinating.expire(after_ms=3_001)
    assert waiting.response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


# The end


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_is_answered_when_the_decision_is_stored_and_completes_after_all_markers(
    coordinating: Serving, committed: bool
) -> None:
    producer = begin(coordinating)
    assert coordinating.call(end(producer, committed), version=4).error_code == NONE
    assert stored(coordinating).state is (S.PREPARE_COMMIT if committed else S.PREPARE_ABORT)
    ((marker,),) = [request.markers for request in answer_markers(coordinating)]
    assert (marker.producer_id, marker.producer_epoch) == (producer.producer_id, producer.producer_epoch)
    assert (marker.transaction_result, marker.coordinator_epoch) == (committed, 0)
    assert stored(coordinating).state is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)


@pytest.mark.parametrize(("version", "is_raised"), [(4, False), (5, True), (None, True)])
def test_new_clients_get_an_epoch_for_each_transaction(
    coordinating: Serving, version: int | None, is_raised: bool
) -> None:
    producer = begin(coordinating)
    answer = coordinating.call(end(producer), version=version)
    assert answer.error_code == NONE
    ((marker,),) = [request.markers for request in answer_markers(coordinating)]
    assert marker.producer_epoch == producer.producer_epoch + is_raised
    assert marker.transaction_version == 2 * is_raised
    if is_raised:
        assert (answer.producer_id, answer.producer_epoch) == (
            producer.producer_id,
            producer.producer_epoch + 1,
        )


def test_a_transaction_is_aborted_at_its_time_out(coordinating: Serving) -> None:
    producer = coordinating.call(init(transaction_timeout_ms=1_000))
    coordinating.call(add(producer, THERE))
    coordinating.managed.pass_time(999)
    assert stored(coordinating).state is S.ONGOING
    coordinating.managed.pass_time(1)
    ((marker,),) = [request.markers for request in answer_markers(coordinating)]
    assert marker.transaction_result is False
    assert marker.producer_epoch == producer.producer_epoch + 1
    assert coordinating.call(end(producer), version=4).error_code == ErrorCode.PRODUCER_FENCED


def prepare(producer: InitProducerIdResponse, **fields: object) -> PrepareTxnRequest:
    return PrepareTxnRequest(
        **{
            "transactional_id": "id",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            **fields,
        }
    )


def test_a_prepared_transaction_has_no_time_out(coordinating: Serving) -> None:
    producer = begin(coordinating)
    assert coordinating.call(prepare(producer)).error_code == NONE
    coordinating.managed.pass_time(10**9)
    (described,) = coordinating.call(DescribeTransactionsRequest(transactional_ids=["id"])).transaction_states
    assert (described.transaction_state, described.is_prepared) == ("Ongoing", True)
    assert coordinating.call(prepare(producer, transactional_id="")).error_code == ErrorCode.INVALID_REQUEST
    assert coordinating.call(end(producer)).error_code == NONE


def test_nothing_is_prepared_where_that_is_disabled(coordinating: Serving) -> None:
    producer = begin(coordinating)
    object.__setattr__(coordinating.config, "transaction_two_phase_commit_enable", False)
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert coordinating.call(prepare(producer)).error_code == refused
    assert coordinating.call(init(keep_prepared_txn=True)).error_code == refused
    assert coordinating.call(init("other")).error_code == NONE
    assert stored(coordinating).state is TransactionState.ONGOING
    assert coordinating.call(end(producer)).error_code == NONE


@pytest.mark.parametrize("version", [0, 4, None])
def test_an_end_without_an_id_is_refused(coordinating: Serving, version: int | None) -> None:
    producer = coordinating.call(init())
    answer = coordinating.call(end(producer, transactional_id=""), version=version)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    unknown = coordinating.call(end(producer, transactional_id="unknown"), version=version)
    assert unknown.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# Operators


def test_ids_are_described(coordinating: Serving) -> None:
    producer = begin(coordinating)
    described, unknown = coordinating.call(
        DescribeTransactionsRequest(transactional_ids=["id", "unknown"]), version=0
    ).transaction_states
    assert described.transaction_state == "Ongoing"
    assert (described.producer_id, described.producer_epoch) == (
        producer.producer_id,
        producer.producer_epoch,
    )
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("topic", [0, 1])]
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    # As Kafka: some clients cannot decode -1 in these fields.
    assert (unknown.producer_id, unknown.producer_epoch, unknown.transaction_start_time_ms) == (0, 0, 0)


def listed(serving: Serving, **filters: object) -> set[str]:
    answer = serving.call(ListTransactionsRequest(**filters), version=1)
    assert answer.error_code == NONE
    return {transaction.transactional_id for transaction in answer.transaction_states}


def test_ids_are_listed_by_state_producer_and_duration(
    coordinating: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(coordinating)
    idle = coordinating.call(init("idle"))
    assert listed(coordinating) == {"id", "idle"}
    assert listed(coordinating, state_filters=["Ongoing"]) == {"id"}
    assert listed(coordinating, state_filters=["Ongoing", "Empty"]) == {"id", "idle"}
    assert listed(coordinating, producer_id_filters=[idle.producer_id]) == {"idle"}
    now_ms = coordinating.wall_ms
    monkeypatch.setattr("barnabas.broker.handlers.describe_transactions.wall_clock_ms", lambda: now_ms + 500)
    assert listed(coordinating, duration_filter=0) == {"id"}
    assert listed(coordinating, duration_filter=499) == {"id"}
    assert listed(coordinating, duration_filter=500) == set()


def test_unknown_states_are_named(coordinating: Serving) -> None:
    begin(coordinating)
    answer = coordinating.call(ListTransactionsRequest(state_filters=["Ongoign"]), version=0)
    assert (answer.unknown_state_filters, answer.transaction_states) == (["Ongoign"], [])


def test_a_list_fails_while_ids_are_loaded(coordinating: Serving) -> None:
    lead_transactions(coordinating, epoch=1, leader=2)
    lead_transactions(coordinating, epoch=2)
    answer = coordinating.call(ListTransactionsRequest())
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    work(coordinating)
    assert coordinating.call(ListTransactionsRequest()).error_code == NONE
