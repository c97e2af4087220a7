"""Collects the producer's records: one queue of batches per partition, bounded by `buffer_memory`.

Guarantees: records of a partition keep their order; only the last batch of a queue is open; a sent batch
moves from the queue to its pipeline (`sequences`), where it stays until it is done, so a retry never
reorders. Memory is reserved per batch, before its first record; a batch that grows beyond `batch_size`,
because an earlier one of its partition is in flight, reserves more. Appenders that wait for memory get it in
order. Freed memory is reserved for the first waiter before it wakes, so that another appender cannot take it.

Appends come from one thread, or under ``lock`` from several; the sender, on the event loop, takes the lock
for everything else.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from barnabas.client.config import ProducerConfig
from barnabas.client.errors import BufferExhausted, ClientClosed
from barnabas.client.metadata import TopicInfo
from barnabas.client.metrics import Metrics
from barnabas.client.producer.batch import DeliveryCallback, ProducerBatch, now
from barnabas.client.producer.measurements import ProducerMetrics
from barnabas.client.producer.partitioners import KeyCache, KeyPartitioner, check_partition
from barnabas.client.producer.sequences import MAX_NUMBERED, Pipeline
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.records import decode_fields
from barnabas.protocol.schema import Buffer

T = TypeVar("T")
log = logging.getLogger(__name__)

Headers = Iterable[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, Headers | None, int]
Append = Callable[[bytes | None, bytes | None, Headers | None, int], int | None]

_GROWTH_LIMIT: Final = 16
"""The most by which a waiting batch outgrows `batch_size`, as a factor."""
_NO_LIMIT: Final = 0x7FFFFFFF
_STICKY_TRIES: Final = 4


def _refuse(key: bytes | None, value: bytes | None, headers: Headers | None, timestamp_ms: int) -> int | None:
    """The append of a queue without an open batch."""
    return None


@dataclass(slots=True, eq=False)
class _MemoryWaiter:
    """One appender that waits for memory; changed under the accumulator's lock."""

    size: int
    future: asyncio.Future[None]
    is_granted: bool = False
    """Whether its bytes are reserved; the waiter releases them if it does not use them."""

    def wake(self, error: BarnabasError | None = None) -> None:
        """From any thread."""
        self.future.get_loop().call_soon_threadsafe(self._wake, error)

    def _wake(self, error: BarnabasError | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """The batches of one partition. ``append`` appends to the open batch; without one it refuses."""

    tp: TopicPartition
    pipeline: Pipeline
    batches: deque[ProducerBatch] = field(default_factory=deque)
    """Batches that were never sent."""
    open: ProducerBatch | None = None
    append: Append = _refuse
    retry_at: float = 0.0

    @property
    def oldest(self) -> ProducerBatch | None:
        """The batch that has waited longest for its outcome."""
        return self.pipeline.oldest or (self.batches[0] if self.batches else None)

    def close_open(self) -> None:
        """Encode the open batch. If that fails, `take` tries again, and the sender fails the batch."""
        closing = self.open
        if closing is not None:
            # First: after a Ctrl-C in the encoding the batch must get no more records.
            self.let_go()
            try:
                closing.close()
            except Exception:
                log.exception("%s: a batch could not be encoded", self.tp)

    def let_go(self) -> None:
        """Let the open batch get no more records."""
        self.open, self.append = None, _refuse


class TopicQueues:
    """The queues of a topic, and the current one for records without a key."""

    __slots__ = ("by_partition", "keys", "name", "partition_count", "sticky", "topic_id", "used_at")

    def __init__(self, info: TopicInfo, make_queue: Callable[[TopicPartition], PartitionQueue]) -> None:
        self.name = info.name
        self.by_partition: list[PartitionQueue] = []
        """May have more queues than the topic has partitions: see `take`."""
        self.used_at = now()
        """The time of the last new batch."""
        self.take(info, make_queue)

    def take(self, info: TopicInfo, make_queue: Callable[[TopicPartition], PartitionQueue]) -> None:
        """Extend or shrink to the topic's present number of partitions.

        Partitions that a recreated topic lacks keep their queues, for waiting records, but take no new ones.
        """
        self.topic_id = info.topic_id
        self.partition_count = len(info.partitions)
        self.by_partition += [
            make_queue(TopicPartition(info.name, partition))
            for partition in range(len(self.by_partition), self.partition_count)
        ]
        self.keys = KeyCache(self.partition_count)
        self.sticky = self._any_queue()

    def lacks(self, partition: object) -> bool:
        """Whether the topic had fewer partitions when its metadata was read."""
        return type(partition) is int and partition >= self.partition_count

    def _any_queue(self) -> PartitionQueue:
        return self.by_partition[random.randrange(self.partition_count)]

    def move_on(self, has_leader: Callable[[TopicPartition], bool]) -> None:
        """Send records without a key to another partition, if possible to one with a leader."""
        if self.partition_count == 1:
            return
        present = self.sticky
        for _ in range(_STICKY_TRIES):
            self.sticky = self._any_queue()
            if self.sticky is not present and has_leader(self.sticky.tp):
                return


class Accumulator:
    def __init__(
        self,
        config: ProducerConfig,
        *,
        partitioner: KeyPartitioner | None,
        has_leader: Callable[[TopicPartition], bool],
        wake_sender: Callable[[], None],
    ) -> None:
        self.config = config
        self.lock = threading.Lock()
        self.topics: dict[str, TopicQueues] = {}
        self.active: dict[TopicPartition, PartitionQueue] = {}
        """The queues with unsent or unfinished batches."""
        self.incomplete: set[ProducerBatch] = set()
        self.metrics = ProducerMetrics()
        self.available_bytes = config.buffer_memory
        """0 ≤ available ≤ buffer_memory; the memory that no batch and no woken waiter has reserved."""
        self.refusal: BarnabasError | None = None
        """The error of appends while no records are taken: outside of transactions, and after `close`."""
        self._is_closed = False
        self._granted = 0
        """Bytes that the present append may use besides the available ones; 0 except in `when_free`."""
        self._partitioner = partitioner
        self._has_leader = has_leader
        self._wake_sender = wake_sender
        self._compression = config.compression
        self._waiters: deque[_MemoryWaiter] = deque()

    @property
    def is_short_of_memory(self) -> bool:
        """Whether an appender waits for memory; if so, batches do not linger."""
        return bool(self._waiters)

    def snapshot(self) -> Metrics:
        """The measurements of `PRODUCER_METRICS`. Any thread, without the lock."""
        return self.metrics.snapshot() | {
            "buffer-available-bytes": self.available_bytes,
            "buffer-total-bytes": self.config.buffer_memory,
            "waiting-threads": len(self._waiters),
        }

    def _make_queue(self, tp: TopicPartition) -> PartitionQueue:
        return PartitionQueue(tp, self.make_pipeline())

    def make_pipeline(self) -> Pipeline:
        numbered = self.config.is_idempotent
        limit = min(MAX_NUMBERED, self.config.max_in_flight_requests_per_connection) if numbered else 1
        return Pipeline(limit, numbered, is_transactional=self.config.transactional_id is not None)

    # Appending

    def add_topic(self, info: TopicInfo) -> TopicQueues:
        """The queues of a topic, made with its first record and extended when it gets more partitions."""
        queues = self.topics.get(info.name)
        if queues is None:
            queues = self.topics[info.name] = TopicQueues(info, self._make_queue)
        elif len(info.partitions) > queues.partition_count or info.topic_id != queues.topic_id:
            # Fewer partitions of the same topic are stale metadata: partitions are never removed.
            queues.take(info, self._make_queue)
        return queues

    def queue_for(self, topic: TopicQueues, key: bytes | None, partition: int | None) -> PartitionQueue:
        """The queue for a record. Raises InvalidConfiguration for a partition that does not exist."""
        if partition is not None or self._partitioner is not None:
            if partition is None and self._partitioner is not None:
                partition = self._partitioner(key, topic.partition_count)
            # A partitioner of the user may return anything.
            return topic.by_partition[check_partition(partition, topic.partition_count, topic.name)]
        if key is not None:
            return topic.by_partition[topic.keys.partition(key)]
        return topic.sticky

    def append(
        self,
        topic: TopicQueues,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        partition: int | None,
        is_sticky: bool,
        on_delivery: DeliveryCallback | None = None,
    ) -> tuple[ProducerBatch, int] | int:
        """Append a record; returns its batch and the index in it, or the bytes of memory that are missing.

        Raises MESSAGE_TOO_LARGE for a record above `max_request_size`, and `refusal`.
        """
        queue = topic.sticky if is_sticky else self.queue_for(topic, key, partition)
        index = queue.append(key, value, headers, timestamp_ms)
        batch = queue.open
        if index is None or batch is None:
            record = key, value, headers, timestamp_ms
            taken = self._append_to_new(topic, queue, record, is_sticky=is_sticky)
            if isinstance(taken, int):
                return taken
            batch, index = taken
        if on_delivery is not None:
            batch.add_callback(index, timestamp_ms, on_delivery)
        return batch, index

    async def when_free(self, attempt: Callable[[], T | int]) -> T:
        """Repeat an append until there is memory for it, for at most `max_block_ms`.

        On the event loop only. Raises BufferExhausted, and as ``attempt``.
        """
        deadline = now() + self.config.max_block_ms / 1000
        granted = 0
        while True:
            with self.lock:
                self._granted = granted
                try:
                    taken = attempt()
                finally:
                    unused, self._granted = self._granted, 0
                    self._release(unused)
            if not isinstance(taken, int):
                return taken
            granted = await self.wait_for_memory(taken, deadline)

    def _append_to_new(
        self, topic: TopicQueues, queue: PartitionQueue, record: Record, *, is_sticky: bool
    ) -> tuple[ProducerBatch, int] | int:
        """Append to a batch that may grow, or to a new one, because the open batch is full."""
        self.check_accepting()
        if queue.open is not None:
            queue.open.is_full = True
            self._wake_sender()
        if is_sticky:
            topic.move_on(self._has_leader)
            queue = topic.sticky
            index = queue.append(*record)
            if index is not None and queue.open is not None:
                return queue.open, index
        if queue.open is not None:
            index = self._append_grown(queue, queue.open, record)
            if index is not None:
                return queue.open, index
        builder = RecordBatchBuilder(max_bytes=self.config.batch_size, compression=self._compression)
        first = builder.append(*record)
        invariant(first == 0, "the first record of a batch got index %s", first)
        self._check_size(queue.tp, builder.size_bytes)
        reserved = max(self.config.batch_size, builder.size_bytes)
        # Before memory is reserved: compression takes long enough for a Ctrl-C.
        queue.close_open()
        if not self._has_room(reserved):
            return reserved
        batch = ProducerBatch(queue.tp, builder, created_at=now())
        # First: after a Ctrl-C in between, no batch that is in no queue must have memory or get records.
        self._enqueue(queue, batch)
        self._reserve(batch, reserved)
        queue.open, queue.append = batch, builder.append
        return batch, 0

    def add_encoded(
        self, queue: PartitionQueue, encoded: Buffer, *, is_ours: bool = False
    ) -> ProducerBatch | int:
        """Queue a batch that was encoded elsewhere; returns it or the bytes of memory that are missing.

        If it `is_ours`, it may be numbered in place and split.
        """
        self.check_accepting()
        self._check_size(queue.tp, len(encoded))
        queue.close_open()
        if not self._has_room(len(encoded)):
            return len(encoded)
        batch = ProducerBatch(
            queue.tp,
            None,
            created_at=now(),
            encoded=encoded,
            record_count=parse_header(encoded).record_count,
        )
        batch.may_split = is_ours
        self._enqueue(queue, batch)
        self._reserve(batch, len(encoded))
        return batch

    def _append_grown(self, queue: PartitionQueue, batch: ProducerBatch, record: Record) -> int | None:
        """Append beyond `batch_size` to a batch that waits for earlier ones; None if it may not grow."""
        builder = batch.builder
        if queue.pipeline.is_idle or queue.batches[0] is not batch or builder is None:
            return None
        limit = min(
            builder.max_bytes * 2, self.config.batch_size * _GROWTH_LIMIT, self.config.max_request_size
        )
        more = limit - builder.max_bytes
        if more <= 0 or not self._has_room(more):
            return None
        self._reserve(batch, more)
        builder.max_bytes = limit
        batch.is_full = False
        return builder.append(*record)

    def _check_size(self, tp: TopicPartition, size: int) -> None:
        for name in ("max_request_size", "buffer_memory"):
            limit = getattr(self.config, name)
            if size > limit:
                raise api_error(ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes for {tp} exceed {name} ({limit})")

    def has_unfinished(self, topic: TopicQueues) -> bool:
        """Whether a record of the topic waits to be sent or for its acknowledgement."""
        return any(queue.tp in self.active for queue in topic.by_partition)

    def _enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self.topics[queue.tp.topic].used_at = batch.created_at
        self.active[queue.tp] = queue
        queue.batches.append(batch)
        self.incomplete.add(batch)
        self._wake_sender()

    def check_accepting(self) -> None:
        """Raise `refusal`, if there is one."""
        if self.refusal is not None:
            raise self.refusal.again()

    # Memory

    def _has_room(self, size: int) -> bool:
        missing = size - self._granted
        return missing <= 0 or (not self._waiters and missing <= self.available_bytes)

    def _reserve(self, batch: ProducerBatch, size: int) -> None:
        """Reserve memory for a batch, after `_has_room`."""
        missing = size - self._granted
        # Without a call in between: a Ctrl-C must not leave bytes that belong to no batch.
        if missing > 0:
            self._granted = 0
            self.available_bytes -= missing
        else:
            self._granted = -missing
        batch.reserved_bytes += size

    async def wait_for_memory(self, size: int, deadline: float) -> int:
        """Wait until `size` bytes are reserved; the caller uses or releases them.

        On the event loop only. Raises BufferExhausted when the deadline passes, and `refusal`.
        """
        waiter, began = _MemoryWaiter(size, asyncio.get_running_loop().create_future()), now()
        with self.lock:
            self.check_accepting()
            self._waiters.append(waiter)
            self._wake_waiters()
        self._wake_sender()
        try:
            async with asyncio.timeout(max(0.0, deadline - now())):
                await waiter.future
        except BaseException as error:
            if not self._withdraw(waiter):
                if isinstance(error, TimeoutError):
                    return size
                with self.lock:
                    self._release(size)
            elif isinstance(error, TimeoutError):
                self.metrics.exhausted += 1
                raise BufferExhausted(
                    f"no {size} bytes of buffer_memory ({self.config.buffer_memory}) became free within "
                    f"max_block_ms ({self.config.max_block_ms})"
                ) from None
            raise
        finally:
            self.metrics.buffer_wait_s += now() - began
        return size

    def _withdraw(self, waiter: _MemoryWaiter) -> bool:
        """Remove a waiter; False if its bytes are reserved already."""
        with self.lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                # The waiters after it may need less.
                self._wake_waiters()
            return not waiter.is_granted

    def _release(self, size: int) -> None:
        self.available_bytes += size
        invariant(
            self.available_bytes <= self.config.buffer_memory,
            "%d bytes free of %d",
            self.available_bytes,
            self.config.buffer_memory,
        )
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        while self._waiters and self._waiters[0].size <= self.available_bytes:
            waiter = self._waiters.popleft()
            self.available_bytes -= waiter.size
            waiter.is_granted = True
            waiter.wake()

    # The sender's side, under the lock

    def take(self, queue: PartitionQueue) -> ProducerBatch:
        """Let the first batch of a queue join its pipeline; it stays where it is if it cannot be encoded."""
        batch = queue.batches[0]
        if batch is queue.open:
            queue.let_go()
        batch.close()
        self.metrics.queue_time_ms.add((now() - batch.created_at) * 1000)
        queue.pipeline.add(batch)
        queue.batches.popleft()
        return batch

    def put_back(self, queue: PartitionQueue, batch: ProducerBatch, retry_at: float) -> None:
        """Let a batch that was in flight wait for its next attempt; later batches wait for it."""
        queue.pipeline.put_back(batch)
        queue.retry_at = max(queue.retry_at, retry_at)

    def delivered(self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int, time_ms: int) -> None:
        queue.pipeline.acknowledged(batch, base_offset)
        batch.deliver(base_offset, time_ms)
        self._finished(queue, batch)

    def failed(
        self, queue: PartitionQueue, batch: ProducerBatch, error: BarnabasError, *, may_be_written: bool
    ) -> None:
        """Fail a batch, in flight or waiting."""
        was_sent = batch.flight > 0
        if not was_sent:
            queue.batches.remove(batch)
            if queue.open is batch:
                queue.let_go()
        batch.fail(error)
        if was_sent:
            queue.pipeline.failed(batch, may_be_written=may_be_written)
        self._finished(queue, batch)

    def abandon(self, queue: PartitionQueue, error: BarnabasError) -> None:
        """Fail all unfinished batches of a partition; its state may be wrong after a bug."""
        batches = [*queue.pipeline.batches, *queue.batches]
        queue.let_go()
        queue.batches.clear()
        queue.pipeline = queue.pipeline.successor()
        for batch in batches:
            if not batch.is_done:
                batch.fail(error)
            self._finished(queue, batch)

    def split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Replace a batch that the broker finds too large by its halves, which take its place and numbers.

        The batch has more than one record and is in flight; its parts are retried in order.
        """
        encoded = batch.encoded
        invariant(encoded is not None and batch.record_count > 1, "%s: nothing to split", queue.tp)
        if encoded is None:
            return
        fields = decode_fields(encoded, check_crc=False)
        compression = parse_header(encoded).compression
        middle = len(fields) // 2
        parts = []
        for half in (fields[:middle], fields[middle:]):
            builder = RecordBatchBuilder(max_bytes=_NO_LIMIT, compression=compression)
            for _, timestamp_ms, key, value, headers in half:
                builder.append(key, value, headers, timestamp_ms)
            part = ProducerBatch(queue.tp, builder, created_at=batch.created_at)
            part.attempts, part.pauses, part.flight = batch.attempts, batch.pauses, batch.flight
            part.may_be_written = batch.may_be_written
            part.close()
            parts.append(part)
        queue.pipeline.replace(batch, parts)
        parts[0].reserved_bytes, batch.reserved_bytes = batch.reserved_bytes, 0
        self.incomplete.update(parts)
        batch.split_into(parts)
        self._finished(queue, batch)

    def _finished(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self.incomplete.discard(batch)
        if not queue.batches and queue.pipeline.is_idle:
            self.active.pop(queue.tp, None)
        reserved, batch.reserved_bytes = batch.reserved_bytes, 0
        self._release(reserved)

    def refuse(self, error: BarnabasError) -> None:
        """Take no records until `accept`; appenders that wait for memory fail.

        No batch stays open, because appends to an open batch do not look at `refusal`.
        """
        if self._is_closed:
            return
        self.refusal = error
        for queue in self.active.values():
            queue.close_open()
        while self._waiters:
            self._waiters.popleft().wake(error.again())

    def accept(self) -> None:
        """Take records again, unless closed."""
        if not self._is_closed:
            self.refusal = None

    def close(self, reason: str) -> None:
        self.refuse(ClientClosed(reason))
        self._is_closed = True
