"""How a controller comes to power and loses it, event by event, over a cluster in memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from barnabas.controller import events
from barnabas.controller.controller import Controller
from barnabas.controller.failure_detector import ConnectResult
from barnabas.controller.term import ControllerSettings
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import NO_BROKER, BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.session import SessionEvent, Threads
from barnabas.zookeeper.znodes import ControllerNode
from tests.support.controlled_broker import wait_until
from tests.support.controller_fakes import FakeChannels, FakeWriter, FakeZooKeeper, state

OURS, THEIRS = 11, 22


class FakeStore(FakeZooKeeper):
    """One broker's store: ``/controller`` and a session beside the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.register(1, 2)
        self.node: ControllerNode | None = None
        self.listeners: list[object] = []
        self.session = SimpleNamespace(
            session_id=OURS,
            is_connected=True,
            add_listener=self.listeners.append,
            remove_listener=self.remove_listener,
        )
        self.election = SimpleNamespace(
            current=self.current, run=self.become_controller, depose=self.depose_controller
        )
        self.trouble: Exception | None = None
        # A set, as in the library: the same watch counts once.
        self.watches: set[object] = set()

    def remove_listener(self, listener: object) -> None:
        if listener in self.listeners:
            self.listeners.remove(listener)

    def current(self, watch: object = None) -> ControllerNode | None:
        self.watches.add(watch)
        if self.trouble is not None:
            raise self.trouble
        return self.node

    def become_controller(self, broker: BrokerId = BrokerId(1)) -> FakeWriter | None:  # noqa: B008 - a NewType
        if self.node is not None and self.node.session_id != OURS:
            return None
        writer = super().become_controller()
        self.take_over(broker, OURS)
        writer.resign = self.give_up
        return writer

    def take_over(self, broker: int, session: int) -> None:
        self.node = ControllerNode(broker_id=BrokerId(broker), session_id=session, czxid=1)

    def give_up(self) -> None:
        self.node = None

    def depose_controller(self, seen: ControllerNode, broker: BrokerId) -> FakeWriter | None:
        if self.node != seen:
            return None
        self.node = None
        return self.become_controller(broker)


class Clock(Threads):
    """Real threads, and a clock that the test sets."""

    time_s = 1_000.0

    def now_s(self) -> float:
        return self.time_s


class Desk:
    def __init__(self) -> None:
        self.store = FakeStore()
        self.channels: list[FakeChannels] = []
        self.fatal: list[BaseException] = []
        self.clock = Clock()
        self.controller = Controller(
            BrokerId(1),
            self.store,
            settings=ControllerSettings(inter_broker_listener_name="PLAINTEXT"),
            on_fatal=self.fatal.append,
            make_channels=self.make_channels,
            threads=self.clock,
        )

    def make_channels(self, epoch: ControllerEpoch, report: object) -> FakeChannels:
        self.channels.append(FakeChannels(epoch))
        return self.channels[-1]

    def look(self) -> Controller:
        self.controller.process(events.ControllerChange())
        return self.controller

    def shut_down(self) -> list[tuple[ErrorCode, list[TopicPartition]]]:
        answers: list[tuple[ErrorCode, list[TopicPartition]]] = []
        epoch = self.store.registrations[BrokerId(2)].broker_epoch
        self.controller.process(
            events.ControlledShutdown(BrokerId(2), epoch, lambda *said: answers.append(said))
        )
        return answers


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_vacant_seat_is_taken(desk: Desk) -> None:
    controller = desk.look()
    assert controller.is_active
    assert (controller.epoch, controller.active_broker_id) == (1, 1)
    assert controller.live_brokers == (1, 2)


def test_a_taken_seat_is_left_alone(desk: Desk) -> None:
    desk.store.take_over(2, THEIRS)
    controller = desk.look()
    assert not controller.is_active
    assert controller.active_broker_id == 2
    with pytest.raises(ApiError, match="broker 1 is not the controller, broker 2 is"):
        _ = controller.writer
    with pytest.raises(ApiError, match="NOT_CONTROLLER"):
        _ = controller.live_brokers


def test_looking_again_changes_nothing_while_the_seat_is_ours(desk: Desk) -> None:
    desk.look()
    desk.look()
    assert len(desk.channels) == 1
    assert desk.controller.epoch == 1


def test_a_seat_that_another_has_taken_is_given_up(desk: Desk) -> None:
    desk.look()
    desk.store.take_over(2, THEIRS)
    desk.look()
    assert not desk.controller.is_active
    assert desk.channels[0].is_stopped
    assert desk.controller.active_broker_id == 2


def test_a_seat_deleted_by_hand_is_won_anew(desk: Desk) -> None:
    desk.look()
    desk.store.node = None
    desk.look()
    assert desk.controller.epoch == 2
    assert [channels.is_stopped for channels in desk.channels] == [True, False]


def test_a_write_that_finds_a_newer_epoch_ends_the_reign(desk: Desk) -> None:
    desk.look()
    desk.store.take_over(2, THEIRS)
    desk.store.epoch = ControllerEpoch(2)
    desk.store.add_topic("t", {0: (1, 2)})
    desk.controller.process(events.TopicChange())
    assert not desk.controller.is_active
    assert desk.store.states == {}
    assert desk.controller._queue.take(0) == events.ControllerChange()


def test_an_epoch_that_is_not_ours_any_more_ends_the_reign_though_the_seat_is_ours(desk: Desk) -> None:
    desk.look()
    desk.store.epoch = ControllerEpoch(7)
    desk.look()
    assert not desk.controller.is_active
    desk.look()
    assert desk.controller.epoch == 8


def test_repeated_reads_leave_one_watch(desk: Desk) -> None:
    desk.look()
    desk.look()
    assert len(desk.store.watches) == 1


def test_an_expired_session_ends_the_reign_until_the_broker_is_registered_anew(desk: Desk) -> None:
    desk.look()
    desk.controller._session_changed(SessionEvent.EXPIRED)
    desk.store.node = None
    assert desk.controller._queue.take(0) == events.SessionExpired()
    desk.controller.process(events.SessionExpired())
    assert not desk.controller.is_active
    desk.look()
    assert not desk.controller.is_active
    desk.controller._session_changed(SessionEvent.RENEWED)
    desk.look()
    assert desk.controller.is_active


def test_an_expiry_reported_after_the_next_election_leaves_a_controller(desk: Desk) -> None:
    """A watch event of the old session is queued already, so the new session's event is merged into it."""
    controller = desk.look()
    controller._queue.put(events.ControllerChange())
    controller._session_changed(SessionEvent.EXPIRED)
    controller._session_changed(SessionEvent.RENEWED)
    while controller.step(0):
        continue
    assert controller.is_active


@pytest.mark.parametrize("trouble", [ZooKeeperUnavailable("away"), SessionLost("gone")])
def test_trouble_with_zookeeper_ends_the_reign_and_is_tried_again(desk: Desk, trouble: Exception) -> None:
    desk.look()
    desk.store.trouble = trouble
    desk.look()
    assert not desk.controller.is_active
    assert desk.controller._must_retry
    desk.store.trouble = None
    desk.look()
    assert desk.controller.is_active
    assert not desk.controller._must_retry


def test_the_seat_of_a_dead_process_is_taken(desk: Desk) -> None:
    desk.store.take_over(2, THEIRS)
    desk.look()
    assert desk.store.node is not None
    desk.controller.process(events.ControllerGone(desk.store.node))
    assert desk.controller.is_active


def test_a_reign_that_begins_with_a_death_replaces_the_dead_leaders_at_once(desk: Desk) -> None:
    tp = TopicPartition("t", 0)
    desk.store.add_topic("t", {0: (2, 1)})
    desk.store.states[tp] = state(2, (2, 1))
    desk.store.take_over(2, THEIRS)
    desk.look()
    life = (BrokerId(2), desk.store.registrations[BrokerId(2)].broker_epoch)
    desk.controller.detector.connected(*life)
    assert desk.controller.detector.attempted(*life, ConnectResult.REFUSES)
    assert desk.store.node is not None
    desk.controller.process(events.ControllerGone(desk.store.node))
    assert desk.controller.live_brokers == (1,)
    assert (desk.store.states[tp].leader, desk.store.states[tp].isr) == (1, (1,))
    desk.controller.process(events.BrokerReturned(desk.controller.epoch, *life))
    assert desk.controller.live_brokers == (1, 2)


def test_a_pausing_broker_leaves_the_seat_of_a_dead_process_to_others(desk: Desk) -> None:
    desk.look()
    desk.store.trouble = KeyError("a bug")
    desk.look()
    desk.store.trouble = None
    desk.store.take_over(2, THEIRS)
    assert desk.store.node is not None
    desk.controller.process(events.ControllerGone(desk.store.node))
    assert not desk.controller.is_active


def test_a_word_about_a_controller_of_the_past_changes_nothing(desk: Desk) -> None:
    past = ControllerNode(broker_id=BrokerId(2), session_id=THEIRS, czxid=0)
    desk.store.take_over(2, THEIRS)
    desk.look()
    desk.controller.process(events.ControllerGone(past))
    assert not desk.controller.is_active


def test_what_channels_of_an_earlier_reign_say_is_not_listened_to(desk: Desk) -> None:
    desk.look()
    desk.store.node = None
    desk.look()
    epoch = desk.store.registrations[BrokerId(2)].broker_epoch
    desk.controller.process(events.BrokerSuspected(ControllerEpoch(1), BrokerId(2), epoch))
    assert desk.controller.live_brokers == (1, 2)
    desk.controller.process(events.BrokerSuspected(ControllerEpoch(2), BrokerId(2), epoch))
    assert desk.controller.live_brokers == (1,)


def test_a_controlled_shutdown_is_answered_whatever_happens(desk: Desk) -> None:
    assert desk.shut_down() == [(ErrorCode.NOT_CONTROLLER, [])]
    desk.look()
    desk.store.add_topic("t", {0: (2, 1)})
    desk.controller.process(events.TopicChange())
    desk.store.epoch = ControllerEpoch(7)
    assert desk.shut_down() == [(ErrorCode.NOT_CONTROLLER, [])]
    assert not desk.controller.is_active


def test_a_reign_that_cannot_start_leaves_no_channels_behind(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(self: FakeStore, watch: object = None) -> list[str]:
        raise ZooKeeperUnavailable("away")

    monkeypatch.setattr(FakeStore, "topics", unavailable)
    desk.look()
    assert not desk.controller.is_active
    assert desk.channels[0].is_stopped


def test_the_thread_starts_takes_events_and_gives_the_seat_back_at_the_end(desk: Desk) -> None:
    desk.controller.start()
    wait_until(lambda: desk.controller.is_active)
    answers: list[ErrorCode] = []
    desk.controller.controlled_shutdown(BrokerId(2), BrokerEpoch(0), lambda code, left: answers.append(code))
    wait_until(lambda: answers)
    assert answers == [ErrorCode.STALE_BROKER_EPOCH]
    desk.controller.stop()
    desk.controller.stop()
    assert desk.store.node is None
    assert desk.store.listeners == []
    desk.controller.controlled_shutdown(BrokerId(2), BrokerEpoch(0), lambda code, left: answers.append(code))
    assert answers[1] is ErrorCode.NOT_CONTROLLER
    assert desk.fatal == []


def test_an_unforeseen_error_ends_the_reign_and_not_the_broker(desk: Desk) -> None:
    desk.look()
    desk.store.trouble = KeyError("a bug")
    desk.look()
    assert not desk.controller.is_active
    assert desk.channels[0].is_stopped
    # Deleted, so that another broker can be elected.
    assert desk.store.node is None
    desk.store.trouble = None
    desk.look()
    assert not desk.controller.is_active
    assert desk.controller._must_retry
    desk.clock.time_s += 1.0
    desk.look()
    assert desk.controller.is_active
    assert desk.fatal == []


def test_an_error_after_a_thousand_others_does_not_end_the_broker(desk: Desk) -> None:
    desk.look()
    desk.controller._failures, desk.controller._failed_at_s = 5_000, desk.clock.time_s
    desk.store.trouble = KeyError("a bug")
    desk.look()
    assert not desk.controller.is_active
    assert desk.fatal == []


def test_events_in_between_do_not_end_the_retries(desk: Desk) -> None:
    desk.look()
    desk.store.trouble = ZooKeeperUnavailable("away")
    desk.look()
    desk.controller.process(events.BrokerChange())
    assert desk.controller._must_retry


def test_a_broker_that_fails_repeatedly_pauses_longer_each_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def buggy(self: FakeStore, watch: object = None) -> list[str]:
        raise KeyError("a bug")

    monkeypatch.setattr(FakeStore, "topics", buggy)
    rests = []
    for _ in range(7):
        tried = len(desk.channels)
        began_s = desk.clock.time_s
        while len(desk.channels) == tried:
            desk.look()
            desk.clock.time_s += 0.5
        rests.append(desk.clock.time_s - began_s - 0.5)
        assert desk.store.node is None
    assert rests == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 29.5]
    assert all(channels.is_stopped for channels in desk.channels)
    monkeypatch.undo()
    desk.clock.time_s += 30.0
    desk.look()
    assert desk.controller.is_active


def test_after_a_failed_link_everything_is_sent_again(desk: Desk) -> None:
    desk.store.add_topic("t", {0: (1, 2)})
    desk.look()
    epoch = desk.store.registrations[BrokerId(2)].broker_epoch
    desk.channels[0].forget()
    desk.controller.process(events.LinkFailed(ControllerEpoch(1), BrokerId(2), epoch))
    assert list(desk.channels[0].leadership(2)) == [TopicPartition("t", 0)]
    assert desk.channels[0].full_requests(2)


def test_channels_that_failed_end_the_reign(desk: Desk) -> None:
    desk.look()
    desk.controller.process(events.ChannelsFailed(ControllerEpoch(1), KeyError("a bug")))
    assert not desk.controller.is_active
    assert desk.store.node is None


def test_without_a_controller_none_is_named(desk: Desk) -> None:
    assert desk.controller.active_broker_id == NO_BROKER
    assert desk.controller.offline_partitions_count == 0
