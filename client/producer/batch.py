"""A batch of the producer and the light futures of its records.

One batch, one outcome: the futures of its records are only (batch, index, timestamp) and look the outcome up.
Each waiter gets an asyncio future of its own when it begins to wait, so that cancelling it does not affect
the others. A batch completes exactly once; one that was split completes by pointing to its parts.

A batch belongs to its accumulator, and to its lock where several threads append.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import Offset, TopicPartition
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import stamp_producer
from barnabas.protocol.schema import Buffer


class RecordMetadata(NamedTuple):
    """The place of a written record. With acks=0 the offset is unknown, and ``offset`` is -1."""

    topic: str
    partition: int
    offset: Offset
    timestamp_ms: int


DeliveryCallback = Callable[[RecordMetadata | None, BarnabasError | None], object]
"""Called once per record on the producer's event loop: with its metadata, or with None and the error."""


class BatchState(Enum):
    """OPEN and CLOSED batches wait in a queue; an IN_FLIGHT batch either completes or waits again."""

    OPEN = "open"
    CLOSED = "closed"
    IN_FLIGHT = "in flight"
    SPLIT = "split"
    DELIVERED = "delivered"
    FAILED = "failed"


_FINAL: Final = frozenset({BatchState.SPLIT, BatchState.DELIVERED, BatchState.FAILED})
_NEXT: Final = {
    BatchState.OPEN: {BatchState.CLOSED, BatchState.FAILED},
    BatchState.CLOSED: {BatchState.IN_FLIGHT, BatchState.FAILED},
    BatchState.IN_FLIGHT: {BatchState.CLOSED, *_FINAL},
    BatchState.SPLIT: set[BatchState](),
    BatchState.DELIVERED: set[BatchState](),
    BatchState.FAILED: set[BatchState](),
}


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records of one partition that travel together. Times are of `time.monotonic`, in seconds."""

    tp: TopicPartition
    builder: RecordBatchBuilder | None
    _: KW_ONLY
    created_at: float
    encoded: Buffer | None = None
    record_count: int = 0
    reserved_bytes: int = 0
    attempts: int = 0
    pauses: int = 0
    """The attempts that waited before; each wait is longer than the one before."""
    base_sequence: int = -1
    flight: int = 0
    """Counts the attempts, to distinguish the answer to an earlier one from the last."""
    node_id: int = -1
    """The broker that it was sent to last."""
    is_oldest: bool = False
    """Whether no earlier batch was in flight when it was sent last."""
    is_written: bool = False
    """Known to be in the log, because a later one is; only its own answer is missing."""
    may_be_written: bool = False
    """Whether an attempt ended without a known outcome."""
    is_full: bool = field(init=False)
    may_split: bool = field(init=False)
    state: BatchState = field(init=False)
    base_offset: int = -1
    log_append_time_ms: int = -1
    error: BarnabasError | None = None
    last_error: BarnabasError | None = None
    parts: list[tuple[int, ProducerBatch]] = field(default_factory=list)
    callbacks: list[tuple[int, int, DeliveryCallback]] | None = None
    waiters: list[asyncio.Future[None]] | None = None

    def __post_init__(self) -> None:
        self.may_split = self.builder is not None
        self.is_full = not self.may_split
        self.state = BatchState.OPEN if self.may_split else BatchState.CLOSED

    @property
    def is_done(self) -> bool:
        return self.state in _FINAL

    @property
    def size_bytes(self) -> int:
        """The uncompressed size while it is open, then the size on the wire."""
        if self.encoded is not None:
            return len(self.encoded)
        return self.builder.size_bytes if self.builder is not None else 0

    def move(self, state: BatchState) -> None:
        """Change the state. Raises InvariantViolation for a step that is not in the table."""
        invariant(state in _NEXT[self.state], "a batch cannot go from %s to %s", self.state, state)
        self.state = state

    def close(self) -> None:
        """Take no more records, and encode the batch."""
        if self.state is BatchState.OPEN:
            if self.builder is not None:
                encoded = self.builder.build()
                # A Ctrl-C in the compression leaves the batch as it was, to be closed again.
                self.record_count, self.encoded, self.builder = self.builder.record_count, encoded, None
            self.move(BatchState.CLOSED)

    def number(
        self, producer_id: int, epoch: int, base_sequence: int, is_transactional: bool = False
    ) -> None:
        """Give the closed batch its place in a producer's sequence, and in its transaction."""
        invariant(self.encoded is not None, "an open batch of %s is numbered", self.tp)
        if self.encoded is not None:
            # Bytes that were sent once may still be in a socket's buffer, and others may be the caller's.
            is_ours = self.may_split and self.base_sequence < 0
            if not is_ours or not isinstance(self.encoded, bytearray):
                self.encoded = bytearray(self.encoded)
            stamp_producer(self.encoded, producer_id, epoch, base_sequence, is_transactional=is_transactional)
            self.base_sequence = base_sequence

    def deliver(self, base_offset: int, log_append_time_ms: int) -> None:
        # The state last, here and below, because to other threads it means that the rest is final.
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.move(BatchState.DELIVERED)
        self._announce()

    def fail(self, error: BarnabasError) -> None:
        self.error = error
        self.move(BatchState.FAILED)
        self._announce()

    def split_into(self, parts: list[ProducerBatch]) -> None:
        """Hand the records over to smaller batches, in order; futures and callbacks follow them."""
        first = 0
        numbered_parts = []
        for part in parts:
            numbered_parts.append((first, part))
            first += part.record_count
        invariant(first == self.record_count, "%d of %d records in the parts", first, self.record_count)
        self.parts = numbered_parts
        self.move(BatchState.SPLIT)
        for index, timestamp_ms, callback in self.callbacks or ():
            part, place = self.part_of(index)
            part.add_callback(place, timestamp_ms, callback)
        self.callbacks = None
        self._announce()

    def part_of(self, index: int) -> tuple[ProducerBatch, int]:
        """The part of a split batch with a record, and the record's index there."""
        for first, part in reversed(self.parts):
            if index >= first:
                return part, index - first
        raise IndexError(index)

    def add_callback(self, index: int, timestamp_ms: int, callback: DeliveryCallback) -> None:
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append((index, timestamp_ms, callback))

    def waiter(self) -> asyncio.Future[None]:
        """A future that ends when the batch, which is not done, is delivered, failed or split."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(waiter)
        return waiter

    async def wait_delivered(self) -> None:
        """Return when every record is delivered or failed, also after splits."""
        if not self.is_done:
            await self.waiter()
        for _, part in self.parts:
            await part.wait_delivered()

    def outcome(self, index: int, timestamp_ms: int) -> RecordMetadata:
        """The metadata of a record, if the batch is done and not split. Raises the batch's error."""
        if self.error is not None:
            raise self.error.again()
        invariant(self.state is BatchState.DELIVERED, "the outcome of a batch that is %s", self.state)
        offset = Offset(self.base_offset + index if self.base_offset >= 0 else -1)
        if self.log_append_time_ms >= 0:
            timestamp_ms = self.log_append_time_ms
        return RecordMetadata(self.tp.topic, self.tp.partition, offset, timestamp_ms)

    def _announce(self) -> None:
        callbacks, self.callbacks = self.callbacks, None
        if callbacks:
            # The loop calls each one, so that an exception of a callback is reported and stops no other.
            loop = asyncio.get_running_loop()
            for index, timestamp_ms, callback in callbacks:
                if self.error is not None:
                    loop.call_soon(callback, None, self.error.again())
                else:
                    loop.call_soon(callback, self.outcome(index, timestamp_ms), None)
        waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        # Free the bytes, because futures may be kept for long.
        self.encoded = self.builder = None


class _Sent(ABC):
    """The common part of the futures of records and batches."""

    __slots__ = ()
    _batch: ProducerBatch

    @abstractmethod
    def _unfinished(self) -> ProducerBatch | None:
        """A batch whose outcome must be waited for; there may be another one after it."""

    @abstractmethod
    def result(self) -> RecordMetadata:
        """The outcome. Raises the error, or asyncio.InvalidStateError when it is not known yet."""

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._unfinished() is None

    def exception(self) -> BarnabasError | None:
        """The error, None if it is written. Raises asyncio.InvalidStateError as `result`."""
        try:
            self.result()
        except BarnabasError as error:
            return error
        return None

    def call_when_done(self, callback: Callable[[], object]) -> None:
        """Call it on the running loop, which is the producer's, without a task; now if it is done."""
        if (batch := self._unfinished()) is None:
            callback()
        else:
            batch.waiter().add_done_callback(lambda _: self.call_when_done(callback))

    async def _wait(self) -> RecordMetadata:
        while (batch := self._unfinished()) is not None:
            await batch.waiter()
        return self.result()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self._wait().__await__()

    def __repr__(self) -> str:
        # Not the batch, which has the bytes of its records.
        outcome = "pending" if not self.done() else self.exception() or f"offset {self.result().offset}"
        return f"<{type(self).__name__} of {self._batch.tp}: {outcome}>"


@dataclass(slots=True, eq=False, repr=False)
class BatchFuture(_Sent):
    """The future of all records of a batch, also after splits: the metadata of the first one, or an error."""

    _batch: ProducerBatch
    _timestamp_ms: int

    def _parts(self) -> list[ProducerBatch]:
        parts = [self._batch]
        while any(part.parts for part in parts):
            parts = [leaf for part in parts for leaf in ([half for _, half in part.parts] or [part])]
        return parts

    def _unfinished(self) -> ProducerBatch | None:
        # In this order: another thread may be splitting the part, which sets the state last.
        return next((part for part in self._parts() if not part.is_done or part.parts), None)

    def result(self) -> RecordMetadata:
        """The metadata of the first record.

        Raises the error of the first part that failed, or asyncio.InvalidStateError if one is not done.
        """
        if not self.done():
            raise asyncio.InvalidStateError("the batch is not acknowledged yet; await the future")
        first, *_ = [part.outcome(0, self._timestamp_ms) for part in self._parts()]
        return first


@dataclass(slots=True, eq=False)
class _DoneCallback:
    """A callback of a `RecordFuture`, in its context, among those of the batch."""

    future: RecordFuture
    callback: Callable[[RecordFuture], object]
    context: Context

    def __call__(self, metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
        self.context.run(self.callback, self.future)


@dataclass(slots=True, eq=False, repr=False)
class RecordFuture(_Sent):
    """The future of a sent record: await it for its `RecordMetadata`, or for the error.

    It costs next to nothing until it is awaited and may be dropped; a batch that fails is logged anyway. It
    has what `asyncio.wait` uses of a future, but a sent record cannot be cancelled.
    """

    _batch: ProducerBatch
    _index: int
    _timestamp_ms: int

    def _resolve(self) -> tuple[ProducerBatch, int]:
        """The batch that the record is in now, after any splits, and its index there. Any thread."""
        batch, index = self._batch, self._index
        while batch.parts:
            batch, index = batch.part_of(index)
        return batch, index

    def _unfinished(self) -> ProducerBatch | None:
        batch, _ = self._resolve()
        # In this order, as above.
        return None if batch.is_done and not batch.parts else batch

    def result(self) -> RecordMetadata:
        """The outcome. Raises the record's error, or asyncio.InvalidStateError when it is not known yet."""
        batch, index = self._resolve()
        if not batch.is_done or batch.parts:
            raise asyncio.InvalidStateError("the record is not acknowledged yet; await the future")
        return batch.outcome(index, self._timestamp_ms)

    def cancelled(self) -> bool:
        """Always False."""
        return False

    def cancel(self, msg: object = None) -> bool:
        """Does nothing and returns False: the record was taken."""
        return False

    def add_done_callback(
        self, callback: Callable[[RecordFuture], object], *, context: Context | None = None
    ) -> None:
        """Have the event loop call this with the future when the outcome is known."""
        batch, index = self._resolve()
        entry = _DoneCallback(self, callback, copy_context() if context is None else context)
        if batch.is_done:
            asyncio.get_running_loop().call_soon(entry, None, None)
        else:
            batch.add_callback(index, self._timestamp_ms, entry)

    def remove_done_callback(self, callback: Callable[[RecordFuture], object]) -> int:
        """Returns how many were removed."""
        batch, _ = self._resolve()
        before = batch.callbacks or []
        batch.callbacks = [
            (index, timestamp_ms, entry)
            for index, timestamp_ms, entry in before
            if not (isinstance(entry, _DoneCallback) and entry.future is self and entry.callback == callback)
        ] or None
        return len(before) - len(batch.callbacks or ())


def now() -> float:
    """The clock of batches, in seconds."""
    return time.monotonic()
