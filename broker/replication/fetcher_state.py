"""The fetch protocol of a follower towards one leader: requests, answers and retries.

- The fetches form a session at the leader (KIP-227). The first names every partition. Later ones name the
  partitions that have changed here, and each partition once in ``refresh_ms``: this shows the leader that it
  is still caught up, and repairs anything that one side missed.
- Every fetch carries the follower's leader epoch. An answer is applied only while the follower is still in
  that epoch, so an answer that the controller overtakes is dropped.
- It also carries the epoch of the follower's last record. A leader with another history answers with the
  point of divergence, and the follower truncates there (KIP-101, KIP-279, in the form of KIP-595): never to a
  mere high watermark, and without a separate request.
- A partition that failed pauses, twice as long each time. It leaves the session meanwhile, because the leader
  would answer at once otherwise.

No socket, no loop and no clock: `ReplicaFetcher` drives this on the fetchers' thread, the simulation step by
step. Times are arguments, in seconds of one clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from barnabas.broker.base.topic_metrics import Traffic
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import UnexpectedAppendOffset
from barnabas.broker.replication.fetched_answer import apply_answer
from barnabas.broker.replication.partition import FollowerPosition, Partition
from barnabas.broker.replication.replication_quota import ReplicationQuota
from barnabas.common.backoff import Pause
from barnabas.protocol.errors import (
    ApiError,
    ConnectionClosed,
    ConnectionRefused,
    ErrorCode,
    LocalError,
)
from barnabas.protocol.ids import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages import fetch as wire
from barnabas.protocol.partition_entries import numbers_in_topics

logger = logging.getLogger(__name__)

_FIRST_RETRY_S: Final = 0.01
_NO_PAUSE: Final = Pause()
REFRESHES: Final = 4
"""A follower names an idle partition this often within ``replica.lag.time.max.ms``, so that its leader sees
that it is caught up."""
_SUSPECTED_S: Final = 1.0
"""How long a leader is suspect after a lost connection, unless it answers or refuses earlier."""
_SESSION_ERRORS: Final = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)
_QUIET_ERRORS: Final = frozenset(
    {
        # Usual during a change of leadership, until both brokers know it.
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

Fail = Callable[[Partition, LeaderEpoch, Exception], None]


# The partitions and what the next fetch names


class FollowedPartition:
    """One partition and the leader epoch in which it is followed."""

    __slots__ = ("lag", "leader_epoch", "partition", "pause", "sent", "sent_at")

    def __init__(self, partition: Partition, leader_epoch: LeaderEpoch) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.lag = 0
        """Records below the leader's high watermark that were missing here after the last answer."""
        self.sent: FollowerPosition | None = None
        self.sent_at = 0.0
        self.pause = _NO_PAUSE


class NextFetch(NamedTuple):
    """The content of one fetch; ``next_retry`` is when the next pausing partition is due, or 0.0."""

    session_id: int
    epoch: int
    included: dict[TopicPartition, FollowerPosition]
    forgotten: list[TopicPartition]
    next_retry: float

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to fetch; a session always has partitions."""
        return self.session_id == wire.NO_SESSION and not self.included

    def topics(self, partition_max_bytes: int) -> list[wire.FetchTopic]:
        topics: dict[tuple[str, TopicId], list[wire.FetchPartition]] = {}
        for tp, position in self.included.items():
            topics.setdefault((tp.topic, position.topic_id), []).append(
                wire.FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.log_end_offset,
                    last_fetched_epoch=position.last_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=partition_max_bytes,
                )
            )
        return [
            wire.FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)
            for (topic, topic_id), partitions in topics.items()
        ]

    def forgotten_topics(self) -> list[wire.ForgottenTopic]:
        return numbers_in_topics(wire.ForgottenTopic, self.forgotten)


class FollowedPartitions:
    """All partitions that one fetcher follows at its leader, and its side of the fetch session."""

    def __init__(self, refresh_ms: float, backoff_ms: float) -> None:
        """``backoff_ms`` is the longest pause of a partition."""
        self._refresh_s = refresh_ms / 1000
        self._backoff_s = backoff_ms / 1000
        self._followed: dict[TopicPartition, FollowedPartition] = {}
        self._session_id = wire.NO_SESSION
        self._epoch = wire.INITIAL_EPOCH
        # The partitions of the session after the last fetch, in the order in which they were last included.
        self._in_session: dict[TopicPartition, FollowedPartition] = {}
        self._changed: dict[TopicPartition, None] = {}
        # The leader's session must forget these, even if the same fetch names them again.
        self._dropped: list[TopicPartition] = []
        self._pausing: dict[TopicPartition, FollowedPartition] = {}

    def __getitem__(self, tp: TopicPartition) -> FollowedPartition:
        return self._followed[tp]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(tuple(self._followed))

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def max_lag(self) -> int:
        """The largest lag of a partition. Any thread."""
        return max((followed.lag for followed in list(self._followed.values())), default=0)

    def add(self, tp: TopicPartition, followed: FollowedPartition) -> None:
        """Follow a partition, perhaps again in another leader epoch."""
        self._followed[tp] = followed
        self._pausing.pop(tp, None)
        self._changed[tp] = None

    def remove(self, tp: TopicPartition) -> None:
        self._followed.pop(tp, None)
        self._pausing.pop(tp, None)
        self._changed[tp] = None

    def reset(self) -> None:
        """The session is lost: the next fetch names everything."""
        self._session_id, self._epoch = wire.NO_SESSION, wire.INITIAL_EPOCH

    def next_fetch(self, now: float) -> NextFetch:
        """The next fetch, which the caller must send: the leader's session is assumed to have it."""
        for tp in [tp for tp, pausing in self._pausing.items() if pausing.pause.until <= now]:
            del self._pausing[tp]
            self._changed[tp] = None
        next_retry = min((pausing.pause.until for pausing in self._pausing.values()), default=0.0)
        if self._session_id == wire.NO_SESSION:
            self._in_session, self._dropped = {}, []
            candidates: Iterable[TopicPartition] = self._followed
        else:
            candidates = self._changed | dict.fromkeys(self._stale(now))
        self._changed = {}
        included: dict[TopicPartition, FollowerPosition] = {}
        for tp in candidates:
            followed = self._followed.get(tp)
            if self._in_session.get(tp) is not followed:
                # Also for a partition that was added again: earlier answers about it were not applied.
                self._drop(tp)
            if followed is not None and tp not in self._pausing:
                self._include(tp, followed, now, included)
        forgotten, self._dropped = self._dropped, []
        if not self._in_session:
            # The leader drops its session at the next fetch.
            self.reset()
            return NextFetch(wire.NO_SESSION, wire.INITIAL_EPOCH, {}, [], next_retry)
        fetch = NextFetch(self._session_id, self._epoch, included, forgotten, next_retry)
        if self._session_id != wire.NO_SESSION:
            self._epoch = wire.next_epoch(self._epoch)
        return fetch

    def _stale(self, now: float) -> list[TopicPartition]:
        """The partitions of the session that were not included for ``refresh_ms``; they come first."""
        stale = []
        for tp, followed in self._in_session.items():
            if now - followed.sent_at < self._refresh_s:
                break
            stale.append(tp)
        return stale

    def _include(
        self,
        tp: TopicPartition,
        followed: FollowedPartition,
        now: float,
        included: dict[TopicPartition, FollowerPosition],
    ) -> None:
        try:
            position = followed.partition.follower_position(followed.leader_epoch)
        except ApiError:
            # The controller has given it another role; the order to unfollow is on its way here.
            self._changed[tp] = None
            return
        is_in_session = self._in_session.get(tp) is followed
        if is_in_session and position == followed.sent and now - followed.sent_at < self._refresh_s:
            return
        self._in_session.pop(tp, None)
        self._in_session[tp] = followed
        followed.sent, followed.sent_at = position, now
        included[tp] = position

    def progress(self, applied: Iterable[TopicPartition], now: float) -> list[wire.FollowerTopicProgress]:
        """The changed positions of these partitions, which the caller must report."""
        included: dict[TopicPartition, FollowerPosition] = {}
        for tp in applied:
            followed = self.fetched(tp)
            if followed is not None:
                self._include(tp, followed, now, included)
        topics: dict[str, list[wire.FollowerPartitionProgress]] = {}
        for tp, position in included.items():
            topics.setdefault(tp.topic, []).append(
                wire.FollowerPartitionProgress(
                    partition=tp.partition,
                    fetch_offset=position.log_end_offset,
                    last_fetched_epoch=position.last_epoch,
                    log_start_offset=position.log_start_offset,
                )
            )
        return [
            wire.FollowerTopicProgress(topic=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ]

    @property
    def has_dropped(self) -> bool:
        """Whether the next fetch must tell the leader that a partition was not applied."""
        return bool(self._dropped)

    def opened(self, session_id: int) -> None:
        """The leader has answered, in this session."""
        if self._session_id == wire.NO_SESSION and session_id != wire.NO_SESSION:
            self._session_id, self._epoch = session_id, wire.next_epoch(wire.INITIAL_EPOCH)

    def fetched(self, tp: TopicPartition) -> FollowedPartition | None:
        """The partition that an answer concerns; None if it was removed or added again since the request."""
        followed = self._in_session.get(tp)
        return followed if followed is not None and self._followed.get(tp) is followed else None

    def applied(self, tp: TopicPartition, followed: FollowedPartition) -> None:
        followed.pause = _NO_PAUSE
        self._changed[tp] = None

    def failed(self, tp: TopicPartition, followed: FollowedPartition, now: float) -> float:
        """An answer was an error, or could not be applied; returns the pause in milliseconds."""
        followed.pause = followed.pause.after(now, _FIRST_RETRY_S, self._backoff_s)
        self.pause(tp, followed, followed.pause.until)
        return followed.pause.length * 1000

    def pause(self, tp: TopicPartition, followed: FollowedPartition, until: float) -> None:
        """Do not fetch a partition before this time."""
        followed.pause = followed.pause._replace(until=until)
        self._pausing[tp] = followed
        self._drop(tp)

    def _drop(self, tp: TopicPartition) -> None:
        """Have the leader send a partition's records again, because they were not applied."""
        if self._in_session.pop(tp, None) is not None:
            self._dropped.append(tp)


# The exchange with the leader


class NextRequest(NamedTuple):
    """The request to send. If None: wait until the followed partitions change, or for ``pause_s``."""

    request: wire.FetchRequest | None
    pause_s: float | None = None


class Failed(NamedTuple):
    """The pause after a failed fetch, and the delay until `end_suspicion` is due (0.0: never)."""

    pause_s: float
    suspected_s: float = 0.0


class LeaderFetches:
    """The fetches of all partitions that this broker follows at one leader; one at a time."""

    def __init__(
        self,
        config: BrokerConfig,
        leader: BrokerId,
        metadata: MetadataCache,
        *,
        broker_epoch: Callable[[], BrokerEpoch],
        note_error: Callable[[ApiError], None],
        fail: Fail | None = None,
        traffic: Traffic | None = None,
        quota: ReplicationQuota | None = None,
        subscribes: bool = True,
    ) -> None:
        """``note_error`` receives failed appends, since the disk may be the cause.

        ``fail`` puts a follower out of service after an unforeseen error; without it the error is raised.
        ``subscribes``: it takes pushes.
        """
        self.leader = leader
        self._backoff_ms = config.replica_fetch_backoff_ms
        self.followed = FollowedPartitions(config.replica_lag_time_max_ms / REFRESHES, self._backoff_ms)
        self.broker_id = config.broker_id
        self._config = config
        self._metadata = metadata
        self._current_broker_epoch = broker_epoch
        self.note_error = note_error
        self._fail = fail
        self._traffic = Traffic() if traffic is None else traffic
        self._quota = quota
        self._subscribes = subscribes
        # Whether the loss of the connection has been logged.
        self._is_lost = False
        # Whether the leader's port has refused a connection since its last answer.
        self._is_refused = False
        self._broker_epoch = NO_BROKER_EPOCH
        self._unflushed: list[Log] = []
        self._moved: list[TopicPartition] = []
        self._subscription = wire.NO_SUBSCRIPTION
        self._push_number = 0
        # Of the answer and the pushes that are not reported yet.
        self._applied: dict[TopicPartition, None] = {}

    @property
    def is_subscribed(self) -> bool:
        """Whether the leader pushes, so that the next fetch may wait."""
        return self._subscription != wire.NO_SUBSCRIPTION

    def next_request(self, now: float) -> NextRequest:
        """The next fetch; the caller must send it. It ends a subscription."""
        self.unsubscribe()
        broker_epoch = self._current_broker_epoch()
        if broker_epoch != self._broker_epoch:
            # The leader's state of every partition is of another registration.
            self._broker_epoch = broker_epoch
            self.followed.reset()
        fetch = self.followed.next_fetch(now)
        pause_s = fetch.next_retry - now if fetch.next_retry else None
        if fetch.is_empty:
            return NextRequest(None, pause_s)
        wait_ms = self._config.replica_fetch_wait_max_ms
        if pause_s is not None:
            wait_ms = max(0, min(wait_ms, int(pause_s * 1000)))
        return NextRequest(self._request(fetch, wait_ms))

    def nudge(self) -> wire.FetchRequest:
        """An empty fetch outside the session: it makes the leader answer the waiting fetch at once."""
        return self._request(NextFetch(wire.NO_SESSION, wire.FINAL_EPOCH, {}, [], 0.0), 0)

    def _request(self, fetch: NextFetch, wait_ms: int) -> wire.FetchRequest:
        return wire.FetchRequest(
            replica_id=self.broker_id,
            replica_epoch=self._broker_epoch,
            max_wait_ms=wait_ms,
            min_bytes=self._config.replica_fetch_min_bytes,
            max_bytes=self._config.replica_fetch_response_max_bytes,
            session_id=fetch.session_id,
            session_epoch=fetch.epoch,
            topics=fetch.topics(self._config.replica_fetch_max_bytes),
            forgotten_topics_data=fetch.forgotten_topics(),
            subscribes=self._subscribes and fetch.session_id != wire.NO_SESSION,
        )

    def unsubscribe(self) -> None:
        self._subscription = wire.NO_SUBSCRIPTION
        self._applied = {}

    def answered(self, response: wire.FetchResponse, now: float, wall_clock_ms: int) -> float:
        """Apply an answer; returns how many seconds to wait before the next fetch."""
        self._is_lost = self._is_refused = False
        self._metadata.trust(self.leader)
        if response.error_code in _SESSION_ERRORS:
            logger.debug("broker %d does not know the session: error %d", self.leader, response.error_code)
            self.followed.reset()
            return 0.0
        if response.error_code != ErrorCode.NONE:
            logger.warning("broker %d refuses fetches: error %d", self.leader, response.error_code)
            self.followed.reset()
            return self._backoff_ms / 1000
        self.followed.opened(response.session_id)
        self._subscription, self._push_number = response.subscription, 0
        self._apply_all(response, now, wall_clock_ms)
        return 0.0

    def pushed(self, response: wire.FetchResponse, now: float, wall_clock_ms: int) -> None:
        """Apply a push. The last push of a subscription, or one after a gap, ends it."""
        if not self.is_subscribed or response.subscription != self._subscription:
            return
        if response.error_code or not response.responses or response.push_number != self._push_number + 1:
            self.unsubscribe()
            return
        self._push_number = response.push_number
        self._apply_all(response, now, wall_clock_ms)

    def progress(self, now: float) -> wire.FetchProgressRequest | None:
        """The report of what was applied; the caller must send it.

        None if there is nothing to report, or if only a fetch can tell it: then the subscription has ended.
        """
        if not self._applied:
            return None
        if self._unflushed or self.followed.has_dropped or self._current_broker_epoch() != self._broker_epoch:
            self.unsubscribe()
            return None
        applied, self._applied = self._applied, {}
        return wire.FetchProgressRequest(
            session_id=self.followed.session_id,
            subscription=self._subscription,
            push_number=self._push_number,
            topics=self.followed.progress(applied, now),
        )

    def _apply_all(self, response: wire.FetchResponse, now: float, wall_clock_ms: int) -> None:
        is_subscribed = self.is_subscribed
        for topic in response.responses:
            for data in topic.partitions:
                tp = TopicPartition(topic.topic, data.partition_index)
                followed = self.followed.fetched(tp)
                if followed is not None and self._fits(tp, followed, response, data, now):
                    self._apply(tp, followed, data, now, wall_clock_ms)
                if is_subscribed:
                    self._applied[tp] = None

    def _fits(
        self,
        tp: TopicPartition,
        followed: FollowedPartition,
        response: wire.FetchResponse,
        data: wire.FetchPartitionResponse,
        now: float,
    ) -> bool:
        """Whether a push continues the log: a compacted log has gaps, so its records alone do not show it."""
        if response.push_number == 0 or data.fetch_offset == followed.partition.log_end_offset:
            return True
        why = f"a push continues {data.fetch_offset}, not {followed.partition.log_end_offset}"
        self._pause(tp, followed, ErrorCode.OFFSET_OUT_OF_RANGE, now, why)
        return False

    def take_unflushed(self) -> list[Log]:
        """The logs that `flush.messages` wants on disk before the next fetch reports their end."""
        taken, self._unflushed = self._unflushed, []
        return taken

    def take_moved(self) -> list[TopicPartition]:
        """The partitions whose high watermark has moved; consumers may wait for it."""
        taken, self._moved = self._moved, []
        return taken

    def failed(self, error: LocalError) -> Failed:
        """No answer came, or no push can come: the next fetch begins a new session."""
        self.unsubscribe()
        self.followed.reset()
        if not isinstance(error, ConnectionClosed):
            logger.warning("fetching from broker %d: %s", self.leader, error)
            return Failed(0.0)
        if isinstance(error, ConnectionRefused):
            if self.leader not in self._metadata.suspects:
                logger.warning("broker %d refuses connections: %s", self.leader, error)
            self._is_refused = True
            self._metadata.suspect(self.leader)
            return Failed(_FIRST_RETRY_S)
        if isinstance(error.__cause__, OSError):
            logger.warning("fetching from broker %d: %s", self.leader, error)
            return Failed(self._backoff_ms / 1000)
        # The connection was lost just now, or the back-off has not passed; the next attempt decides.
        level = logging.DEBUG if self._is_lost else logging.INFO
        logger.log(level, "fetching from broker %d: %s", self.leader, error)
        if self._is_lost:
            return Failed(_FIRST_RETRY_S)
        # Metadata omits the leader until the next attempt, or for a while. A client that lost the same broker
        # now sends one Metadata request at once; an answer with the old leader would cost it seconds.
        self._is_lost = True
        self._metadata.suspect(self.leader)
        return Failed(_FIRST_RETRY_S, _SUSPECTED_S)

    def end_suspicion(self) -> None:
        """Trust the leader again, unless its port refuses connections."""
        if not self._is_refused:
            self._metadata.end_suspicion(self.leader)

    def _apply(
        self,
        tp: TopicPartition,
        followed: FollowedPartition,
        data: wire.FetchPartitionResponse,
        now: float,
        wall_clock_ms: int,
    ) -> None:
        high_watermark = followed.partition.high_watermark
        try:
            apply_answer(followed.partition, followed.leader_epoch, data, wall_clock_ms=wall_clock_ms)
        except ApiError as error:
            self.note_error(error)
            self._pause(tp, followed, error.code, now, str(error))
        except UnexpectedAppendOffset as error:
            # The log has changed meanwhile; the next fetch begins at its present end.
            self._pause(tp, followed, ErrorCode.OFFSET_OUT_OF_RANGE, now, str(error))
        except Exception as error:
            if self._fail is None:
                raise
            # The next fetch would fail in the same way, so the other partitions continue without this one.
            self.followed.remove(tp)
            self._fail(followed.partition, followed.leader_epoch, error)
        else:
            size_bytes = 0 if data.records is None else len(data.records)
            self._traffic.replication_bytes_in += size_bytes
            if followed.partition.is_added:
                self._traffic.reassignment_bytes_in += size_bytes
            followed.lag = max(0, data.high_watermark - followed.partition.log_end_offset)
            self.followed.applied(tp, followed)
            wait_s = 0.0 if self._quota is None else self._quota.note(tp, size_bytes)
            if wait_s and followed.lag:
                self.followed.pause(tp, followed, now + wait_s)
            if followed.partition.high_watermark != high_watermark:
                self._moved.append(tp)
            if followed.partition.log.must_flush:
                self._unflushed.append(followed.partition.log)

    def _pause(
        self, tp: TopicPartition, followed: FollowedPartition, code: ErrorCode, now: float, why: str
    ) -> None:
        """Omit a partition from the fetches for a while, twice as long each time."""
        pause_ms = self.followed.failed(tp, followed, now)
        # Warn once, before the delay reaches its maximum, because changes of leadership are shorter.
        is_quiet = code in _QUIET_ERRORS and not pause_ms < self._backoff_ms <= 2 * pause_ms
        level = logging.DEBUG if is_quiet else logging.WARNING
        logger.log(
            level, "%s from broker %d: %s %s; retry in %.0f ms", tp, self.leader, code.name, why, pause_ms
        )
