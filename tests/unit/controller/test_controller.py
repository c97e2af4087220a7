"""Elections and resignations of a controller, event by event, over a cluster in memory."""

import threading
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from barnabas.controller import events
from barnabas.controller.controller import (
    _DOUBT_S,
    _FIRST_REBALANCE_S,
    _FORGET_FAILURES_S,
    _RETRY_S,
    Controller,
)
from barnabas.controller.events import EventQueue, PreemptableEvent, Signal
from barnabas.controller.failure_detector import ConnectResult
from barnabas.controller.sentinel import Target
from barnabas.controller.term import ControllerTerm
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    TopicPartition,
)
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.session import SessionEvent
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import ControllerNode, ReplicaAssignment
from tests.support.controller_fakes import FakeChannels, NoThreads, Znodes, state
from tests.support.defaults import controller_settings
from tests.support.waiting import wait_for

LEADERLESS = TopicPartition("t", 0)


class Clock(NoThreads):
    """The clock that the test sets; the controller's threads are real."""

    def start(self, thread: threading.Thread) -> None:
        thread.start()


class Rig:
    """The controller of broker 1, of which the test handles every event."""

    def __init__(self) -> None:
        self.zookeeper = Znodes()
        self.zookeeper.register(1, 2)
        self.clock = Clock()
        self.store = self.zookeeper.open_store()
        self._current = self.store.election.current
        self.store.election.current = self.read_controller
        self.error: Exception | None = None
        self.answer_takes_s = 0.0
        # A set, as in the library: the same watch counts once.
        self.watches: set[Any] = set()
        self.channels: list[FakeChannels] = []
        self.fatal: list[BaseException] = []
        self.controller = Controller(
            BrokerId(1),
            self.store,
            settings=controller_settings(),
            on_fatal=self.fatal.append,
            make_channels=self.make_channels,
            threads=self.clock,
        )

    def make_channels(self, epoch: ControllerEpoch, report: object) -> FakeChannels:
        self.channels.append(FakeChannels(epoch))
        return self.channels[-1]

    def read_controller(self, watch: Any = None) -> ControllerNode | None:
        self.clock.time_s += self.answer_takes_s
        if self.error is not None:
            raise self.error
        if watch is not None:
            self.watches.add(watch)
        return self._current(watch)

    @property
    def node(self) -> ControllerNode | None:
        return self._current()

    def read(self) -> Controller:
        self.controller.process(Signal.REELECT)
        return self.controller

    def epoch_of(self, broker: int) -> BrokerEpoch:
        return self.zookeeper.registrations[BrokerId(broker)].broker_epoch

    def declare_dead(self, broker: int) -> events.ControllerGone:
        """The sentinel's report of the death of a broker that is the controller."""
        assert self.node is not None
        registration = (BrokerId(broker), self.epoch_of(broker))
        if not self.controller.detector.is_dead(*registration):
            self.controller.detector.connected(*registration)
        assert self.controller.detector.attempted(*registration, ConnectResult.REFUSES)
        return events.ControllerGone(self.node)

    def add_leaderless(self, topic: str) -> None:
        """A topic whose partition only an unclean election, of broker 2, can give a leader."""
        self.zookeeper.add_topic(topic, {0: (3, 2)})
        self.zookeeper.states[TopicPartition(topic, 0)] = state(3, (3,))

    def shut_down(self) -> list[tuple[ErrorCode, list[TopicPartition]]]:
        answers: list[tuple[ErrorCode, list[TopicPartition]]] = []

        def done(code: ErrorCode, left: Collection[TopicPartition]) -> None:
            answers.append((code, list(left)))

        broker, epoch = BrokerId(2), self.epoch_of(2)
        asked = PreemptableEvent("asked", lambda term: term.shut_down(broker, epoch, done), done)
        self.controller.process(asked)
        return answers


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def elected(rig: Rig) -> Rig:
    """The broker is the controller."""
    assert rig.read().is_active
    return rig


def test_a_broker_is_elected_if_there_is_no_controller(rig: Rig) -> None:
    controller = rig.read()
    assert controller.is_active
    assert (controller.epoch, controller.active_broker_id) == (1, 1)
    assert controller.live_racks.keys() == {1, 2}
    assert controller.live_racks == {1: None, 2: None}
    assert controller.writer.epoch == 1


def test_no_election_while_another_broker_is_the_controller(rig: Rig) -> None:
    rig.zookeeper.take_over(2)
    controller = rig.read()
    assert not controller.is_active
    assert controller.active_broker_id == 2
    assert controller._sentinel._target == Target(rig.node, rig.epoch_of(2), Endpoint("localhost", 9002))
    with pytest.raises(ApiError, match="broker 1 is not the controller, broker 2 is"):
        _ = controller.writer
    with pytest.raises(ApiError, match="NOT_CONTROLLER"):
        _ = controller.live_racks


def test_a_restarted_broker_does_not_wait_for_the_end_of_its_earlier_session(rig: Rig) -> None:
    rig.zookeeper.take_over(1)
    earlier = rig.node
    controller = rig.read()
    assert (controller.is_active, controller._sentinel._target) == (False, None)
    assert controller.step(0)
    assert controller.is_active
    assert rig.node is not None
    assert rig.node != earlier


def test_reading_our_own_node_again_changes_nothing(elected: Rig) -> None:
    elected.read()
    assert (len(elected.channels), len(elected.watches)) == (1, 1)
    assert elected.controller.epoch == 1
    # Its watch makes the broker read it again.
    for watch in elected.watches:
        watch(None)
    assert elected.controller.queued_events == 1


def test_a_controller_resigns_if_another_broker_owns_the_node(elected: Rig) -> None:
    elected.zookeeper.take_over(2)
    assert not elected.read().is_active
    assert elected.channels[0].is_stopped
    assert elected.controller.active_broker_id == 2


def test_a_write_that_finds_a_newer_epoch_ends_the_term(elected: Rig) -> None:
    elected.zookeeper.take_over(2)
    elected.zookeeper.epoch = ControllerEpoch(2)
    elected.zookeeper.add_topic("t", {0: (1, 2)})
    elected.controller.process(Signal.TOPIC_CHANGE)
    assert not elected.controller.is_active
    assert elected.zookeeper.states == {}
    assert elected.controller._queue.take(0) == Signal.REELECT


def test_a_changed_epoch_ends_the_term_although_the_node_is_ours(elected: Rig) -> None:
    elected.zookeeper.epoch = ControllerEpoch(7)
    assert not elected.read().is_active
    elected.read()
    assert elected.controller.epoch == 8


def test_an_expired_session_ends_the_term_until_the_broker_has_registered_again(elected: Rig) -> None:
    elected.controller._session_changed(SessionEvent.EXPIRED)
    elected.zookeeper.remove_controller()
    assert elected.controller._queue.take(0) == Signal.EXPIRE
    elected.controller.process(Signal.EXPIRE)
    assert not elected.controller.is_active
    assert not elected.read().is_active
    assert elected.controller._queue.take(0) == Signal.REELECT
    elected.controller._session_changed(SessionEvent.RENEWED)
    assert elected.controller._queue.take(0) == Signal.REELECT
    assert elected.read().is_active


def test_an_expiry_reported_after_the_next_election_leaves_a_controller(rig: Rig) -> None:
    """A watch event of the old session is queued already, so the new session's event is merged into it."""
    controller = rig.read()
    controller._queue.put(Signal.REELECT)
    controller._session_changed(SessionEvent.EXPIRED)
    controller._session_changed(SessionEvent.RENEWED)
    while controller.step(0):
        continue
    assert controller.is_active


@pytest.mark.parametrize("error", [ZooKeeperUnavailable("away"), SessionLost("gone")])
def test_an_unreachable_zookeeper_ends_the_term_and_is_retried(elected: Rig, error: Exception) -> None:
    elected.error = error
    assert not elected.read().is_active
    elected.controller.process(Signal.BROKER_CHANGE)
    assert elected.controller._must_retry
    elected.error = None
    assert elected.read().is_active
    assert not elected.controller._must_retry


@pytest.mark.parametrize("error", [None, ZooKeeperUnavailable("away")])
def test_a_broker_that_was_cut_off_itself_replaces_no_controller(rig: Rig, error: Exception | None) -> None:
    """All others looked dead to it; when it is connected again, a queued report must not count."""
    rig.zookeeper.take_over(2)
    rig.read()
    report = rig.declare_dead(2)
    rig.answer_takes_s, rig.error = 4.0, error
    rig.controller.process(report)
    rig.answer_takes_s, rig.error = 0.0, None
    rig.controller.process(report)
    assert not rig.controller.is_active
    assert not rig.controller.detector.is_dead(BrokerId(2), rig.epoch_of(2))
    # New evidence counts.
    rig.clock.time_s += _DOUBT_S
    rig.controller.process(rig.declare_dead(2))
    assert rig.controller.is_active


def test_the_report_of_a_death_that_was_noticed_before_elects_only_if_there_is_no_controller(
    rig: Rig,
) -> None:
    past = ControllerNode(broker_id=BrokerId(2), session_id=22, czxid=0)
    rig.zookeeper.take_over(2)
    rig.controller.process(events.ControllerGone(past))
    assert (rig.controller.is_active, rig.controller.active_broker_id) == (False, 2)
    rig.zookeeper.remove_controller()
    rig.controller.process(events.ControllerGone(past))
    assert rig.controller.is_active


def test_a_term_that_begins_with_a_death_replaces_the_dead_leaders_at_once(rig: Rig) -> None:
    tp = TopicPartition("t", 0)
    rig.zookeeper.add_topic("t", {0: (2, 1)})
    rig.zookeeper.states[tp] = state(2, (2, 1))
    rig.zookeeper.take_over(2)
    rig.read()
    rig.controller.process(rig.declare_dead(2))
    assert rig.controller.live_racks.keys() == {1}
    assert rig.channels[0].suspected == {2}
    # The watch was on the dead controller's node.
    assert rig.controller._queue.take(0) == Signal.REELECT
    assert (rig.zookeeper.states[tp].leader, rig.zookeeper.states[tp].isr) == (1, (1,))
    rig.controller.process(events.BrokerReturned(rig.controller.epoch, BrokerId(2), rig.epoch_of(2)))
    assert rig.controller.live_racks.keys() == {1, 2}


def test_a_pausing_broker_does_not_replace_a_dead_controller(elected: Rig) -> None:
    elected.error = KeyError("a bug")
    elected.read()
    elected.error = None
    elected.zookeeper.take_over(2)
    elected.controller.process(elected.declare_dead(2))
    assert not elected.controller.is_active


def test_events_of_an_earlier_terms_channels_are_ignored(elected: Rig) -> None:
    elected.zookeeper.remove_controller()
    elected.read()
    assert [channels.is_stopped for channels in elected.channels] == [True, False]
    epoch = elected.epoch_of(2)
    elected.controller.process(events.BrokerSuspected(ControllerEpoch(1), BrokerId(2), epoch))
    assert elected.controller.live_racks.keys() == {1, 2}
    elected.controller.process(events.BrokerSuspected(ControllerEpoch(2), BrokerId(2), epoch))
    assert elected.controller.live_racks.keys() == {1}


def test_a_controlled_shutdown_is_always_answered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig.shut_down() == [(ErrorCode.NOT_CONTROLLER, [])]
    rig.read()
    rig.zookeeper.add_topic("t", {0: (2, 1)})
    rig.controller.process(Signal.TOPIC_CHANGE)
    rig.zookeeper.epoch = ControllerEpoch(7)
    assert rig.shut_down() == [(ErrorCode.NOT_CONTROLLER, [])]
    assert not rig.controller.is_active
    for error in (ZooKeeperUnavailable("away"), KeyError("a bug")):

        def fail(term: ControllerTerm, event: events.Event, error: Exception = error) -> None:
            raise error

        assert rig.read().is_active
        monkeypatch.setattr(ControllerTerm, "handle", fail)
        assert rig.shut_down() == [(ErrorCode.NOT_CONTROLLER, [])]
        assert rig.controller._must_retry


def test_only_the_controller_carries_requests_out_and_refuses_those_that_are_left_at_its_end(
    rig: Rig,
) -> None:
    answers: list[tuple[ErrorCode, object]] = []

    def ask_all() -> list[tuple[ErrorCode, object]]:
        answers.clear()
        rig.controller.elect_leaders([LEADERLESS], is_unclean=False, done=done)
        rig.controller.elect_leaders([LEADERLESS], is_unclean=True, done=done)
        rig.controller.alter_reassignments({LEADERLESS: (2, 1)}, done)
        rig.controller.list_reassignments(done)
        return answers

    def done(code: ErrorCode, found: Mapping[TopicPartition, object]) -> None:
        (outcome,) = found.values() or [None]
        answers.append((code, outcome.code if isinstance(outcome, ApiError) else outcome))

    refused = [(ErrorCode.NOT_CONTROLLER, None)] * 4
    assert ask_all() == refused
    rig.add_leaderless("t")
    rig.read()
    assert ask_all() == []
    assert rig.controller.queued_events == 4
    while rig.controller.step(0):
        continue
    assert answers == [
        (ErrorCode.NONE, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (ErrorCode.NONE, None),
        (ErrorCode.NONE, None),
        (ErrorCode.NONE, ReplicaAssignment(*(tuple(map(BrokerId, ids)) for ids in ((2, 1, 3), (1,), (3,))))),
    ]
    assert rig.zookeeper.states[LEADERLESS].leader == 2
    ask_all()
    rig.controller.stop()
    assert answers == refused


def test_a_controller_with_too_many_events_refuses_requests(elected: Rig) -> None:
    elected.controller._queue = EventQueue(capacity=0)
    codes: list[ErrorCode] = []
    elected.controller.list_reassignments(lambda code, found: codes.append(code))
    assert codes == [ErrorCode.REQUEST_TIMED_OUT]


def test_changed_settings_for_unclean_elections_give_a_leader_at_once(rig: Rig) -> None:
    rig.add_leaderless("t")
    rig.add_leaderless("other")
    rig.read()
    assert rig.controller.offline_partitions_count == 2
    rig.zookeeper.configure("t", unclean_leader_election_enable="true")
    rig.controller.topic_configs_changed(["t"])
    assert rig.controller.step(0)
    assert rig.zookeeper.states[LEADERLESS].leader == 2
    for is_enabled, is_change in ((False, False), (True, True), (True, False)):
        rig.controller.set_unclean_leader_election(is_enabled)
        assert rig.controller.step(0) is is_change
    assert rig.controller.offline_partitions_count == 0


def test_the_leaders_are_compared_with_the_preferred_ones_at_each_interval(rig: Rig) -> None:
    tp = TopicPartition("t", 0)
    rig.zookeeper.add_topic("t", {0: (1, 2)})
    rig.zookeeper.states[tp] = state(2, (1, 2))
    assert rig.controller._timeout_s() is None
    rig.read()
    assert not rig.controller.step(0)
    assert rig.controller._timeout_s() == _FIRST_REBALANCE_S
    rig.clock.time_s += _FIRST_REBALANCE_S
    assert rig.controller.step(0)
    assert rig.zookeeper.states[tp].leader == 1
    assert not rig.controller.step(0)
    assert rig.controller._timeout_s() == controller_settings().leader_imbalance_check_interval_seconds
    rig.error = ZooKeeperUnavailable("away")
    assert rig.read()._timeout_s() == _RETRY_S
    # Without an event the election is tried again.
    rig.error = None
    assert rig.controller.step(0)
    assert rig.controller.is_active


def test_topics_that_are_being_deleted_are_counted(elected: Rig) -> None:
    elected.zookeeper.add_topic("t", {0: (1, 2)})
    elected.zookeeper.deletions = ["t"]
    elected.controller.process(Signal.TOPIC_DELETION)
    assert elected.controller.topics_to_delete_count == 1


def test_the_thread_handles_events_and_resigns_at_the_end(rig: Rig) -> None:
    rig.controller.start()
    wait_for(lambda: rig.controller.is_active)
    assert rig.store.session._listeners == [rig.controller._session_changed]
    answers: list[ErrorCode] = []
    rig.controller.controlled_shutdown(BrokerId(2), BrokerEpoch(0), lambda code, left: answers.append(code))
    wait_for(lambda: answers)
    assert answers == [ErrorCode.STALE_BROKER_EPOCH]
    rig.controller.stop()
    rig.controller.stop()
    assert rig.node is None
    assert rig.store.session._listeners == []
    rig.controller.controlled_shutdown(BrokerId(2), BrokerEpoch(0), lambda code, left: answers.append(code))
    assert answers[1] is ErrorCode.NOT_CONTROLLER
    assert rig.fatal == []


def test_an_unforeseen_error_ends_the_term_but_not_the_broker(elected: Rig) -> None:
    elected.error = KeyError("a bug")
    assert not elected.read().is_active
    assert elected.channels[0].is_stopped
    # Deleted, so that another broker can be elected.
    assert elected.node is None
    elected.error = None
    assert not elected.read().is_active
    assert elected.controller._must_retry
    elected.clock.time_s += 1.0
    assert elected.read().is_active
    assert elected.fatal == []


def test_a_broker_that_fails_repeatedly_pauses_longer_each_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def buggy(self: ClusterStore, watch: object = None) -> list[str]:
        raise KeyError("a bug")

    monkeypatch.setattr(ClusterStore, "deletion_requests", buggy)

    def pause_s() -> float:
        tried = len(rig.channels)
        began_s = rig.clock.time_s
        while len(rig.channels) == tried:
            rig.read()
            rig.clock.time_s += 0.5
        assert rig.node is None
        return rig.clock.time_s - began_s - 0.5

    assert [pause_s() for _ in range(7)] == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 29.5]
    rig.controller._failures = 5_000
    assert [pause_s(), pause_s()] == [29.5, 29.5]
    rig.clock.time_s += _FORGET_FAILURES_S
    assert [pause_s(), pause_s()] == [0.0, 0.5]
    assert all(channels.is_stopped for channels in rig.channels)
    assert rig.fatal == []
    monkeypatch.undo()
    rig.clock.time_s += 30.0
    assert rig.read().is_active


def test_after_a_failed_link_everything_is_sent_again(rig: Rig) -> None:
    rig.zookeeper.add_topic("t", {0: (1, 2)})
    rig.read()
    epoch = rig.epoch_of(2)
    rig.channels[0].forget()
    rig.controller.process(events.LinkFailed(ControllerEpoch(1), BrokerId(2), epoch))
    assert list(rig.channels[0].leadership(2)) == [TopicPartition("t", 0)]
    assert rig.channels[0].full_requests(2)


def test_failed_channels_end_the_term(elected: Rig) -> None:
    elected.controller.process(events.ChannelsFailed(ControllerEpoch(1), KeyError("a bug")))
    assert not elected.controller.is_active
    assert elected.node is None


def test_without_a_controller_the_active_broker_is_minus_one(rig: Rig) -> None:
    assert (rig.controller.active_broker_id, rig.controller.epoch) == (NO_BROKER, 0)
    assert rig.controller.offline_partitions_count == rig.controller.topics_to_delete_count == 0
