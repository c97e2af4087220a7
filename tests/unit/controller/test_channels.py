"""The controller's channels to brokers that answer on real sockets, and that die and return."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from barnabas.controller import channels, events
from barnabas.controller.channels import ControllerChannels
from barnabas.controller.failure_detector import Address, ConnectResult, try_connect
from barnabas.controller.request_batch import BrokerBatch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, Endpoint, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    LeaderAndIsrRequest,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from tests.support.controlled_broker import ControlledBroker
from tests.support.controller_fakes import CountingDetector, batch_of
from tests.support.waiting import DEADLINE_S, wait_for

ONE = BrokerId(1)
EPOCH = BrokerEpoch(77)
REGISTRATION = (ControllerEpoch(5), ONE, EPOCH)
UNRESOLVABLE = Endpoint("no-such-host.invalid", 1)


class Rig:
    """Channels with one broker, and the events that they report."""

    def __init__(self, request_timeout_ms: int = 20_000) -> None:
        self.broker = ControlledBroker()
        self.broker.broker_epoch = EPOCH
        self.reports: list[Any] = []
        self.detector = CountingDetector(time.monotonic)
        self.channels = ControllerChannels(
            BrokerId(0),
            ControllerEpoch(5),
            request_timeout_ms=request_timeout_ms,
            report=self.reports.append,
            detector=self.detector,
        )
        self.channels.add_broker(ONE, EPOCH, self.broker.endpoint, is_suspected=False)
        # Only then the link knows of the connection: a broker that was never reached cannot die.
        wait_for(lambda: self.detector.address(ONE, EPOCH))

    def send(self, partition: int, **arguments: Any) -> None:
        self.channels.send(ONE, batch_of(partition, **arguments))

    def wait_for_reports(self, count: int = 1) -> list[Any]:
        wait_for(lambda: len(self.reports) >= count)
        return self.reports

    def partitions_sent(self) -> list[int]:
        return [
            state.partition_index
            for request in self.broker.of(LeaderAndIsrRequest)
            for topic in request.topic_states
            for state in topic.partition_states
        ]

    def has_sent(self, partition: int) -> bool:
        return partition in self.partitions_sent()


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(**arguments: int) -> Rig:
        rigs.append(Rig(**arguments))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.channels.stop()
        rig.broker.die()
        assert not [event for event in rig.reports if isinstance(event, events.ChannelsFailed)]
    assert "controller-channels-5" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


def test_a_batch_is_sent_in_order_with_the_epochs_of_both_sides(rig: Rig) -> None:
    stop = {TopicPartition("u", 0): StopReplicaPartition(partition_index=0, leader_epoch=1)}
    rig.send(0, stop_replicas=stop)
    reports = rig.wait_for_reports(2)
    requests = rig.broker.requests
    assert [type(request) for request in requests] == [
        LeaderAndIsrRequest,
        UpdateMetadataRequest,
        StopReplicaRequest,
    ]
    assert {(r.controller_id, r.controller_epoch, r.broker_epoch) for r in requests} == {(0, 5, EPOCH)}
    first = requests[0].sequence
    assert [request.sequence for request in requests] == [first, first + 1, first + 2]
    assert [type(event) for event in reports] == [events.LeaderAndIsrAnswered, events.StopReplicaAnswered]
    assert {(event.controller_epoch, event.broker, event.broker_epoch) for event in reports} == {REGISTRATION}


def test_a_request_without_an_answer_is_sent_again_on_a_new_connection(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(request_timeout_ms=150)
    rig.broker.answer = lambda request: None
    rig.send(0)
    wait_for(lambda: len(rig.broker.requests) >= 2)
    rig.broker.answer = rig.broker.accept
    assert isinstance(rig.wait_for_reports()[0], events.LeaderAndIsrAnswered)
    assert rig.broker.connections_made >= 2
    requests = rig.broker.of(LeaderAndIsrRequest)
    assert len(requests) >= 2
    assert len({request.sequence for request in requests}) == 1


def test_lost_connections_are_made_again_without_a_suspicion(rig: Rig) -> None:
    """A batch may also be sent while the connection is closing."""
    for number in range(5):
        rig.broker.drop_connections()
        rig.send(number)
        wait_for(partial(rig.has_sent, number))
    wait_for(lambda: rig.broker.connections_made >= 2)
    assert {type(event) for event in rig.wait_for_reports()} == {events.LeaderAndIsrAnswered}


def test_a_dead_broker_is_suspect_until_it_answers_with_the_same_epoch(rig: Rig) -> None:
    rig.broker.die()
    assert rig.wait_for_reports() == [events.BrokerSuspected(*REGISTRATION)]
    rig.send(3)
    rig.broker.revive()
    assert rig.wait_for_reports(2)[1] == events.BrokerReturned(*REGISTRATION)
    # The batch for the suspect broker is not sent later, because the controller sends everything.
    rig.send(4)
    rig.wait_for_reports(3)
    assert rig.partitions_sent() == [4]


def test_another_process_at_the_address_of_a_dead_broker_does_not_bring_it_back(rig: Rig) -> None:
    rig.broker.die()
    rig.wait_for_reports()
    rig.broker.broker_epoch = BrokerEpoch(99)
    rig.broker.revive()
    wait_for(lambda: len(rig.broker.requests) >= 3)
    assert rig.reports == [events.BrokerSuspected(*REGISTRATION)]
    rig.channels.add_broker(ONE, BrokerEpoch(99), rig.broker.endpoint, is_suspected=False)
    rig.send(0)
    assert isinstance(rig.wait_for_reports(2)[1], events.LeaderAndIsrAnswered)


def test_a_broker_that_the_term_counts_as_dead_is_suspect_until_it_answers(rig: Rig) -> None:
    other = ControlledBroker()
    try:
        registration = (BrokerId(2), BrokerEpoch(90))
        rig.detector.connected(*registration)
        assert rig.detector.attempted(*registration, ConnectResult.REFUSES)
        # Another part of this process may have reached it since, but the term still counts it as dead.
        rig.detector.connected(*registration)
        rig.channels.add_broker(*registration, other.endpoint, is_suspected=True)
        assert rig.wait_for_reports() == [events.BrokerReturned(ControllerEpoch(5), *registration)]
        assert not rig.detector.is_dead(*registration)
    finally:
        other.die()


def test_a_removed_broker_gets_no_requests(rig: Rig) -> None:
    rig.channels.remove_broker(ONE)
    rig.send(0)
    rig.broker.die()
    rig.channels.stop()
    assert rig.broker.requests == []
    assert rig.reports == []


async def tried(endpoint: Endpoint, last: Address | None) -> ConnectResult:
    result, connection = await try_connect(endpoint, last)
    assert (connection is not None) == (result is ConnectResult.ANSWERS)
    if connection is not None:
        connection.close()
    return result


async def test_a_port_refuses_when_nothing_listens() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        endpoint = Endpoint(*listener.getsockname())
        assert await tried(endpoint, None) is ConnectResult.ANSWERS
        # The address of the last connection is tried if the name does not resolve.
        assert await tried(UNRESOLVABLE, endpoint) is ConnectResult.ANSWERS
    assert await tried(endpoint, None) is ConnectResult.REFUSES
    assert await tried(UNRESOLVABLE, endpoint) is ConnectResult.REFUSES
    assert await tried(UNRESOLVABLE, None) is ConnectResult.SILENT
    assert await tried(Endpoint("a..b", 9092), None) is ConnectResult.SILENT


def test_a_bug_on_the_channels_thread_is_reported_and_in_the_controllers_log(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.channels.send([], BrokerBatch())  # the bug
    (failed,) = rig.wait_for_reports()
    rig.reports.clear()
    assert (failed.controller_epoch, type(failed.error)) == (5, TypeError)
    assert {record.name for record in caplog.records} == {"barnabas.controller"}


def test_a_failed_link_pauses_and_then_everything_is_sent_again(make_rig: Callable[..., Rig]) -> None:
    poisoned, healthy = make_rig(), make_rig()
    batch = batch_of(0)
    batch.requests = lambda *_: 1 / 0  # an unforeseen error
    poisoned.channels.send(ONE, batch)
    assert poisoned.wait_for_reports()[0] == events.LinkFailed(*REGISTRATION)
    # The link continues.
    for partition, rig in enumerate((poisoned, healthy)):
        rig.send(partition, is_full=True)
        wait_for(partial(rig.has_sent, partition))
        assert rig.partitions_sent() == [partition]


def test_the_pause_grows_for_a_broker_that_never_applies_metadata_but_it_gets_its_roles(rig: Rig) -> None:
    def answer(request: Any) -> Any:
        if isinstance(request, UpdateMetadataRequest):
            return request.response_type(error_code=int(ErrorCode.UNKNOWN_SERVER_ERROR))
        return rig.broker.accept(request)

    def have_failed(count: int) -> bool:
        return sum(isinstance(event, events.LinkFailed) for event in rig.reports) == count

    rig.broker.answer = answer
    for number in range(3):
        since = time.monotonic()
        rig.send(number)
        wait_for(partial(have_failed, number + 1))
        # A loop's clock may be late by a millisecond.
        assert time.monotonic() - since >= channels._RETRY_S * 2**number - 0.01
    assert rig.partitions_sent() == [0, 1, 2]


@pytest.fixture
def answered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Callable[[], threading.Event]:
    """Sends a batch, and returns an event that is set when it is answered; a slow answer sets nothing."""
    monkeypatch.setattr(channels, "_ANSWERS_TIMEOUT_S", 3_600.0)

    def send() -> threading.Event:
        event = threading.Event()
        rig.send(0)
        rig.channels.when_answered(event.set)
        wait_for(lambda: rig.partitions_sent() == [0])
        assert not event.is_set()
        return event

    return send


def test_when_answered_waits_for_every_answer(rig: Rig, answered: Callable[[], threading.Event]) -> None:
    may_answer = threading.Event()

    def answer_late(request: Any) -> Any:
        may_answer.wait(DEADLINE_S)
        return rig.broker.accept(request)

    rig.broker.answer = answer_late
    event = answered()
    may_answer.set()
    assert event.wait(DEADLINE_S)
    assert rig.broker.of(UpdateMetadataRequest)


@pytest.mark.parametrize("ending", ["the broker dies", "the channels stop"])
def test_when_answered_does_not_wait_for_an_unreachable_broker(
    rig: Rig, answered: Callable[[], threading.Event], ending: str
) -> None:
    rig.broker.answer = lambda request: None
    event = answered()
    if ending == "the broker dies":
        rig.broker.die()
    else:
        rig.channels.stop()
    assert event.wait(DEADLINE_S)


def test_when_answered_is_called_at_once_around_a_stop() -> None:
    event = threading.Event()
    stopping = ControllerChannels(
        BrokerId(0),
        ControllerEpoch(5),
        request_timeout_ms=20_000,
        report=lambda event: None,
        detector=CountingDetector(time.monotonic),
    )
    stopping.when_answered(event.set)
    stopping.stop()
    assert event.is_set()
    event.clear()
    stopping.when_answered(event.set)
    assert event.is_set()
