"""Subscriptions of followers: what a leader pushes, when it stops, and which reports it takes."""

from collections.abc import Sequence
from typing import Any

import pytest

from barnabas.broker.replication.delayed_fetch import FetchItem, FetchOutcome, FetchReader
from barnabas.broker.replication.fetch_sessions import FetchSession, PartitionListeners, SessionRequest
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.subscriptions import (
    FollowerEnd,
    Subscription,
    UnfitProgress,
    leaves_nothing,
)
from barnabas.protocol.ids import LeaderEpoch, Offset, TopicPartition
from barnabas.protocol.messages.fetch import next_epoch
from tests.support.building import TP, TWO, append, fatal, fetch_item, fetch_params, leader_of, state
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.memory_log import RECORD

NUMBER = 7
MAX_BYTES = 10 * RECORD.size


class Rig:
    """A leader with one partition, and the session of one follower. `sent` are the pushes."""

    def __init__(self, records: int = 0) -> None:
        self.partition = leader_of(1, 2, records=records)
        self.sent: list[tuple[int, int, int]] = []
        """Of each push its number, its records, and its high watermark; -1 for the end."""
        self.is_connected = True
        self.listeners = PartitionListeners(self._wake)
        self.reader = FetchReader(self._find, lambda error: None, on_fatal=fatal)
        self.params = fetch_params(TWO, max_wait_ms=500, max_bytes=MAX_BYTES)
        first = self.reader.read_all(self.params, [fetch_item(epoch=0)])
        self.session = FetchSession(1, first.outcomes, self.listeners, follower=TWO)
        self.subscription = self.subscribe(self.fetch())

    def _find(self, name: TopicPartition) -> Partition:
        assert name == TP
        return self.partition

    def _wake(self, session: FetchSession) -> None:
        assert session.subscription is self.subscription
        self.subscription.wake()

    def fetch(self, *items: FetchItem) -> list[FetchOutcome]:
        """The next fetch of the session arrives and is read."""
        epoch = self.session.epoch
        self.session.update(SessionRequest(TWO, 1, epoch, items, ()), {})
        result = self.reader.read_all(self.params, self.session.items())
        assert leaves_nothing(result)
        answer = self.session.answer(epoch, result.outcomes)
        assert answer is not None
        assert self.session.epoch == next_epoch(epoch)
        return answer

    def subscribe(self, answer: Sequence[FetchOutcome]) -> Subscription:
        made = Subscription(NUMBER, self.session, self.params, self.reader, self._send, peer=None)
        assert self.session.subscribe(made, answer)
        self.subscription = made
        made.open()
        return made

    def _send(self, number: int, news: Sequence[FetchOutcome]) -> bool:
        for _, read in news:
            self.sent.append((number, len(read.records) // RECORD.size, read.high_watermark))
        if not news:
            self.sent.append((number, -1, -1))
        return self.is_connected

    def append(self, count: int = 1, *, wakes: bool = True) -> None:
        append(self.partition, count)
        if wakes:
            self.wake()

    def wake(self) -> None:
        self.listeners.wake((TP,))

    def report(self, number: int, *ends: int) -> list[int]:
        found = self.subscription.reported(
            number, [FollowerEnd(TP, Offset(end), 0, Offset(0)) for end in ends]
        )
        self.subscription.wake()
        return [item.fetch_offset for item in found]

    def take_sent(self) -> list[tuple[int, int, int]]:
        sent, self.sent = self.sent, []
        return sent

    def read_next(self, *items: FetchItem) -> list[tuple[int, int]]:
        """The offset and the records of each partition in the answer to the next fetch."""
        return [(item.fetch_offset, len(read.records) // RECORD.size) for item, read in self.fetch(*items)]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_every_record_is_pushed_once_and_what_comes_meanwhile_after_the_report(rig: Rig) -> None:
    rig.append(2)
    rig.append()
    rig.append()
    assert rig.take_sent() == [(1, 2, 0)]
    assert rig.report(1, 2) == [2]
    assert rig.take_sent() == [(2, 2, 0)]
    assert rig.report(2, 4) == [4]
    rig.wake()
    assert rig.take_sent() == []


def test_the_records_of_the_answer_are_not_pushed_again_and_are_reported_as_push_zero() -> None:
    rig = Rig(records=3)
    assert rig.take_sent() == []
    rig.append()
    assert rig.take_sent() == []
    assert rig.report(0, 3) == [3]
    assert rig.take_sent() == [(1, 1, 0)]
    assert rig.report(1, 4) == [4]


def test_what_came_before_the_answer_was_sent_is_pushed_after_it(rig: Rig) -> None:
    answer = rig.fetch()
    made = Subscription(NUMBER, rig.session, rig.params, rig.reader, rig._send, peer=None)
    assert rig.session.subscribe(made, answer)
    rig.subscription = made
    rig.append()
    assert rig.take_sent() == []
    made.open()
    assert rig.take_sent() == [(1, 1, 0)]


def test_an_end_before_the_answer_is_told_after_it(rig: Rig) -> None:
    answer = rig.fetch()
    made = Subscription(NUMBER, rig.session, rig.params, rig.reader, rig._send, peer=None)
    assert rig.session.subscribe(made, answer)
    rig.session.close()
    assert rig.take_sent() == []
    made.open()
    assert rig.take_sent() == [(1, -1, -1)]


def test_a_mark_alone_is_pushed_with_the_next_records_and_is_in_the_next_fetch(rig: Rig) -> None:
    rig.append()
    assert rig.report(1, 1) == [1]
    rig.partition._set_high_watermark(Offset(1))
    rig.listeners.mark(TP)
    rig.subscription.wake()
    assert rig.take_sent() == [(1, 1, 0)]
    assert rig.read_next() == [(1, 0)]


def test_a_high_watermark_that_wakes_is_pushed_without_records(rig: Rig) -> None:
    rig.append()
    rig.report(1, 1)
    rig.partition._set_high_watermark(Offset(1))
    rig.wake()
    assert rig.take_sent() == [(1, 1, 0), (2, 0, 1)]


@pytest.mark.parametrize("reported", [0, 1, 2])
def test_what_is_not_reported_by_the_next_fetch_is_read_again(rig: Rig, reported: int) -> None:
    rig.append(2)
    rig.append(2)
    for number in range(1, reported + 1):
        rig.report(number, 2 * number)
    expected = [(2 * reported, 4 - 2 * reported)] if reported < 2 else []
    assert rig.read_next() == expected


def test_an_unreported_high_watermark_is_read_again(rig: Rig) -> None:
    rig.append()
    rig.report(1, 1)
    rig.partition._set_high_watermark(Offset(1))
    rig.wake()
    assert rig.read_next() == [(1, 0)]


def test_a_new_epoch_ends_the_subscription_and_the_fetch_shows_why(rig: Rig) -> None:
    rig.partition.make_leader(state(epoch=1, isr=(1, 2)), 0.0)
    rig.append()
    rig.append()
    assert rig.take_sent() == [(1, -1, -1)]


def test_more_records_than_an_answer_may_have_end_the_subscription(rig: Rig) -> None:
    rig.append(6)
    rig.append(6)
    rig.append(6)
    assert rig.take_sent() == [(1, 6, 0)]
    assert rig.report(1, 6) == [6]
    assert rig.take_sent() == [(2, -1, -1)]


def test_nothing_is_pushed_on_a_lost_connection(rig: Rig) -> None:
    rig.is_connected = False
    rig.append()
    rig.append()
    assert rig.take_sent() == [(1, 1, 0)]


def test_a_closed_session_tells_its_follower_to_fetch(rig: Rig) -> None:
    rig.append()
    rig.session.close()
    assert rig.take_sent() == [(1, 1, 0), (2, -1, -1)]
    assert rig.report(1, 1) == []


@PURE_PYTHON_ONLY
def test_a_failed_push_ends_the_subscription_and_not_the_thread(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("of a test")

    monkeypatch.setattr(rig.reader, "read_all", fail)
    rig.append()
    assert rig.take_sent() == [(1, -1, -1)]
    monkeypatch.undo()
    assert rig.read_next() == [(0, 1)]


@pytest.mark.parametrize(
    ("number", "end"),
    [(2, 1), (0, 1), (1, 2), (1, 0)],
    ids=["a push that was not sent", "an earlier push", "more than was pushed", "less than was pushed"],
)
def test_a_report_of_what_was_not_pushed_is_refused(rig: Rig, number: int, end: int) -> None:
    rig.append(wakes=False)
    rig.wake()
    with pytest.raises(UnfitProgress):
        rig.report(number, end)
    assert rig.partition.high_watermark == 0


def test_a_report_of_another_partition_or_twice_is_refused(rig: Rig) -> None:
    rig.append()
    with pytest.raises(UnfitProgress):
        rig.subscription.reported(1, [FollowerEnd(TopicPartition("x", 0), Offset(1), 0, Offset(0))])
    rig = Rig()
    rig.append()
    assert rig.report(1, 1) == [1]
    with pytest.raises(UnfitProgress):
        rig.report(1, 1)


def test_a_partition_that_is_not_reported_ends_the_subscription_and_is_read_again(rig: Rig) -> None:
    rig.append()
    assert rig.report(1) == []
    assert rig.take_sent() == [(1, 1, 0), (2, -1, -1)]
    assert rig.read_next() == [(0, 1)]


def test_the_epoch_of_the_reported_end_is_that_of_the_next_fetch(rig: Rig) -> None:
    rig.append()
    found = rig.subscription.reported(1, [FollowerEnd(TP, Offset(1), LeaderEpoch(3), Offset(1))])
    assert [(item.last_fetched_epoch, item.log_start_offset) for item in found] == [(3, 1)]
    assert [item.last_fetched_epoch for item in rig.session.all_items()] == [3]


@PURE_PYTHON_ONLY
def test_a_wake_up_during_a_push_is_not_lost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    read_all: Any = rig.reader.read_all
    during = [1]

    def read(*args: Any) -> Any:
        result = read_all(*args)
        if during:
            rig.append(during.pop())
        return result

    monkeypatch.setattr(rig.reader, "read_all", read)
    rig.append()
    assert rig.take_sent() == [(1, 1, 0)]
    rig.report(1, 1)
    assert rig.take_sent() == [(2, 1, 0)]
