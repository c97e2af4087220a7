"""Following: copies what the leaders have into this broker's followers.

One thread with one event loop runs all fetchers, one per leader with one connection each, however many
partitions it follows there. A fetcher has one fetch in flight, long-polled at the leader; what comes back is
appended before the next fetch says so, which is how the leader learns how far this follower is.

- Its fetches form a session at the leader (`followed`), so that they name and tell only what is new.
- Every fetch carries the leader epoch it is meant for; what comes back is applied only while the follower is
  still at that epoch, so an answer that is overtaken by the controller is dropped.
- It also carries the epoch of the follower's last record. A leader whose history is another answers with
  where they part, and the follower cuts there (KIP-101, KIP-279, in the form of KIP-595): never to a mere
  high watermark, and without a request of its own.
- When the set of partitions changes, an empty fetch has the leader answer the waiting one at once.
- A leader whose connection is lost, or whose port refuses, is reported to the metadata cache as suspect, and
  trusted when it answers again; for a loss alone also after a while.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import uvloop

from barnabas.broker.clocks import wall_clock_ms
from barnabas.broker.log.storage_errors import UnexpectedAppendOffset
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.replication.followed import Followed, FollowedPartitions, NextFetch
from barnabas.broker.replication.following import apply_answer
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.channel import Answer, Channel
from barnabas.protocol.errors import (
    ApiError,
    ConnectionClosed,
    ConnectionRefused,
    ErrorCode,
    LocalError,
)
from barnabas.protocol.fetch_epochs import FINAL_EPOCH, NO_SESSION
from barnabas.protocol.frames import BufferPool
from barnabas.protocol.ids import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    Endpoint,
    LeaderEpoch,
    TopicPartition,
)
from barnabas.protocol.messages.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
)

logger = logging.getLogger(__name__)

_FIRST_RETRY_MS: Final = 10.0
_SUSPECTED_S: Final = 1.0
"""How long a leader whose connection was lost is suspected, unless it answers or refuses before."""
_SESSION_ERRORS: Final = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)
_QUIET_ERRORS: Final = frozenset(
    {
        # What a change of leadership looks like until both sides have heard of it.
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class FollowedLeader(NamedTuple):
    """Whom to follow; without an endpoint there is nobody to fetch from just now."""

    broker_id: BrokerId
    endpoint: Endpoint | None
    leader_epoch: LeaderEpoch


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
    """How often a partition is named at the least, for its leader to see that it is caught up."""


class FetcherManager:
    """The thread, its loop, and a fetcher per leader. `follow` and `unfollow` may be called on any thread."""

    def __init__(
        self,
        broker_id: BrokerId,
        partition_of: Callable[[TopicPartition], Partition],
        metadata: MetadataCache,
        settings: FetcherSettings,
        *,
        broker_epoch: Callable[[], BrokerEpoch],
        note_error: Callable[[ApiError], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """``note_error`` hears of what could not be appended, for it may be the disk."""
        self.broker_id = broker_id
        self.settings = settings
        self.metadata = metadata
        self.broker_epoch = broker_epoch
        self.note_error = note_error
        self.pool = BufferPool()
        self._partition_of = partition_of
        self._on_fatal = on_fatal
        self._fetchers: dict[BrokerId, LeaderFetcher] = {}
        self._leader_of: dict[TopicPartition, BrokerId] = {}
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="replica-fetchers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_s)

    def follow(self, leaders: Mapping[TopicPartition, FollowedLeader]) -> None:
        """Fetch these partitions from these leaders from now on."""
        if leaders:
            self._on_loop(self._follow, dict(leaders))

    def unfollow(self, names: Iterable[TopicPartition]) -> None:
        """Fetch these partitions no longer. An answer under way is fenced by the partition itself."""
        found = list(names)
        if found:
            self._on_loop(self._unfollow, found)

    def _on_loop(self, change: Callable[[Any], None], what: Any) -> None:
        def run() -> None:
            try:
                change(what)
            except Exception as error:
                # The loop would only log it, and some partitions would never be fetched again.
                logger.critical("the fetchers could not be changed", exc_info=True)
                self._on_fatal(error)

        self._loop.call_soon_threadsafe(run)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a fetcher's work; if it fails the broker goes down, for its followers would stand still."""
        task = self._loop.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.critical("a replica fetcher died", exc_info=error)
            self._on_fatal(error)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            for fetcher in self._fetchers.values():
                fetcher.close()
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            self._loop.close()
        except BaseException as error:
            logger.critical("the thread of the replica fetchers died", exc_info=True)
            self._on_fatal(error)

    def _follow(self, leaders: dict[TopicPartition, FollowedLeader]) -> None:
        self._unfollow([name for name in leaders if name in self._leader_of])
        for name, leader in leaders.items():
            if leader.endpoint is None:
                continue
            fetcher = self._fetchers.get(leader.broker_id)
            if fetcher is not None and fetcher.endpoint != leader.endpoint:
                self._drop(fetcher)
                fetcher = None
            if fetcher is None:
                fetcher = LeaderFetcher(self, leader.broker_id, leader.endpoint)
                self._fetchers[leader.broker_id] = fetcher
            try:
                partition = self._partition_of(name)
            except ApiError:
                continue
            self._leader_of[name] = leader.broker_id
            fetcher.add(name, Followed(partition, leader.leader_epoch))

    def _unfollow(self, names: Iterable[TopicPartition]) -> None:
        for name in names:
            leader = self._leader_of.pop(name, None)
            if leader is not None:
                fetcher = self._fetchers[leader]
                fetcher.remove(name)
                if not fetcher.followed:
                    self._drop(fetcher)

    def _drop(self, fetcher: LeaderFetcher) -> None:
        for name in fetcher.followed:
            self._leader_of.pop(name, None)
        fetcher.close()
        del self._fetchers[fetcher.leader]


class LeaderFetcher:
    """Fetches all that this broker follows at one leader. Lives on the manager's loop."""

    def __init__(self, manager: FetcherManager, leader: BrokerId, endpoint: Endpoint) -> None:
        self.leader = leader
        self.endpoint = endpoint
        self._manager = manager
        self._settings = manager.settings
        self.followed = FollowedPartitions(self._settings.refresh_ms, self._settings.backoff_ms)
        self._channel = Channel(
            endpoint,
            client_id=f"broker-{manager.broker_id}-fetcher",
            request_timeout_ms=self._settings.socket_timeout_ms,
            pool=manager.pool,
        )
        self._changed = asyncio.Event()
        # Whether the loss of the connection has been said; once is enough.
        self._is_lost = False
        # Whether its port refused since it last answered.
        self._is_refused = False
        self._is_waiting = False
        self._broker_epoch = NO_BROKER_EPOCH
        self._nudge: asyncio.Task[None] | None = None
        self._task = manager.spawn(self._run())

    def add(self, name: TopicPartition, followed: Followed) -> None:
        self.followed.add(name, followed)
        self._note_change()

    def remove(self, name: TopicPartition) -> None:
        self.followed.remove(name)

    def close(self) -> None:
        self._task.cancel()
        if self._nudge is not None:
            self._nudge.cancel()
        self._channel.close("no longer followed")

    def _note_change(self) -> None:
        self._changed.set()
        if self._is_waiting and self._nudge is None:
            self._nudge = self._manager.spawn(self._send_nudge())

    async def _send_nudge(self) -> None:
        """Have the leader answer the waiting fetch, by an empty one outside of the session."""
        try:
            await self._channel.request(self._request(NextFetch(NO_SESSION, FINAL_EPOCH, {}, [], 0.0), 0))
        except LocalError:
            # The waiting fetch fails with it, and that one's failure is handled.
            logger.debug("no answer to a nudge of broker %d", self.leader)
        finally:
            self._nudge = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            now = loop.time()
            asked = self._next_fetch(now)
            next_retry = asked.next_retry
            if asked.is_empty:
                await self._pause(next_retry - now if next_retry else None)
                continue
            wait_ms = self._settings.max_wait_ms
            if next_retry:
                wait_ms = max(0, min(wait_ms, int((next_retry - now) * 1000)))
            try:
                self._is_waiting = True
                answer = await self._channel.request_frame(self._request(asked, wait_ms))
            except ConnectionClosed as error:
                self.followed.begin_anew()
                await self._unreachable(error)
                continue
            except LocalError as error:
                self.followed.begin_anew()
                logger.warning("fetching from broker %d at %s: %s", self.leader, self.endpoint, error)
                continue
            finally:
                self._is_waiting = False
            self._is_lost = self._is_refused = False
            self._manager.metadata.trust(self.leader)
            if not self._apply(answer, loop.time()):
                await asyncio.sleep(self._settings.backoff_ms / 1000)

    async def _pause(self, seconds: float | None) -> None:
        """Wait for a change of the partitions, or for a while."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _unreachable(self, error: ConnectionClosed) -> None:
        if isinstance(error, ConnectionRefused):
            if self.leader not in self._manager.metadata.suspects:
                logger.warning("broker %d at %s refuses connections", self.leader, self.endpoint)
            self._is_refused = True
            self._manager.metadata.suspect(self.leader)
            await asyncio.sleep(_FIRST_RETRY_MS / 1000)
        elif not isinstance(error.__cause__, OSError):
            # The connection was lost just now, or the back-off has not passed; the next attempt tells more.
            level = logging.DEBUG if self._is_lost else logging.INFO
            if not self._is_lost:
                self._suspect_for_now()
            self._is_lost = True
            logger.log(level, "fetching from broker %d: %s", self.leader, error)
            await asyncio.sleep(_FIRST_RETRY_MS / 1000)
        else:
            logger.warning("fetching from broker %d: %s", self.leader, error)
            await asyncio.sleep(self._settings.backoff_ms / 1000)

    def _suspect_for_now(self) -> None:
        """Name the leader to no client until the next attempt has told more, or a while has passed.

        A client that lost the same peer at the same moment asks at once, and only once: were it told the old
        leader, it would go on trying that one for seconds.
        """
        self._manager.metadata.suspect(self.leader)
        asyncio.get_running_loop().call_later(_SUSPECTED_S, self._end_suspicion)

    def _end_suspicion(self) -> None:
        if not self._is_refused:
            self._manager.metadata.trust(self.leader)

    def _next_fetch(self, now: float) -> NextFetch:
        broker_epoch = self._manager.broker_epoch()
        if broker_epoch != self._broker_epoch:
            # What the leader knows of every partition is from another life, or from before the end of this.
            self._broker_epoch = broker_epoch
            self.followed.begin_anew()
        return self.followed.next_fetch(now)

    def _request(self, asked: NextFetch, wait_ms: int) -> FetchRequest:
        return FetchRequest(
            replica_id=self._manager.broker_id,
            replica_epoch=self._broker_epoch,
            max_wait_ms=wait_ms,
            min_bytes=self._settings.min_bytes,
            max_bytes=self._settings.response_max_bytes,
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            topics=asked.topics(self._settings.max_bytes),
            forgotten_topics_data=asked.forgotten_topics(),
        )

    def _apply(self, answer: Answer, now: float) -> bool:
        """Take over an answer; False when the leader refuses fetches as such."""
        try:
            return self._apply_response(answer.body, now)
        finally:
            answer.frame.release()

    def _apply_response(self, response: FetchResponse, now: float) -> bool:
        if response.error_code in _SESSION_ERRORS:
            logger.debug("broker %d does not know the session: error %d", self.leader, response.error_code)
            self.followed.begin_anew()
            return True
        if response.error_code != ErrorCode.NONE:
            logger.warning("broker %d refuses fetches: error %d", self.leader, response.error_code)
            self.followed.begin_anew()
            return False
        self.followed.answered(response.session_id)
        for topic in response.responses:
            for data in topic.partitions:
                name = TopicPartition(topic.topic, data.partition_index)
                followed = self.followed.asked(name)
                if followed is not None:
                    self._apply_partition(name, followed, data, now)
        return True

    def _apply_partition(
        self, name: TopicPartition, followed: Followed, data: FetchPartitionResponse, now: float
    ) -> None:
        try:
            apply_answer(followed.partition, followed.leader_epoch, data, wall_clock_ms=wall_clock_ms())
        except ApiError as error:
            self._manager.note_error(error)
            self._rest(name, followed, error.code, now, str(error))
        except UnexpectedAppendOffset as error:
            # The log moved on meanwhile; the next fetch asks from where it ends now.
            self._rest(name, followed, ErrorCode.OFFSET_OUT_OF_RANGE, now, str(error))
        else:
            self.followed.applied(name, followed)

    def _rest(self, name: TopicPartition, followed: Followed, code: ErrorCode, now: float, why: str) -> None:
        """Leave a partition out for a while, twice as long each time."""
        rests_ms = self.followed.failed(name, followed, now)
        level = logging.DEBUG if code in _QUIET_ERRORS else logging.WARNING
        logger.log(
            level, "%s from broker %d: %s %s; again in %.0f ms", name, self.leader, code.name, why, rests_ms
        )
