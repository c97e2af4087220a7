"""Keeps the consumer's buffers filled: one long-polled fetch per broker, for all its partitions.

A partition that is assigned or sought while that fetch waits is fetched by another one, which does not wait,
on a connection of its own; the answer to the waiting one is dropped for it.

It is driven by events: an assignment, a seek, a poll that made room, an answer, fresh metadata or a timer
schedule one round, and a round sends the fetches that are due. Bounds: a partition is fetched only while it
has less than `max_partition_fetch_bytes` buffered, and all answers in flight plus all buffered data stay
within `fetch_max_bytes`. Exceptions are a single batch larger than the limit, and the answers of a hung
broker, which do not reduce the share of others.

If the leader of a partition changes, its part of the fetch in flight is dropped. The consumer first asks the
new leader whether it still has the records that were read (KIP-320), then fetches from it. A topic that was
deleted and made again is another topic: it is read from its start, or it is an error without a reset.

It runs on the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from barnabas.client.cluster import FETCH_LANE, SOUGHT_LANE, Cluster
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.measurements import ConsumerMetrics
from barnabas.client.consumer.partition_state import (
    NO_EPOCH,
    FetchedFrame,
    PartitionState,
    Reset,
    Verdict,
    advised_replica,
    broker_to_read,
    fetch_answers,
    fetch_request,
    is_throttled,
    judge,
    out_of_range,
    reset_of,
    reset_text,
)
from barnabas.client.errors import LogTruncated, OffsetUnknown, report_bug
from barnabas.client.metadata import LEADERSHIP_ERRORS, Leader
from barnabas.client.offsets import ListedOffset, ask_for_offsets
from barnabas.common.channel import Answer
from barnabas.protocol.errors import (
    AuthenticationFailed,
    BarnabasError,
    ConnectionClosed,
    ErrorCode,
    LocalError,
    RequestTimedOutLocally,
    UnsupportedVersionError,
    api_error,
    is_retriable,
)
from barnabas.protocol.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.protocol.messages.fetch import CONSUMER_REPLICA_ID, FetchPartitionResponse
from barnabas.protocol.messages.log_offsets import (
    LeaderEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.protocol.partition_entries import entries, in_topics

log = logging.getLogger(__name__)

_WAIT_WHILE_OTHERS_ARE_FULL_MS: Final = 20
"""A fetch without the partitions whose buffer is full must end soon: they can only join the next one."""


class Item(NamedTuple):
    """A partition in a request, as it was when the request was sent."""

    state: PartitionState
    leader: Leader
    generation: int
    fetch_offset: int
    """-1 if the request looks for a position."""
    fetch_epoch: int
    reset: int | None

    @property
    def is_current(self) -> bool:
        """Whether the partition is still where it was."""
        return self.state.generation == self.generation and _offset(self.state) == self.fetch_offset


def _item(state: PartitionState, leader: Leader) -> Item:
    return Item(state, leader, state.generation, _offset(state), state.fetch_epoch, state.reset)


def _offset(state: PartitionState) -> int:
    return -1 if state.fetch_offset is None else state.fetch_offset


@dataclass(slots=True, eq=False)
class Flight:
    """A request in flight; each of its partitions points to it until it ends."""

    node_id: BrokerId
    items: list[Item]
    reserved_bytes: int = 0
    """The largest size of the answer."""
    lane: str = ""
    """The lane of a fetch."""
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        for item in self.items:
            item.state.flight = self

    def carried(self) -> Iterator[Item]:
        """The partitions that still point to this flight."""
        return (item for item in self.items if item.state.flight is self)


class Fetcher:
    """Fetches the partitions in ``states``, round by round."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        states: dict[TopicPartition, PartitionState],
        arrived: Callable[[], None],
        metrics: ConsumerMetrics,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._isolation = config.isolation
        self._states = states
        self._arrived = arrived
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._fetches: dict[tuple[BrokerId, str], Flight] = {}
        """At most one per node and lane."""
        self._position_requests: set[Flight] = set()
        """Requests about positions: resets, and checks after a change of leaders."""
        self._refusal: AuthenticationFailed | None = None
        self._warned: set[str] = set()
        cluster.add_listener(self.wake)

    def wake(self) -> None:
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._round)

    def check_refused(self) -> None:
        """Raise, once for each failed attempt, that the brokers refuse this client; the attempts go on."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal.again()

    def _refused_by_broker(self, error: AuthenticationFailed) -> None:
        self._refusal = error
        self._arrived()

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for flight in self._flights():
            if flight.task is not None:
                flight.task.cancel()

    def _round(self) -> None:
        self._is_scheduled = False
        if self._is_closed:
            return
        self._drop_moved()
        present = time.monotonic()
        fetches: dict[tuple[BrokerId, str], list[Item]] = {}
        checks: dict[BrokerId, list[Item]] = {}
        full: set[BrokerId] = set()
        sources: set[BrokerId] = set()
        resets: dict[BrokerId, list[Item]] = {}
        next_at = float("inf")
        needs_metadata = False
        for state in self._states.values():
            if state.error is None and not state.is_of(self._cluster.cache.topic_id(state.tp.topic)):
                self._made_again(state)
            leader = self._cluster.cache.leader_for(state.tp)
            if leader is not None:
                state.missing_since = None
                source = broker_to_read(state.read_replica, leader, self._cluster.cache.nodes, present)
                sources.add(source)
            if state.is_sought and isinstance(state.flight, Flight) and state.flight.lane:
                # A fetch from before the seek.
                state.flight = None
            if state.flight is not None or state.error is not None:
                continue
            if state.is_paused and (state.fetch_offset is not None or state.reset is None):
                # A paused partition is not fetched, but its position is looked up.
                continue
            if state.retry_at > present:
                next_at = min(next_at, state.retry_at)
            elif state.fetch_offset is None and state.reset is None:
                self._fail(state, OffsetUnknown(f"{state.tp} has no position, and auto_offset_reset is none"))
            elif leader is None:
                needs_metadata = True
                self._check_exists(state, present)
                if self._cluster.refusal is not None:
                    self._refused_by_broker(self._cluster.refusal)
            elif state.fetch_offset is None:
                resets.setdefault(leader.node_id, []).append(_item(state, leader))
            elif state.fetch_epoch > leader.epoch > NO_EPOCH:
                self._doubt_epoch(state, leader)
            elif state.fetch_epoch > NO_EPOCH and NO_EPOCH < state.checked_epoch < leader.epoch:
                # The last records came from an earlier leader.
                checks.setdefault(leader.node_id, []).append(_item(state, leader))
            elif state.buffered_bytes >= self._config.max_partition_fetch_bytes:
                full.add(source)
            else:
                is_behind = state.is_sought and (source, FETCH_LANE) in self._fetches
                lane = SOUGHT_LANE if is_behind else FETCH_LANE
                if (source, lane) not in self._fetches:
                    fetches.setdefault((source, lane), []).append(_item(state, leader))
        if needs_metadata:
            self._cluster.request_refresh()
        self._ask(resets, self._reset)
        self._ask(checks, self._check)
        self._send(fetches, full, len(sources))
        self._arm(next_at - present)

    def _made_again(self, state: PartitionState) -> None:
        """The topic was deleted and made again, which leader epochs do not show: they begin at 0 again."""
        self._cluster.cache.replaced(state.topic_id)
        text = f"topic {state.tp.topic!r} was deleted and made again; {state.tp} was read to offset "
        # All records of the new one are newer than this consumer, so `latest` must not skip any.
        reset = None if reset_of(self._config) is None else Reset.EARLIEST
        state.restarts += 1
        self._start_over(state, LogTruncated(f"{text}{state.taken_offset} of the former one", None), reset)

    def _start_over(self, state: PartitionState, error: BarnabasError, reset: int | None) -> None:
        """Continue where the reset says, because the log cannot continue what was read; fail without one."""
        if reset is None:
            state.drop_buffered()
            self._fail(state, error)
        else:
            log.warning("%s; continuing at the %s", error, reset_text(reset))
            state.seek(None, reset)

    def _doubt_epoch(self, state: PartitionState, leader: Leader) -> None:
        """Request a refresh if a committed offset has a newer leader epoch than the metadata."""
        if self._cluster.cache.expect_epoch(state.tp, LeaderEpoch(state.fetch_epoch)):
            self._cluster.request_refresh()
            return
        log.warning(
            "%s was read in leader epoch %d, but the newest epoch of the cluster is %d: continuing at offset "
            "%s without a check",
            state.tp,
            state.fetch_epoch,
            leader.epoch,
            state.fetch_offset,
        )
        state.position_epoch = state.fetch_epoch = state.checked_epoch = NO_EPOCH
        self.wake()

    def _drop_moved(self) -> None:
        """Drop partitions from requests to brokers that no longer lead them; cancel requests left empty."""
        nodes, present = self._cluster.cache.nodes, time.monotonic()
        for flight in self._flights():
            is_awaited = False
            # Also those that were sought since: only the answer frees the connection.
            for item in flight.items:
                replica, leader = item.state.read_replica, self._cluster.cache.leader_for(item.state.tp)
                if leader is None or (
                    leader.epoch <= item.leader.epoch
                    and flight.node_id in (leader.node_id, broker_to_read(replica, leader, nodes, present))
                ):
                    is_awaited = True
                elif item.state.flight is flight:
                    item.state.flight = None
            if not is_awaited and flight.task is not None:
                flight.task.cancel()

    def _flights(self) -> list[Flight]:
        return [*self._fetches.values(), *self._position_requests]

    def _send(
        self, fetches: dict[tuple[BrokerId, str], list[Item]], full: set[BrokerId], sources: int
    ) -> None:
        config = self._config
        # A request of a time with fewer brokers may hold more than its share; count only the share.
        fair = max(1, config.fetch_max_bytes // max(1, sources))
        room = config.fetch_max_bytes
        room -= sum(min(fair, flight.reserved_bytes) for flight in self._fetches.values())
        room -= sum(state.buffered_bytes for state in self._states.values())
        if fetches and room <= 0:
            room += self._drop_paused()
        for count, ((node_id, lane), items) in enumerate(fetches.items()):
            share = min(
                room // (len(fetches) - count),
                len(items) * config.max_partition_fetch_bytes,
                fair,
            )
            if share <= 0:
                return
            room -= share
            for item in items:
                item.state.checked_epoch = item.leader.epoch
                item.state.is_sought = False
            wait_ms = config.fetch_max_wait_ms if lane == FETCH_LANE else 0
            if node_id in full:
                wait_ms = min(wait_ms, _WAIT_WHILE_OTHERS_ARE_FULL_MS)
            flight = self._fetches[node_id, lane] = Flight(node_id, items, share, lane)
            self._launch(flight, self._fetch(flight, wait_ms))

    def _drop_paused(self) -> int:
        """Release the memory of paused partitions, which might stay paused; returns its size."""
        freed = 0
        for state in self._states.values():
            if state.is_paused and state.buffered_bytes:
                freed += state.buffered_bytes
                state.drop_buffered()
        return freed

    def _launch(self, flight: Flight, work: Coroutine[Any, Any, None]) -> None:
        flight.task = self._loop.create_task(work)
        flight.task.add_done_callback(partial(self._landed, flight))

    def _landed(self, flight: Flight, task: asyncio.Task[None]) -> None:
        """Release the partitions of a request that has succeeded, failed or been cancelled."""
        if self._fetches.get((flight.node_id, flight.lane)) is flight:
            del self._fetches[flight.node_id, flight.lane]
        self._position_requests.discard(flight)
        for item in flight.carried():
            item.state.flight = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A bug of ours: the user's next poll must raise it instead of waiting without end.
            failure = report_bug("fetching failed", error)
            for state in self._states.values():
                self._fail(state, failure)
        self.wake()

    def _arm(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay < float("inf"):
            self._timer = self._loop.call_later(max(0.0, delay), self.wake)

    async def _fetch(self, flight: Flight, wait_ms: int) -> None:
        config = self._config
        request = fetch_request(
            self._cluster.cache,
            {item.state.tp: (item.fetch_offset, item.leader.epoch) for item in flight.items},
            config.max_partition_fetch_bytes,
            max_wait_ms=wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=flight.reserved_bytes,
            isolation_level=self._isolation.value,
            rack_id=config.client_rack or "",
        )
        sent_at = time.monotonic()
        try:
            answer = await self._cluster.request_frame(flight.node_id, request, lane=flight.lane)
        except BarnabasError as error:
            log.debug("a fetch from broker %d failed: %s", flight.node_id, error)
            self._postpone(flight, error)
        else:
            self._metrics.fetched(sent_at, len(answer.frame.view), answer.body.throttle_time_ms)
            self._settle(flight, answer)

    def _postpone(self, flight: Flight, error: BarnabasError) -> None:
        """Retry after a request that failed as a whole; after a lost connection, wait for metadata."""
        if isinstance(error, AuthenticationFailed):
            self._refused_by_broker(error)
        is_lost = isinstance(error, ConnectionClosed | RequestTimedOutLocally)
        for state in (item.state for item in flight.carried()):
            if state.read_replica is not None and state.read_replica.node_id == flight.node_id:
                self._leave_replica(state, error)
            elif not is_lost:
                self._retry_later(state)

    def _retry_later(self, state: PartitionState) -> None:
        state.retry_at = time.monotonic() + self._config.retry_backoff_ms / 1000

    def _settle(self, flight: Flight, answer: Answer) -> None:
        node_id, answers = flight.node_id, fetch_answers(self._cluster.cache, answer.body)
        frame = FetchedFrame(answer.frame)
        if is_throttled(answer.body):
            # The next fetch is answered when the quota allows it.
            frame.done()
            return
        code = answer.body.error_code or ErrorCode.UNKNOWN_SERVER_ERROR
        for item in flight.carried():
            state = item.state
            if not item.is_current:
                continue
            partition = answers.get(state.tp)
            is_from_leader = node_id == item.leader.node_id
            if not is_from_leader and (partition is None or partition.error_code != ErrorCode.NONE):
                self._leave_replica(state, api_error(code if partition is None else partition.error_code))
            elif partition is None:
                self._warn(api_error(code, f"broker {node_id} did not answer for {state.tp}"))
                self._retry_later(state)
            elif partition.error_code != ErrorCode.NONE:
                self._refused(item, partition)
            else:
                if is_from_leader:
                    self._follow_advice(item, partition)
                has_records = self._take(state, partition, frame)
                # The next records are fetched there too, until the waiting fetch is answered.
                state.is_sought = has_records and flight.lane == SOUGHT_LANE
        frame.done()

    def _follow_advice(self, item: Item, partition: FetchPartitionResponse) -> None:
        present, lease_s = time.monotonic(), self._config.metadata_max_age_ms / 1000
        replica = advised_replica(partition.preferred_read_replica, item.leader, present, lease_s)
        item.state.read_replica = replica
        if replica is not None and replica.node_id not in self._cluster.cache.nodes:
            # The leader would name it again at once, and send no records.
            self._leave_replica(item.state, LocalError("it is not among the live brokers"))

    def _leave_replica(self, state: PartitionState, error: BarnabasError) -> None:
        """Read from the leader again; it may name a better replica."""
        if state.read_replica is not None:
            log.info("%s is not read from replica %d: %s", state.tp, state.read_replica.node_id, error)
            state.read_replica = None
        self._retry_later(state)
        self._cluster.request_refresh()

    def _take(self, state: PartitionState, partition: FetchPartitionResponse, frame: FetchedFrame) -> bool:
        try:
            has_records = state.add(partition, frame)
        except BarnabasError as error:
            self._fail(state, error)
            return False
        if has_records:
            self._arrived()
        return has_records

    def _refused(self, item: Item, partition: FetchPartitionResponse) -> None:
        state, code = item.state, partition.error_code
        if code in LEADERSHIP_ERRORS:
            self._cluster.invalidate(state.tp)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if state.has_data:
                # The buffered records are handed out first; then the position is reset.
                self._retry_later(state)
            else:
                error = out_of_range(state.tp, item.fetch_offset, partition)
                self._start_over(state, error, reset_of(self._config))
        elif is_retriable(code):
            log.debug("fetching %s: %s", state.tp, api_error(code))
            self._retry_later(state)
        elif code == ErrorCode.UNKNOWN_SERVER_ERROR:
            # A fault of the broker: the next attempt, or another broker, may succeed.
            self._warn(api_error(code, f"{state.tp} could not be fetched"))
            self._cluster.invalidate(state.tp)
            self._retry_later(state)
        else:
            self._fail(state, api_error(code, f"{state.tp} could not be fetched"))

    def _ask(
        self,
        by_leader: dict[BrokerId, list[Item]],
        work: Callable[[Flight], Coroutine[Any, Any, None]],
    ) -> None:
        """Send each leader a request about positions; no partition waits for the answer of another leader."""
        for node_id, items in by_leader.items():
            flight = Flight(node_id, items)
            self._position_requests.add(flight)
            self._launch(flight, work(flight))

    async def _check(self, flight: Flight) -> None:
        """Ask a new leader whether it still has the records that were read from the previous one."""
        asked = {
            item.state.tp: OffsetForLeaderPartition(
                partition=item.state.tp.partition,
                current_leader_epoch=item.leader.epoch,
                leader_epoch=item.fetch_epoch,
            )
            for item in flight.items
        }
        topics = in_topics(OffsetForLeaderTopic, asked.items())
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER_REPLICA_ID, topics=topics)
        try:
            response = await self._cluster.request(flight.node_id, request)
        except BarnabasError as error:
            log.debug("broker %d did not return the ends of epochs: %s", flight.node_id, error)
            if isinstance(error, UnsupportedVersionError):
                # Brokers before Kafka 2.1 do not have this request.
                for item in flight.items:
                    item.state.checked_epoch = item.leader.epoch
            else:
                self._postpone(flight, error)
            return
        answers = dict(entries(response.topics))
        for item in flight.carried():
            state = item.state
            if not item.is_current:
                continue
            answer = answers.get(state.tp)
            if answer is None or answer.error_code != ErrorCode.NONE:
                code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer.error_code
                log.debug("checking the position of %s: %s", state.tp, api_error(code))
                if code in LEADERSHIP_ERRORS:
                    self._cluster.invalidate(state.tp)
                else:
                    self._retry_later(state)
            else:
                self._follow(item, answer)

    def _follow(self, checked: Item, answer: LeaderEpochEndOffset) -> None:
        """Continue from the offset up to which the new leader's log agrees with the records read."""
        state = checked.state
        verdict = judge(checked.fetch_offset, state.taken_offset, answer)
        if verdict is Verdict.FETCHED_AHEAD:
            state.truncate(answer.end_offset, answer.leader_epoch)
        elif verdict is not Verdict.HOLDS:
            self._truncated(checked, None if verdict is Verdict.NO_COMMON_HISTORY else answer)
            return
        state.checked_epoch = checked.leader.epoch

    def _truncated(self, checked: Item, answer: LeaderEpochEndOffset | None) -> None:
        state = checked.state
        where = f"diverges at offset {answer.end_offset}" if answer is not None else "knows no such epoch"
        text = (
            f"{state.tp} was read to offset {state.taken_offset} in leader epoch {checked.fetch_epoch}, but "
            f"its new leader (epoch {checked.leader.epoch}) {where}"
        )
        reset = reset_of(self._config)
        if answer is None:
            state.restarts += 1
            self._start_over(state, LogTruncated(text, None), reset)
        elif reset is None:
            state.drop_buffered()
            self._fail(state, LogTruncated(text, answer.end_offset))
        else:
            log.warning("%s; continuing there", text)
            position = state.taken_offset if state.position is None else state.position
            state.seek(min(position, answer.end_offset), None, answer.leader_epoch)
            state.checked_epoch = checked.leader.epoch

    async def _reset(self, flight: Flight) -> None:
        """Ask a leader for the offsets that partitions begin from."""
        timestamps = {item.state.tp: int(item.reset) for item in flight.items if item.reset is not None}
        # First the ends, for logs without a record since: one that is written meanwhile must not be skipped.
        ends = await self._list(flight, {tp: Reset.LATEST for tp, time in timestamps.items() if time >= 0})
        answers = await self._list(flight, timestamps)
        for item in flight.carried():
            state, listed = item.state, answers[item.state.tp]
            if not item.is_current:
                continue
            if isinstance(listed, ListedOffset) and listed.offset < 0:
                listed = ends[state.tp]
            if isinstance(listed, ListedOffset):
                state.seek(listed.offset, None, listed.leader_epoch)
            elif not listed.retriable:
                self._fail(state, listed)
                # If the broker refuses this client; other errors stay.
                self._retry_later(state)
            else:
                # Its leader is forgotten: the next attempt waits for metadata.
                log.debug("no start offset of %s yet: %s", state.tp, listed)
        self._arrived()

    async def _list(
        self, flight: Flight, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset | BarnabasError]:
        if not timestamps:
            return {}
        timeout_ms = self._config.request_timeout_ms
        return await ask_for_offsets(self._cluster, flight.node_id, timestamps, timeout_ms, self._isolation)

    def _fail(self, state: PartitionState, error: BarnabasError) -> None:
        state.error = error
        self._arrived()

    def _check_exists(self, state: PartitionState, present: float) -> None:
        """Log that the topic or the partition does not exist; a missing partition becomes an error later."""
        topic = state.tp.topic
        if code := self._cluster.cache.topic_errors.get(topic, 0):
            self._warn(api_error(code, f"topic {topic!r} cannot be read"))
        elif (missing := self._cluster.cache.no_such_partition(state.tp)) is not None:
            self._warn(missing)
            state.missing_since = present if state.missing_since is None else state.missing_since
            if present - state.missing_since >= self._config.default_api_timeout_ms / 1000:
                self._fail(state, missing)

    def _warn(self, error: BarnabasError) -> None:
        """Log a retried error, once."""
        text = str(error)
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s; retrying", text)
