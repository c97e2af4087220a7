from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.controller import channels, events
from barnabas.controller.channels import ControllerChannels
from barnabas.controller.failure_detector import ConnectResult, FailureDetector, try_connect
from barnabas.controller.request_batch import BrokerBatch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, Endpoint, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from tests.support.controlled_broker import ControlledBroker
from tests.support.waiting import wait_for

ONE = BrokerId(1)
NOWHERE = Endpoint("no-such-host.invalid", 1)
LIFE = (ControllerEpoch(5), ONE, BrokerEpoch(77))


class Rig:
    """Channels with one broker, and what they report."""

    def __init__(self, request_timeout_ms: int = 20_000) -> None:
        self.broker = ControlledBroker()
        self.broker.broker_epoch = 77
        self.reports: list[events.FromChannel] = []
        self.detector = FailureDetector(time.monotonic)
        self.channels = ControllerChannels(
            BrokerId(0),
            ControllerEpoch(5),
            request_timeout_ms=request_timeout_ms,
            report=self.reports.append,
            detector=self.detector,
        )
        self.channels.add_broker(ONE, BrokerEpoch(77), self.broker.endpoint, is_suspected=False)

    def connected(self) -> Rig:
        wait_for(lambda: self.broker.connections_made)
        # Only then the link has heard of it: a broker that was never reached cannot die.
        wait_for(lambda: self.detector.address(ONE, BrokerEpoch(77)))
        return self

    def partitions_told(self) -> list[int]:
        return [
            one.partition_index
            for request in self.broker.of(LeaderAndIsrRequest)
            for topic in request.topic_states
            for one in topic.partition_states
        ]


@pytest.fixture
def rigs() -> Iterator[list[Rig]]:
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.channels.stop()
        rig.broker.die()
        assert not [event for event in rig.reports if isinstance(event, events.ChannelsFailed)]


@pytest.fixture
def rig(rigs: list[Rig]) -> Rig:
    rigs.append(Rig())
    return rigs[-1].connected()


def leadership(partition: int, *, epoch: int = 0, is_new: bool = False) -> LeaderAndIsrPartition:
    return LeaderAndIsrPartition(
        partition_index=partition,
        controller_epoch=5,
        leader=1,
        leader_epoch=epoch,
        isr=[1],
        partition_epoch=epoch,
        replicas=[1],
        is_new=is_new,
    )


def batch_of(partition: int, **arguments: object) -> BrokerBatch:
    tp = TopicPartition("t", partition)
    return BrokerBatch(leader_and_isr={tp: leadership(partition)}, has_metadata=True, **arguments)


def test_a_batch_sent_while_the_connection_is_closing_goes_out_on_the_next_one(rig: Rig) -> None:
    wait_for(lambda: rig.channels._links[ONE]._channel.is_connected)

    def send_and_close() -> None:
        # In this order the link has its turn before the loop has told it of the end.
        link = rig.channels._links[ONE]
        link.send(batch_of(0))
        link._channel._connection._transport.close()

    rig.channels._loop.call_soon_threadsafe(send_and_close)
    wait_for(lambda: rig.partitions_told() == [0], "the link does not try again")


def test_a_batch_goes_out_in_order_with_the_epochs_of_both_sides(rig: Rig) -> None:
    stop = {TopicPartition("u", 0): StopReplicaPartition(partition_index=0, leader_epoch=1)}
    rig.channels.send(ONE, batch_of(0, stop_replicas=stop))
    wait_for(lambda: len(rig.reports) == 2)
    kinds = [type(request) for request in rig.broker.requests]
    assert kinds == [LeaderAndIsrRequest, UpdateMetadataRequest, StopReplicaRequest]
    assert {(r.controller_id, r.controller_epoch, r.broker_epoch) for r in rig.broker.requests} == {
        (0, 5, 77)
    }
    assert [request.sequence for request in rig.broker.requests] == [0, 1, 2]
    assert [type(report) for report in rig.reports] == [
        events.LeaderAndIsrAnswered,
        events.StopReplicaAnswered,
    ]
    assert {(r.controller_epoch, r.broker, r.broker_epoch) for r in rig.reports} == {LIFE}


def test_a_request_without_an_answer_is_sent_again_on_a_new_connection(rigs: list[Rig]) -> None:
    rigs.append(Rig(request_timeout_ms=150))
    rig = rigs[-1].connected()
    rig.broker.answer = lambda request: None
    rig.channels.send(ONE, batch_of(0))
    wait_for(lambda: len(rig.broker.requests) >= 2)
    rig.broker.answer = rig.broker.accept
    wait_for(lambda: rig.reports)
    assert isinstance(rig.reports[0], events.LeaderAndIsrAnswered)
    assert rig.broker.connections_made >= 2
    told = rig.broker.of(LeaderAndIsrRequest)
    assert len(told) >= 2
    assert {request.sequence for request in told} == {0}


def test_a_lost_connection_that_can_be_made_again_is_no_suspicion(rig: Rig) -> None:
    rig.broker.drop_connections()
    wait_for(lambda: rig.broker.connections_made >= 2)
    rig.channels.send(ONE, batch_of(0))
    wait_for(lambda: rig.reports)
    assert [type(report) for report in rig.reports] == [events.LeaderAndIsrAnswered]


def test_a_reset_and_a_port_that_refuses_is_a_suspicion(rig: Rig) -> None:
    rig.broker.die()
    wait_for(lambda: rig.reports)
    assert rig.reports == [events.BrokerSuspected(*LIFE)]


def test_a_suspected_broker_that_answers_with_the_same_epoch_has_returned(rig: Rig) -> None:
    rig.broker.die()
    wait_for(lambda: rig.reports)
    rig.channels.send(ONE, batch_of(3))
    rig.broker.revive()
    wait_for(lambda: len(rig.reports) == 2)
    assert rig.reports[1] == events.BrokerReturned(*LIFE)
    # What was said to it while it was gone is not said again; the controller tells it everything.
    rig.channels.send(ONE, batch_of(4))
    wait_for(lambda: len(rig.reports) == 3)
    assert rig.partitions_told() == [4]


def test_another_process_at_the_address_of_a_dead_broker_does_not_bring_it_back(rig: Rig) -> None:
    rig.broker.die()
    wait_for(lambda: rig.reports)
    rig.broker.broker_epoch = 99
    rig.broker.revive()
    wait_for(lambda: len(rig.broker.requests) >= 3)
    assert rig.reports == [events.BrokerSuspected(*LIFE)]
    rig.channels.add_broker(ONE, BrokerEpoch(99), rig.broker.endpoint, is_suspected=False)
    rig.channels.send(ONE, batch_of(0))
    wait_for(lambda: len(rig.reports) == 2)
    assert isinstance(rig.reports[1], events.LeaderAndIsrAnswered)


def test_a_removed_broker_gets_no_requests(rig: Rig) -> None:
    rig.channels.remove_broker(ONE)
    rig.channels.send(ONE, batch_of(0))
    rig.broker.die()
    rig.channels.stop()
    assert rig.broker.requests == []
    assert rig.reports == []


def test_stopping_closes_every_connection_and_can_be_repeated(rig: Rig) -> None:
    rig.broker.answer = lambda request: None
    rig.channels.send(ONE, batch_of(0))
    wait_for(lambda: rig.broker.requests)
    rig.channels.stop()
    rig.channels.stop()
    rig.channels.send(ONE, batch_of(1))
    assert not rig.channels._thread.is_alive()


async def test_a_port_refuses_when_nobody_listens() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        endpoint = Endpoint(*listener.getsockname())
        assert await try_connect(endpoint, None) is ConnectResult.ANSWERS
    assert await try_connect(endpoint, None) is ConnectResult.REFUSES


async def test_a_name_that_does_not_resolve_is_no_sign_by_itself() -> None:
    assert await try_connect(NOWHERE, None) is ConnectResult.SILENT


async def test_a_name_that_does_not_resolve_leaves_the_last_address_to_ask() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = listener.getsockname()
        assert await try_connect(NOWHERE, address) is ConnectResult.ANSWERS
    assert await try_connect(NOWHERE, address) is ConnectResult.REFUSES


def test_a_broker_that_was_never_reached_is_not_suspect_though_it_refuses(rigs: list[Rig]) -> None:
    rig = Rig()
    rigs.append(rig)
    rig.connected()
    rig.broker.die()
    wait_for(lambda: rig.reports)
    asked: list[object] = []
    seen = rig.detector.attempted
    rig.detector.attempted = lambda *what: asked.append(what) or seen(*what)
    # A new registration whose port refuses from the beginning.
    rig.channels.add_broker(ONE, BrokerEpoch(78), rig.broker.endpoint, is_suspected=False)
    wait_for(lambda: len(asked) >= 3)
    assert rig.reports == [events.BrokerSuspected(*LIFE)]


def test_a_broker_known_to_be_dead_is_suspect_from_the_beginning_until_it_answers(
    rigs: list[Rig],
) -> None:
    rig = Rig()
    rigs.append(rig)
    rig.connected()
    other = ControlledBroker()
    try:
        life = (BrokerId(2), BrokerEpoch(90))
        rig.detector.connected(*life)
        assert rig.detector.attempted(*life, ConnectResult.REFUSES)
        # It may have been reached since: the term counts it as dead, and must learn that it is not.
        rig.detector.connected(*life)
        rig.channels.add_broker(*life, other.endpoint, is_suspected=True)
        wait_for(lambda: rig.reports)
        assert rig.reports == [events.BrokerReturned(ControllerEpoch(5), *life)]
        assert not rig.detector.is_dead(*life)
    finally:
        other.die()


def test_a_bug_on_the_channels_thread_is_reported() -> None:
    reports: list[events.FromChannel] = []
    channels = ControllerChannels(
        BrokerId(0),
        ControllerEpoch(5),
        request_timeout_ms=20_000,
        report=reports.append,
        detector=FailureDetector(time.monotonic),
    )
    channels.send([], BrokerBatch())  # the bug
    wait_for(lambda: reports)
    assert isinstance(reports[0], events.ChannelsFailed)
    assert isinstance(reports[0].error, TypeError)
    channels.stop()


def test_a_failed_link_pauses_and_then_everything_is_sent_again(rigs: list[Rig]) -> None:
    poisoned, healthy = Rig().connected(), Rig().connected()
    rigs += [poisoned, healthy]
    batch = batch_of(0)
    batch.requests = lambda *_: 1 / 0  # an unforeseen error
    poisoned.channels.send(ONE, batch)
    wait_for(lambda: poisoned.reports)
    assert poisoned.reports[0] == events.LinkFailed(*LIFE)
    # The link continues.
    poisoned.channels.send(ONE, batch_of(1))
    wait_for(lambda: poisoned.partitions_told() == [1])
    healthy.channels.send(ONE, batch_of(2))
    wait_for(lambda: healthy.partitions_told() == [2])


def refuse_metadata(rig: Rig) -> None:
    """The broker cannot apply an UpdateMetadata because of a bug."""

    def answer(request: Any) -> Any:
        if isinstance(request, UpdateMetadataRequest):
            return request.response_type(error_code=int(ErrorCode.UNKNOWN_SERVER_ERROR))
        return rig.broker.accept(request)

    rig.broker.answer = answer


def failures_of(rig: Rig) -> list[events.FromChannel]:
    return [event for event in rig.reports if isinstance(event, events.LinkFailed)]


def test_a_broker_that_never_applies_metadata_still_gets_its_roles(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_RETRY_S", 3_600.0)
    monkeypatch.setattr(channels, "_LONGEST_PAUSE_S", 3_600.0)
    refuse_metadata(rig)
    for partition in range(3):
        rig.channels.send(ONE, batch_of(partition))
        wait_for(lambda: len(rig.broker.of(UpdateMetadataRequest)) == partition + 1)  # noqa: B023 - called in this turn
    assert rig.partitions_told() == [0, 1, 2]
    assert failures_of(rig) == []


def test_the_pause_after_metadata_that_was_not_applied_grows(rig: Rig) -> None:
    refuse_metadata(rig)
    for number in range(3):
        since = time.monotonic()
        rig.channels.send(ONE, batch_of(0))
        wait_for(lambda: len(failures_of(rig)) == number + 1)  # noqa: B023 - called in this turn
        # A loop's clock may be late by a millisecond.
        assert time.monotonic() - since >= channels._RETRY_S * 2**number - 0.01


def test_a_link_pauses_for_a_bounded_time_however_often_it_fails(rig: Rig) -> None:
    link = rig.channels._links[ONE]
    link._failures = 5_000
    assert link._next_pause_s() == channels._LONGEST_PAUSE_S


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow answer alone is not reported."""
    monkeypatch.setattr(channels, "_ANSWERS_TIMEOUT_S", 3_600.0)


@pytest.mark.usefixtures("_patient")
def test_when_answered_waits_for_every_answer(rig: Rig) -> None:
    may_answer, told = threading.Event(), threading.Event()
    answer = rig.broker.answer

    def late(request: object) -> object:
        may_answer.wait(20)
        return answer(request)

    rig.broker.answer = late
    rig.channels.send(ONE, batch_of(0))
    rig.channels.when_answered(told.set)
    wait_for(lambda: rig.partitions_told() == [0])
    assert not told.is_set()
    may_answer.set()
    assert told.wait(20)
    assert rig.broker.of(UpdateMetadataRequest)


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("ending", ["dies", "stops"])
def test_when_answered_does_not_wait_for_an_unreachable_broker(rig: Rig, ending: str) -> None:
    told = threading.Event()
    rig.broker.answer = lambda request: None
    rig.channels.send(ONE, batch_of(0))
    rig.channels.when_answered(told.set)
    wait_for(lambda: rig.partitions_told() == [0])
    if ending == "dies":
        rig.broker.die()
    else:
        rig.channels.stop()
    assert told.wait(20)


def test_when_answered_returns_at_once_after_the_end(rig: Rig) -> None:
    rig.channels.stop()
    told = threading.Event()
    rig.channels.when_answered(told.set)
    assert told.is_set()
