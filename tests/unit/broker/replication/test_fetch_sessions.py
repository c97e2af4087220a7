"""Fetch sessions: epochs, the partitions that are read, the content of answers, evictions."""

import itertools
import uuid
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.replication import fetch_sessions
from barnabas.broker.replication.delayed_fetch import FetchItem, FetchOutcome
from barnabas.broker.replication.fetch_sessions import (
    EVICTION_MS,
    FetchSession,
    FetchSessions,
    SessionRequest,
    key_of,
)
from barnabas.broker.replication.partition import PartitionRead
from barnabas.broker.replication.rules import EpochEnd
from barnabas.common.security.principal import Principal
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from barnabas.protocol.messages.fetch import FINAL_EPOCH, NO_SESSION, next_epoch
from tests.support.building import FOUR, THREE, TWO, Clock
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.errors import refused

A, B, C, D = (TopicPartition("topic", index) for index in range(4))
ID = uuid.UUID(int=7)
CONSUMER = BrokerId(-1)
DIVERGED = EpochEnd(LeaderEpoch(1), Offset(0))


def item(name: TopicPartition, offset: int = 0, *, topic_id: uuid.UUID | None = None) -> FetchItem:
    return FetchItem(name, -1, Offset(offset), -1, Offset(-1), 1 << 20, topic_id=topic_id)


def read(
    name: TopicPartition,
    records: bytes = b"",
    *,
    offset: int = 0,
    mark: int = 0,
    start: int = 0,
    end: int | None = None,
    diverging: EpochEnd | None = None,
) -> FetchOutcome:
    """A read whose isolation ends at ``end``, else at the high watermark."""
    bound = mark if end is None else end
    offsets = map(Offset, (mark, mark, start, bound, bound))
    return FetchOutcome(item(name, offset), PartitionRead(memoryview(records), *offsets, diverging))


def failed(name: TopicPartition) -> FetchOutcome:
    return FetchOutcome(item(name), PartitionRead.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER))


def items_of(outcomes: Sequence[FetchOutcome]) -> list[FetchItem]:
    return [outcome.item for outcome in outcomes]


class Rig:
    """Sessions with ids 1, 2, 3…; `woken` are their wake-ups."""

    fetcher = CONSUMER

    def __init__(self, slots: int = 10, partitions: int = 100) -> None:
        self.woken: list[int] = []
        self.clock = Clock()
        self.names: dict[uuid.UUID, str] = {}
        self.alive = {TWO, THREE}
        self.metadata: Any = SimpleNamespace(
            current=SimpleNamespace(brokers=self.alive, topic_names=self.names)
        )
        self._ids = itertools.count(1)
        self.sessions = self._make(slots, partitions)

    def _make(self, slots: int | None, partitions: int) -> FetchSessions:
        return FetchSessions(
            lambda session: self.woken.append(session.id),
            self.metadata,
            self.clock,
            slots,
            partitions,
            lambda: next(self._ids),
        )

    @property
    def listeners(self) -> int:
        """The number of partitions with a session."""
        return len(self.sessions.listeners)

    def request(
        self,
        session_id: int,
        epoch: int,
        *items: FetchItem,
        forget: Sequence[TopicPartition] = (),
        by_id: bool = False,
        fetcher: BrokerId | None = None,
    ) -> SessionRequest:
        forgotten = [key_of(item(name)) for name in forget]
        replica_id = self.fetcher if fetcher is None else fetcher
        return SessionRequest(replica_id, session_id, epoch, items, forgotten, by_id)

    def open(self, *outcomes: FetchOutcome, by_id: bool = False, fetcher: BrokerId | None = None) -> int:
        request = self.request(NO_SESSION, 0, *items_of(outcomes), by_id=by_id, fetcher=fetcher)
        assert self.sessions.begin(request) is None
        return self.sessions.open(request, outcomes)

    def continue_session(
        self, session_id: int, epoch: int, *items: FetchItem, **fields: object
    ) -> FetchSession:
        session = self.sessions.begin(self.request(session_id, epoch, *items, **fields))
        assert session is not None
        assert session.id == session_id
        return session

    def drained(self, *names: TopicPartition) -> FetchSession:
        """A session whose fetcher knows everything, at epoch 2."""
        outcomes = [read(name) for name in names]
        session = self.continue_session(self.open(*outcomes), 1)
        assert session.items() == [item(name) for name in names]
        assert session.answer(1, outcomes) == []
        assert session.items() == []
        return session

    def is_gone(self, session_id: int, epoch: int = 1) -> bool:
        with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
            self.sessions.begin(self.request(session_id, epoch))
        return True


class FollowerRig(Rig):
    fetcher = TWO

    def _make(self, slots: int | None, partitions: int) -> FetchSessions:
        return super()._make(None, partitions)


@pytest.fixture(params=[Rig, FollowerRig], ids=["consumer", "follower"])
def rig(request: pytest.FixtureRequest) -> Rig:
    made: Rig = request.param()
    return made


# Sessions of both kinds


def test_epochs_restart_at_one() -> None:
    assert [next_epoch(epoch) for epoch in (0, 1, (1 << 31) - 1, -1)] == [1, 2, 1, -1]


def test_a_repeated_or_lost_request_is_refused_and_changes_nothing(rig: Rig) -> None:
    session = rig.drained(A)
    for epoch in (1, 3):
        with refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            rig.continue_session(session.id, epoch, item(B), forget=[A])
    assert rig.continue_session(session.id, 2) is session
    assert (len(session), session.items()) == (1, [])


def test_a_full_fetch_closes_the_session_that_it_names(rig: Rig) -> None:
    for epoch in (0, -1):
        session_id = rig.open(read(A))
        assert rig.sessions.begin(rig.request(session_id, epoch, item(A))) is None
        assert len(rig.sessions) == rig.listeners == 0
        assert rig.is_gone(session_id)


def test_another_principal_finds_no_session_and_ends_none(rig: Rig) -> None:
    session = rig.drained(A)
    for epoch in (0, -1, 2):
        request = rig.request(session.id, epoch, item(B), forget=[A])._replace(
            owner=Principal.user("mallory")
        )
        if epoch == 2:
            with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
                rig.sessions.begin(request)
        else:
            assert rig.sessions.begin(request) is None
    assert rig.continue_session(session.id, 2) is session
    assert (len(session), session.items()) == (1, [])


def test_a_session_without_partitions_ends(rig: Rig) -> None:
    session = rig.drained(A, B)
    assert rig.continue_session(session.id, 2, forget=[A]) is session
    assert rig.sessions.begin(rig.request(session.id, 3, forget=[B])) is None
    assert len(rig.sessions) == rig.listeners == 0


def test_an_answer_after_the_next_request_is_refused(rig: Rig) -> None:
    session = rig.drained(A)
    rig.continue_session(session.id, 2)
    rig.continue_session(session.id, 3, item(B))
    assert session.answer(2, [read(A, b"x", mark=1)]) is None
    assert session.answer(3, [read(A, b"x", mark=1)]) == [read(A, b"x", mark=1)]


def test_only_partitions_that_may_have_news_are_read(rig: Rig) -> None:
    session = rig.drained(A, B, C)
    rig.sessions.listeners.wake([B])
    assert (rig.woken, session.watched) == ([session.id], (session,))
    assert session.items() == [item(B)]
    rig.continue_session(session.id, 2, item(C, 5))
    assert session.items() == [item(B), item(C, 5)]
    # There is no news.
    assert session.answer(2, [read(B), read(C, offset=5, mark=0)]) == []
    assert session.items() == []


def test_a_change_during_the_read_is_not_lost(rig: Rig) -> None:
    session = rig.drained(A)
    rig.continue_session(session.id, 2)
    outcomes = [read(item.partition) for item in session.items()]
    rig.sessions.listeners.mark(A)
    session.answer(2, outcomes)
    assert (session.items(), rig.woken) == ([item(A)], [])


def test_a_high_watermark_is_news_until_it_was_sent(rig: Rig) -> None:
    session = rig.drained(A)
    assert [session.is_news(item(A), Offset(mark)) for mark in (0, 1)] == [False, True]
    rig.continue_session(session.id, 2)
    session.answer(2, [read(A, mark=1)])
    assert [session.is_news(item(A), Offset(mark)) for mark in (0, 1)] == [True, False]
    assert not session.is_news(item(B), Offset(1))


@pytest.mark.parametrize(
    "news",
    [read(A, b"x"), read(A, mark=1), read(A, start=1), read(A, diverging=DIVERGED), failed(A)],
    ids=["records", "high watermark", "log start", "diverging", "error"],
)
def test_an_answer_contains_news_and_nothing_else(rig: Rig, news: FetchOutcome) -> None:
    session = rig.drained(A, B)
    rig.continue_session(session.id, 2)
    assert session.answer(2, [news, read(B)]) == [news]


@pytest.mark.parametrize("outcome", [failed(A), read(A, diverging=DIVERGED)], ids=["error", "diverging"])
def test_after_an_answer_without_offsets_they_are_sent_again(rig: Rig, outcome: FetchOutcome) -> None:
    session = rig.drained(A)
    rig.continue_session(session.id, 2)
    assert session.answer(2, [outcome]) == [outcome]
    rig.continue_session(session.id, 3)
    assert session.items() == [item(A)]
    assert session.answer(3, [read(A)]) == [read(A)]


def test_the_size_of_a_request_is_what_its_fetch_looks_at(rig: Rig) -> None:
    session = rig.drained(A, B, C)
    assert rig.sessions.size_of(rig.request(session.id, 2, item(D), forget=[A])) == 2
    rig.sessions.listeners.wake([B])
    assert rig.sessions.size_of(rig.request(session.id, 2)) == 1
    assert rig.sessions.size_of(rig.request(session.id, FINAL_EPOCH)) == 3
    assert rig.sessions.size_of(rig.request(session.id + 1, 2, item(A))) == 1


def test_busy_partitions_take_turns(rig: Rig) -> None:
    session = rig.continue_session(rig.open(read(A, b"x", mark=9), read(B, mark=9), read(C, mark=9)), 1)
    assert session.items() == [item(B), item(C), item(A)]
    session.answer(1, [read(B, b"x", mark=9), read(C, mark=9), read(A, mark=9)])
    assert session.items() == [item(C), item(A), item(B)]


def test_a_forgotten_partition_is_not_read_even_if_a_change_comes_late(rig: Rig) -> None:
    session = rig.drained(A, B)
    rig.sessions.listeners.mark(A)
    [late] = session.arrived
    rig.continue_session(session.id, 2, forget=[A, C])
    rig.sessions.listeners.mark(A)
    session.arrived[late] = False
    assert (session.items(), rig.listeners) == ([], 1)
    assert session.answer(2, [read(A, b"x"), read(B, b"y")]) == [read(B, b"y")]
    rig.continue_session(session.id, 3, item(A, 7))
    session.arrived[late] = False
    assert item(A, 7) in session.items()


# Followers


def test_a_follower_has_one_session_that_no_other_broker_can_use() -> None:
    rig = FollowerRig()
    first = rig.open(read(A))
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        rig.continue_session(first, 1, fetcher=THREE)
    session = rig.continue_session(first, 1)
    second = rig.open(read(A))
    assert rig.is_gone(first, 2)
    # The request under way is still answered.
    assert session.answer(1, [read(A, b"x")]) == [read(A, b"x")]
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        session.update(rig.request(first, 2), {})
    rig.continue_session(second, 1)
    rig.sessions.listeners.wake([A])
    assert (rig.woken, len(rig.sessions)) == ([second], 1)


def test_a_followers_full_fetch_counts_the_session_that_it_closes() -> None:
    """So many partitions are not closed on a network thread. After a lost connection it names no session."""
    rig = FollowerRig()
    rig.open(read(A), read(B), read(C))
    assert rig.sessions.size_of(rig.request(NO_SESSION, 0, item(A))) == 1 + 3
    assert rig.sessions.size_of(rig.request(NO_SESSION, 0, item(A), fetcher=THREE)) == 1
    rig.alive.remove(TWO)
    assert rig.sessions.size_of(rig.request(NO_SESSION, 0, item(A), fetcher=THREE)) == 1 + 3


@PURE_PYTHON_ONLY
def test_of_two_full_fetches_at_the_same_time_one_has_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former connection's may still be answered while the next one's is."""
    rig = FollowerRig()

    def watch(session: FetchSession) -> None:
        monkeypatch.setattr(fetch_sessions, "FetchSession", FetchSession)
        rig.open(read(A))

    monkeypatch.setattr(Watching, "watch", watch, raising=False)
    monkeypatch.setattr(fetch_sessions, "FetchSession", Watching)
    last = rig.open(read(A), read(B))
    assert (len(rig.sessions), rig.listeners) == (1, 2)
    rig.continue_session(last, 1)


def test_only_living_brokers_have_sessions() -> None:
    rig = FollowerRig()
    assert rig.open(read(A), fetcher=FOUR) == NO_SESSION
    session_id = rig.open(read(A), fetcher=THREE)
    rig.alive.remove(THREE)
    assert rig.open(read(A)) != NO_SESSION
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        rig.continue_session(session_id, 1, fetcher=THREE)
    assert len(rig.sessions) == 1


# Consumers


def test_topic_names_and_ids_are_not_mixed() -> None:
    rig = Rig()
    by_name, by_id = rig.open(read(A)), rig.open(read(A), by_id=True)
    for session_id, uses_id, kind in ((by_name, True, "names"), (by_id, False, "ids")):
        with refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, f"uses topic {kind}"):
            rig.continue_session(session_id, 1, by_id=uses_id)
    rig.continue_session(by_name, 1)


def test_a_session_keeps_the_name_of_a_topic_id() -> None:
    rig = Rig()
    unknown = item(TopicPartition("", 0), topic_id=ID)
    session_id = rig.open(FetchOutcome(unknown, PartitionRead.failed(ErrorCode.UNKNOWN_TOPIC_ID)), by_id=True)
    session = rig.continue_session(session_id, 1, by_id=True)
    assert session.items() == [unknown]
    rig.names[ID] = "topic"
    rig.continue_session(session_id, 2, by_id=True)
    known = item(A, topic_id=ID)
    assert session.items() == [known]
    session.answer(2, [read(A)._replace(item=known)])
    rig.continue_session(session_id, 3, by_id=True)
    assert session.items() == []
    rig.sessions.listeners.wake([A])
    assert session.items() == [known]
    del rig.names[ID]
    rig.continue_session(session_id, 4, unknown._replace(fetch_offset=Offset(5)), by_id=True)
    assert session.items() == [item(A, 5, topic_id=ID)]


def test_without_room_a_consumer_gets_no_session() -> None:
    assert Rig(slots=0).open(read(A)) == NO_SESSION
    rig = Rig(slots=1)
    rig.open(read(A))
    rig.clock.now_ms = EVICTION_MS
    assert rig.open(read(A), read(B)) == NO_SESSION


def test_the_smallest_old_session_is_evicted_for_a_larger_one() -> None:
    rig = Rig(slots=2)
    rig.clock.now_ms = 3 * EVICTION_MS
    large, small = rig.open(read(A), read(B)), rig.open(read(A))
    for epoch, age_ms in ((1, EVICTION_MS), (2, EVICTION_MS + 1)):
        assert rig.open(read(B), read(C)) == NO_SESSION
        rig.clock.now_ms = 3 * EVICTION_MS + age_ms
        for session_id in (large, small):
            rig.continue_session(session_id, epoch)
    assert rig.open(read(C)) == NO_SESSION
    larger = rig.open(read(B), read(C))
    assert rig.is_gone(small, 3)
    rig.sessions.listeners.wake([A])
    assert rig.woken == [large]
    # The new session is too young to be evicted, the other is not smaller.
    assert rig.open(read(A), read(C)) == NO_SESSION
    rig.continue_session(large, 3, forget=[A])
    assert rig.open(read(A), read(C)) != NO_SESSION
    assert rig.is_gone(large, 4)
    assert rig.open(read(A), read(B), read(C)) == NO_SESSION
    rig.continue_session(larger, 1)


def test_the_partitions_of_one_session_are_bounded(rig: Rig) -> None:
    assert rig.sessions.largest == (500_000 if isinstance(rig, FollowerRig) else 10_000)
    rig.sessions.largest = 2
    assert rig.open(read(A), read(B), read(C)) == NO_SESSION
    session_id = rig.open(read(A), read(B))
    rig.continue_session(session_id, 1, item(C), forget=[B])
    rig.continue_session(session_id, 2, item(D))
    assert rig.is_gone(session_id, 3)
    assert rig.listeners == 0


class Watching(FetchSession):
    """Calls `watch` while it is being made and closed, which takes time for each partition."""

    watch: Callable[[], object]

    def __init__(self, *args: Any, **fields: Any) -> None:
        self.watch()
        super().__init__(*args, **fields)

    def close(self) -> None:
        self.watch()
        super().close()


@PURE_PYTHON_ONLY
def test_other_fetches_go_on_while_a_session_is_made_or_closed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[bool] = []
    monkeypatch.setattr(
        Watching, "watch", lambda _: locked.append(rig.sessions._lock.locked()), raising=False
    )
    monkeypatch.setattr(fetch_sessions, "FetchSession", Watching)
    rig.sessions.largest = 2
    rig.sessions.begin(rig.request(rig.open(read(A)), 0))
    session_id = rig.open(read(A), read(B))
    rig.continue_session(session_id, 1, item(C))
    assert locked == [False] * 4
    assert rig.listeners == 0


@PURE_PYTHON_ONLY
def test_a_session_that_is_being_made_takes_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(slots=2, partitions=3)
    rig.open(read(A))
    others: list[int] = []

    def watch(session: FetchSession) -> None:
        others.append(rig.sessions.open(rig.request(NO_SESSION, 0, item(C)), [read(C)]))

    monkeypatch.setattr(Watching, "watch", watch, raising=False)
    monkeypatch.setattr(fetch_sessions, "FetchSession", Watching)
    assert rig.open(read(A), read(B)) == 2
    assert others == [NO_SESSION]


def test_the_partitions_of_all_sessions_are_bounded() -> None:
    rig = Rig(partitions=4)
    first, second = rig.open(read(A), read(B)), rig.open(read(C))
    assert rig.open(read(A), read(B)) == NO_SESSION
    assert rig.open(*[read(A)] * 5) == NO_SESSION
    rig.continue_session(second, 1, item(A))
    assert rig.open(read(A)) == NO_SESSION
    rig.continue_session(first, 1, forget=[A])
    rig.clock.now_ms = 1
    third = rig.open(read(A))
    # A session that grows too much is dropped, but the request is answered.
    rig.continue_session(third, 1, item(B))
    assert rig.is_gone(third, 2)
    # Stale sessions make room, until there is enough.
    rig.clock.now_ms = EVICTION_MS + 1
    rig.open(read(A), read(B), read(C))
    assert len(rig.sessions) == 2
    rig.clock.now_ms = 3 * EVICTION_MS
    rig.open(*map(read, [A, B, C, D]))
    assert len(rig.sessions) == 1
