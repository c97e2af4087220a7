"""A transactional produce asks the coordinator before it begins a transaction in a log (KIP-890)."""

import tracemalloc

import pytest

from barnabas.broker.coordinators.transactions.requests import AddPartitions
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support import logs
from tests.support.building import ME, TP, state
from tests.support.record_requests import produced
from tests.support.serving import Connection, Serving
from tests.support.transactions import end

ID = "payments"
V1, V2 = 11, 12
"""Versions of Produce: the client has added the partitions; the brokers add them."""


@pytest.fixture
def broker(leading: Serving) -> Serving:
    """It leads "topic", and coordinates the transactional id."""
    leading.coordinators.places[ID] = ME
    return leading


def records(sequence: int, *, producer_id: int = 7, transactional: bool = True) -> bytes:
    return bytes(logs.produced(sequence, producer_id=producer_id, is_transactional=transactional))


def send(
    broker: Serving,
    *batches: bytes,
    version: int | None = V2,
    transactional_id: str | None = ID,
    acks: int = 1,
) -> Connection:
    data = [PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)]
    body = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1_000,
        topic_data=[TopicProduceData(name=TP.topic, partition_data=data)],
    )
    return broker.send(body, version=version)


def end_offset(broker: Serving) -> int:
    return broker.managed.manager.partition(TP).log_end_offset


def code(connection: Connection) -> ErrorCode:
    return ErrorCode(produced(connection).error_code)


def abort(broker: Serving) -> None:
    end(broker.managed.manager.partition(TP), committed=False, producer_id=7)


@pytest.mark.parametrize(("version", "verify_only"), [(9, True), (V1, True), (V2, False), (None, False)])
def test_the_first_batch_waits_for_the_coordinator_and_the_next_does_not(
    broker: Serving, version: int | None, verify_only: bool
) -> None:
    first = send(broker, records(0), version=version)
    assert (first.is_answered, end_offset(broker)) == (False, 0)
    (asked,) = broker.coordinators.here
    assert asked.transactional_id == ID
    assert asked.request == AddPartitions(7, 0, frozenset([TP]), verify_only)
    asked.respond(ErrorCode.NONE)
    assert (code(first), end_offset(broker)) == (ErrorCode.NONE, 1)
    assert code(send(broker, records(1), version=version)) is ErrorCode.NONE
    assert (len(broker.coordinators.here), end_offset(broker)) == (1, 2)


REFUSALS = [
    (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
    (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
    (ErrorCode.TRANSACTION_ABORTABLE, None, ErrorCode.TRANSACTION_ABORTABLE),
    (ErrorCode.INVALID_TXN_STATE, 12, ErrorCode.INVALID_TXN_STATE),
    (ErrorCode.PRODUCER_FENCED, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ErrorCode.INVALID_PRODUCER_EPOCH, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 9, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, None, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.OPERATION_NOT_ATTEMPTED, None, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.NOT_COORDINATOR, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
]


@pytest.mark.parametrize(("answer", "version", "expected"), REFUSALS)
def test_a_batch_that_is_not_confirmed_is_refused_as_its_client_knows(
    broker: Serving, answer: ErrorCode, version: int | None, expected: ErrorCode
) -> None:
    broker.coordinators.answer_at_once = answer
    refused = send(broker, records(0), version=version)
    assert (code(refused), end_offset(broker)) == (expected, 0)
    assert answer.name in produced(refused).error_message
    # The next attempt asks again.
    broker.coordinators.answer_at_once = ErrorCode.NONE
    assert code(send(broker, records(0), version=version)) is ErrorCode.NONE


def test_a_marker_between_the_answer_and_the_append_refuses_the_batch(broker: Serving) -> None:
    """The late batch would begin a transaction without an end."""
    late = send(broker, records(0), version=V1)
    abort(broker)
    broker.coordinators.here[0].respond(ErrorCode.NONE)
    assert (code(late), end_offset(broker)) == (ErrorCode.INVALID_TXN_STATE, 1)
    assert not broker.managed.manager.partition(TP).log.has_ongoing_transaction(7, 0)


def test_a_transaction_of_the_first_protocol_is_not_continued_in_the_second(broker: Serving) -> None:
    """After an upgrade, the producer's former transaction is aborted, has the same epoch, and lacks its
    marker. That marker, or the next commit, would end both transactions."""
    coordinators = broker.coordinators
    coordinators.answer_at_once = ErrorCode.NONE
    send(broker, records(0), version=V1)
    coordinators.answer_at_once = ErrorCode.CONCURRENT_TRANSACTIONS
    assert code(send(broker, records(1))) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert end_offset(broker) == 1
    abort(broker)
    coordinators.answer_at_once = ErrorCode.NONE
    assert code(send(broker, records(1))) is ErrorCode.NONE
    assert code(send(broker, records(2))) is ErrorCode.NONE
    assert [asked.request.verify_only for asked in coordinators.here] == [True, False, False]


def test_an_answer_that_comes_too_late_for_its_connection_is_dropped(broker: Serving) -> None:
    """The request was resumed, but its connection was lost: nothing fails."""
    waiting = send(broker, records(0))
    waiting.request.fail("the connection is lost")
    broker.coordinators.here[0].respond(ErrorCode.NONE)
    assert waiting.closed is not None


def test_a_batch_of_a_lost_connection_is_dropped_while_it_waits(broker: Serving) -> None:
    batch = bytes(logs.produced(0, producer_id=7, is_transactional=True, value=b"x" * 900_000))
    tracemalloc.start()
    waiting = send(broker, batch).request
    assert tracemalloc.get_traced_memory()[0] > 900_000
    waiting.abandon()
    assert tracemalloc.get_traced_memory()[0] < 500_000
    tracemalloc.stop()
    broker.coordinators.here[0].respond(ErrorCode.NONE)
    assert end_offset(broker) == 0


def test_transactional_batches_need_a_transactional_id(broker: Serving) -> None:
    for version in (9, None):
        refused = send(broker, records(0), transactional_id=None, version=version)
        assert code(refused) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    closed = send(broker, records(0), transactional_id=None, acks=0)
    assert "names no transactional id" in (closed.closed or "")
    assert (broker.coordinators.here, end_offset(broker)) == ([], 0)


def test_batches_of_two_producers_are_refused(broker: Serving) -> None:
    refused = send(broker, records(0), records(0, producer_id=8))
    codes = [produced(refused, index).error_code for index in (0, 1)]
    assert codes == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2


def test_a_partition_that_is_led_here_only_since_the_question_is_retried(broker: Serving) -> None:
    """Its transaction was not confirmed, but nothing is wrong with it."""
    assert broker.managed.tell(state(), state(index=3)) == []
    waiting = send(broker, records(0, transactional=False), *[records(0)] * 3)
    assert broker.managed.tell(state(index=1)) == []
    (asked,) = broker.coordinators.here
    assert asked.request.partitions == {TopicPartition(TP.topic, 3)}
    asked.respond(ErrorCode.NONE)
    assert [produced(waiting, index).error_code for index in range(4)] == [
        ErrorCode.NONE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]
    assert broker.managed.manager.partition(TopicPartition(TP.topic, 1)).log_end_offset == 0


def test_verification_can_be_switched_off_but_not_the_adding(broker: Serving) -> None:
    broker.verification.is_enabled = False
    assert code(send(broker, records(0), version=V1)) is ErrorCode.NONE
    abort(broker)
    assert not send(broker, records(1), version=V2).is_answered
    assert [type(asked.request) for asked in broker.coordinators.here] == [AddPartitions]
