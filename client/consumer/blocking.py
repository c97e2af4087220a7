"""The consumer for threads: fetches ahead on a thread of its own, hands out whole polls.

It guarantees the same as `barnabas.client.Consumer`. Iterating takes records from the last poll, one by one;
`position` and `commit` count only records that were handed out. One thread at a time may use it, and that
thread calls the rebalance listener. The listener's methods are plain ones and may use the consumer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import re
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from barnabas.client.arguments import check_callable, check_limit, limit_ms
from barnabas.client.client import handled_error, ms_after
from barnabas.client.config import ConsumerConfig, ConsumerSettings
from barnabas.client.consumer.assignment import by_partition, first_offsets
from barnabas.client.consumer.consumer import CLOSE_TIMEOUT_MS, POLL_MS
from barnabas.client.consumer.consumer import Consumer as _Consumer
from barnabas.client.consumer.group_offsets import CommitDone
from barnabas.client.consumer.subscription import RebalanceListener, check_listener
from barnabas.client.consumer_record import ConsumerRecord, K_co, V_co
from barnabas.client.errors import ClientClosed
from barnabas.client.loop_thread import BlockingClient, Closing, hop, hop_plain
from barnabas.client.offsets import (
    OffsetAndMetadata,
    OffsetsOrRecords,
    Partition,
)
from barnabas.client.serialization import Deserializer
from barnabas.protocol.errors import BarnabasError, LocalError
from barnabas.protocol.ids import TopicPartition

T = TypeVar("T")

_DROPPED_TIMEOUT_MS = 5_000
"""The time limit for leaving the group when a consumer is dropped: no thread calls its listener."""
_Call = Callable[[], object]


class Consumer(BlockingClient[_Consumer[K_co, V_co]], Generic[K_co, V_co]):
    """`barnabas.client.Consumer` for threads; connects when it is made."""

    def __init__(
        self,
        config: ConsumerConfig | None = None,
        *,
        key_deserializer: Deserializer[K_co] | None = None,
        value_deserializer: Deserializer[V_co] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """As `barnabas.client.Consumer`; the deserializers are called on the consumer's own thread."""
        super().__init__(
            _Consumer(
                config, key_deserializer=key_deserializer, value_deserializer=value_deserializer, **settings
            )
        )
        self.config = self._client.config
        self._polls = self._client._polls
        self._assignment = self._polls.assignment
        """Its ``held_back`` and ``in_hand`` are for the user's thread; the client reads them within calls."""
        self._in_hand = self._assignment.in_hand
        self._is_closing = False
        self._callbacks: deque[_Call] = deque()
        """Calls of `on_commit`, which the consumer's thread adds for the user's thread."""
        self._listener_calls = _ListenerCalls()
        self._has_listener = False

    def _closing(self) -> Closing:
        # Otherwise it would stay a member of its group until max_poll_interval_ms has passed.
        return partial(self._client.close, commits=False, timeout_ms=_DROPPED_TIMEOUT_MS)

    def close(self, *, commits: bool = True, timeout_ms: int | None = None) -> None:
        """Commit if that is automatic, leave the group, disconnect, end the thread. Idempotent.

        As `barnabas.client.Consumer.close`, but a listener may take any time.
        """
        check_limit(timeout_ms)
        # Here, because the client's own thread handles no error.
        self._close_after(handled_error(), commits=commits, timeout_ms=timeout_ms)

    def _close_after(
        self, error: BaseException | None, *, commits: bool = True, timeout_ms: int | None = None
    ) -> None:
        if self._thread.closed_reason is not None:
            return
        self._listener_calls.refuse_within_call()
        self._is_closing = True
        limit_ms = timeout_ms if timeout_ms is not None else ms_after(error) or CLOSE_TIMEOUT_MS
        try:
            self._give_back(error)
            self._serve(lambda: self._client._close_after(None, commits=commits, timeout_ms=limit_ms))
        finally:
            self._thread.stop("the consumer is closed")
            self._assignment.held_back.clear()
        self._call_back()

    def stop(self) -> None:
        """End the work after the record or the list in hand; `close` then commits what was handed out.

        For another thread or a signal handler, so it takes no lock: ``signal(SIGTERM, lambda *_: c.stop())``.
        An iteration ends; a poll that waits, or else the next one, returns nothing, and later ones raise
        ClientClosed: see `is_stopped`. Everything else goes on, such as `commit`.
        """
        self._client.stop()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._client.is_stopped

    subscription = hop_plain(_Consumer.subscription)
    group_metadata = hop_plain(_Consumer.group_metadata)
    assignment = hop_plain(_Consumer.assignment)
    resume = hop_plain(_Consumer.resume)
    paused = hop_plain(_Consumer.paused)
    assign = hop_plain(_Consumer.assign)
    seek = hop_plain(_Consumer.seek)
    seek_to_beginning = hop_plain(_Consumer.seek_to_beginning)
    seek_to_end = hop_plain(_Consumer.seek_to_end)
    seek_to_time = hop_plain(_Consumer.seek_to_time)
    seek_to_committed = hop(_Consumer.seek_to_committed)
    pause = hop_plain(_Consumer.pause)
    position = hop(_Consumer.position)
    lag = hop_plain(_Consumer.lag)
    high_watermark = hop_plain(_Consumer.high_watermark)
    partitions_for = hop(_Consumer.partitions_for)
    topic_id = hop_plain(_Consumer.topic_id)
    beginning_offsets = hop(_Consumer.beginning_offsets)
    end_offsets = hop(_Consumer.end_offsets)
    offsets_for_times = hop(_Consumer.offsets_for_times)

    def subscribe(
        self,
        topics: Collection[str] | str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """As `barnabas.client.Consumer.subscribe`; the polling thread calls the listener."""
        passed_on = None
        if listener is not None:
            check_listener(listener)
            passed_on = _InCallersThread(listener, self._listener_calls)
        self._thread.call_plain(lambda: self._client.subscribe(topics, pattern=pattern, listener=passed_on))
        self._has_listener = self._has_listener or passed_on is not None

    def unsubscribe(self) -> None:
        self._give_back(handled_error())
        self._serve(lambda: self._client._unsubscribe(None))

    def poll(
        self, timeout_ms: int = POLL_MS, max_records: int | None = None
    ) -> list[ConsumerRecord[K_co, V_co]]:
        return self._poll(timeout_ms, max_records)

    def getmany(
        self, *partitions: Partition, timeout_ms: int = POLL_MS, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K_co, V_co]]]:
        return by_partition(self._poll(timeout_ms, max_records, partitions))

    def _poll(
        self, timeout_ms: int, max_records: int | None, partitions: Collection[Partition] = ()
    ) -> list[ConsumerRecord[K_co, V_co]]:
        limit = self._polls.record_limit(max_records)
        self._in_hand.clear()
        self._call_back()
        if self._assignment.held_back and (partitions or self._polls.rebalance_is_due()):
            self._give_back()
        if self._assignment.held_back and not self.is_stopped:
            records = list(islice(self._assignment.held_back, limit))
            # First, so that an interrupt between the two loses no record.
            self._in_hand.firsts = first_offsets(records)
            for _ in records:
                self._assignment.held_back.popleft()
            return records
        # Either the loop marks it as running, and this thread gets the records, or this thread cancels it.
        polled: concurrent.futures.Future[list[ConsumerRecord[K_co, V_co]]] = concurrent.futures.Future()

        exits: list[BaseException] = []

        async def poll() -> None:
            try:
                records = await self._polls.poll(limit_ms(timeout_ms, POLL_MS), limit, partitions)
            except (KeyboardInterrupt, SystemExit) as error:
                # Of a deserializer; it would end the client's thread.
                exits.append(error)
                return
            if polled.set_running_or_notify_cancel():
                polled.set_result(records)
            else:
                self._assignment.take_back(records)
                self._in_hand.firsts = {}

        try:
            self._serve(poll)
            if exits:
                raise exits[0]
            return polled.result()
        except BaseException:
            # Interrupted: the next poll gets the records that have arrived; later ones are refetched.
            if not polled.cancel():
                self._assignment.held_back.extend(polled.result())
            self._in_hand.firsts = {}
            raise

    def __iter__(self) -> Self:
        """Records one by one, until `stop` or `close`."""
        if self._thread.closed_reason is not None:
            raise ClientClosed(self._thread.closed_reason)
        return self

    def __next__(self) -> ConsumerRecord[K_co, V_co]:
        assignment = self._assignment
        try:
            self._call_back()
            if assignment.held_back and self._polls.rebalance_is_due():
                self._in_hand.clear()
                self._give_back()
            while not (assignment.held_back or self.is_stopped):
                assignment.held_back.extend(self.poll(POLL_MS))
                self._in_hand.clear()
        except ClientClosed:
            if self._is_closing:
                raise StopIteration from None
            raise
        if self.is_stopped:
            self._in_hand.clear()
            raise StopIteration
        # First, so that an interrupt between the two does not lose the record.
        self._in_hand.record = assignment.held_back[0]
        return assignment.held_back.popleft()

    def getone(self, *partitions: Partition) -> ConsumerRecord[K_co, V_co]:
        if partitions:
            while not (records := self._poll(POLL_MS, 1, partitions)):
                pass
            return records[0]
        try:
            return self.__next__()
        except StopIteration:
            raise ClientClosed(f"the consumer {'was stopped' if self.is_stopped else 'is closed'}") from None

    def commit(self, offsets: OffsetsOrRecords | None = None, *, timeout_ms: int | None = None) -> None:
        self._thread.call(lambda: self._client.commit(offsets, timeout_ms=timeout_ms))
        self._call_back()

    @overload
    def committed(
        self, partitions: Partition, *, timeout_ms: int | None = None
    ) -> OffsetAndMetadata | None: ...

    @overload
    def committed(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    def committed(self, partitions: Any, *, timeout_ms: int | None = None) -> Any:
        return self._thread.call(lambda: self._client.committed(partitions, timeout_ms=timeout_ms))

    def commit_nowait(
        self,
        offsets: OffsetsOrRecords | None = None,
        on_commit: CommitDone | None = None,
    ) -> concurrent.futures.Future[None]:
        """Commit once, in the background; a failure is logged if there is no ``on_commit``.

        ``on_commit`` gets the offsets and the error, None on success, in the thread that polls, commits or
        closes next. That call raises the callback's exception. The future is done when the outcome is known,
        also after a failure.
        """
        done: CommitDone | None = None
        if on_commit is not None:
            check_callable("on_commit", on_commit)
            callback = on_commit

            def done(
                done_for: Mapping[TopicPartition, OffsetAndMetadata], error: BarnabasError | None
            ) -> None:
                self._callbacks.append(lambda: callback(done_for, error))

        task = self._thread.call_plain(lambda: self._client.commit_nowait(offsets, done))

        async def outcome() -> None:
            # A cancelled future must not cancel the commit, which is on its way.
            await asyncio.wait((task,))

        return self._thread.begin(outcome)

    def _call_back(self) -> None:
        while self._callbacks:
            self._callbacks.popleft()()

    def _serve(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the consumer's thread; its listener calls are made on this thread."""
        if not self._has_listener:
            return self._thread.call(work)
        self._listener_calls.refuse_within_call()
        # The calls of an interrupted call are dropped.
        self._listener_calls.calls = queue.SimpleQueue()
        future = self._thread.begin(work)
        try:
            self._listener_calls.serve(future)
        except BaseException:
            # An interrupted caller does not want the answer any more.
            future.cancel()
            raise
        return self._thread.outcome(future)

    def _give_back(self, error: BaseException | None = None) -> None:
        """Continue with the records that are held back, and after an error with those in hand."""
        if self._assignment.held_back:
            self._thread.call_plain(self._assignment.give_back)
        if error is not None:
            self._thread.call_plain(self._assignment.put_back)


class _ListenerCalls:
    """A queue of listener calls for the thread that waits for the consumer."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.is_in_call = False

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


@dataclass(eq=False)
class _InCallersThread(RebalanceListener):
    """Passes a listener's calls to the thread that waits for the consumer."""

    _listener: RebalanceListener
    _calls: _ListenerCalls

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        await self._call(lambda: self._listener.on_partitions_revoked(partitions))

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        await self._call(lambda: self._listener.on_partitions_assigned(partitions))

    async def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        await self._call(lambda: self._listener.on_partitions_lost(partitions))

    async def _call(self, method: Callable[[], object]) -> None:
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def call() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                if method() is not None:
                    raise TypeError("a listener of the blocking consumer must have plain methods")
            except Exception as error:  # noqa: BLE001 - the user's own, raised where it is waited for
                done.set_exception(error)
            else:
                done.set_result(None)

        self._calls.calls.put(call)
        await asyncio.wrap_future(done)
