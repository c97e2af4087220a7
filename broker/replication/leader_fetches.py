"""The fetch protocol of a follower towards one leader: requests, answers and retries.

- Its fetches form a session at the leader (`followed`), so requests and answers carry only changes.
- Every fetch carries the follower's leader epoch. An answer is applied only while the follower is still in
  that epoch, so an answer that the controller overtakes is dropped.
- It also carries the epoch of the follower's last record. A leader with another history answers with the
  point of divergence, and the follower truncates there (KIP-101, KIP-279, in the form of KIP-595): never to a
  mere high watermark, and without a separate request.

No socket, no loop and no clock: `LeaderFetcher` drives this on the fetchers' thread, the simulation step by
step. Times are arguments, in seconds of one clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import UnexpectedAppendOffset
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.replication.followed import Followed, FollowedPartitions, NextFetch
from barnabas.broker.replication.following import apply_answer
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import (
    ApiError,
    ConnectionClosed,
    ConnectionRefused,
    ErrorCode,
    LocalError,
)
from barnabas.protocol.fetch_epochs import FINAL_EPOCH, NO_SESSION
from barnabas.protocol.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId, LeaderEpoch, TopicPartition
from barnabas.protocol.messages.fetch import FetchPartitionResponse, FetchRequest, FetchResponse

logger = logging.getLogger(__name__)

_FIRST_RETRY_MS: Final = 10.0
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


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """The ``replica.fetch.*`` settings."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    response_max_bytes: int
    backoff_ms: int
    socket_timeout_ms: int
    refresh_ms: float = 1_000.0
    """A fetch names each partition at least this often, so that its leader sees that it is caught up."""


class NextRequest(NamedTuple):
    """The request to send. If None: wait until the followed partitions change, or for ``pause_s``."""

    request: FetchRequest | None
    pause_s: float | None = None


class Failed(NamedTuple):
    """The pause after a failed fetch, and the delay until `end_suspicion` is due (0.0: never)."""

    pause_s: float
    suspected_s: float = 0.0


class LeaderFetches:
    """The fetches of all partitions that this broker follows at one leader; one at a time."""

    def __init__(
        self,
        broker_id: BrokerId,
        leader: BrokerId,
        settings: FetcherSettings,
        metadata: MetadataCache,
        *,
        broker_epoch: Callable[[], BrokerEpoch],
        note_error: Callable[[ApiError], None],
        fail: Fail | None = None,
    ) -> None:
        """``note_error`` receives failed appends, since the disk may be the cause.

        ``fail`` puts a follower out of service after an unforeseen error; without it the error is raised.
        """
        self.leader = leader
        self.followed = FollowedPartitions(settings.refresh_ms, settings.backoff_ms)
        self._broker_id = broker_id
        self._settings = settings
        self._metadata = metadata
        self._current_broker_epoch = broker_epoch
        self._note_error = note_error
        self._fail = fail
        # Whether the loss of the connection has been logged.
        self._is_lost = False
        # Whether the leader's port has refused a connection since its last answer.
        self._is_refused = False
        self._broker_epoch = NO_BROKER_EPOCH
        self._unflushed: list[Log] = []

    # Requests.

    def next_request(self, now: float) -> NextRequest:
        """The next fetch; the caller must send it."""
        broker_epoch = self._current_broker_epoch()
        if broker_epoch != self._broker_epoch:
            # The leader's state of every partition is of another registration.
            self._broker_epoch = broker_epoch
            self.followed.begin_anew()
        asked = self.followed.next_fetch(now)
        pause_s = asked.next_retry - now if asked.next_retry else None
        if asked.is_empty:
            return NextRequest(None, pause_s)
        wait_ms = self._settings.max_wait_ms
        if pause_s is not None:
            wait_ms = max(0, min(wait_ms, int(pause_s * 1000)))
        return NextRequest(self._request(asked, wait_ms))

    def nudge(self) -> FetchRequest:
        """An empty fetch outside the session: it makes the leader answer the waiting fetch at once."""
        return self._request(NextFetch(NO_SESSION, FINAL_EPOCH, {}, [], 0.0), 0)

    def _request(self, asked: NextFetch, wait_ms: int) -> FetchRequest:
        return FetchRequest(
            replica_id=self._broker_id,
            replica_epoch=self._broker_epoch,
            max_wait_ms=wait_ms,
            min_bytes=self._settings.min_bytes,
            max_bytes=self._settings.response_max_bytes,
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            topics=asked.topics(self._settings.max_bytes),
            forgotten_topics_data=asked.forgotten_topics(),
        )

    # Answers.

    def answered(self, response: FetchResponse, now: float, wall_clock_ms: int) -> float:
        """Apply an answer; returns how many seconds to wait before the next fetch."""
        self._is_lost = self._is_refused = False
        self._metadata.trust(self.leader)
        if response.error_code in _SESSION_ERRORS:
            logger.debug("broker %d does not know the session: error %d", self.leader, response.error_code)
            self.followed.begin_anew()
            return 0.0
        if response.error_code != ErrorCode.NONE:
            logger.warning("broker %d refuses fetches: error %d", self.leader, response.error_code)
            self.followed.begin_anew()
            return self._settings.backoff_ms / 1000
        self.followed.answered(response.session_id)
        for topic in response.responses:
            for data in topic.partitions:
                name = TopicPartition(topic.topic, data.partition_index)
                followed = self.followed.asked(name)
                if followed is not None:
                    self._apply(name, followed, data, now, wall_clock_ms)
        return 0.0

    def take_unflushed(self) -> list[Log]:
        """The logs that `flush.messages` wants on disk before the next fetch reports their end."""
        taken, self._unflushed = self._unflushed, []
        return taken

    def failed(self, error: LocalError) -> Failed:
        """No answer came: the next fetch begins a new session."""
        self.followed.begin_anew()
        if not isinstance(error, ConnectionClosed):
            logger.warning("fetching from broker %d: %s", self.leader, error)
            return Failed(0.0)
        if isinstance(error, ConnectionRefused):
            if self.leader not in self._metadata.suspects:
                logger.warning("broker %d refuses connections: %s", self.leader, error)
            self._is_refused = True
            self._metadata.suspect(self.leader)
            return Failed(_FIRST_RETRY_MS / 1000)
        if isinstance(error.__cause__, OSError):
            logger.warning("fetching from broker %d: %s", self.leader, error)
            return Failed(self._settings.backoff_ms / 1000)
        # The connection was lost just now, or the back-off has not passed; the next attempt decides.
        logger.log(
            logging.DEBUG if self._is_lost else logging.INFO,
            "fetching from broker %d: %s",
            self.leader,
            error,
        )
        if self._is_lost:
            return Failed(_FIRST_RETRY_MS / 1000)
        # Metadata omits the leader until the next attempt, or for a while. A client that lost the same broker
        # now sends one Metadata request at once; an answer with the old leader would cost it seconds.
        self._is_lost = True
        self._metadata.suspect(self.leader)
        return Failed(_FIRST_RETRY_MS / 1000, _SUSPECTED_S)

    def end_suspicion(self) -> None:
        """Trust the leader again, unless its port refuses connections."""
        if not self._is_refused:
            self._metadata.trust(self.leader)

    def _apply(
        self,
        name: TopicPartition,
        followed: Followed,
        data: FetchPartitionResponse,
        now: float,
        wall_clock_ms: int,
    ) -> None:
        try:
            apply_answer(followed.partition, followed.leader_epoch, data, wall_clock_ms=wall_clock_ms)
        except ApiError as error:
            self._note_error(error)
            self._rest(name, followed, error.code, now, str(error))
        except UnexpectedAppendOffset as error:
            # The log has changed meanwhile; the next fetch begins at its present end.
            self._rest(name, followed, ErrorCode.OFFSET_OUT_OF_RANGE, now, str(error))
        except Exception as error:
            if self._fail is None:
                raise
            # The next fetch would fail in the same way, so the other partitions continue without this one.
            self.followed.remove(name)
            self._fail(followed.partition, followed.leader_epoch, error)
        else:
            self.followed.applied(name, followed)
            if followed.partition.log.must_flush:
                self._unflushed.append(followed.partition.log)

    def _rest(self, name: TopicPartition, followed: Followed, code: ErrorCode, now: float, why: str) -> None:
        """Omit a partition from the fetches for a while, twice as long each time."""
        rests_ms = self.followed.failed(name, followed, now)
        # Warn once, before the delay reaches its maximum, because changes of leadership are shorter.
        is_quiet = code in _QUIET_ERRORS and not rests_ms < self._settings.backoff_ms <= 2 * rests_ms
        level = logging.DEBUG if is_quiet else logging.WARNING
        logger.log(
            level, "%s from broker %d: %s %s; retry in %.0f ms", name, self.leader, code.name, why, rests_ms
        )
