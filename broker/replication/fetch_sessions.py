"""Incremental fetch sessions (KIP-227), for followers and for consumers.

A full fetch (epoch 0) may open a session. Later fetches of the session name only the partitions that they
add, change or remove, and their answers contain only partitions with news. Each request carries the session's
next epoch, which detects lost, repeated and late requests. A full fetch that names a session closes it. A
fetch with epoch -1 belongs to no session.

Kafka checks every partition of a session in every fetch. Here a session is notified of changes, so the cost
of a fetch depends on the changed partitions and not on the size of the session. The invariant: a partition
outside `_active` and `arrived` has nothing that its fetcher does not know. It leaves `_active` only by an
answer whose read found it drained, and a change after the start of that read puts it into `arrived`.

Any thread. Only the listeners' lock is taken under another, a session's. Sessions are made and closed without
the lock of their `FetchSessions`, which all other fetches take: it takes time for each partition.

Source: https://cwiki.apache.org/confluence/display/KAFKA/KIP-227, and Kafka 3.9 for the eviction.
"""

from __future__ import annotations

import math
import random
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from barnabas.broker.base.limits import MAX_PARTITIONS_OF_SESSION, MAX_SESSION_PARTITIONS
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.replication.delayed_fetch import FetchItem, FetchOutcome, FetchSource
from barnabas.broker.replication.subscriptions import FollowerEnd, Subscription, UnfitProgress
from barnabas.common.security.principal import ANONYMOUS, Principal
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import NO_BROKER, BrokerId, Offset, TopicId, TopicPartition
from barnabas.protocol.messages.fetch import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, next_epoch

EVICTION_MS: Final = 120_000
"""A consumer's session that was unused for longer is stale; a younger one is not evicted for a larger one."""
_MAX_ID: Final = (1 << 31) - 1
_UNSENT: Final = -2
"""Not a high watermark or log start, so the next read of the partition is news."""

SessionKey = tuple[uuid.UUID | str, int]
"""Topic id or name, as the session uses them, and partition; a `TopicPartition` is one."""


def key_of(item: FetchItem) -> SessionKey:
    return item.partition if item.topic_id is None else (item.topic_id, item.partition.partition)


class SessionRequest(NamedTuple):
    """The session fields of a fetch request, and its partitions."""

    replica_id: BrokerId
    session_id: int
    epoch: int
    items: Sequence[FetchItem]
    forgotten: Sequence[SessionKey]
    uses_topic_ids: bool = False
    owner: Principal = ANONYMOUS


class SessionPartition:
    """One partition of a session: the fetcher's last request, and the last answer to it."""

    __slots__ = ("item", "key", "sent_end", "sent_high_watermark", "sent_log_start_offset", "session")

    def __init__(self, session: FetchSession, item: FetchItem) -> None:
        self.session = session
        self.key = key_of(item)
        self.item = item
        """Everything but its key may change."""
        self.sent_high_watermark = _UNSENT
        self.sent_log_start_offset = _UNSENT
        self.sent_end = Offset(_UNSENT)
        """Where the records end that are under way in a subscription, if any are."""

    def note(self, outcome: FetchOutcome) -> bool:
        """Whether an outcome must be sent; if so it counts as sent."""
        read = outcome.read
        if read.is_urgent:
            # The fetcher uses nothing else of such an answer, so the next one must contain everything.
            self.sent_high_watermark = self.sent_log_start_offset = _UNSENT
            return True
        is_news = (
            len(read.records) > 0
            or read.high_watermark != self.sent_high_watermark
            or read.log_start_offset != self.sent_log_start_offset
        )
        self.sent_high_watermark = read.high_watermark
        self.sent_log_start_offset = read.log_start_offset
        return is_news


class PartitionListeners:
    """The sessions of each partition. ``wake`` is called with each session that has news.

    A partition need not exist. The tuples are replaced as a whole, so a notification takes no lock.
    """

    def __init__(self, wake: Callable[[FetchSession], object]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._by_partition: dict[TopicPartition, tuple[SessionPartition, ...]] = {}

    def __len__(self) -> int:
        """The number of partitions that have a session."""
        return len(self._by_partition)

    def add(self, part: SessionPartition) -> None:
        tp = part.item.partition
        with self._lock:
            self._by_partition[tp] = (*self._by_partition.get(tp, ()), part)

    def remove(self, part: SessionPartition) -> None:
        """Does nothing if the partition was never added."""
        tp = part.item.partition
        with self._lock:
            remaining = tuple(other for other in self._by_partition.get(tp, ()) if other is not part)
            if remaining:
                self._by_partition[tp] = remaining
            else:
                self._by_partition.pop(tp, None)

    def mark(self, tp: TopicPartition) -> None:
        """Have the partition read by the next fetch of its sessions, without waking them."""
        for part in self._by_partition.get(tp, ()):
            part.session.arrived.setdefault(part, False)

    def wake(self, tps: Iterable[TopicPartition]) -> None:
        """Mark these partitions, then wake each of their sessions once, so that one answer takes them all."""
        sessions: dict[FetchSession, None] = {}
        for tp in tps:
            for part in self._by_partition.get(tp, ()):
                part.session.arrived[part] = True
                sessions[part.session] = None
        for session in sessions:
            self._wake(session)


class FetchSession(FetchSource):
    """One session; the source of each of its fetches. Made by a `FetchSessions`."""

    def __init__(
        self,
        session_id: int,
        outcomes: Iterable[FetchOutcome],
        listeners: PartitionListeners,
        *,
        uses_topic_ids: bool = False,
        follower: BrokerId = NO_BROKER,
        owner: Principal = ANONYMOUS,
    ) -> None:
        """``outcomes`` are the answer to the full fetch that opens the session."""
        self.id = session_id
        self.owner = owner
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.uses_topic_ids = uses_topic_ids
        self.follower = follower
        self.created_ms = self.last_used_ms = 0.0
        self.arrived: dict[SessionPartition, bool] = {}
        """Partitions that changed since `items` was last called, and whether that woke the session; added to
        without the lock."""
        self.subscription: Subscription | None = None
        """The subscription that the last fetch of a follower opened."""
        self._watched = (self,)
        self._lock = threading.Lock()
        self._is_closed = False
        self._listeners = listeners
        self._by_key: dict[SessionKey, SessionPartition] = {}
        # In the order of service, the most recent last, so that busy partitions take turns.
        self._active: dict[SessionPartition, None] = {}
        # Partitions of unknown topic ids.
        self._nameless: dict[SessionPartition, None] = {}
        # Nothing listened to the partitions until now, so all begin as active, the served ones last.
        for outcome in sorted(outcomes, key=attrgetter("has_records")):
            self._set(outcome.item).note(outcome)

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def watched(self) -> Sequence[Hashable]:
        return self._watched

    @property
    def size(self) -> int:
        return len(self._active) + len(self.arrived)

    def items(self) -> list[FetchItem]:
        """The partitions that may have news, in the order in which they are to be served."""
        with self._lock:
            arrived, active = self.arrived, self._active
            while arrived:
                part, _ = arrived.popitem()
                # A late change may arrive for a partition that was removed.
                if self._by_key.get(part.key) is part:
                    active.setdefault(part)
            return [part.item for part in active]

    def all_items(self) -> list[FetchItem]:
        """All partitions of the session."""
        with self._lock:
            return [part.item for part in self._by_key.values()]

    def is_news(self, item: FetchItem, high_watermark: Offset) -> bool:
        part = self._by_key.get(key_of(item))
        return part is not None and part.sent_high_watermark != high_watermark

    def update(self, request: SessionRequest, topic_names: Mapping[TopicId, str]) -> None:
        """Take over an incremental request.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR; then
        nothing has changed, but a subscription has ended.
        """
        self._unsubscribe(is_told=False)
        with self._lock:
            if self._is_closed:
                raise not_found(self.id)
            if request.epoch != self.epoch:
                raise api_error(
                    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                    f"fetch session {self.id} expects epoch {self.epoch}, not {request.epoch}",
                )
            if request.uses_topic_ids != self.uses_topic_ids:
                kind = "ids" if self.uses_topic_ids else "names"
                raise api_error(
                    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, f"fetch session {self.id} uses topic {kind}"
                )
            self.epoch = next_epoch(request.epoch)
            for key in request.forgotten:
                self._forget(key)
            for item in request.items:
                self._set(item)
            for part in tuple(self._nameless):
                item = part.item
                name = None if item.topic_id is None else topic_names.get(TopicId(item.topic_id))
                if name is not None:
                    self._forget(part.key)
                    self._set(item._replace(partition=TopicPartition(name, item.partition.partition)))

    def answer(self, epoch: int, outcomes: Iterable[FetchOutcome]) -> list[FetchOutcome] | None:
        """The part of a read that the answer to the request of that epoch must contain.

        None if the fetcher has sent its next request meanwhile: then the answer is an error.
        """
        with self._lock:
            if self.epoch != next_epoch(epoch):
                return None
            news = []
            by_key, active = self._by_key, self._active
            for outcome in outcomes:
                part = by_key.get(key_of(outcome.item))
                if part is None:
                    continue
                if part.note(outcome):
                    news.append(outcome)
                if len(outcome.read.records) > 0:
                    active.pop(part, None)
                    active[part] = None
                elif _is_drained(outcome):
                    active.pop(part, None)
                else:
                    active.setdefault(part)
            return news

    def subscribe(self, subscription: Subscription, outcomes: Sequence[FetchOutcome]) -> bool:
        """Open a subscription with the answer that has these outcomes; False if the session is closed."""
        subscription.begin(outcomes)
        with self._lock:
            if self._is_closed:
                return False
            self.subscription = subscription
            # The news of the answer are under way; the read found no others.
            self._active.clear()
            return True

    def _unsubscribe(self, *, is_told: bool) -> None:
        subscription = self.subscription
        if subscription is not None:
            subscription.close(is_told=is_told)
            self.subscription = None

    # For the subscription

    def take_woken(self) -> list[SessionPartition]:
        """The partitions that woke the session."""
        with self._lock:
            arrived = self.arrived
            # Others may be added at any time.
            woken = [part for part, is_woken in tuple(arrived.items()) if is_woken]
            for part in woken:
                arrived.pop(part, None)
            return [part for part in woken if self._by_key.get(part.key) is part]

    def news(
        self, parts: Sequence[SessionPartition], outcomes: Sequence[FetchOutcome]
    ) -> tuple[list[FetchOutcome], dict[SessionPartition, Offset]]:
        """The outcomes of these partitions that must be sent, and their ends; they count as under way."""
        news: list[FetchOutcome] = []
        ends: dict[SessionPartition, Offset] = {}
        with self._lock:
            for part, outcome in zip(parts, outcomes, strict=True):
                if part.note(outcome):
                    news.append(outcome)
                    part.sent_end = ends[part] = outcome.read.end_offset
        return news, ends

    def sent(self, outcomes: Sequence[FetchOutcome]) -> dict[SessionPartition, Offset]:
        """Everything up to the ends of these outcomes is under way."""
        with self._lock:
            ends: dict[SessionPartition, Offset] = {}
            for item, read in outcomes:
                part = self._by_key.get(key_of(item))
                if part is not None:
                    part.sent_end = ends[part] = read.end_offset
            return ends

    def unsend(self, parts: Iterable[SessionPartition]) -> None:
        """Have these partitions read again from where the follower is."""
        with self._lock:
            for part in parts:
                part.sent_end = Offset(_UNSENT)
                part.sent_high_watermark = part.sent_log_start_offset = _UNSENT
                self.arrived[part] = True

    def reported(
        self, applied: Mapping[SessionPartition, Offset], ends: Sequence[FollowerEnd]
    ) -> tuple[list[FetchItem], list[SessionPartition]]:
        """Take over the follower's new positions.

        ``applied`` are the ends of the pushes that it has applied. Returns the reported partitions, and those
        that should have been. Raises UnfitProgress for an end that was not pushed.
        """
        with self._lock:
            items = []
            for end in ends:
                part = self._by_key.get(end.partition)
                if part is None or applied.get(part) != end.fetch_offset:
                    raise UnfitProgress(f"{end.partition} is reported at {end.fetch_offset}")
                tp, epoch, _, _, _, max_bytes, topic_id, log_id = part.item
                _, offset, last_epoch, start = end
                item = FetchItem(tp, epoch, offset, last_epoch, start, max_bytes, topic_id, log_id)
                part.item = item
                items.append(item)
            missing = []
            for part, offset in applied.items():
                if part.item.fetch_offset != offset:
                    missing.append(part)
                elif part.sent_end == offset:
                    part.sent_end = Offset(_UNSENT)
            return items, missing

    def close(self) -> None:
        """Remove the session's listeners. A waiting fetch still gets its answer."""
        self._unsubscribe(is_told=True)
        with self._lock:
            self._is_closed = True
            for part in self._by_key.values():
                self._listeners.remove(part)

    def _set(self, item: FetchItem) -> SessionPartition:
        part = self._by_key.get(key_of(item))
        if part is None:
            part = self._by_key[key_of(item)] = SessionPartition(self, item)
            if item.partition.topic:
                self._listeners.add(part)
            else:
                self._nameless[part] = None
        else:
            # The listeners use the name that the topic id had first; the id may be unknown now.
            part.item = item if item.topic_id is None else item._replace(partition=part.item.partition)
        self._active.setdefault(part)
        return part

    def _forget(self, key: SessionKey) -> None:
        part = self._by_key.pop(key, None)
        if part is not None:
            self._active.pop(part, None)
            self.arrived.pop(part, None)
            self._nameless.pop(part, None)
            self._listeners.remove(part)


def _is_drained(outcome: FetchOutcome) -> bool:
    """Whether the next read could find more than this one, without records, only after a change."""
    return not outcome.read.is_urgent and outcome.read.end_offset <= outcome.item.fetch_offset


def not_found(session_id: int) -> Exception:
    return api_error(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {session_id}")


class FetchSessions:
    """The sessions of all followers, or of all consumers. ``wake`` is called when a session has news.

    A follower has one session while it is alive; a peer could invent ids of other followers. Consumers have
    at most ``max_slots`` (``max.incremental.fetch.session.cache.slots``), with ``max_partitions`` in all. If
    there is no room for another session or its partitions, it replaces the least recently used one if that
    is stale (`EVICTION_MS`); else the smallest of the sessions older than that, if that is smaller than the
    new one. Without a session, as with more than `largest` partitions, a fetcher continues with full fetches.
    """

    def __init__(
        self,
        wake: Callable[[FetchSession], object],
        metadata: MetadataCache,
        now_ms: Callable[[], float],
        max_slots: int | None = None,
        max_partitions: int = MAX_SESSION_PARTITIONS,
        new_id: Callable[[], int] = lambda: random.randint(1, _MAX_ID),
    ) -> None:
        """Without ``max_slots`` they are followers'."""
        is_bounded = max_slots is not None
        self.largest = MAX_PARTITIONS_OF_SESSION if is_bounded else MAX_SESSION_PARTITIONS
        self.listeners = PartitionListeners(wake)
        self._metadata = metadata
        self._now_ms = now_ms
        self._max_slots = math.inf if max_slots is None else max_slots
        self._max_partitions = max_partitions if is_bounded else math.inf
        self._new_id = new_id
        self._lock = threading.Lock()
        # The least recently used session comes first.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        # The partitions of each session at its last use, and of all together; also of those being made.
        self._sizes: dict[int, int] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def size_of(self, request: SessionRequest) -> int:
        """About how many partitions a request makes its fetch look at; others may change meanwhile.

        Closing a session takes time for each of its partitions.
        """
        size = len(request.items) + len(request.forgotten)
        session = self._sessions.get(request.session_id)
        if request.epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            return size if session is None else size + session.size
        closed = [] if session is None else [session]
        if request.replica_id > NO_BROKER:
            with self._lock:
                closed = self._ended_by(request.replica_id)
        return size + sum(map(len, closed))

    def items_of(self, request: SessionRequest) -> list[FetchItem]:
        """All partitions of the session that an incremental request continues; changes nothing."""
        session = self._sessions.get(request.session_id)
        if request.epoch in (INITIAL_EPOCH, FINAL_EPOCH) or session is None or session.owner != request.owner:
            return []
        return session.all_items()

    def subscription(self, session_id: int, number: int) -> Subscription | None:
        """The present subscription of a session, if it has this number."""
        session = self._sessions.get(session_id)
        subscription = None if session is None else session.subscription
        return subscription if subscription is not None and subscription.number == number else None

    def begin(self, request: SessionRequest) -> FetchSession | None:
        """The session of an incremental request, updated by it; None for a request without a session.

        Raises the errors of `FetchSession.update`.
        """
        session = self._sessions.get(request.session_id)
        if session is not None and (
            session.owner != request.owner or session.follower not in (NO_BROKER, request.replica_id)
        ):
            # An id that was guessed: it would show names of topics, and end the session.
            session = None
        if request.epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._close(session)
            return None
        if session is None:
            raise not_found(request.session_id)
        session.update(request, self._metadata.current.topic_names)
        if not len(session):
            self._close(session)
            return None
        with self._lock:
            has_grown = self._used(session)
        if has_grown:
            # Its fetcher will not find it, and opens another if there is room.
            self._close(session)
        return session

    def open(self, request: SessionRequest, outcomes: Sequence[FetchOutcome]) -> int:
        """Open a session for a full fetch with these outcomes; its id, or `NO_SESSION` if it gets none.

        A follower's former session is closed, and those of brokers that are gone.
        """
        follower = max(request.replica_id, NO_BROKER)
        now_ms = self._now_ms()
        with self._lock:
            evicted = self._abandoned(follower)
            session_id = self._reserve(follower, len(outcomes), now_ms, evicted)
        for former in evicted:
            former.close()
        if session_id == NO_SESSION:
            return NO_SESSION
        session = FetchSession(
            session_id,
            outcomes,
            self.listeners,
            uses_topic_ids=request.uses_topic_ids,
            follower=follower,
            owner=request.owner,
        )
        session.created_ms = session.last_used_ms = now_ms
        with self._lock:
            # Another full fetch of the follower may have been answered meanwhile.
            evicted = self._abandoned(follower)
            self._sessions[session_id] = session
        for former in evicted:
            former.close()
        return session_id

    # Under the lock

    def _ended_by(self, follower: BrokerId) -> list[FetchSession]:
        """The sessions that end when this follower opens one."""
        if follower == NO_BROKER:
            return []
        alive = self._metadata.current.brokers
        return [
            session
            for session in self._sessions.values()
            if session.follower == follower or session.follower not in alive
        ]

    def _abandoned(self, follower: BrokerId) -> list[FetchSession]:
        """Drop those sessions; the caller closes them without the lock."""
        former = self._ended_by(follower)
        for session in former:
            self._drop(session)
        return former

    def _reserve(self, follower: BrokerId, size: int, now_ms: float, evicted: list[FetchSession]) -> int:
        """The id of a session for which there is room, or `NO_SESSION`; adds those that give way to it."""
        is_gone = follower != NO_BROKER and follower not in self._metadata.current.brokers
        if is_gone or size > min(self._max_partitions, self.largest):
            return NO_SESSION
        while len(self._sizes) >= self._max_slots or self._partitions + size > self._max_partitions:
            session = self._evictable_for(size, now_ms)
            if session is None:
                return NO_SESSION
            self._drop(session)
            evicted.append(session)
        session_id = self._new_id()
        while session_id in self._sizes:
            session_id = self._new_id()
        self._sizes[session_id] = size
        self._partitions += size
        return session_id

    def _used(self, session: FetchSession) -> bool:
        """A session was used and may have another size; returns whether it has grown too much."""
        if session.id not in self._sessions:
            return False
        session.last_used_ms = self._now_ms()
        self._sessions.move_to_end(session.id)
        size = len(session)
        self._partitions += size - self._sizes[session.id]
        self._sizes[session.id] = size
        return self._partitions > self._max_partitions or size > self.largest

    def _evictable_for(self, size: int, now_ms: float) -> FetchSession | None:
        """The session that gives way to a new one of that size."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and now_ms - oldest.last_used_ms > EVICTION_MS:
            return oldest
        # No index of sizes: a lookup for a new session in a full cache takes time for each session.
        settled = [one for one in self._sessions.values() if one.last_used_ms - one.created_ms > EVICTION_MS]
        smallest = min(settled, key=lambda one: self._sizes[one.id], default=None)
        return smallest if smallest is not None and self._sizes[smallest.id] < size else None

    def _drop(self, session: FetchSession) -> None:
        """Remove a session; it is closed without the lock."""
        if self._sessions.pop(session.id, None) is not None:
            self._partitions -= self._sizes.pop(session.id)

    # Without it

    def _close(self, session: FetchSession) -> None:
        with self._lock:
            self._drop(session)
        session.close()
