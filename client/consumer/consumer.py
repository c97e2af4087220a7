"""The consumer: reads partitions in offset order, fetching ahead within bounds; alone or as part of a group.

    async with Consumer(bootstrap_servers="localhost:9092", group_id="departures") as consumer:
        consumer.subscribe(["flights"])
        async for record in consumer:
            ...

Guarantees: per partition every record from the position on, once and in order, up to the high watermark, or
with `isolation_level` read_committed every committed one up to the last stable offset; leaders are followed.
`poll` raises errors that only the user can fix, after the records before them. In a group, automatic commits
cover only records handed out before the last poll or step of the iteration, also when a body of
``async with`` fails or is cancelled: the records in hand are redelivered.

A consumer belongs to the event loop that it was started on, and to one task at a time.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, Unpack, overload

from barnabas.client.arguments import check_callable, check_limit, check_number, limit_ms
from barnabas.client.client import Client, handled_error, ms_after
from barnabas.client.cluster import Cluster
from barnabas.client.config import ConsumerConfig, ConsumerSettings
from barnabas.client.consumer.assignment import by_partition
from barnabas.client.consumer.fetcher import Fetcher
from barnabas.client.consumer.group_offsets import CommitDone
from barnabas.client.consumer.group_session import GroupSession
from barnabas.client.consumer.partition_state import PartitionState, Reset
from barnabas.client.consumer.polls import Polls
from barnabas.client.consumer.subscription import RebalanceListener, select
from barnabas.client.consumer.whole_topics import WholeTopics
from barnabas.client.consumer_record import ConsumerRecord, K_co, V_co
from barnabas.client.errors import ClientClosed, InvalidConfiguration, SubscriptionConflict
from barnabas.client.metadata import PartitionInfo
from barnabas.client.metrics import Metrics
from barnabas.client.offsets import (
    EARLIEST,
    LATEST,
    GroupMetadata,
    ListedOffset,
    OffsetAndMetadata,
    OffsetsOrRecords,
    OffsetSpec,
    Partition,
    Timestamps,
    check_offset,
    checked_specs,
    is_partition,
    list_offsets,
    partition_of,
    partitions_in,
)
from barnabas.client.serialization import Deserializer, deserializers_of
from barnabas.protocol.errors import RequestTimedOutLocally
from barnabas.protocol.ids import Offset, TopicId, TopicPartition

__all__ = ["Consumer", "ConsumerRecord", "OffsetAndMetadata", "RebalanceListener"]

CLOSE_TIMEOUT_MS: Final = 30_000
POLL_MS: Final = 1_000


class Stopping:
    """The outcome of `Consumer.stop`: closes the consumer if it is awaited, and need not be."""

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._close = close

    def __await__(self) -> Generator[Any, None, None]:
        return self._close().__await__()


class Consumer(Client, Generic[K_co, V_co]):
    """Settings as in `ConsumerConfig`, by name, or as one ``config``; names replace those of the config."""

    def __init__(
        self,
        config: ConsumerConfig | None = None,
        *,
        key_deserializer: Deserializer[K_co] | None = None,
        value_deserializer: Deserializer[V_co] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """The deserializers read keys and values, on the event loop within `poll`; else both are bytes."""
        deserializers = deserializers_of(key_deserializer, value_deserializer)
        self.config = ConsumerConfig.given(config, settings)
        self._polls = Polls(self.config, deserializers, self._parts)
        self._assignment = self._polls.assignment
        self._group: GroupSession | None = None
        self._closes = asyncio.Lock()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._polls.is_stopped

    def _make_cluster(self) -> Cluster:
        return Cluster(self.config, may_create=self._may_create)

    def _started(self, cluster: Cluster) -> None:
        polls, assignment = self._polls, self._assignment
        wake = polls.arrived.set
        polls.fetcher = Fetcher(cluster, self.config, assignment.states, wake, assignment.metrics)
        if self.config.group_id is not None:
            polls.subscribed = self._group = GroupSession(cluster, self.config, assignment, wake)

    def close(self, *, commits: bool = True, timeout_ms: int | None = None) -> Coroutine[Any, Any, None]:
        """Commit if commits are automatic and ``commits`` is True; leave the group, disconnect.

        After ``timeout_ms`` it disconnects without the rest; by default after 30 s, and after 3 s if an error
        closes it: in the body of ``async with``, an ``except`` or a ``finally``. Then the records in hand are
        not committed. A poll in another task raises ClientClosed, and an iteration ends. Idempotent. An
        exception of a rebalance listener is raised after the consumer is closed.
        """
        check_limit(timeout_ms)
        # Here, because another task may run the coroutine, as in `asyncio.wait_for`, and handles no error.
        return self._close_after(handled_error(), commits=commits, timeout_ms=timeout_ms)

    async def _close_after(
        self, error: BaseException | None, *, commits: bool = True, timeout_ms: int | None = None
    ) -> None:
        if error is not None:
            self._assignment.put_back()
        if timeout_ms is None:
            timeout_ms = ms_after(error) or CLOSE_TIMEOUT_MS
        if self._has_lost_loop():
            return
        polls, subscribed = self._polls, self._polls.subscribed
        if subscribed is not None:
            subscribed.refuse_within_listener()
        async with self._closes:
            if polls.fetcher is None or self._cluster is None:
                return
            polls.is_closing = True
            polls.arrived.set()
            try:
                if subscribed is not None:
                    await subscribed.close(commits=commits, timeout_s=timeout_ms / 1000)
            finally:
                self._assignment.close()
                polls.fetcher.close()
                self._cluster.close()
                polls.fetcher = None
                polls.arrived.set()

    def stop(self) -> Stopping:
        """End the work after the record or the list in hand; `close` then commits what was handed out.

        Plain, for a signal handler or another thread: ``loop.add_signal_handler(SIGTERM, consumer.stop)``. An
        iteration ends; a poll that waits, or else the next one, returns nothing, and later ones raise
        ClientClosed: see `is_stopped`. Everything else goes on, such as `commit`. Awaiting it also closes.
        """
        self._polls.is_stopped = True
        if self._loop is not None:
            # The loop may end meanwhile.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._polls.arrived.set)
        return Stopping(partial(self._close_after, handled_error()))

    def _may_create(self, topic: str) -> bool:
        is_wanted = self._polls.subscribed is None or self._polls.subscribed.wants_created(topic)
        return self.config.allow_auto_create_topics and is_wanted

    # Which partitions, and from where

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions from now on; partitions that stay keep their positions.

        A new partition starts at the group's committed offset, or else by `auto_offset_reset`, unless `seek`
        is called before the first poll. A missing topic is waited for, with a warning; a partition that its
        topic does not get within `default_api_timeout_ms` is an error of `poll`. Raises SubscriptionConflict,
        INVALID_TOPIC_EXCEPTION.
        """
        cluster, fetcher = self._parts()
        if self._polls.subscribed is not None and self._polls.subscribed.selection is not None:
            raise SubscriptionConflict("the consumer is subscribed to topics: `unsubscribe` first")
        chosen = list(dict.fromkeys(partitions_in(partitions)))
        assignment = self._assignment
        assignment.drop([tp for tp in assignment.states if tp not in chosen])
        assignment.add(chosen, self._group.offsets.fetch if self._group is not None else None)
        cluster.watch_only(*{tp.topic for tp in chosen})
        fetcher.wake()

    def subscribe(
        self,
        topics: Collection[str] | str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Share topics with the members of the group: these, or all with a name that matches the pattern.

        Replaces an earlier subscription. Partitions change within `poll`, which calls the listener. Without a
        `group_id` the consumer reads all partitions of the topics, also those that are added later, which
        it reads from their start; a missing topic is waited for, with a warning.
        Raises SubscriptionConflict after `assign`, INVALID_TOPIC_EXCEPTION, ValueError.
        """
        cluster, _ = self._parts()
        subscribed = self._polls.subscribed
        if self._assignment.states and (subscribed is None or subscribed.selection is None):
            raise SubscriptionConflict("partitions are assigned by hand: `unsubscribe` first")
        selection = select(topics, pattern, listener)
        if subscribed is None:
            subscribed = WholeTopics(cluster, self.config, self._assignment, self._polls.arrived.set)
            self._polls.subscribed = subscribed
        subscribed.subscribe(selection)

    def unsubscribe(self) -> Coroutine[Any, Any, None]:
        """Give up all partitions, also assigned ones, and leave the group. Raises errors of the listener.

        In an ``except`` or a ``finally`` it commits no records in hand, as `close`.
        """
        return self._unsubscribe(handled_error())

    async def _unsubscribe(self, error: BaseException | None) -> None:
        cluster, _ = self._parts()
        if self._polls.subscribed is not None:
            self._polls.subscribed.refuse_within_listener()
        if error is not None:
            self._assignment.put_back()
        try:
            if self._polls.subscribed is not None:
                await self._polls.subscribed.unsubscribe()
        finally:
            self._assignment.drop(list(self._assignment.states))
            cluster.watch_only()

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read now."""
        return set(self._assignment.states)

    def subscription(self) -> set[str]:
        """The topics subscribed to; for a pattern, the topics that were found so far."""
        selection = self._polls.subscribed.selection if self._polls.subscribed is not None else None
        return set() if selection is None else set(selection.topics)

    def group_metadata(self) -> GroupMetadata:
        """The membership with which `Producer.send_offsets_to_transaction` fences offsets (KIP-447).

        Raises CommitFailed if the consumer is subscribed and not a member now: offsets without a member are
        never refused, although the partitions may belong to another one. Raises InvalidConfiguration without
        a group.
        """
        return self._grouped("group_metadata").metadata()

    # Records

    async def poll(
        self, timeout_ms: int = POLL_MS, max_records: int | None = None
    ) -> list[ConsumerRecord[K_co, V_co]]:
        """The next records as soon as they arrive; an empty list after the timeout.

        The list is also empty if positions have moved over batches without records for the user, such as
        the end of a transaction.

        In a group this call also rebalances, which may exceed the timeout: it takes as long as the listener,
        plus up to 5 s for the commit before a revocation if the coordinator does not answer.

        At most ``max_records`` (default `max_poll_records`), in order within each partition. Raises
        OFFSET_OUT_OF_RANGE (with auto_offset_reset none), OffsetUnknown, CORRUPT_MESSAGE and their kind,
        RecordDeserializationError; the position then stays, and a `seek` moves past the error. Raises
        AuthenticationFailed if a broker refuses this client; a later call tries again. Raises NotAssigned
        without a subscription and an assignment.
        """
        return await self._polls.poll(limit_ms(timeout_ms, POLL_MS), max_records)

    async def getmany(
        self, *partitions: Partition, timeout_ms: int = POLL_MS, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K_co, V_co]]]:
        """The next records by partition, of these or of all; as `poll`, also in its limits and errors.

        The records of other partitions stay for later calls. Raises NotAssigned.
        """
        return by_partition(await self._polls.poll(limit_ms(timeout_ms, POLL_MS), max_records, partitions))

    async def getone(self, *partitions: Partition) -> ConsumerRecord[K_co, V_co]:
        """The next record of these partitions or of all, waiting as long as it takes. Raises as `poll`."""
        if partitions:
            while not (records := await self._polls.poll(None, 1, partitions)):
                pass
            return records[0]
        try:
            return await anext(self._polls)
        except StopAsyncIteration:
            raise ClientClosed(f"the consumer {'was stopped' if self.is_stopped else 'is closed'}") from None

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[K_co, V_co]]:
        """Records one by one, until `stop` or `close`."""
        self._parts()
        return self._polls

    def __anext__(self) -> Coroutine[Any, Any, ConsumerRecord[K_co, V_co]]:
        return self._polls.__anext__()

    # Positions

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue from an offset. Raises NotAssigned and ValueError."""
        check_offset(offset)
        self._assignment.seek(self._state(partition), offset, None)

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Continue from the first offset of the log, in these partitions or in all."""
        self._reset(partitions, Reset.EARLIEST)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Continue from the end (see `end_offsets`), in these partitions or in all."""
        self._reset(partitions, Reset.LATEST)

    def seek_to_time(self, timestamp_ms: int, *partitions: Partition) -> None:
        """Continue from the first record at or after a time, or the end; in these partitions or in all."""
        check_number("timestamp_ms", timestamp_ms, 0)
        self._reset(partitions, timestamp_ms)

    async def seek_to_committed(
        self, *partitions: Partition, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Continue from the committed offsets, which it returns; in these partitions or in all.

        A partition without one begins by `auto_offset_reset`. So the records of a transaction that was
        aborted are read again. Raises NotAssigned, RequestTimedOutLocally.
        """
        group = self._grouped("seeking to committed offsets")
        chosen = [state.tp for state in self._states(partitions or self._assignment.states)]
        timeout_ms = limit_ms(timeout_ms, self.config.default_api_timeout_ms)
        committed = await group.offsets.fetch(chosen, timeout_ms)
        self._assignment.seek_to_committed(committed)
        return committed

    def pause(self, *partitions: Partition) -> None:
        """Return no records of these partitions from `poll` until `resume`; they keep their positions."""
        for state in self._states(partitions):
            self._assignment.pause(state)

    def resume(self, *partitions: Partition) -> None:
        """Undo `pause`. Raises NotAssigned."""
        for state in self._states(partitions):
            state.is_paused = False
        self._polls.wake()

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return {tp for tp, state in self._assignment.states.items() if state.is_paused}

    async def position(self, partition: Partition, *, timeout_ms: int | None = None) -> Offset:
        """The offset of the next record. Waits while the broker must be asked for it.

        Raises NotAssigned, RequestTimedOutLocally and the partition's own error.
        """
        state = self._state(partition)
        if (held_back := self._assignment.first_held_back(state.tp)) is not None:
            return Offset(held_back)
        timeout_ms = limit_ms(timeout_ms, self.config.default_api_timeout_ms)
        deadline = time.monotonic() + timeout_ms / 1000
        while state.position is None:
            if state.error is not None:
                raise state.error.again()
            if not await self._polls.wait_until(deadline):
                raise RequestTimedOutLocally(f"the position of {state.tp} was not found in {timeout_ms} ms")
        return Offset(state.position)

    def high_watermark(self, partition: Partition) -> Offset | None:
        """The high watermark of the last fetch; None before the first."""
        high_watermark = self._state(partition).high_watermark
        return Offset(high_watermark) if high_watermark >= 0 else None

    def lag(self, partition: Partition) -> int | None:
        """The distance of the position to the end that the last fetch reported; None before the first fetch.

        The end is the high watermark, with read_committed the last stable offset.
        """
        state = self._state(partition)
        if state.end_offset < 0 or state.position is None:
            return None
        held_back = self._assignment.first_held_back(state.tp)
        return max(0, state.end_offset - (state.position if held_back is None else held_back))

    # Offsets of the group

    async def commit(self, offsets: OffsetsOrRecords | None = None, *, timeout_ms: int | None = None) -> None:
        """Commit the positions, or these offsets, or those after these records; returns when that is done.

        Given offsets are the next to read. Of several records the last one of each partition counts.

        Raises CommitFailed if the partitions belong to other members, or the records were of a topic that was
        made again since, REBALANCE_IN_PROGRESS (commit again after the next poll), RequestTimedOutLocally,
        InvalidConfiguration without a `group_id`.
        """
        group, to_commit = self._grouped("committing"), self._assignment.to_commit(offsets)
        timeout_ms = limit_ms(timeout_ms, self.config.default_api_timeout_ms)
        await group.commits.commit(to_commit, timeout_ms, of_records=offsets is not None)

    def commit_nowait(
        self,
        offsets: OffsetsOrRecords | None = None,
        on_commit: CommitDone | None = None,
    ) -> asyncio.Task[None]:
        """Commit once, in the background; ``on_commit`` gets the offsets and the error, None on success.

        The task is done when the outcome is known, also after a failure.
        """
        if on_commit is not None:
            check_callable("on_commit", on_commit)
        commits = self._grouped("committing").commits
        to_commit = self._assignment.to_commit(offsets)
        return commits.commit_soon(to_commit, on_commit, of_records=offsets is not None)

    @overload
    async def committed(
        self, partitions: Partition, *, timeout_ms: int | None = None
    ) -> OffsetAndMetadata | None: ...

    @overload
    async def committed(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    async def committed(
        self, partitions: Partition | Iterable[Partition], *, timeout_ms: int | None = None
    ) -> OffsetAndMetadata | dict[TopicPartition, OffsetAndMetadata | None] | None:
        """The group's committed offset of a partition, or of each of several; None without one."""
        group = self._grouped("asking for committed offsets")
        timeout_ms = limit_ms(timeout_ms, self.config.default_api_timeout_ms)
        if is_partition(partitions):
            return (await group.offsets.fetch([tp := partition_of(partitions)], timeout_ms))[tp]
        return await group.offsets.fetch(partitions_in(partitions), timeout_ms)

    # Offsets of partitions

    async def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, Offset]:
        """The first offset that each partition still has."""
        offsets = await self._list(dict.fromkeys(partitions_in(partitions), EARLIEST))
        return {tp: listed.offset for tp, listed in offsets.items()}

    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, Offset]:
        """The high watermark of each partition, with read_committed the last stable offset."""
        offsets = await self._list(dict.fromkeys(partitions_in(partitions), LATEST))
        return {tp: listed.offset for tp, listed in offsets.items()}

    async def offsets_for_times(self, timestamps_ms: Timestamps) -> dict[TopicPartition, ListedOffset | None]:
        """The first record at or after each time; None if no record is that recent."""
        offsets = await self._list(checked_specs("timestamps_ms", timestamps_ms))
        return {tp: listed if listed.offset >= 0 else None for tp, listed in offsets.items()}

    async def _list(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, ListedOffset]:
        cluster = self._parts()[0]
        return await list_offsets(cluster, specs, self.config.default_api_timeout_ms, self.config.isolation)

    # Metrics and topics

    def metrics(self) -> Metrics:
        return super().metrics() | self._assignment.snapshot()

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        cluster = self._parts()[0]
        return list((await cluster.topic(topic, self.config.default_api_timeout_ms)).partitions)

    def topic_id(self, topic: str) -> TopicId:
        """The id of the topic that is read under this name now; all zeros if it is not known."""
        return self._parts()[0].cache.topic_id(topic)

    # Inside

    def _grouped(self, what: str) -> GroupSession:
        self._parts()
        if self._group is None:
            raise InvalidConfiguration(f"group_id={self.config.group_id!r}: {what} needs one")
        return self._group

    def _reset(self, partitions: Collection[Partition], reset: int) -> None:
        for state in self._states(partitions or self._assignment.states):
            self._assignment.seek(state, None, reset)

    def _state(self, partition: Partition) -> PartitionState:
        return self._states([partition])[0]

    def _states(self, partitions: Iterable[Partition]) -> list[PartitionState]:
        self._parts()
        return self._assignment.states_of(partitions)

    def _parts(self) -> tuple[Cluster, Fetcher]:
        if self._cluster is None or self._polls.fetcher is None:
            state = "not started; use `async with Consumer(…)`" if self._cluster is None else "closed"
            raise ClientClosed(f"the consumer is {state}")
        self._check_loop()
        return self._cluster, self._polls.fetcher
