"""InitProducerId, and the batches of producers with an id."""

import pytest

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from barnabas.zookeeper.errors import ZooKeeperUnavailable
from tests.support.building import THREE, TP, TWO
from tests.support.logs import produced as batch_of
from tests.support.record_requests import produce_request, produced
from tests.support.serving import Connection, Serving


def init(serving: Serving, **fields: object) -> InitProducerIdResponse:
    response: InitProducerIdResponse = serving.call(InitProducerIdRequest(**fields))
    return response


def test_a_producer_that_requests_a_higher_epoch_gets_another_id(serving: Serving) -> None:
    first = init(serving)
    second = init(serving, producer_id=first.producer_id, producer_epoch=first.producer_epoch)
    assert (second.error_code, second.producer_epoch) == (ErrorCode.NONE, 0)
    assert second.producer_id != first.producer_id


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": "mine"}, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_transactions_and_half_an_identity_are_refused(
    serving: Serving, fields: dict[str, object], code: ErrorCode
) -> None:
    response = init(serving, **fields)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)
    assert serving.blocks.claimed == 0


def test_without_zookeeper_a_producer_gets_a_retriable_error(serving: Serving) -> None:
    serving.blocks.trouble = ZooKeeperUnavailable("no ZooKeeper")
    assert init(serving).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def produce(serving: Serving, sequence: int) -> Connection:
    return serving.send(produce_request(bytes(batch_of(sequence)), acks=-1))


def test_a_repeated_batch_is_acknowledged_when_the_old_one_is_on_all_replicas(leading: Serving) -> None:
    first = produce(leading, 0)
    # The first answer is lost, and the producer retries before a follower has the batch.
    again = produce(leading, 0)
    later = produce(leading, 1)
    assert [first.is_answered, again.is_answered, later.is_answered] == [False, False, False]
    for follower in (TWO, THREE):
        leading.managed.fetch(1, replica=follower, epoch=0)
    assert produced(first).base_offset == produced(again).base_offset == 0
    assert not later.is_answered
    assert leading.managed.manager.partition(TP).log_end_offset == 2
    once_more = produced(produce(leading, 0))
    assert (once_more.error_code, once_more.base_offset) == (ErrorCode.NONE, 0)
