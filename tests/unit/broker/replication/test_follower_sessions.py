"""Who gets a session at a leader, and which requests it refuses."""

from __future__ import annotations

import pytest

from barnabas.broker.replication.fetching import FetchItem, FetchOutcome
from barnabas.broker.replication.follower_sessions import FollowerSession, FollowerSessions
from barnabas.broker.replication.replica_views import PartitionRead
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.fetch_epochs import NO_SESSION
from barnabas.protocol.ids import BrokerId, Offset, TopicPartition
from tests.support.building import FOUR, THREE, TP, TWO

ALIVE = {TWO, THREE}
OTHER = TopicPartition("other", 0)


def item(name: TopicPartition = TP, offset: int = 0) -> FetchItem:
    return FetchItem(name, 0, Offset(offset), -1, Offset(0), 1 << 20)


def read(name: TopicPartition = TP, offset: int = 0, end: int = 0, mark: int = 0) -> FetchOutcome:
    found = PartitionRead(memoryview(b"x" * (end - offset)), Offset(mark), Offset(0), Offset(end))
    return FetchOutcome(item(name, offset), ErrorCode.NONE, found)


class Opened:
    """Sessions whose wake-ups are noted, and how to fetch in them."""

    def __init__(self) -> None:
        self.woken: list[int] = []
        self.sessions = FollowerSessions(lambda session: self.woken.append(session.id))

    def open(self, follower: BrokerId = TWO, *outcomes: FetchOutcome) -> int:
        return self.sessions.open(follower, outcomes or [read()], ALIVE)

    def go_on(self, session_id: int, epoch: int, follower: BrokerId = TWO) -> FollowerSession | ErrorCode:
        return self.sessions.begin(follower, session_id, epoch, [], [])


@pytest.fixture
def opened() -> Opened:
    return Opened()


def test_a_session_goes_on_epoch_by_epoch(opened: Opened) -> None:
    session_id = opened.open()
    assert isinstance(opened.go_on(session_id, 1), FollowerSession)
    assert isinstance(opened.go_on(session_id, 2), FollowerSession)
    assert opened.go_on(session_id, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert opened.go_on(session_id, 4) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert isinstance(opened.go_on(session_id, 3), FollowerSession)


def test_a_session_is_one_followers(opened: Opened) -> None:
    session_id = opened.open(TWO)
    assert opened.go_on(session_id, 1, THREE) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert opened.go_on(session_id + 1, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_full_fetch_begins_anew(opened: Opened) -> None:
    before = opened.open()
    session = opened.go_on(before, 1)
    assert isinstance(session, FollowerSession)
    after = opened.open()
    assert opened.go_on(before, 2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert session.answer(1, []) is None
    assert isinstance(opened.go_on(after, 1), FollowerSession)
    opened.sessions.tell([TP])
    assert (opened.woken, len(opened.sessions)) == ([after], 1)


def test_only_a_living_broker_gets_one_and_the_dead_lose_theirs(opened: Opened) -> None:
    assert opened.open(FOUR) == NO_SESSION
    session_id = opened.open(THREE)
    assert opened.sessions.open(TWO, [read()], {TWO}) != NO_SESSION
    assert opened.go_on(session_id, 1, THREE) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(opened.sessions) == 1


def test_who_is_woken_finds_all_that_was_told(opened: Opened) -> None:
    session_id = opened.open(TWO, read(TP), read(OTHER))
    session = opened.go_on(session_id, 1)
    assert isinstance(session, FollowerSession)
    assert session.answer(1, [read(TP), read(OTHER)]) == []
    assert session.items() == []
    opened.sessions.tell([TP, OTHER])
    assert opened.woken == [session_id]
    assert {one.partition for one in session.items()} == {TP, OTHER}


def test_a_high_watermark_wakes_nobody_and_is_told_with_the_rest(opened: Opened) -> None:
    session_id = opened.open(TWO, read(TP), read(OTHER))
    session = opened.go_on(session_id, 1)
    assert isinstance(session, FollowerSession)
    session.answer(1, [read(TP), read(OTHER)])
    opened.sessions.mark(OTHER)
    assert opened.woken == []
    assert [one.partition for one in session.items()] == [OTHER]
    assert session.answer(1, [read(OTHER, mark=0)]) == []
    opened.sessions.mark(OTHER)
    assert session.answer(1, [read(OTHER, mark=7)]) == [read(OTHER, mark=7)]


def test_those_that_had_records_go_to_the_end(opened: Opened) -> None:
    session_id = opened.open(TWO, read(TP), read(OTHER))
    session = opened.go_on(session_id, 1)
    assert isinstance(session, FollowerSession)
    assert [one.partition for one in session.items()] == [TP, OTHER]
    session.answer(1, [read(TP, end=5), read(OTHER, end=5)._replace(read=read(OTHER).read)])
    assert [one.partition for one in session.items()] == [TP]
