"""What keeps the consumer's buffers filled: one long-polled fetch per leader, for all its partitions.

It is driven by events: an assignment, a seek, a poll that made room, an answer, fresh metadata or a timer
schedule one round, and a round sends the fetches that are due. Bounds: a partition is fetched only while it
has less than `max_partition_fetch_bytes` buffered, and all answers under way together with all that is
buffered stay within `fetch_max_bytes` (but for a single batch larger than what was asked for).

It runs on the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from barnabas.client.cluster import FETCH_LANE, Cluster
from barnabas.client.config import ConsumerConfig
from barnabas.client.errors import OffsetUnknown
from barnabas.client.fetched import FetchedFrame, PartitionState, Reset
from barnabas.client.offsets import EARLIEST, LATEST, OffsetSpec, list_offsets
from barnabas.protocol.channel import Answer
from barnabas.protocol.errors import BarnabasError, ErrorCode, LocalError, api_error, is_retriable
from barnabas.protocol.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.protocol.messages.fetch import FetchPartition, FetchPartitionResponse, FetchRequest, FetchTopic

log = logging.getLogger(__name__)

_LEADERSHIP: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)

_WAIT_WHILE_OTHERS_ARE_FULL_MS: Final = 20
"""A fetch without the partitions whose buffer is full must end soon: they can only join the next one."""


class _Asked(NamedTuple):
    """A partition in a fetch, as it was when the fetch was sent."""

    state: PartitionState
    generation: int
    fetch_offset: int
    leader_epoch: LeaderEpoch


class Fetcher:
    """Rounds of fetching for the partitions in ``states``; see the module."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        states: dict[TopicPartition, PartitionState],
        arrived: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._states = states
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._reserved_bytes: dict[BrokerId, int] = {}
        """By node with a fetch under way: the most that its answer may bring."""
        self._resetting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned: set[str] = set()
        cluster.add_listener(self.wake)

    def wake(self) -> None:
        """Have a round soon."""
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._round)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _round(self) -> None:
        self._is_scheduled = False
        if self._is_closed:
            return
        present = time.monotonic()
        by_node: dict[BrokerId, list[_Asked]] = {}
        crowded: set[BrokerId] = set()
        resets: list[PartitionState] = []
        next_at = float("inf")
        needs_metadata = False
        for state in self._states.values():
            if state.is_fetching or state.is_paused or state.error is not None:
                continue
            if state.retry_at > present:
                next_at = min(next_at, state.retry_at)
                continue
            leader = self._cluster.leader_for(state.tp)
            if state.fetch_offset is None and state.reset is None:
                self._fail(state, OffsetUnknown(f"{state.tp} has no position, and auto_offset_reset is none"))
            elif leader is None:
                needs_metadata = True
                self._warn_if_unknown(state.tp.topic)
            elif state.fetch_offset is None:
                resets.append(state)
            elif state.buffered_bytes >= self._config.max_partition_fetch_bytes:
                crowded.add(leader.node_id)
            elif leader.node_id not in self._reserved_bytes:
                asked = _Asked(state, state.generation, state.fetch_offset, leader.epoch)
                by_node.setdefault(leader.node_id, []).append(asked)
        if needs_metadata:
            self._cluster.request_refresh()
        if resets and self._resetting is None:
            self._resetting = self._spawn(self._reset(resets), self._reset_done)
        self._send(by_node, crowded)
        self._arm(next_at - present)

    def _send(self, by_node: dict[BrokerId, list[_Asked]], crowded: set[BrokerId]) -> None:
        room = self._config.fetch_max_bytes - sum(self._reserved_bytes.values())
        room -= sum(state.buffered_bytes for state in self._states.values())
        for count, (node_id, asked) in enumerate(by_node.items()):
            share = min(room // (len(by_node) - count), len(asked) * self._config.max_partition_fetch_bytes)
            if share <= 0:
                return
            room -= share
            self._reserved_bytes[node_id] = share
            for one in asked:
                one.state.is_fetching = True
            wait_ms = self._config.fetch_max_wait_ms
            if node_id in crowded:
                wait_ms = min(wait_ms, _WAIT_WHILE_OTHERS_ARE_FULL_MS)
            self._spawn(self._fetch(node_id, asked, share, wait_ms), None)

    def _spawn(
        self, work: Coroutine[Any, Any, None], done: Callable[[asyncio.Task[None]], None] | None
    ) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        if done is not None:
            task.add_done_callback(done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A bug of ours: the user's next poll shall say so rather than wait for ever.
            self._loop.call_exception_handler({"message": "fetching failed", "exception": error})
            for state in self._states.values():
                self._fail(state, LocalError(f"{type(error).__name__}: {error}"))
        self.wake()

    def _arm(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay < float("inf"):
            self._timer = self._loop.call_later(max(0.0, delay), self.wake)

    async def _fetch(self, node_id: BrokerId, asked: list[_Asked], max_bytes: int, wait_ms: int) -> None:
        try:
            answer = await self._cluster.request_frame(
                node_id, self._request(asked, max_bytes, wait_ms), lane=FETCH_LANE
            )
        except BarnabasError as error:
            log.debug("a fetch from broker %d failed: %s", node_id, error)
            return
        finally:
            del self._reserved_bytes[node_id]
            for one in asked:
                one.state.is_fetching = False
        self._settle(node_id, asked, answer)

    def _request(self, asked: list[_Asked], max_bytes: int, wait_ms: int) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = {}
        for one in asked:
            partition = FetchPartition(
                partition=one.state.tp.partition,
                current_leader_epoch=one.leader_epoch,
                fetch_offset=one.fetch_offset,
                partition_max_bytes=self._config.max_partition_fetch_bytes,
            )
            topics.setdefault(one.state.tp.topic, []).append(partition)
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
        )

    def _settle(self, node_id: BrokerId, asked: list[_Asked], answer: Answer) -> None:
        found: dict[TopicPartition, FetchPartitionResponse] = {
            TopicPartition(topic.topic, partition.partition_index): partition
            for topic in answer.body.responses
            for partition in topic.partitions
        }
        frame = FetchedFrame(answer.frame)
        for one in asked:
            state = one.state
            if state.generation != one.generation or state.fetch_offset != one.fetch_offset:
                continue
            partition = found.get(state.tp)
            if partition is None:
                text = f"broker {node_id} did not answer for {state.tp}"
                self._fail(state, api_error(ErrorCode.UNKNOWN_SERVER_ERROR, text))
            elif partition.error_code != ErrorCode.NONE:
                self._refused(one, partition)
            else:
                state.high_watermark = partition.high_watermark
                state.log_start_offset = partition.log_start_offset
                self._take(state, partition, frame)
        frame.release_if_unused()

    def _take(self, state: PartitionState, partition: FetchPartitionResponse, frame: FetchedFrame) -> None:
        records = partition.records
        if not records:
            return
        try:
            state.add(memoryview(records), frame)  # type: ignore[arg-type]
        except BarnabasError as error:
            self._fail(state, error)
        else:
            self._arrived()

    def _refused(self, asked: _Asked, partition: FetchPartitionResponse) -> None:
        state, code = asked.state, partition.error_code
        if code in _LEADERSHIP:
            self._cluster.invalidate(state.tp)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            text = (
                f"offset {asked.fetch_offset} of {state.tp} is outside the log, which has "
                f"{partition.log_start_offset} to {partition.high_watermark}"
            )
            reset = reset_of(self._config)
            if state.has_data:
                # What was read before is still handed out; the offset is asked for again after that.
                state.retry_at = time.monotonic() + self._config.retry_backoff_ms / 1000
            elif reset is None:
                self._fail(state, api_error(code, text))
            else:
                log.warning("%s; going on from the %s offset", text, self._config.auto_offset_reset)
                state.seek(None, reset)
        elif is_retriable(code):
            log.debug("fetching %s: %s", state.tp, api_error(code))
            state.retry_at = time.monotonic() + self._config.retry_backoff_ms / 1000
        else:
            self._fail(state, api_error(code, f"{state.tp} could not be fetched"))

    async def _reset(self, states: list[PartitionState]) -> None:
        specs: dict[TopicPartition, OffsetSpec] = {}
        generations = {state.tp: state.generation for state in states}
        for state in states:
            specs[state.tp] = EARLIEST if state.reset is Reset.EARLIEST else LATEST
        try:
            found = await list_offsets(self._cluster, specs, self._config.request_timeout_ms)
        except BarnabasError as error:
            log.warning("the offsets of %s could not be found: %s", ", ".join(map(str, specs)), error)
            for state in states:
                state.retry_at = time.monotonic() + self._config.retry_backoff_ms / 1000
                if not error.retriable and state.generation == generations[state.tp]:
                    self._fail(state, error)
            return
        for state in states:
            if state.generation == generations[state.tp]:
                state.seek(found[state.tp].offset, None)
        self._arrived()

    def _reset_done(self, task: asyncio.Task[None]) -> None:
        self._resetting = None

    def _fail(self, state: PartitionState, error: BarnabasError) -> None:
        state.error = error
        self._arrived()

    def _warn_if_unknown(self, topic: str) -> None:
        code = self._cluster.cache.topic_errors.get(topic, 0)
        if code and topic not in self._warned:
            self._warned.add(topic)
            log.warning("%s; waiting for it", api_error(code, f"topic {topic!r} cannot be read"))


def reset_of(config: ConsumerConfig) -> Reset | None:
    """What `auto_offset_reset` says to do without a valid position."""
    return {"earliest": Reset.EARLIEST, "latest": Reset.LATEST}.get(config.auto_offset_reset)
