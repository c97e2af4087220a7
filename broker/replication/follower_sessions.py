"""The fetch sessions of followers at this leader: KIP-227 for replicas.

A follower of many partitions would else name all of them in every fetch, and have all of them looked at, a
thousand times a second while only one is written to. Here its first fetch names them all and opens a session;
those after it name only the partitions whose log has changed on the follower, and are told only what is new.
Each carries the session's next epoch, so that one that is lost or doubled is noticed; a full fetch begins
anew. A follower has at most one session, so there are no more than brokers.

A partition is looked at only when it may have news: `session_partitions` says by which invariant. A follower
names each of its partitions now and then even so, which shows the leader that it is still caught up.

Any thread. A session has a lock of its own, which comes after that of all sessions and before that of the
listeners; no other is taken under them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Final

from barnabas.broker.replication.fetching import FetchItem, FetchOutcome, FetchSource
from barnabas.broker.replication.partition_listeners import PartitionListener, PartitionListeners
from barnabas.broker.replication.session_partitions import (
    SessionKey,
    SessionPartition,
    SessionPartitions,
)
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.fetch_epochs import INITIAL_EPOCH, NO_SESSION, next_epoch
from barnabas.protocol.ids import BrokerId, TopicPartition

_MAX_ID: Final = (1 << 31) - 1


class FollowerPartition(SessionPartition, PartitionListener):
    """One partition of one follower's session."""

    __slots__ = ("session",)

    def __init__(self, session: FollowerSession, item: FetchItem) -> None:
        super().__init__(item)
        self.session = session

    def partition_changed(self) -> None:
        self.session.partitions.arrived.add(self)


class FollowerSession(FetchSource):
    """One follower's session, made by `FollowerSessions`; the source of each of its fetches."""

    def __init__(
        self,
        session_id: int,
        listeners: PartitionListeners[FollowerPartition],
        outcomes: Iterable[FetchOutcome],
    ) -> None:
        """``outcomes`` are what the full fetch that opens it is answered with."""
        self.id = session_id
        self.partitions: SessionPartitions[FollowerPartition] = SessionPartitions(for_follower=True)
        self._watched = (self,)
        self._listeners = listeners
        self._lock = threading.Lock()
        self._epoch = next_epoch(INITIAL_EPOCH)
        self._is_closed = False
        # Those served already come last.
        for outcome in sorted(outcomes, key=attrgetter("has_records")):
            self._set(outcome.item).note(outcome)

    @property
    def watched(self) -> Sequence[Hashable]:
        return self._watched

    def items(self) -> list[FetchItem]:
        """What may have news, in the order in which it is to be served."""
        with self._lock:
            return self.partitions.items()

    def update(
        self, epoch: int, items: Iterable[FetchItem], forgotten: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Take over an incremental request; a wrong epoch changes nothing and is answered as an error."""
        with self._lock:
            if self._is_closed:
                return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            if epoch != self._epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH
            self._epoch = next_epoch(epoch)
            for name in forgotten:
                self._forget(name)
            for item in items:
                self._set(item)
            return ErrorCode.NONE

    def answer(self, epoch: int, outcomes: Iterable[FetchOutcome]) -> list[FetchOutcome] | None:
        """What of a read goes into the answer to the request of that epoch.

        None when the follower has gone on to another epoch meanwhile: then it is told so instead.
        """
        with self._lock:
            if self._is_closed or self._epoch != next_epoch(epoch):
                return None
            return self.partitions.news(outcomes)

    def close(self) -> None:
        """Hear of nothing more. A fetch that waits is still answered, by an error."""
        with self._lock:
            self._is_closed = True
            for part in tuple(self.partitions):
                self._forget(part.key)

    def _set(self, item: FetchItem) -> FollowerPartition:
        part = self.partitions.ask(item)
        if part is None:
            part = FollowerPartition(self, item)
            self.partitions.add(part)
            self._listeners.add(item.partition, part)
        return part

    def _forget(self, key: SessionKey) -> None:
        part = self.partitions.pop(key)
        if part is not None:
            self._listeners.remove(part.item.partition, part)


class FollowerSessions:
    """The sessions of all followers. ``wake`` is called when one of them may have records to fetch."""

    def __init__(
        self, wake: Callable[[FollowerSession], object], new_id: Callable[[], int] | None = None
    ) -> None:
        self._wake = wake
        self._new_id = new_id or (lambda: random.randint(1, _MAX_ID))
        self._lock = threading.Lock()
        self._sessions: dict[BrokerId, FollowerSession] = {}
        self._listeners = PartitionListeners[FollowerPartition]()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        follower: BrokerId,
        session_id: int,
        epoch: int,
        items: Iterable[FetchItem],
        forgotten: Iterable[TopicPartition],
    ) -> FollowerSession | ErrorCode:
        """The session that an incremental fetch goes on with, changed as it says; else what is wrong."""
        session = self._sessions.get(follower)
        if session is None or session.id != session_id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        error = session.update(epoch, items, forgotten)
        return session if error == ErrorCode.NONE else error

    def open(self, follower: BrokerId, outcomes: Iterable[FetchOutcome], alive: Container[BrokerId]) -> int:
        """A session for a full fetch that is answered with these outcomes; its id, or `NO_SESSION`.

        It takes the place of the one that the follower had. Only brokers that are alive get one, for a
        stranger could make up ever new ids; those of brokers that have gone for good are dropped here.
        """
        with self._lock:
            for broker_id in [one for one in self._sessions if one == follower or one not in alive]:
                self._sessions.pop(broker_id).close()
            if follower not in alive:
                return NO_SESSION
            session = self._sessions[follower] = FollowerSession(self._new_id(), self._listeners, outcomes)
            return session.id

    def tell(self, names: Iterable[TopicPartition]) -> None:
        """These partitions have something that their followers wait for."""
        told: dict[FollowerSession, None] = {}
        for name in names:
            for part in self._listeners.of(name):
                part.partition_changed()
                told[part.session] = None
        # Only now: who is woken by the first takes the others along.
        for session in told:
            self._wake(session)

    def mark(self, name: TopicPartition) -> None:
        """The partition has something that its followers hear of when there is reason to answer them."""
        self._listeners.changed(name)
