"""The consumer for threads: fetches ahead on a thread of its own, hands out whole polls.

Guarantees are those of `barnabas.client.Consumer`. Iterating takes records from the last poll, one by one;
`position` and `commit` count only records that were handed out. One thread at a time may use it, and that
thread calls the rebalance listener, whose methods are plain ones and may use the consumer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import re
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer import consumer as _consumer
from barnabas.client.consumer.group_offsets import CommitDone
from barnabas.client.consumer.partition_state import ConsumerRecord
from barnabas.client.consumer.subscription import RebalanceListener, check_listener
from barnabas.client.errors import ClientClosed
from barnabas.client.loop_thread import Handover, LoopThread, start_on
from barnabas.client.metadata import PartitionInfo
from barnabas.client.offsets import ListedOffset, OffsetAndMetadata, OffsetToCommit
from barnabas.protocol.errors import BarnabasError, LocalError
from barnabas.protocol.ids import Offset, TopicPartition

T = TypeVar("T")
Partition = TopicPartition | tuple[str, int]

_ITERATION_POLL_MS = 1_000
_DROPPED_TIMEOUT_MS = 5_000
"""The time limit for leaving the group when a consumer is dropped: no thread calls its listener."""
_Call = Callable[[], object]


class Consumer:
    """`barnabas.client.Consumer` for threads; connects when it is made."""

    def __init__(self, config: ConsumerConfig | None = None, **settings: Any) -> None:
        self.config = config if config is not None else ConsumerConfig.of(settings)
        self._thread = LoopThread("barnabas-consumer")
        self._consumer = self._thread.call(self._make)
        start_on(self._thread, self._consumer.start)
        self._left: deque[ConsumerRecord] = deque()
        self._outcomes: deque[_Call] = deque()
        """Outcomes of commits, for the callbacks; the consumer's thread adds to it."""
        self._desk = _Desk()
        self._has_listener = False
        self._raised: BaseException | None = None
        """The error of the last poll on this thread; an interrupted poll ends later, on the loop's thread."""

    def __del__(self) -> None:
        thread: LoopThread | None = getattr(self, "_thread", None)
        consumer: _consumer.Consumer | None = getattr(self, "_consumer", None)
        if thread is not None and consumer is not None:
            # Otherwise it would stay a member of its group until max_poll_interval_ms has passed.
            thread.end_unclosed(self, partial(consumer.close, commits=False, timeout_ms=_DROPPED_TIMEOUT_MS))

    async def _make(self) -> _consumer.Consumer:
        return _consumer.Consumer(self.config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raised, self._raised = self._raised, None
        self.close(commits=not _consumer.has_records_in_hand(error, raised))

    def close(self, *, commits: bool = True, timeout_ms: int = _consumer.CLOSE_TIMEOUT_MS) -> None:
        """Commit where that is automatic, leave the group, disconnect, end the thread. Idempotent.

        As `barnabas.client.Consumer.close`, but the time of a listener is not limited.
        """
        if self._thread.closed_reason is not None:
            return
        self._desk.refuse_within_call()
        try:
            self._give_back()
            self._serve(lambda: self._consumer.close(commits=commits, timeout_ms=timeout_ms))
        finally:
            self._thread.stop("the consumer is closed")
            self._left.clear()
        self._tell_outcomes()

    def assign(self, partitions: Iterable[Partition]) -> None:
        wanted = [TopicPartition(*tp) for tp in partitions]
        self._do(lambda: self._consumer.assign(wanted))
        self._left = deque(record for record in self._left if record[:2] in wanted)

    def subscribe(
        self,
        topics: Collection[str] | str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """As `barnabas.client.Consumer.subscribe`; the polling thread calls the listener."""
        told = None
        if listener is not None:
            check_listener(listener)
            told = _InCallersThread(listener, self._desk)
        self._do(lambda: self._consumer.subscribe(topics, pattern=pattern, listener=told))
        self._has_listener = self._has_listener or told is not None

    def unsubscribe(self) -> None:
        self._give_back()
        self._serve(self._consumer.unsubscribe)

    def subscription(self) -> set[str]:
        return self._do(self._consumer.subscription)

    def assignment(self) -> set[TopicPartition]:
        return self._do(self._consumer.assignment)

    def seek(self, partition: Partition, offset: int) -> None:
        self._do(lambda: self._consumer.seek(partition, offset))
        self._forget(partition)

    def seek_to_beginning(self, *partitions: Partition) -> None:
        self._do(lambda: self._consumer.seek_to_beginning(*partitions))
        self._forget(*(partitions or self.assignment()))

    def seek_to_end(self, *partitions: Partition) -> None:
        self._do(lambda: self._consumer.seek_to_end(*partitions))
        self._forget(*(partitions or self.assignment()))

    def pause(self, *partitions: Partition) -> None:
        """As `barnabas.client.Consumer.pause`; records that were polled but not handed out are refetched."""
        for tp in partitions:
            first = self._first_left(tp)
            if first is not None:
                self.seek(tp, first.offset)
        self._do(lambda: self._consumer.pause(*partitions))

    def resume(self, *partitions: Partition) -> None:
        self._do(lambda: self._consumer.resume(*partitions))

    def paused(self) -> set[TopicPartition]:
        return self._do(self._consumer.paused)

    def position(self, partition: Partition, *, timeout_ms: int | None = None) -> Offset:
        first = self._first_left(partition)
        if first is not None:
            return first.offset
        return self._thread.call(lambda: self._consumer.position(partition, timeout_ms=timeout_ms))

    def high_watermark(self, partition: Partition) -> Offset | None:
        return self._do(lambda: self._consumer.high_watermark(partition))

    def lag(self, partition: Partition) -> int | None:
        known = self._do(lambda: self._consumer.lag(partition))
        left = sum(record[:2] == tuple(partition) for record in self._left)
        return None if known is None else known + left

    def metrics(self) -> dict[str, int]:
        """As `barnabas.client.Consumer.metrics`; records that this facade still holds count as read."""
        return self._do(self._consumer.metrics)

    def poll(self, timeout_ms: int = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        """As `barnabas.client.Consumer.poll`."""
        self._raised = None
        self._tell_outcomes()
        if self._left and self._consumer._rebalance_is_due():
            self._give_back()
        if self._left:
            limit = self.config.max_poll_records if max_records is None else max_records
            return [self._left.popleft() for _ in range(min(limit, len(self._left)))]
        polled: Handover[list[ConsumerRecord]] = Handover([])

        async def poll() -> None:
            records = await self._consumer.poll(timeout_ms, max_records)
            if not polled.offer(records):
                self._consumer._rewind(_first_offsets(records))

        try:
            self._serve(poll)
            return polled.outcome
        except BaseException as error:
            # Interrupted: the next poll gets the records that have arrived; later ones are refetched.
            self._left.extend(polled.give_up())
            self._raised = error
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record, waiting for it as long as it takes. Raises as `poll`."""
        self._tell_outcomes()
        if self._left and self._consumer._rebalance_is_due():
            self._give_back()
        while not self._left:
            self._left.extend(self.poll(_ITERATION_POLL_MS))
        return self._left.popleft()

    def getone(self) -> ConsumerRecord:
        """As ``next``."""
        return self.__next__()

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetToCommit] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """As `barnabas.client.Consumer.commit`."""
        wanted = self._handed_out() if offsets is None else offsets
        self._thread.call(lambda: self._consumer.commit(wanted, timeout_ms=timeout_ms))
        self._tell_outcomes()

    def commit_nowait(
        self,
        offsets: Mapping[TopicPartition, OffsetToCommit] | None = None,
        on_commit: CommitDone | None = None,
    ) -> None:
        """Commit once, in the background; a failure is logged if there is no ``on_commit``.

        ``on_commit`` gets the offsets and the error, None on success, in the thread that polls, commits or
        closes next. That call raises the callback's exception.
        """
        wanted = self._handed_out() if offsets is None else offsets
        done: CommitDone | None = None
        if on_commit is not None:
            told = on_commit

            def done(what: Mapping[TopicPartition, OffsetAndMetadata], error: BarnabasError | None) -> None:
                self._outcomes.append(lambda: told(what, error))

        self._do(lambda: self._consumer.commit_nowait(wanted, done))

    def _tell_outcomes(self) -> None:
        while self._outcomes:
            self._outcomes.popleft()()

    def committed(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return self._thread.call(lambda: self._consumer.committed(partitions, timeout_ms=timeout_ms))

    def _handed_out(self) -> dict[TopicPartition, OffsetToCommit]:
        """The positions, without records that were polled but not handed out yet."""
        positions: dict[TopicPartition, OffsetToCommit] = {**self._do(self._consumer._assignment.consumed)}
        return {**positions, **_first_offsets(self._left)}

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        return self._thread.call(lambda: self._consumer.partitions_for(topic))

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, Offset]:
        return self._thread.call(lambda: self._consumer.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, Offset]:
        return self._thread.call(lambda: self._consumer.end_offsets(partitions))

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset | None]:
        return self._thread.call(lambda: self._consumer.offsets_for_times(timestamps_ms))

    def _do(self, work: Callable[[], T]) -> T:
        """Run a plain method of the consumer on its thread."""
        if self._thread.closed_reason is not None:
            raise ClientClosed(self._thread.closed_reason)

        async def run() -> T:
            return work()

        return self._thread.call(run)

    def _serve(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the consumer's thread; its listener calls are made on this thread."""
        if not self._has_listener:
            return self._thread.call(work)
        self._desk.refuse_within_call()
        self._desk.clear()
        future = self._thread.begin(work)
        try:
            self._desk.serve(future)
        except BaseException:
            # An interrupted caller does not want the answer any more.
            future.cancel()
            raise
        return self._thread.outcome(future)

    def _give_back(self) -> None:
        """Rewind to the first record that was polled but not handed out."""
        firsts = _first_offsets(self._left)
        self._left.clear()
        if firsts:
            self._do(lambda: self._consumer._rewind(firsts))

    def _first_left(self, partition: Partition) -> ConsumerRecord | None:
        wanted = tuple(partition)
        return next((record for record in self._left if record[:2] == wanted), None)

    def _forget(self, *partitions: Partition) -> None:
        gone = {tuple(tp) for tp in partitions}
        self._left = deque(record for record in self._left if record[:2] not in gone)


def _first_offsets(records: Sequence[ConsumerRecord]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(record.topic, record.partition): int(record.offset) for record in reversed(records)
    }


class _Desk:
    """A queue of listener calls for the thread that waits for the consumer."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.is_in_call = False

    def clear(self) -> None:
        """Drop the calls of an interrupted call, before the next begins."""
        self.calls = queue.SimpleQueue()

    def serve(self, future: concurrent.futures.Future[T]) -> None:
        """Make the calls that arrive until the future is done."""
        calls = self.calls
        future.add_done_callback(lambda _: calls.put(None))
        while (call := calls.get()) is not None:
            self.is_in_call = True
            try:
                call()
            finally:
                self.is_in_call = False

    def refuse_within_call(self) -> None:
        """Raises LocalError in a listener, because the poll waits for the listener."""
        if self.is_in_call:
            raise LocalError(
                "a rebalance listener is a part of a poll, and cannot poll, unsubscribe or close itself"
            )


class _InCallersThread(RebalanceListener):
    """Passes a listener's calls to the thread that waits for the consumer."""

    def __init__(self, listener: RebalanceListener, desk: _Desk) -> None:
        self._listener = listener
        self._desk = desk

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        await self._call(lambda: self._listener.on_partitions_revoked(partitions))

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        await self._call(lambda: self._listener.on_partitions_assigned(partitions))

    async def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        await self._call(lambda: self._listener.on_partitions_lost(partitions))

    async def _call(self, told: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish(error: Exception | None) -> None:
            if not done.done():
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

        def call() -> None:
            error: Exception | None = None
            try:
                if told() is not None:
                    error = TypeError("a listener of the blocking consumer must have plain methods")
            except Exception as raised:  # noqa: BLE001 - the user's own, raised where it is waited for
                error = raised
            loop.call_soon_threadsafe(finish, error)

        self._desk.calls.put(call)
        await done
