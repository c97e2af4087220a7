import itertools

import pytest

from barnabas.controller import events
from barnabas.controller.link_queue import LinkQueue
from barnabas.controller.request_batch import BrokerBatch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from tests.support.controller_fakes import batch_of

REGISTRATION = (ControllerEpoch(5), BrokerId(1), BrokerEpoch(77))


@pytest.fixture
def queue() -> LinkQueue:
    epoch, broker, broker_epoch = REGISTRATION
    return LinkQueue(BrokerId(0), epoch, broker, broker_epoch, itertools.count(10), is_suspected=False)


STOP = {TopicPartition("u", 0): StopReplicaPartition(partition_index=0, leader_epoch=1)}


def test_requests_go_out_in_order_each_once_the_one_before_is_answered(queue: LinkQueue) -> None:
    queue.add(batch_of(0, stop_replicas=STOP))
    first = queue.first()
    assert isinstance(first, LeaderAndIsrRequest)
    answer = LeaderAndIsrResponse(error_code=0)
    assert queue.answered(answer) == events.LeaderAndIsrAnswered(*REGISTRATION, first, answer)
    second = queue.first()
    assert isinstance(second, UpdateMetadataRequest)
    assert queue.answered(UpdateMetadataResponse(error_code=0)) is None
    assert queue.is_in_batch
    third = queue.first()
    assert isinstance(third, StopReplicaRequest)
    stopped = StopReplicaResponse(error_code=0)
    assert queue.answered(stopped) == events.StopReplicaAnswered(*REGISTRATION, third, stopped)
    assert [first.sequence, second.sequence, third.sequence] == [10, 11, 12]
    assert queue.first() is None
    assert not queue


def test_only_waiting_batches_are_merged(queue: LinkQueue) -> None:
    queue.add(batch_of(0))
    first = queue.first()
    queue.add(batch_of(1))
    queue.add(batch_of(2))
    assert queue.first() is first
    queue.answered(LeaderAndIsrResponse(error_code=0))
    queue.answered(UpdateMetadataResponse(error_code=0))
    merged = queue.first()
    assert isinstance(merged, LeaderAndIsrRequest)
    partitions = [state.partition_index for topic in merged.topic_states for state in topic.partition_states]
    assert partitions == [1, 2]
    queue.answered(LeaderAndIsrResponse(error_code=0))
    queue.answered(UpdateMetadataResponse(error_code=0))
    assert not queue


def test_a_suspected_broker_gets_no_requests_until_it_returns(queue: LinkQueue) -> None:
    queue.add(batch_of(0))
    queue.first()
    queue.add(batch_of(1))
    assert queue.suspect() == events.BrokerSuspected(*REGISTRATION)
    queue.add(batch_of(2))
    assert queue.first() is None
    assert (queue.probe().topic_states, queue.probe().broker_epoch) == ([], 77)
    assert queue.returned() == events.BrokerReturned(*REGISTRATION)
    queue.add(batch_of(3))
    assert queue.first() is not None


def test_after_a_failure_nothing_is_left_to_send(queue: LinkQueue) -> None:
    queue.add(batch_of(0))
    queue.first()
    queue.add(batch_of(1))
    assert queue.failed() == events.LinkFailed(*REGISTRATION)
    assert queue.first() is None
    # The controller handles other events before this one: their changes are in the full requests, too.
    queue.add(batch_of(2))
    assert queue.first() is None
    queue.add(batch_of(3, is_full=True))
    queue.add(batch_of(4))
    assert queue.first() is not None


@pytest.mark.parametrize(
    ("code", "event"),
    [
        (ErrorCode.UNKNOWN_SERVER_ERROR, events.LinkFailed(*REGISTRATION)),
        (ErrorCode.STALE_CONTROLLER_EPOCH, None),
        (ErrorCode.STALE_BROKER_EPOCH, None),
    ],
)
def test_metadata_that_was_not_applied_is_sent_again_with_all_else_unless_it_is_too_old(
    queue: LinkQueue, code: ErrorCode, event: events.LinkFailed | None
) -> None:
    """The rest of the batch still goes out: the broker may have a bug for good."""
    queue.add(batch_of(0, stop_replicas=STOP))
    queue.first()
    queue.answered(LeaderAndIsrResponse(error_code=0))
    queue.first()
    assert queue.answered(UpdateMetadataResponse(error_code=int(code))) == event
    assert isinstance(queue.first(), StopReplicaRequest)


def test_a_broker_lacks_metadata_until_it_has_applied_a_full_update(queue: LinkQueue) -> None:
    def answer(code: ErrorCode, *, is_full: bool) -> None:
        queue.add(BrokerBatch(has_metadata=True, is_full=is_full))
        if isinstance(queue.first(), LeaderAndIsrRequest):
            queue.answered(LeaderAndIsrResponse(error_code=0))
            queue.first()
        queue.answered(UpdateMetadataResponse(error_code=int(code)))

    assert not queue.lacks_metadata
    answer(ErrorCode.UNKNOWN_SERVER_ERROR, is_full=False)
    answer(ErrorCode.NONE, is_full=False)
    assert queue.lacks_metadata
    answer(ErrorCode.NONE, is_full=True)
    assert not queue.lacks_metadata
