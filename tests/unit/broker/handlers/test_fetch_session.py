"""Fetch sessions: epochs and partitions, what an answer holds, and who is evicted from the cache."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence

import pytest

from barnabas.broker.handlers.fetch_session import (
    EVICTION_MS,
    FetchSession,
    FetchSessionCache,
    Incremental,
    Refused,
    Sessionless,
)
from barnabas.broker.replication.fetching import FetchItem, FetchOutcome
from barnabas.broker.replication.partition_listeners import PartitionListener, PartitionListeners
from barnabas.broker.replication.replica_views import PartitionRead
from barnabas.broker.replication.rules import EpochEnd
from barnabas.broker.replication.session_partitions import key_of
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.fetch_epochs import next_epoch
from barnabas.protocol.ids import LeaderEpoch, Offset, TopicPartition

A, B, C, D = (TopicPartition("topic", index) for index in range(4))
ID = uuid.UUID(int=7)


def item(name: TopicPartition, offset: int = 0, *, topic_id: uuid.UUID | None = None) -> FetchItem:
    return FetchItem(name, -1, Offset(offset), -1, Offset(-1), 1 << 20, topic_id=topic_id)


def read(
    name: TopicPartition,
    records: bytes = b"",
    *,
    offset: int = 0,
    mark: int = 0,
    start: int = 0,
    diverging: EpochEnd | None = None,
) -> FetchOutcome:
    found = PartitionRead(memoryview(records), Offset(mark), Offset(start), Offset(mark), diverging)
    return FetchOutcome(item(name, offset), ErrorCode.NONE, found)


def failed(name: TopicPartition) -> FetchOutcome:
    return FetchOutcome(item(name), ErrorCode.NOT_LEADER_OR_FOLLOWER, None)


class Cache:
    """A cache with ids 1, 2, 3… and everything that it works with."""

    def __init__(self, slots: int = 10, partitions: int = 100) -> None:
        self.listeners = PartitionListeners[PartitionListener]()
        self.woken: list[int] = []
        ids = itertools.count(1)
        self.cache = FetchSessionCache(
            slots,
            self.listeners,
            lambda session: self.woken.append(session.id),
            max_partitions=partitions,
            new_id=lambda: next(ids),
        )

    def open(self, *outcomes: FetchOutcome, now_ms: float = 0, by_id: bool = False) -> FetchSession | None:
        return self.cache.open(outcomes, uses_topic_ids=by_id, now_ms=now_ms)

    def opened(self, *outcomes: FetchOutcome, now_ms: float = 0, by_id: bool = False) -> FetchSession:
        session = self.open(*outcomes, now_ms=now_ms, by_id=by_id)
        assert session is not None
        return session

    def begin(
        self,
        session_id: int,
        epoch: int,
        *items: FetchItem,
        forget: Sequence[TopicPartition] = (),
        now_ms: float = 0,
        by_id: bool = False,
        names: dict[uuid.UUID, str] | None = None,
    ) -> Refused | Sessionless | Incremental:
        return self.cache.begin(
            session_id,
            epoch,
            items,
            [key_of(item(name)) for name in forget],
            uses_topic_ids=by_id,
            name_of=(names or {}).get,
            now_ms=now_ms,
        )

    def drained(self, *names: TopicPartition) -> FetchSession:
        """A session whose client knows everything, at epoch 2."""
        outcomes = [read(name) for name in names]
        session = self.opened(*outcomes)
        assert isinstance(self.begin(session.id, 1), Incremental)
        assert session.items() == [item(name) for name in names]
        assert session.answer(1, outcomes) == []
        return session


def test_epochs_begin_anew_at_one() -> None:
    assert [next_epoch(epoch) for epoch in (0, 1, (1 << 31) - 1, -1)] == [1, 2, 1, -1]


def test_a_full_fetch_may_open_a_session_and_closes_the_one_it_names() -> None:
    cache = Cache()
    assert cache.begin(0, 0, item(A)) == Sessionless(may_open=True)
    session = cache.opened(read(A))
    assert cache.begin(session.id, 0, item(A)) == Sessionless(may_open=True)
    assert len(cache.cache) == len(cache.listeners) == 0
    session = cache.opened(read(A))
    assert cache.begin(session.id, -1, item(A)) == Sessionless(may_open=False)
    assert cache.begin(session.id, 1) == Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


def test_a_request_that_is_doubled_or_lost_is_noticed_and_changes_nothing() -> None:
    cache = Cache()
    session = cache.drained(A)
    for epoch in (1, 3):
        refused = cache.begin(session.id, epoch, item(B), forget=[A])
        assert refused == Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert cache.begin(session.id, 2) == Incremental(session)
    assert (session.size, session.items()) == (1, [])


def test_an_answer_that_comes_after_the_next_request_is_none() -> None:
    cache = Cache()
    session = cache.drained(A)
    cache.begin(session.id, 2)
    cache.begin(session.id, 3, item(B))
    assert session.answer(2, [read(A, b"x", mark=1)]) is None
    assert session.answer(3, [read(A, b"x", mark=1)]) == [read(A, b"x", mark=1)]


def test_names_and_ids_are_not_mixed() -> None:
    cache = Cache()
    by_name, by_id = cache.opened(read(A)), cache.opened(read(A), by_id=True)
    assert cache.begin(by_name.id, 1, by_id=True) == Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    assert cache.begin(by_id.id, 1) == Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    assert cache.begin(by_name.id, 1) == Incremental(by_name)


def test_a_session_without_partitions_ends() -> None:
    cache = Cache()
    session = cache.drained(A, B)
    assert cache.begin(session.id, 2, forget=[A]) == Incremental(session)
    assert cache.begin(session.id, 3, forget=[B]) == Sessionless(may_open=False)
    assert len(cache.cache) == len(cache.listeners) == 0


def test_only_what_may_have_news_is_looked_at() -> None:
    cache = Cache()
    session = cache.drained(A, B, C)
    assert session.items() == []
    cache.listeners.changed(B)
    assert cache.woken == [session.id]
    assert session.items() == [item(B)]
    cache.begin(session.id, 2, item(C, 5))
    assert session.items() == [item(B), item(C, 5)]
    # Nothing new after all.
    assert session.answer(2, [read(B), read(C, offset=5, mark=0)]) == []
    assert session.items() == []


def test_an_event_during_the_read_is_not_lost() -> None:
    cache = Cache()
    session = cache.drained(A)
    cache.begin(session.id, 2)
    found = [read(item.partition) for item in session.items()]
    cache.listeners.changed(A)
    session.answer(2, found)
    assert session.items() == [item(A)]


@pytest.mark.parametrize(
    "news",
    [
        read(A, b"x"),
        read(A, mark=1),
        read(A, start=1),
        read(A, diverging=EpochEnd(LeaderEpoch(1), Offset(0))),
        failed(A),
    ],
    ids=["records", "high watermark", "log start", "diverging", "error"],
)
def test_news_are_told_and_what_is_known_is_not(news: FetchOutcome) -> None:
    cache = Cache()
    session = cache.drained(A, B)
    cache.begin(session.id, 2)
    assert session.answer(2, [news, read(B)]) == [news]


def test_a_partition_is_told_of_again_when_its_error_is_over() -> None:
    cache = Cache()
    session = cache.drained(A)
    cache.begin(session.id, 2)
    assert session.answer(2, [failed(A)]) == [failed(A)]
    cache.begin(session.id, 3)
    assert session.items() == [item(A)]
    assert session.answer(3, [read(A)]) == [read(A)]


def test_busy_partitions_take_turns() -> None:
    cache = Cache()
    session = cache.opened(read(A, b"x", mark=9), read(B, mark=9), read(C, mark=9))
    cache.begin(session.id, 1)
    assert session.items() == [item(B), item(C), item(A)]
    session.answer(1, [read(B, b"x", mark=9), read(C, mark=9), read(A, mark=9)])
    assert session.items() == [item(C), item(A), item(B)]


def test_a_topic_id_that_becomes_known_is_found() -> None:
    cache = Cache()
    unknown = item(TopicPartition("", 0), topic_id=ID)
    outcome = FetchOutcome(unknown, ErrorCode.UNKNOWN_TOPIC_ID, None)
    session = cache.opened(outcome, by_id=True)
    cache.begin(session.id, 1, by_id=True)
    assert session.items() == [unknown]
    cache.begin(session.id, 2, by_id=True, names={ID: "topic"})
    known = item(A, topic_id=ID)
    assert session.items() == [known]
    session.answer(2, [read(A)._replace(item=known)])
    assert session.items() == []
    cache.listeners.changed(A)
    assert session.items() == [known]


def test_what_is_forgotten_is_not_heard_of() -> None:
    cache = Cache()
    session = cache.drained(A, B)
    cache.listeners.changed(A)
    cache.begin(session.id, 2, forget=[A])
    cache.listeners.changed(A)
    assert (session.items(), len(cache.listeners)) == ([], 1)


# The cache


def test_a_full_cache_gives_no_session() -> None:
    cache = Cache(slots=1)
    cache.opened(read(A))
    assert cache.open(read(A), read(B), now_ms=EVICTION_MS) is None


def test_a_cache_without_slots_gives_none() -> None:
    assert Cache(slots=0).open(read(A)) is None


def test_a_stale_session_gives_way() -> None:
    cache = Cache(slots=2)
    first, second = cache.opened(read(A), read(B)), cache.opened(read(C), now_ms=1)
    cache.begin(first.id, 1, now_ms=2)
    assert cache.open(read(C), now_ms=EVICTION_MS + 1) is None
    third = cache.opened(read(C), now_ms=EVICTION_MS + 2)
    assert cache.begin(second.id, 1) == Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert cache.begin(first.id, 2) == Incremental(first)
    assert cache.begin(third.id, 1) == Incremental(third)


def test_the_smallest_old_session_gives_way_to_a_larger_one() -> None:
    cache = Cache(slots=2)
    large, small = cache.opened(read(A), read(B)), cache.opened(read(A))
    later = EVICTION_MS + 1
    for session in (large, small):
        cache.begin(session.id, 1, now_ms=later)
    assert cache.open(read(C), now_ms=later) is None
    larger = cache.opened(read(B), read(C), now_ms=later)
    assert cache.begin(small.id, 2) == Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    # The new one is too young to give way, the other not smaller.
    assert cache.open(read(A), read(C), now_ms=later) is None
    cache.begin(large.id, 2, forget=[A], now_ms=later)
    cache.opened(read(A), read(C), now_ms=later)
    assert cache.begin(large.id, 3) == Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert cache.begin(larger.id, 1) == Incremental(larger)


def test_the_partitions_of_all_sessions_are_bounded() -> None:
    cache = Cache(partitions=4)
    first, second = cache.opened(read(A), read(B)), cache.opened(read(C))
    assert cache.open(read(A), read(B)) is None
    assert cache.open(*[read(A)] * 5) is None
    cache.begin(second.id, 1, item(A))
    assert cache.open(read(A)) is None
    cache.begin(first.id, 1, forget=[A])
    third = cache.opened(read(A), now_ms=1)
    # One that grows too much is gone; the request that did it is answered.
    assert cache.begin(third.id, 1, item(B), now_ms=1) == Incremental(third)
    assert cache.begin(third.id, 2) == Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    # Stale ones make room, until there is enough.
    cache.opened(read(A), read(B), read(C), now_ms=EVICTION_MS + 1)
    assert len(cache.cache) == 2
    cache.opened(*map(read, [A, B, C, D]), now_ms=3 * EVICTION_MS)
    assert len(cache.cache) == 1
