"""The producer: takes records, gathers them into batches, and delivers these to their partitions' leaders.

    async with Producer(bootstrap_servers="localhost:9092") as producer:
        future = await producer.send("flights", b"value", key=b"key")
        metadata = await future

Guarantees, with acks=all and idempotence (the defaults): a record whose future gives metadata is on every
in-sync replica, once; records of one partition are written in the order in which they were sent. Without
idempotence the order holds too, but a retry may write a record twice.

With a ``transactional_id`` all records belong to transactions, which are committed or aborted as a whole,
also over many partitions and together with a group's offsets. A reader with `isolation_level` read_committed
sees only records of committed transactions:

    async with producer.transaction():
        await producer.send("flights", b"value")
        await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())

A producer belongs to the event loop that it was started on; `barnabas.client.blocking` has one for threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Generic, Unpack

from barnabas.client.arguments import as_bytes, as_flat_buffer, check_callable, check_limit
from barnabas.client.client import Client, interruption, ms_after
from barnabas.client.cluster import Cluster
from barnabas.client.config import ProducerConfig, ProducerSettings
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import ClientClosed, IllegalTransactionState
from barnabas.client.metadata import PartitionInfo
from barnabas.client.metrics import Metrics
from barnabas.client.offsets import GroupMetadata, OffsetsOrRecords, offsets_after
from barnabas.client.producer.accumulator import Accumulator, TopicQueues
from barnabas.client.producer.batch import (
    BatchFuture,
    DeliveryCallback,
    ProducerBatch,
    RecordFuture,
    RecordMetadata,
    now,
)
from barnabas.client.producer.partitioners import make_partitioner
from barnabas.client.producer.sender import Sender
from barnabas.client.producer.transaction_session import TransactionSession, complete_prepared
from barnabas.client.producer.transactions import PreparedTransaction, TransactionMachine
from barnabas.client.serialization import K_contra, Serializer, V_contra, serializers_of
from barnabas.protocol.errors import BarnabasError, InvalidConfiguration
from barnabas.protocol.record_batch import check_produced_batch
from barnabas.protocol.schema import Buffer

log = logging.getLogger(__name__)

_MAX_TIMESTAMP_MS: Final = (1 << 63) - 1

Headers = Mapping[str, Buffer | None] | Iterable[tuple[str, Buffer | None]]


class Producer(Client, Generic[K_contra, V_contra]):
    """Settings as in `ProducerConfig`, by name, or as one ``config``; names replace those of the config."""

    def __init__(
        self,
        config: ProducerConfig | None = None,
        *,
        key_serializer: Serializer[K_contra] | None = None,
        value_serializer: Serializer[V_contra] | None = None,
        takes_over: ProducerIdAndEpoch | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        """The serializers make the bytes of keys and values, in `send`; without them both are bytes.

        ``takes_over`` is what another process got for the transactional id, as by `Admin.fence_producers`.

        The producer then starts only if nobody has used the id since; else `start` raises ProducerFenced.
        """
        self.config = ProducerConfig.given(config, settings)
        if takes_over is not None and self.config.transactional_id is None:
            raise InvalidConfiguration("takes_over: expected a transactional_id")
        self._takes_over = takes_over
        self._serializers = serializers_of(key_serializer, value_serializer)
        self._partitioner = make_partitioner(self.config.partitioner)
        self._is_sticky = self._partitioner is None
        # Both exist from `start` on; until then, and after `close`, no topic is open and `send` raises.
        self._sender: Sender | None = None
        self._accumulator: Accumulator | None = None
        self._last_metrics: Metrics = {}
        """Its measurements when the producer was closed."""
        self._session: TransactionSession | None = None
        self._topics: dict[str, TopicQueues] = {}

    def _make_cluster(self) -> Cluster:
        return Cluster(self.config, is_in_use=self._is_in_use, may_create=self._has_records_for)

    def _started(self, cluster: Cluster) -> None:
        self._accumulator = Accumulator(
            self.config,
            partitioner=self._partitioner,
            has_leader=lambda tp: cluster.cache.leader_for(tp) is not None,
            wake_sender=self._wake_sender,
        )
        self._topics = self._accumulator.topics
        machine = None
        if self.config.transactional_id is not None:
            machine = TransactionMachine(self.config.transactional_id)
            if self._takes_over is not None:
                machine.identity = ProducerIdAndEpoch(*self._takes_over)
        self._sender = Sender(cluster, self._accumulator, machine)
        if machine is not None:
            self._session = TransactionSession(cluster, self._accumulator, self._sender, machine)
        cluster.add_listener(self._take_new_partitions)

    async def start(self) -> None:
        """Connect to the cluster, and initialize transactions, which fences earlier producers with this id.

        A transaction of an earlier producer is aborted first, unless it is prepared and ``keep_prepared`` is
        True. Raises NoBrokerReachable naming every server that was tried, and errors of the coordinator.
        """
        await super().start()
        if self._session is not None:
            try:
                await self._session.start()
            except BaseException:
                await self.close(timeout_ms=0)
                raise

    async def send(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> RecordFuture:
        """Take a record; the returned future gives its metadata once it is written.

        Waits for metadata, and room in `buffer_memory`, up to `max_block_ms` each. Raises BufferExhausted,
        UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, ClientClosed, InvalidConfiguration (no such partition),
        SerializationError, TypeError (key and value are bytes or None without a serializer, headers a mapping
        or pairs) and ValueError (a timestamp below 0).
        """
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        else:
            check_timestamp(timestamp_ms)
        value_bytes: Any = value
        key_bytes: Any = key
        if self._serializers is not None:
            key_bytes, value_bytes = self._serializers.bytes_of(topic, key, value)
        if type(value_bytes) is not bytes and value_bytes is not None:
            value_bytes = as_bytes("value", value_bytes)
        if type(key_bytes) is not bytes and key_bytes is not None:
            key_bytes = as_bytes("key", key_bytes)
        if headers is not None:
            headers = header_pairs(headers)
        if on_delivery is not None:
            check_callable("on_delivery", on_delivery)
        queues = self._topics.get(topic) if type(topic) is str else None
        if queues is None or asyncio.get_running_loop() is not self._loop:
            queues = await self._open_topic(topic)
        if partition is not None and queues.lacks(partition):
            await self._look_for_partitions(queues)
        is_sticky = key_bytes is None and partition is None and self._is_sticky
        if is_sticky:
            queue = queues.sticky
        else:
            # Open topics imply an accumulator; a check would slow every record down.
            queue = self._accumulator.queue_for(queues, key_bytes, partition)  # type: ignore[union-attr]
        index = queue.append(key_bytes, value_bytes, headers, timestamp_ms)
        batch = queue.open
        if index is None or batch is None:
            # The same queue, also if the partitioner would choose another one now.
            where = None if is_sticky else queue.tp.partition
            rest = headers, timestamp_ms, where, is_sticky
            batch, index = await self._append_when_free(batch, queues, key_bytes, value_bytes, *rest)
        if on_delivery is not None:
            batch.add_callback(index, timestamp_ms, on_delivery)
        return RecordFuture(batch, index, timestamp_ms)

    async def _append_when_free(
        self, full: ProducerBatch | None, queues: TopicQueues, *record: Any
    ) -> tuple[ProducerBatch, int]:
        """Append a record that the open batch does not take, once there is memory for another batch."""
        _, accumulator, sender = self._parts()
        if full is not None:
            # Let the full batch be sent even if the caller sends without ever waiting.
            full.is_full = True
            sender.wake()
            await asyncio.sleep(0)
        taken: tuple[ProducerBatch, int] = await accumulator.when_free(
            partial(accumulator.append, queues, *record)
        )
        return taken

    async def send_and_wait(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record and return where it was written. Raises as `send`, and the record's own error."""
        future = await self.send(
            topic, value, key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
        )
        return await future

    async def send_batch(self, topic: str, partition: int, encoded: Buffer) -> RecordFuture:
        """Take one whole record batch (magic 2) as bytes; returns the future of its first record.

        The bytes must not change until it is done; with idempotence a copy of them is numbered. Raises as
        `send`, and CORRUPT_MESSAGE or INVALID_RECORD for an invalid batch.
        """
        batch, timestamp_ms = await self._take_batch(topic, partition, encoded, is_ours=False)
        return RecordFuture(batch, 0, timestamp_ms)

    async def hand_over_batch(self, topic: str, partition: int, encoded: bytearray) -> BatchFuture:
        """As `send_batch`, with bytes that belong to the producer then; returns a future of all records.

        It numbers them without a copy, and halves a batch that the broker finds too large.
        """
        return BatchFuture(*await self._take_batch(topic, partition, encoded, is_ours=True))

    async def _take_batch(
        self, topic: str, partition: int, encoded: Buffer, *, is_ours: bool
    ) -> tuple[ProducerBatch, int]:
        """The batch, and the timestamp of its first record."""
        encoded = as_flat_buffer("encoded", encoded)
        header = check_produced_batch(encoded)
        queues = self._topics.get(topic) or await self._open_topic(topic)
        _, accumulator, _ = self._parts()
        if queues.lacks(partition):
            await self._look_for_partitions(queues)
        queue = accumulator.queue_for(queues, None, partition)
        batch = await accumulator.when_free(lambda: accumulator.add_encoded(queue, encoded, is_ours=is_ours))
        return batch, header.base_timestamp

    async def flush(self) -> None:
        """Return when all records sent before are delivered or have failed; ends their linger time."""
        await self._parts()[2].flush()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction around a block: committed at its end, aborted after an exception or a cancellation.

        The abort, or a commit that was requested already, runs to its end, for at most `max_block_ms` after
        the batches in flight, before the exception is raised. After a cancellation or Ctrl-C the exception is
        raised after at most 3 s, after a second one at once, and the abort runs on. A transaction that the
        block has ended or prepared itself is left as it is. Raises as
        `begin_transaction` and `commit_transaction`.
        """
        session = self._transactions()
        await session.begin()
        try:
            yield
        except BaseException as error:
            await session.settle_after(error)
            raise
        await session.finish()

    async def begin_transaction(self) -> None:
        """Begin a transaction; all records until its end belong to it.

        Raises IllegalTransactionState, ProducerFenced, and errors of the coordinator.
        """
        await self._transactions().begin()

    async def commit_transaction(self) -> None:
        """Deliver all records, and commit the transaction.

        Raises TransactionAbortable if a record or a request failed: call `abort_transaction`. Raises
        TransactionOutcomeUnknown after `max_block_ms` without an answer: call `commit_transaction` again.
        After a cancellation the transaction is as before, or is being committed: a repeated call continues.
        Raises ProducerFenced and IllegalTransactionState.
        """
        await self._transactions().commit()

    async def abort_transaction(self) -> None:
        """Drop the unsent records, and abort the transaction; their futures raise TransactionAborted.

        Raises TransactionOutcomeUnknown after `max_block_ms` without an answer: call it again. Raises
        ProducerFenced and IllegalTransactionState.
        """
        await self._transactions().abort()

    async def send_offsets_to_transaction(
        self, offsets: OffsetsOrRecords, group: GroupMetadata | str
    ) -> None:
        """Commit a group's offsets, the next to read or those after records, together with the transaction.

        With `Consumer.group_metadata` they are refused if the group has rebalanced since (KIP-447); with a
        group id alone they are not. Raises TransactionAbortable, after 3 s also for a partition that does not
        exist, ProducerFenced, IllegalTransactionState, and ValueError for an invalid offset.
        """
        chosen = offsets_after(offsets)
        metadata = GroupMetadata(group) if isinstance(group, str) else group
        if not isinstance(metadata, GroupMetadata):
            raise TypeError(f"group={group!r}: expected the GroupMetadata of a consumer, or a group id")
        await self._transactions().send_offsets(chosen, metadata)

    async def prepare_transaction(self) -> PreparedTransaction:
        """Deliver all records, and keep the transaction without a time-out, until its outcome is decided.

        Any process can end it with `complete_transaction`; this producer also with `commit_transaction` or
        `abort_transaction`. Raises as `commit_transaction`, and if it cannot be prepared, so that it stays
        open, UNSUPPORTED_VERSION (Apache Kafka) or TRANSACTIONAL_ID_AUTHORIZATION_FAILED (forbidden).
        """
        return await self._transactions().prepare()

    @property
    def prepared_transaction(self) -> PreparedTransaction | None:
        """The prepared transaction that this producer made, or found at its start with ``keep_prepared``."""
        return self._transactions().machine.prepared

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """The producer id and epoch of the present transaction, or of the next one."""
        return self._transactions().machine.known_identity()

    async def complete_transaction(self, prepared: PreparedTransaction, *, commit: bool = True) -> None:
        """Commit or abort a prepared transaction, which any process may have made.

        Raises TransactionOutcomeUnknown, and the coordinator's error if the transaction is another one.
        """
        if not isinstance(prepared, PreparedTransaction):
            raise TypeError(f"prepared={prepared!r}: expected a PreparedTransaction")
        session = self._session
        if session is not None and session.machine.prepared == prepared:
            await (session.commit() if commit else session.abort())
            return
        cluster, limit_ms = self._parts()[0], self.config.max_block_ms
        await complete_prepared(cluster, prepared, commit=commit, timeout_ms=limit_ms)

    def close(self, timeout_ms: int | None = None) -> Coroutine[Any, Any, None]:
        """Flush, for at most ``timeout_ms``, then fail the rest and disconnect. Idempotent.

        Without a timeout `delivery_timeout_ms` bounds the wait, and 3 s do if an error in the body of
        ``async with``, a cancellation or Ctrl-C closes it. An open transaction is aborted instead; a prepared
        one stays.
        """
        check_limit(timeout_ms)
        # Here, because another task may run the coroutine, as in `asyncio.shield`, and handles no error.
        return self._close(ms_after(interruption()) if timeout_ms is None else timeout_ms)

    async def _close(self, timeout_ms: int | None) -> None:
        cluster, accumulator, sender = self._cluster, self._accumulator, self._sender
        session = self._session
        if cluster is None or accumulator is None or sender is None:
            return
        if self._has_lost_loop():
            # The builder of an open batch counts its records.
            lost = sum((batch.builder or batch).record_count for batch in accumulator.incomplete)
            if lost:
                log.error("%d records were not delivered: the producer's event loop has ended", lost)
            return
        try:
            with accumulator.lock:
                accumulator.close("the producer is closed")
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                if session is not None:
                    await session.close()
                await self.flush()
        except TimeoutError:
            pass
        except BarnabasError as error:
            # Its time-out, or the next producer with this id, will abort the transaction.
            log.warning("the open transaction could not be aborted: %s", error)
        finally:
            if session is not None:
                session.cancel()
            sender.fail_all(ClientClosed("the producer was closed before the record was delivered"))
            sender.close()
            cluster.close()
            self._last_metrics = accumulator.snapshot()
            self._accumulator = self._sender = self._session = None
            self._topics = {}

    async def _close_after(self, error: BaseException | None) -> None:
        await self._close(ms_after(error))

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic by the last metadata. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        cluster, _, _ = self._parts()
        return list((await cluster.topic(topic, self.config.max_block_ms)).partitions)

    async def _open_topic(self, topic: str) -> TopicQueues:
        cluster, accumulator, _ = self._parts()
        accumulator.check_accepting()
        info = await cluster.topic(topic, self.config.max_block_ms, watches=True)
        with accumulator.lock:
            return accumulator.add_topic(info)

    async def _look_for_partitions(self, topic: TopicQueues) -> None:
        """Ask for metadata, since it may be from before the topic got a partition."""
        cluster, accumulator, _ = self._parts()
        await cluster.refresh_before(now() + self.config.max_block_ms / 1000)
        if (info := cluster.cache.topics.get(topic.name)) is not None:
            with accumulator.lock:
                accumulator.add_topic(info)

    def _has_records_for(self, topic: str) -> bool:
        """Whether records wait for a topic, or a call is about to send the first ones."""
        queues, accumulator = self._topics.get(topic), self._accumulator
        return queues is None or accumulator is None or accumulator.has_unfinished(queues)

    def _is_in_use(self, topic: str) -> bool:
        queues = self._topics.get(topic)
        idle_s = self.config.metadata_max_idle_ms / 1000
        return queues is None or now() - queues.used_at < idle_s or self._has_records_for(topic)

    def _transactions(self) -> TransactionSession:
        self._parts()
        if self._session is None:
            raise IllegalTransactionState("the producer has no transactional_id")
        return self._session

    def metrics(self) -> Metrics:
        accumulator = self._accumulator
        return super().metrics() | (self._last_metrics if accumulator is None else accumulator.snapshot())

    def _take_new_partitions(self) -> None:
        cluster, accumulator = self._cluster, self._accumulator
        if cluster is not None and accumulator is not None:
            with accumulator.lock:
                for name in accumulator.topics:
                    info = cluster.cache.topics.get(name)
                    if info is not None:
                        accumulator.add_topic(info)

    def _wake_sender(self) -> None:
        if self._sender is not None:
            self._sender.wake()

    def _parts(self) -> tuple[Cluster, Accumulator, Sender]:
        if self._cluster is None or self._accumulator is None or self._sender is None:
            state = "not started; use `async with Producer(…)`" if self._cluster is None else "closed"
            raise ClientClosed(f"the producer is {state}")
        self._check_loop()
        return self._cluster, self._accumulator, self._sender


def check_timestamp(timestamp_ms: int) -> None:
    """Raise ValueError for a timestamp with which its whole batch could not be encoded."""
    if type(timestamp_ms) is not int or not 0 <= timestamp_ms <= _MAX_TIMESTAMP_MS:
        raise ValueError(f"timestamp_ms={timestamp_ms!r}: expected milliseconds, 0 or more")


def header_pairs(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Headers in their order, as an immutable sequence. Raises TypeError naming a wrong one."""
    try:
        given = headers.items() if isinstance(headers, Mapping) else headers
        pairs = [(name, value) for name, value in given]
    except (TypeError, ValueError):
        raise TypeError(f"headers {headers!r}: expected pairs of a str and bytes or None") from None
    return tuple(_header(name, value) for name, value in pairs)


def _header(name: str, value: Buffer | None) -> tuple[str, bytes | None]:
    if not isinstance(name, str):
        raise TypeError(f"header {name!r}: expected a str as its name")
    return name, None if value is None else as_bytes(f"header {name!r}", value)
