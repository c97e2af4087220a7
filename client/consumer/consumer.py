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
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, Self, Unpack, overload

from barnabas.client.arguments import check_callable, check_limit, check_number, limit_ms
from barnabas.client.client import handled_error, ms_after
from barnabas.client.cluster import Cluster
from barnabas.client.config import ConsumerConfig, ConsumerSettings
from barnabas.client.consumer.assignment import by_partition
from barnabas.client.consumer.fetcher import Fetcher
from barnabas.client.consumer.group_offsets import CommitDone
from barnabas.client.consumer.group_session import GroupSession
from barnabas.client.consumer.partition_state import ConsumerRecord
from barnabas.client.consumer.positions import Positions
from barnabas.client.consumer.subscribed import NEVER, Subscribed
from barnabas.client.consumer.subscription import RebalanceListener, select
from barnabas.client.consumer.whole_topics import WholeTopics
from barnabas.client.errors import (
    ClientClosed,
    CommitFailed,
    NotAssigned,
    SubscriptionConflict,
)
from barnabas.client.metadata import PartitionInfo
from barnabas.client.metrics import Metrics
from barnabas.client.offsets import (
    GroupMetadata,
    OffsetAndMetadata,
    OffsetsOrRecords,
    Partition,
    is_partition,
    offsets_after,
    partition_of,
    partitions_in,
)
from barnabas.client.serialization import Deserializer, K_co, V_co, deserializers_of
from barnabas.protocol.ids import TopicId, TopicPartition

__all__ = ["Consumer", "ConsumerRecord", "OffsetAndMetadata", "RebalanceListener"]

CLOSE_TIMEOUT_MS: Final = 30_000
POLL_MS: Final = 1_000


class Stopping:
    """The outcome of `Consumer.stop`: closes the consumer if it is awaited, and need not be."""

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._close = close

    def __await__(self) -> Generator[Any, None, None]:
        return self._close().__await__()


class Consumer(Positions, Generic[K_co, V_co]):
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
        super().__init__(ConsumerConfig.given(config, settings), deserializers)
        self._closes = asyncio.Lock()
        self._is_closing = False
        self.is_stopped = False
        """Whether `stop` was called."""
        self._has_returned_stop = False
        """Whether a poll returned because of `stop`; a loop that goes on must not spin."""

    def _make_cluster(self) -> Cluster:
        return Cluster(self.config, may_create=self._may_create)

    def _started(self, cluster: Cluster) -> None:
        assignment = self._assignment
        self._fetcher = Fetcher(
            cluster, self.config, assignment.states, self._arrived.set, assignment.metrics
        )
        if self.config.group_id is not None:
            self._group = GroupSession(cluster, self.config, self._assignment, self._arrived.set)
            self._subscribed = self._group

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
        if self._subscribed is not None:
            self._subscribed.refuse_within_listener()
        async with self._closes:
            if self._fetcher is None or self._cluster is None:
                return
            self._is_closing = True
            self._arrived.set()
            try:
                if self._subscribed is not None:
                    await self._subscribed.close(commits=commits, timeout_s=timeout_ms / 1000)
            finally:
                self._assignment.close()
                self._fetcher.close()
                self._cluster.close()
                self._fetcher = None
                self._arrived.set()

    def stop(self) -> Stopping:
        """End the work after the record or the list in hand; `close` then commits what was handed out.

        Plain, for a signal handler or another thread: ``loop.add_signal_handler(SIGTERM, consumer.stop)``. An
        iteration ends; a poll that waits, or else the next one, returns nothing, and later ones raise
        ClientClosed: see `is_stopped`. Everything else goes on, such as `commit`. Awaiting it also closes.
        """
        self.is_stopped = True
        if self._loop is not None:
            # The loop may end meanwhile.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._arrived.set)
        return Stopping(partial(self._close_after, handled_error()))

    def _may_create(self, topic: str) -> bool:
        is_wanted = self._subscribed is None or self._subscribed.wants_created(topic)
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
        if self._subscribed is not None and self._subscribed.selection is not None:
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
        subscribed = self._subscribed
        if self._assignment.states and (subscribed is None or subscribed.selection is None):
            raise SubscriptionConflict("partitions are assigned by hand: `unsubscribe` first")
        selection = select(topics, pattern, listener)
        if subscribed is None:
            subscribed = WholeTopics(cluster, self.config, self._assignment, self._arrived.set)
            self._subscribed = subscribed
        subscribed.subscribe(selection)

    def unsubscribe(self) -> Coroutine[Any, Any, None]:
        """Give up all partitions, also assigned ones, and leave the group. Raises errors of the listener.

        In an ``except`` or a ``finally`` it commits no records in hand, as `close`.
        """
        return self._unsubscribe(handled_error())

    async def _unsubscribe(self, error: BaseException | None) -> None:
        cluster, _ = self._parts()
        if self._subscribed is not None:
            self._subscribed.refuse_within_listener()
        if error is not None:
            self._assignment.put_back()
        try:
            if self._subscribed is not None:
                await self._subscribed.unsubscribe()
        finally:
            self._assignment.drop(list(self._assignment.states))
            cluster.watch_only()

    def subscription(self) -> set[str]:
        """The topics subscribed to; for a pattern, the topics that were found so far."""
        selection = self._subscribed.selection if self._subscribed is not None else None
        return set() if selection is None else set(selection.topics)

    def group_metadata(self) -> GroupMetadata:
        """The membership with which `Producer.send_offsets_to_transaction` fences offsets (KIP-447).

        Raises CommitFailed if the consumer is subscribed and not a member now: offsets without a member are
        never refused, although the partitions may belong to another one. Raises InvalidConfiguration without
        a group.
        """
        group = self._grouped("group_metadata")
        member = group.member
        if group.selection is not None and not member.holds_generation:
            raise CommitFailed(f"the consumer is not a member of group {self.config.group_id!r} now")
        identity = member.identity
        return GroupMetadata(
            str(self.config.group_id), identity.generation_id, identity.member_id, member.group_instance_id
        )

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
        return await self._poll(limit_ms(timeout_ms, POLL_MS), max_records)

    async def getmany(
        self, *partitions: Partition, timeout_ms: int = POLL_MS, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K_co, V_co]]]:
        """The next records by partition, of these or of all; as `poll`, also in its limits and errors.

        The records of other partitions stay for later calls. Raises NotAssigned.
        """
        return by_partition(await self._poll(limit_ms(timeout_ms, POLL_MS), max_records, partitions))

    async def _poll(
        self, timeout_ms: int | None, max_records: int | None, partitions: Iterable[Partition] = ()
    ) -> list[ConsumerRecord[K_co, V_co]]:
        """Without partitions of all, without a time-out as long as it takes."""
        deadline = NEVER if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        limit = self._record_limit(max_records)
        chosen = [state.tp for state in self._states(partitions)]
        self._assignment.in_hand.clear()
        self._assignment.metrics.polled()
        # Let the fetches run even if the caller polls without ever waiting.
        await asyncio.sleep(0)
        try:
            while not self.is_stopped:
                if self._subscribed is not None:
                    await self._keep_up(self._subscribed)
                # A rebalance may have taken one of them.
                self._states(chosen)
                if (records := self._assignment.collect(limit, only=chosen)) or self._assignment.has_passed:
                    return records
                if not await self._wait_in_poll(deadline):
                    return []
        except ClientClosed:
            if not self.is_stopped:
                raise
        if self._has_returned_stop:
            raise ClientClosed("the consumer was stopped")
        self._has_returned_stop = True
        return []

    async def getone(self, *partitions: Partition) -> ConsumerRecord[K_co, V_co]:
        """The next record of these partitions or of all, waiting as long as it takes. Raises as `poll`."""
        if partitions:
            while not (records := await self._poll(None, 1, partitions)):
                pass
            return records[0]
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise ClientClosed(f"the consumer {'was stopped' if self.is_stopped else 'is closed'}") from None

    def __aiter__(self) -> Self:
        """Records one by one, until `stop` or `close`."""
        self._parts()
        return self

    async def __anext__(self) -> ConsumerRecord[K_co, V_co]:
        assignment = self._assignment
        try:
            while not self.is_stopped:
                if (subscribed := self._subscribed) is not None:
                    present = time.monotonic()
                    subscribed.member.polled(present)
                    if subscribed.upkeep_due_at <= present or self._is_closing:
                        assignment.in_hand.clear()
                        await self._keep_up(subscribed)
                if (state := assignment.current_state) is not None:
                    if state.generation == assignment.current_generation:
                        for record in assignment.current:
                            state.position = record.offset + 1
                            assignment.in_hand.record = record
                            return record
                    assignment.finish_current()
                assignment.in_hand.clear()
                assignment.metrics.polled()
                await asyncio.sleep(0)
                self._parts()
                if not assignment.take_current():
                    await self._wait_in_poll(NEVER)
            assignment.in_hand.clear()
            raise StopAsyncIteration
        except ClientClosed:
            if self._is_closing:
                raise StopAsyncIteration from None
            raise

    async def _keep_up(self, subscribed: Subscribed) -> None:
        """A poll's work for the subscription. Raises ClientClosed once another task has begun to close."""
        subscribed.refuse_within_listener()
        if not self._is_closing:
            await subscribed.upkeep()
        if self._is_closing:
            raise ClientClosed("the consumer is being closed")

    async def _wait_in_poll(self, deadline: float) -> bool:
        """Wait for records, the deadline or work for the subscription; the user counts as polling.

        Raises AuthenticationFailed if a broker refuses this client, NotAssigned if there is nothing to read.
        """
        self._parts()[1].check_refused()
        if self.is_stopped:
            return True
        subscribed = self._subscribed
        if not self._assignment.states and (subscribed is None or subscribed.selection is None):
            raise NotAssigned("the consumer reads nothing: call `subscribe` or `assign` first")
        if subscribed is None:
            return await self._wait_until(deadline)
        subscribed.refuse_within_listener()
        if deadline <= time.monotonic():
            return False
        if subscribed.upkeep_due_at <= time.monotonic():
            return True
        member = subscribed.member
        member.poll_begins(time.monotonic())
        try:
            await self._wait_until(min(deadline, subscribed.upkeep_due_at))
        finally:
            member.poll_ends(time.monotonic())
        return True

    # Offsets of the group

    async def commit(self, offsets: OffsetsOrRecords | None = None, *, timeout_ms: int | None = None) -> None:
        """Commit the positions, or these offsets, or those after these records; returns when that is done.

        Given offsets are the next to read. Of several records the last one of each partition counts.

        Raises CommitFailed if the partitions belong to other members, or the records were of a topic that was
        made again since, REBALANCE_IN_PROGRESS (commit again after the next poll), RequestTimedOutLocally,
        InvalidConfiguration without a `group_id`.
        """
        group, to_commit = self._grouped("committing"), self._to_commit(offsets)
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
        commits, to_commit = self._grouped("committing").commits, self._to_commit(offsets)
        return commits.commit_soon(to_commit, on_commit, of_records=offsets is not None)

    def _to_commit(self, offsets: OffsetsOrRecords | None) -> dict[TopicPartition, OffsetAndMetadata]:
        to_commit = positions = self._assignment.consumed()
        if offsets is not None:
            to_commit = offsets_after(offsets)
            if not isinstance(offsets, Mapping):
                # The position has the leader epoch as well.
                to_commit = {
                    tp: own if (own := positions.get(tp, offset)).offset == offset.offset else offset
                    for tp, offset in to_commit.items()
                }
        self._assignment.in_hand.committed(to_commit)
        return to_commit

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

    # Metrics and topics

    def metrics(self) -> Metrics:
        # A list, because the loop may change the assignment meanwhile.
        states = list(self._assignment.states.values())
        return super().metrics() | self._assignment.metrics.snapshot(states)

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        cluster = self._parts()[0]
        return list((await cluster.topic(topic, self.config.default_api_timeout_ms)).partitions)

    def topic_id(self, topic: str) -> TopicId:
        """The id of the topic that is read under this name now; all zeros if it is not known."""
        return self._parts()[0].cache.topic_id(topic)

    # Inside

    def _record_limit(self, max_records: int | None) -> int:
        if max_records is None:
            return self.config.max_poll_records
        check_number("max_records", max_records, 1)
        return max_records

    def _rebalance_is_due(self) -> bool:
        """Whether the group needs a poll. The facade calls this, which counts as a poll, for each record."""
        if self._subscribed is None:
            return False
        self._subscribed.member.polled(time.monotonic())
        return self._subscribed.upkeep_due_at == -NEVER
