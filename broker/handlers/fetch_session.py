"""Incremental fetch sessions (KIP-227): a client's partitions and last answers are kept between its fetches.

A full fetch (epoch 0) may open a session; the incremental ones after it name only the partitions that they
add, change or remove, and their answers have only partitions with news. Each request carries the session's
next epoch, so that a lost, repeated or late request is noticed. A full fetch that names a session closes it;
with epoch -1 it opens none.

A partition is read only if it may have news, by the invariant of `session_partitions`. So the cost of a fetch
depends on the changed partitions, not on the subscribed ones.

The rules know no clock, socket or log: times and outcomes of reads are arguments. Any thread; a session has a
lock of its own, which comes after the cache's.

Source: https://cwiki.apache.org/confluence/display/KAFKA/KIP-227, and Kafka 3.9's behaviour on eviction.
"""

from __future__ import annotations

import random
import threading
import uuid
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Protocol

from barnabas.broker.replication.fetching import FetchItem, FetchOutcome
from barnabas.broker.replication.partition_listeners import PartitionListener
from barnabas.broker.replication.session_partitions import (
    SessionKey,
    SessionPartition,
    SessionPartitions,
)
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.fetch_epochs import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, next_epoch
from barnabas.protocol.ids import TopicPartition

EVICTION_MS: Final = 120_000
"""A session unused for so long is stale; one younger than this is never evicted for a larger one."""
MAX_PARTITIONS: Final = 500_000
"""What all sessions together may hold, some 500 bytes each."""
_MAX_INT: Final = (1 << 31) - 1


class Listeners(Protocol):
    """Where a session hears of its partitions; `PartitionListeners` is one."""

    def add(self, name: TopicPartition, listener: PartitionListener) -> None: ...

    def remove(self, name: TopicPartition, listener: PartitionListener) -> None: ...


class ListenedPartition(SessionPartition, PartitionListener):
    """One partition of one client's session."""

    __slots__ = ("session",)

    def __init__(self, session: FetchSession, item: FetchItem) -> None:
        super().__init__(item)
        self.session = session

    def partition_changed(self) -> None:
        self.session.partitions.arrived.add(self)
        self.session.wake(self.session)


class FetchSession:
    """One session; made by the cache. `items` and `watched` make it the source of a fetch."""

    def __init__(
        self,
        session_id: int,
        outcomes: Iterable[FetchOutcome],
        *,
        uses_topic_ids: bool,
        listeners: Listeners,
        wake: Callable[[FetchSession], object],
        now_ms: float,
    ) -> None:
        """``outcomes`` are what the full fetch that opens it is answered with."""
        self.id = session_id
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = self.last_used_ms = now_ms
        self.wake = wake
        self.watched: Sequence[Hashable] = (self,)
        self.lock = threading.Lock()
        self.is_closed = False
        self.partitions: SessionPartitions[ListenedPartition] = SessionPartitions(for_follower=False)
        self._listeners = listeners
        # Those whose topic id no name is known for, yet.
        self._nameless: set[ListenedPartition] = set()
        # All are active at first, for nobody listened to them until now. Those served already come last.
        for outcome in sorted(outcomes, key=attrgetter("has_records")):
            self._set(outcome.item).note(outcome)

    @property
    def size(self) -> int:
        return len(self.partitions)

    def items(self) -> list[FetchItem]:
        """What may have news, in the order in which it is to be served."""
        with self.lock:
            return self.partitions.items()

    def update(
        self,
        epoch: int,
        items: Iterable[FetchItem],
        forgotten: Iterable[SessionKey],
        name_of: Callable[[uuid.UUID], str | None],
    ) -> ErrorCode:
        """Take over an incremental request; a wrong epoch changes nothing and is answered as an error."""
        with self.lock:
            if self.is_closed:
                return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            if epoch != self.epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH
            self.epoch = next_epoch(epoch)
            for key in forgotten:
                self._forget(key)
            for item in items:
                self._set(item)
            for part in tuple(self._nameless):
                item = part.item
                name = None if item.topic_id is None else name_of(item.topic_id)
                if name is not None:
                    self._forget(part.key)
                    self._set(item._replace(partition=TopicPartition(name, item.partition.partition)))
            return ErrorCode.NONE

    def answer(self, epoch: int, outcomes: Iterable[FetchOutcome]) -> list[FetchOutcome] | None:
        """What of a read goes into the answer to the request of that epoch.

        None when the client has gone on to another epoch meanwhile: then it is told so instead.
        """
        with self.lock:
            if self.epoch != next_epoch(epoch):
                return None
            return self.partitions.news(outcomes)

    def close(self) -> None:
        """Hear of nothing more. A fetch that waits still gets its answer."""
        with self.lock:
            self.is_closed = True
            for part in self.partitions:
                self._listeners.remove(part.item.partition, part)

    def _set(self, item: FetchItem) -> ListenedPartition:
        part = self.partitions.ask(item)
        if part is None:
            part = ListenedPartition(self, item)
            self.partitions.add(part)
            if item.partition.topic:
                self._listeners.add(item.partition, part)
            else:
                self._nameless.add(part)
        return part

    def _forget(self, key: SessionKey) -> None:
        part = self.partitions.pop(key)
        if part is not None:
            self._listeners.remove(part.item.partition, part)
            self._nameless.discard(part)


@dataclass(frozen=True, slots=True)
class Refused:
    """The request's session is not what the client thinks."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Sessionless:
    """Fetch what the request names; afterwards a session may be opened for it."""

    may_open: bool


@dataclass(frozen=True, slots=True)
class Incremental:
    """Fetch what the session knows."""

    session: FetchSession


class FetchSessionCache:
    """All sessions of a broker, at most ``max_slots`` (``max.incremental.fetch.session.cache.slots``).

    When it is full, or holds ``max_partitions`` partitions, a new session replaces the one that was not used
    for the longest time, if that is more than `EVICTION_MS`; else the smallest of those older than that, if
    the new one is larger; else the client gets no session and goes on with full fetches. ``wake`` is called
    when a partition of a session changes.
    """

    def __init__(
        self,
        max_slots: int,
        listeners: Listeners,
        wake: Callable[[FetchSession], object],
        *,
        max_partitions: int = MAX_PARTITIONS,
        new_id: Callable[[], int] | None = None,
    ) -> None:
        self._max_slots = max_slots
        self._max_partitions = max_partitions
        self._listeners = listeners
        self._wake = wake
        self._new_id = new_id or (lambda: random.randint(1, _MAX_INT))
        self._lock = threading.Lock()
        # The one used longest ago comes first.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        # (size, id) of those old enough to give way to a larger one, sorted.
        self._evictable: list[tuple[int, int]] = []
        self._evictable_size: dict[int, int] = {}
        # The partitions of each session when it was last looked at, and of all together.
        self._sizes: dict[int, int] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        items: Sequence[FetchItem],
        forgotten: Iterable[SessionKey],
        *,
        uses_topic_ids: bool,
        name_of: Callable[[uuid.UUID], str | None],
        now_ms: float,
    ) -> Refused | Sessionless | Incremental:
        """What a request's session fields mean; the session's partitions are changed as it says."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id != NO_SESSION:
                self._remove(session_id)
            return Sessionless(may_open=epoch == INITIAL_EPOCH)
        with self._lock:
            session = self._sessions.get(session_id)
        if session is None:
            return Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch == epoch and session.uses_topic_ids != uses_topic_ids:
            return Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        error = session.update(epoch, items, forgotten, name_of)
        if error != ErrorCode.NONE:
            return Refused(error)
        if not session.size:
            self._remove(session_id)
            return Sessionless(may_open=False)
        self._touch(session, now_ms)
        return Incremental(session)

    def open(
        self, outcomes: Sequence[FetchOutcome], *, uses_topic_ids: bool, now_ms: float
    ) -> FetchSession | None:
        """A session for a full fetch that is being answered with these outcomes, if there is room for one."""
        with self._lock:
            if len(outcomes) > self._max_partitions:
                return None
            while self._is_full(len(outcomes)):
                if not self._make_room(len(outcomes), now_ms):
                    return None
            session_id = self._new_id()
            while session_id in self._sessions:
                session_id = self._new_id()
            session = FetchSession(
                session_id,
                outcomes,
                uses_topic_ids=uses_topic_ids,
                listeners=self._listeners,
                wake=self._wake,
                now_ms=now_ms,
            )
            self._sessions[session_id] = session
            self._note_size(session)
            return session

    def _is_full(self, size: int) -> bool:
        return len(self._sessions) >= self._max_slots or self._partitions + size > self._max_partitions

    def _note_size(self, session: FetchSession) -> None:
        size = session.size
        self._partitions += size - self._sizes.get(session.id, 0)
        self._sizes[session.id] = size

    def _make_room(self, size: int, now_ms: float) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.last_used_ms > EVICTION_MS:
            self._drop(oldest.id)
            return True
        if not self._evictable or size <= self._evictable[0][0]:
            return False
        self._drop(self._evictable[0][1])
        return True

    def _touch(self, session: FetchSession, now_ms: float) -> None:
        with self._lock:
            if session.id not in self._sessions:
                return
            session.last_used_ms = now_ms
            self._sessions.move_to_end(session.id)
            self._note_size(session)
            if self._partitions > self._max_partitions:
                # It has grown too much: its client finds it gone, and gets another if there is room.
                self._drop(session.id)
                return
            if now_ms - session.created_ms > EVICTION_MS:
                size = session.size
                if self._evictable_size.get(session.id) != size:
                    self._forget_evictable(session.id)
                    self._evictable_size[session.id] = size
                    insort(self._evictable, (size, session.id))

    def _remove(self, session_id: int) -> None:
        with self._lock:
            self._drop(session_id)

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._forget_evictable(session_id)
            self._partitions -= self._sizes.pop(session_id)
            session.close()

    def _forget_evictable(self, session_id: int) -> None:
        size = self._evictable_size.pop(session_id, None)
        if size is not None:
            del self._evictable[bisect_left(self._evictable, (size, session_id))]
