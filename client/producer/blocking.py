"""The producer for threads: appends in the caller's thread, sends on a thread of its own.

`Producer.send` takes the accumulator's lock and appends. It waits for the other thread only for the first
record of a topic or when `buffer_memory` is full. It guarantees the same as `barnabas.client.Producer`;
records of different threads have no order among them.

A producer that was not closed does not lose its buffer, because it is closed, with a ResourceWarning, when it
is garbage-collected or the program ends. The delivery may then take up to `_UNCLOSED_CLOSE_MS`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Unpack

from barnabas.client.arguments import as_bytes, check_callable, check_limit
from barnabas.client.client import interruption, ms_after
from barnabas.client.config import ProducerConfig, ProducerSettings
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import ClientClosed
from barnabas.client.loop_thread import BlockingClient, ClientThread, Closing, close_unclosed, hop
from barnabas.client.producer import batch as _batch
from barnabas.client.producer import producer as _producer
from barnabas.client.producer.batch import DeliveryCallback, RecordMetadata
from barnabas.client.producer.transactions import PreparedTransaction
from barnabas.client.serialization import K_contra, Serializer, V_contra
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.schema import Buffer

log = logging.getLogger(__name__)

_UNCLOSED_CLOSE_MS: Final = 30_000
"""The time limit to deliver an unclosed producer's records; without brokers a program must still end."""


@dataclass(slots=True, eq=False, repr=False)
class RecordFuture:
    """The future of a record that `Producer.send` took, or of a batch; ``result`` waits for its outcome."""

    _future: _batch.RecordFuture | _batch.BatchFuture
    _thread: ClientThread

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The record's metadata. Raises the record's error, or TimeoutError if the outcome is unknown yet.

        `timeout`: in seconds, named as in `concurrent.futures` and kafka-python.
        """
        if self._future.done():
            return self._future.result()
        return self._thread.call(lambda: self._wait(timeout))

    get = result
    """As kafka-python calls it."""

    def exception(self, timeout: float | None = None) -> BarnabasError | None:
        """The record's error, None if it is written. Raises TimeoutError as `result`."""
        try:
            self.result(timeout)
        except BarnabasError as error:
            if self.done():
                return error
            raise
        return None

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call this with the future when the outcome is known: at once, or on the producer's own thread.

        There it must not block; its exception is logged.
        """
        if not self.done():
            try:
                self._thread.call_soon(lambda: self._future.call_when_done(lambda: callback(self)))
            except ClientClosed:
                if not self.done():
                    raise
            else:
                return
        callback(self)

    def as_future(self) -> concurrent.futures.Future[RecordMetadata]:
        """A future for `concurrent.futures.wait` and `as_completed`; a sent record cannot be cancelled."""
        future: concurrent.futures.Future[RecordMetadata] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()

        def settle(sent: RecordFuture) -> None:
            try:
                future.set_result(sent.result())
            except BarnabasError as error:
                future.set_exception(error)

        self.add_done_callback(settle)
        return future

    def __repr__(self) -> str:
        return repr(self._future)

    async def _wait(self, timeout_s: float | None) -> RecordMetadata:
        async with asyncio.timeout(timeout_s):
            return await self._future


class _ThreadedProducer(_producer.Producer[K_contra, V_contra]):
    """The asyncio producer, with a sender that any thread may wake."""

    def _wake_sender(self) -> None:
        sender = self._sender
        # A scheduled round must still take the lock, which the caller holds, so it will see the change.
        if sender is not None and not sender.is_scheduled:
            sender.loop.call_soon_threadsafe(sender.wake)


class Producer(BlockingClient[_producer.Producer[K_contra, V_contra]], Generic[K_contra, V_contra]):
    """`barnabas.client.Producer` for threads; connects when it is made."""

    def __init__(
        self,
        config: ProducerConfig | None = None,
        *,
        key_serializer: Serializer[K_contra] | None = None,
        value_serializer: Serializer[V_contra] | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        """As `barnabas.client.Producer`; the serializers are called in the thread that calls `send`."""
        super().__init__(
            _ThreadedProducer(
                config, key_serializer=key_serializer, value_serializer=value_serializer, **settings
            )
        )
        self._serializers = self._client._serializers
        self.config = self._client.config
        accumulator = self._client._accumulator
        if accumulator is None:
            raise ClientClosed("the producer was closed while it started")
        self._accumulator = accumulator
        self._lock = accumulator.lock
        self._topics = accumulator.topics
        self._is_sticky = self._client._is_sticky
        _producers.add(self)

    def _closing(self) -> Closing:
        return partial(_close_within_limit, self._client)

    def send(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        *,
        partition: int | None = None,
        headers: _producer.Headers | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> RecordFuture:
        """Take a record; arguments and errors as in `barnabas.client.Producer.send`.

        ``on_delivery`` is called on the producer's own thread and must not block.
        """
        if self._thread.closed_reason is not None:
            raise ClientClosed(self._thread.closed_reason)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        else:
            _producer.check_timestamp(timestamp_ms)
        value_bytes: Any = value
        key_bytes: Any = key
        if self._serializers is not None:
            key_bytes, value_bytes = self._serializers.bytes_of(topic, key, value)
        if type(value_bytes) is not bytes and value_bytes is not None:
            value_bytes = as_bytes("value", value_bytes)
        if type(key_bytes) is not bytes and key_bytes is not None:
            key_bytes = as_bytes("key", key_bytes)
        if headers is not None:
            headers = _producer.header_pairs(headers)
        if on_delivery is not None:
            check_callable("on_delivery", on_delivery)
        topics = self._topics.get(topic) if type(topic) is str else None
        if topics is None:
            topics = self._thread.call(lambda: self._client._open_topic(topic))
        if partition is not None and topics.lacks(partition):
            queues = topics
            self._thread.call(lambda: self._client._look_for_partitions(queues))
        is_sticky = key_bytes is None and partition is None and self._is_sticky
        accumulator = self._accumulator
        with self._lock:
            taken = accumulator.append(
                topics, key_bytes, value_bytes, headers, timestamp_ms, partition, is_sticky, on_delivery
            )
        if isinstance(taken, int):
            # The buffer is full; the record is appended as soon as there is room.
            rest = headers, timestamp_ms, partition, is_sticky, on_delivery
            append = partial(accumulator.append, topics, key_bytes, value_bytes, *rest)
            taken = self._thread.call(partial(accumulator.when_free, append))
        return RecordFuture(_batch.RecordFuture(*taken, timestamp_ms), self._thread)

    def send_and_wait(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        *,
        partition: int | None = None,
        headers: _producer.Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record and return where it was written. Raises as `send`, and the record's own error."""
        return self.send(
            topic, value, key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
        ).result()

    def send_batch(self, topic: str, partition: int, encoded: Buffer) -> RecordFuture:
        future = self._thread.call(lambda: self._client.send_batch(topic, partition, encoded))
        return RecordFuture(future, self._thread)

    def hand_over_batch(self, topic: str, partition: int, encoded: bytearray) -> RecordFuture:
        future = self._thread.call(lambda: self._client.hand_over_batch(topic, partition, encoded))
        return RecordFuture(future, self._thread)

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all records sent before are delivered or have failed. Raises TimeoutError."""
        self._thread.call(lambda: self._flush(timeout_s))

    partitions_for = hop(_producer.Producer.partitions_for)
    begin_transaction = hop(_producer.Producer.begin_transaction)
    commit_transaction = hop(_producer.Producer.commit_transaction)
    abort_transaction = hop(_producer.Producer.abort_transaction)
    send_offsets_to_transaction = hop(_producer.Producer.send_offsets_to_transaction)
    prepare_transaction = hop(_producer.Producer.prepare_transaction)
    complete_transaction = hop(_producer.Producer.complete_transaction)

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return self._thread.call_plain(lambda: self._client.identity)

    @property
    def prepared_transaction(self) -> PreparedTransaction | None:
        return self._thread.call_plain(lambda: self._client.prepared_transaction)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """As `barnabas.client.Producer.transaction`; a KeyboardInterrupt in the block aborts too."""
        session = self._thread.call_plain(self._client._transactions)
        self.begin_transaction()
        try:
            yield
        except BaseException as error:
            failure = error
            self._thread.call(lambda: session.settle_after(failure))
            raise
        self._thread.call(session.finish)

    def close(self, timeout_ms: int | None = None) -> None:
        """As `barnabas.client.Producer.close`; ends the thread too. Idempotent."""
        check_limit(timeout_ms)
        if timeout_ms is None:
            # Here, because the client's own thread handles no interruption.
            timeout_ms = ms_after(interruption())
        if self._thread.closed_reason is None:
            try:
                self._thread.call(lambda: self._client.close(timeout_ms))
            finally:
                self._thread.stop("the producer is closed")

    def _close_after(self, error: BaseException | None) -> None:
        self.close(ms_after(error))

    async def _flush(self, timeout_s: float | None) -> None:
        async with asyncio.timeout(timeout_s):
            await self._client.flush()


_producers: weakref.WeakSet[Producer[Any, Any]] = weakref.WeakSet()


async def _close_within_limit(producer: _producer.Producer[Any, Any]) -> None:
    # The log is written on the producer's thread: the caller holds a lock that a log handler's call of this
    # producer needs.
    if producer._accumulator is not None and producer._accumulator.incomplete:
        log.warning("a producer was not closed; delivering its remaining records")
    # Set if Ctrl-C has ended the program.
    last = getattr(sys, "last_value", None)
    limit_ms = ms_after(last) if isinstance(last, KeyboardInterrupt) else None
    await producer.close(limit_ms or _UNCLOSED_CLOSE_MS)


@atexit.register
def _close_unclosed_producers() -> None:
    unclosed = [producer for producer in list(_producers) if producer._thread.closed_reason is None]
    close_unclosed((producer._thread, producer._closing()) for producer in unclosed)
