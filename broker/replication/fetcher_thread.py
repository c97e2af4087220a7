"""Following: copies the records of leaders into this broker's followers.

One thread with one event loop runs all fetchers: one per leader with one connection each, for any number of
partitions. A fetcher has one fetch in flight, long-polled at the leader. The answer is appended before the
next fetch reports the new log end; so the leader learns how far this follower is.

- `fetcher_state` decides about requests, answers and retries.
- When the set of partitions changes, an empty fetch makes the leader answer the waiting one at once.
- A leader whose connection is lost, or whose port refuses, is reported to the metadata cache as suspect, and
  trusted again when it answers; after a mere loss also after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.log.log import Log
from barnabas.broker.replication.fetcher_state import FollowedPartition, LeaderFetches
from barnabas.broker.replication.partition import Partition
from barnabas.common.backoff import doubled
from barnabas.common.channel import Answer, Channel
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.common.threads import LoopThread
from barnabas.protocol.errors import ApiError, ConnectionClosed, LocalError
from barnabas.protocol.frames import BufferPool
from barnabas.protocol.ids import BrokerId, Endpoint, LeaderEpoch, TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.messages.fetch import NO_SUBSCRIPTION

logger = logging.getLogger(__name__)

_MAX_FRAME_BYTES: Final = (1 << 31) - 1
_MAX_FLUSHES: Final = 4
"""How many leaders' fetchers may flush at once; each of the others keeps at most one flush waiting."""
_POLLS: Final = 5
"""A loss takes some turns of the loop: the poll that finds it, the end of the fetch, and its failure."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0


class FollowedLeader(NamedTuple):
    """The leader to follow; without an endpoint it cannot be fetched from at present."""

    broker_id: BrokerId
    endpoint: Endpoint | None
    leader_epoch: LeaderEpoch


class FetcherTable:
    """One fetcher for each leader of followed partitions; a leader has one while a partition needs it."""

    def __init__(
        self,
        find_partition: Callable[[TopicPartition], Partition | None],
        make_fetcher: Callable[[BrokerId, Endpoint], ReplicaFetcher],
    ) -> None:
        self.fetchers: dict[BrokerId, ReplicaFetcher] = {}
        self._find_partition = find_partition
        self._make_fetcher = make_fetcher
        self._leader_of: dict[TopicPartition, BrokerId] = {}

    def follow(self, leaders: Mapping[TopicPartition, FollowedLeader]) -> None:
        """Fetch these partitions from these leaders from now on.

        A leader keeps its connection, even if all its partitions begin a new epoch. At a new address it gets
        a new connection for all its partitions. Partitions that are fetched already continue.
        """
        for leader in leaders.values():
            fetcher = self.fetchers.get(leader.broker_id)
            if fetcher is not None and leader.endpoint not in (None, fetcher.endpoint):
                self._move(fetcher, leader.endpoint)
        changed = {tp: leader for tp, leader in leaders.items() if not self._is_fetched(tp, leader)}
        for tp in changed:
            self._remove(tp)
        for tp, leader in changed.items():
            if leader.endpoint is not None:
                self._add(tp, leader.broker_id, leader.endpoint, leader.leader_epoch)
        self._drop_idle()

    def _add(
        self, tp: TopicPartition, leader: BrokerId, endpoint: Endpoint, leader_epoch: LeaderEpoch
    ) -> None:
        partition = self._find_partition(tp)
        if partition is None:
            return
        fetcher = self.fetchers.get(leader)
        if fetcher is None:
            fetcher = self.fetchers[leader] = self._make_fetcher(leader, endpoint)
        self._leader_of[tp] = leader
        fetcher.add(tp, FollowedPartition(partition, leader_epoch))

    def _move(self, fetcher: ReplicaFetcher, endpoint: Endpoint) -> None:
        moved = {tp: fetcher.fetches.followed[tp] for tp in fetcher.fetches.followed}
        self._drop(fetcher)
        for tp, followed in moved.items():
            self._add(tp, fetcher.leader, endpoint, followed.leader_epoch)

    def _is_fetched(self, tp: TopicPartition, leader: FollowedLeader) -> bool:
        if leader.endpoint is None or self._leader_of.get(tp) != leader.broker_id:
            return False
        followed = self.fetchers[leader.broker_id].fetches.followed[tp]
        is_same = followed.partition is self._find_partition(tp)
        return is_same and followed.leader_epoch == leader.leader_epoch

    def unfollow(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._remove(tp)
        self._drop_idle()

    def _remove(self, tp: TopicPartition) -> None:
        leader = self._leader_of.pop(tp, None)
        if leader is not None:
            self.fetchers[leader].remove(tp)

    def _drop_idle(self) -> None:
        for fetcher in [fetcher for fetcher in self.fetchers.values() if not fetcher.fetches.followed]:
            self._drop(fetcher)

    def _drop(self, fetcher: ReplicaFetcher) -> None:
        for tp in fetcher.fetches.followed:
            self._leader_of.pop(tp, None)
        fetcher.close()
        del self.fetchers[fetcher.leader]


class FetcherManager:
    """The thread, its loop, and a fetcher per leader. `follow` and `unfollow` may be called on any thread."""

    def __init__(
        self,
        find_partition: Callable[[TopicPartition], Partition | None],
        make_fetches: Callable[[BrokerId], LeaderFetches],
        *,
        socket_timeout_ms: int,
        on_fatal: Callable[[BaseException], None],
        wake_consumers: Callable[[Iterable[TopicPartition]], None] = lambda partitions: None,
        security: ChannelSecurity = PLAINTEXT,
    ) -> None:
        """``make_fetches`` makes the fetches from a leader.

        ``wake_consumers`` is called when the high watermarks of followers have moved.
        """
        self.socket_timeout_ms = socket_timeout_ms
        self.security = security
        self.pool = BufferPool()
        self.thread = LoopThread("replica-fetchers", on_fatal=on_fatal, on_stop=self._close_fetchers)
        self.wake_consumers = wake_consumers
        self._flushes = ThreadPoolExecutor(_MAX_FLUSHES, thread_name_prefix="replica-flush")

        def make_fetcher(leader: BrokerId, endpoint: Endpoint) -> ReplicaFetcher:
            return ReplicaFetcher(self, make_fetches(leader), endpoint)

        self._table = FetcherTable(find_partition, make_fetcher)

    @property
    def max_lag(self) -> int:
        """The most records by which a follower is behind its leader's high watermark. Any thread."""
        fetchers = list(self._table.fetchers.values())
        return max((fetcher.fetches.followed.max_lag for fetcher in fetchers), default=0)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.thread.stop()
        self._flushes.shutdown(wait=False, cancel_futures=True)

    def follow(self, leaders: Mapping[TopicPartition, FollowedLeader]) -> None:
        """Fetch these partitions from these leaders from now on."""
        if leaders:
            self.thread.call(self._table.follow, dict(leaders))

    def unfollow(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions. The partition itself fences an answer under way."""
        listed = list(partitions)
        if listed:
            self.thread.call(self._table.unfollow, listed)

    def when_polled(self, done: Callable[[], object]) -> None:
        """Call ``done`` when all losses of connections are handled that this host knew before; any thread."""

        def turn(left: int) -> None:
            if left:
                self.thread.loop.call_soon(turn, left - 1)
            else:
                done()

        if not self.thread.call(turn, _POLLS):
            done()

    async def flush(self, fetches: LeaderFetches) -> None:
        """Force logs to disk without blocking the other fetchers."""
        unflushed = fetches.take_unflushed()
        if unflushed:
            await self.thread.loop.run_in_executor(self._flushes, _flush, unflushed, fetches.note_error)

    def _close_fetchers(self) -> None:
        for fetcher in self._table.fetchers.values():
            fetcher.close()


def _flush(logs: Sequence[Log], note_error: Callable[[ApiError], None]) -> None:
    for log in logs:
        try:
            log.flush(wall_clock_ms())
        except ApiError as error:
            note_error(error)


class ReplicaFetcher:
    """Fetches all that this broker follows at one leader. Lives on the manager's loop."""

    def __init__(self, manager: FetcherManager, fetches: LeaderFetches, endpoint: Endpoint) -> None:
        self.leader = fetches.leader
        self.endpoint = endpoint
        self.fetches = fetches
        self._manager = manager
        self._channel = Channel(
            endpoint,
            client_id=f"broker-{fetches.broker_id}-fetcher",
            request_timeout_ms=manager.socket_timeout_ms,
            pool=manager.pool,
            # A batch is sent whole, and a topic may allow any size; the leader is a broker of this cluster.
            max_frame_bytes=_MAX_FRAME_BYTES,
            security=manager.security,
            on_close=self._lost,
            on_push=self._pushed,
        )
        self._changed = asyncio.Event()
        # The reason why the wait for pushes ended.
        self._failure: Exception | None = None
        # The pushes that follow the answer to the fetch in flight, if they came before it was applied.
        self._early: list[Answer] = []
        self._epoch = NO_SUBSCRIPTION
        self._is_waiting = False
        self._nudge: asyncio.Task[None] | None = None
        self._task = manager.thread.spawn(self._run())

    def add(self, tp: TopicPartition, followed: FollowedPartition) -> None:
        self.fetches.followed.add(tp, followed)
        self._changed.set()
        if self._is_waiting and self._nudge is None:
            self._nudge = self._manager.thread.spawn(self._send_nudge())

    def remove(self, tp: TopicPartition) -> None:
        self.fetches.followed.remove(tp)

    def close(self) -> None:
        self._task.cancel()
        if self._nudge is not None:
            self._nudge.cancel()
        self._channel.close("no longer followed")

    async def _send_nudge(self) -> None:
        """Make the leader answer the waiting fetch."""
        try:
            await self._channel.request(self.fetches.nudge())
        except LocalError:
            # The waiting fetch fails too, and its failure is handled.
            logger.debug("no answer to a nudge of broker %d", self.leader)
        finally:
            self._nudge = None

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._fetch_once()
                failures = 0
            except InvariantViolation:
                raise
            except Exception:
                pause_s = doubled(_FIRST_PAUSE_S, failures, _LONGEST_PAUSE_S)
                failures += 1
                logger.critical(
                    "fetching from broker %d failed by an unforeseen error; retrying in %.1f s",
                    self.leader,
                    pause_s,
                    exc_info=True,
                )
                self.fetches.followed.reset()
                await asyncio.sleep(pause_s)

    async def _fetch_once(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            # First: a request may name thousands of partitions, and a dead leader is tried a hundred times a
            # second, while this broker may be the next controller.
            await self._channel.connect()
            self._changed.clear()
            self._failure = None
            request, pause_s = self.fetches.next_request(loop.time())
            if request is None:
                await self._pause(pause_s)
                return
            self._is_waiting, self._epoch = True, request.session_epoch
            answer = await self._channel.request_frame(request)
            self._is_waiting = False
            try:
                pause_s = self.fetches.answered(answer.body, loop.time(), wall_clock_ms())
            finally:
                answer.frame.release()
            self._apply(self._take_early())
            self._report()
            if self.fetches.is_subscribed:
                await self._pause(request.max_wait_ms / 1000)
                if self._failure is not None:
                    raise self._failure
        except LocalError as error:
            pause_s, suspected_s = self.fetches.failed(error)
            if suspected_s:
                loop.call_later(suspected_s, self.fetches.end_suspicion)
        finally:
            self._is_waiting = False
            for _, frame in self._take_early():
                frame.release()
        await self._manager.flush(self.fetches)
        if pause_s:
            await asyncio.sleep(pause_s)

    def _pushed(self, pushes: Sequence[Answer]) -> None:
        """Apply pushes and report them at once."""
        if self._is_waiting:
            for push in pushes:
                if push.body.subscription == self._epoch:
                    self._early.append(push)
                else:
                    push.frame.release()
            return
        try:
            self._apply(pushes)
            self._report()
        except Exception as error:  # noqa: BLE001 - the task of the fetcher raises it
            self._failure = error
            self._changed.set()

    def _apply(self, pushes: Sequence[Answer]) -> None:
        now, wall_ms = asyncio.get_running_loop().time(), wall_clock_ms()
        for body, frame in pushes:
            try:
                self.fetches.pushed(body, now, wall_ms)
            finally:
                frame.release()

    def _take_early(self) -> list[Answer]:
        early, self._early = self._early, []
        return early

    def _report(self) -> None:
        """Report the end of what was applied, or let the next fetch do it."""
        fetches = self.fetches
        if not self._channel.can_send_now:
            fetches.unsubscribe()
        elif (progress := fetches.progress(asyncio.get_running_loop().time())) is not None:
            self._channel.send_now(progress)
        moved = fetches.take_moved()
        if moved:
            # After the report, which should not wait for the consumers.
            self._manager.wake_consumers(moved)
        if not fetches.is_subscribed:
            self._changed.set()

    def _lost(self, channel: Channel, error: ConnectionClosed) -> None:
        self._failure = error
        self._changed.set()

    async def _pause(self, seconds: float | None) -> None:
        """Wait for a change of the partitions, or for a while."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
