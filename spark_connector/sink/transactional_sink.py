"""The exactly-once sink in Spark's processes: its writers, the delivery of a task, and the connections.

Spark pickles a writer once for each batch, in the planner, before any task runs: there the sink's name is
claimed. Tasks write in transactions and leave them prepared. Another process commits or aborts, with a writer
of its own in streaming, so everything that it needs is in the messages. The protocol is in `exactly_once`.

The connections of a process are kept and shared by its threads; a forked child has none.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from barnabas.client.admin.admin import Admin
from barnabas.client.admin.configs import ConfigResource
from barnabas.client.admin.transactions import TransactionDescription
from barnabas.client.cluster import Cluster
from barnabas.client.config import AdminConfig, ProducerConfig
from barnabas.client.loop_thread import ClientThread
from barnabas.client.producer.blocking import Producer
from barnabas.common.settings import settings_of
from barnabas.protocol.errors import BarnabasError, InvalidConfiguration
from barnabas.spark_connector.sink.delivery import Delivery
from barnabas.spark_connector.sink.exactly_once import Coordination, TaskResult, open_attempt
from barnabas.spark_connector.sink.sink_options import SinkOptions
from barnabas.spark_connector.sink.sink_register import Claim, RegisterTopic
from barnabas.spark_connector.sink.writer import BarnabasStreamWriter, BarnabasWriter, write_task

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)
R = TypeVar("R")

_TWO_PHASE: Final = "transaction.two.phase.commit.enable"
_MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
_ABORT_TIMEOUT_MS: Final = 5_000
"""The task of a failed attempt waits so long for the coordinator."""
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


# ---- the connections of a process


class Connections:
    """An admin and the coordination over it, on a thread with an event loop."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._admin = Admin(AdminConfig.of(settings))
        self._coordination: Coordination | None = None
        self._thread = ClientThread("barnabas-spark-sink")
        self._turn = threading.Lock()
        """Held by a call that uses the coordination, which is for one at a time."""
        self._max_timeout_ms: int | None = None
        try:
            self._thread.call(self._admin.start)
        except BaseException:
            self._thread.stop("the sink could not connect")
            raise

    def coordinate(self, work: Callable[[Coordination], Coroutine[Any, Any, R]]) -> R:
        async def run() -> R:
            if self._coordination is None:
                cluster = Cluster(AdminConfig.of(self._settings))
                await cluster.start()
                register = RegisterTopic(self._admin, cluster, self._settings)
                self._coordination = Coordination(self._admin, register)
            return await work(self._coordination)

        with self._turn:
            return self._thread.call(run)

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """From a thread of Spark; it blocks."""
        ids = [transactional_id]
        return self._thread.call(lambda: self._admin.describe_transactions(ids))[transactional_id]

    def max_timeout_ms(self) -> int:
        """The longest time-out of a transaction. Raises InvalidConfiguration if none can be prepared."""
        if self._max_timeout_ms is None:
            self._max_timeout_ms = self._thread.call(self._ask_limits)
        return self._max_timeout_ms

    async def _ask_limits(self) -> int:
        if self._admin.is_kafka:
            raise InvalidConfiguration(
                "option 'kafka.transactional.id' needs brokers of Barnabas and the native protocol, because "
                "Apache Kafka's brokers cannot prepare a transaction yet (KIP-939)"
            )
        node = (await self._admin.describe_cluster()).nodes[0]
        broker = ConfigResource.broker(node.node_id)
        entries = (await self._admin.describe_configs([broker], [_TWO_PHASE, _MAX_TIMEOUT]))[broker]
        if entries[_TWO_PHASE].value != "true":
            raise InvalidConfiguration(
                f"option 'kafka.transactional.id' needs {_TWO_PHASE}=true in the brokers; broker "
                f"{node.node_id} has {entries[_TWO_PHASE].value}"
            )
        return int(entries[_MAX_TIMEOUT].value or 0)


_of_process: dict[tuple[tuple[str, Any], ...], Connections] = {}
_lock = threading.Lock()


def _forget() -> None:
    global _lock
    _of_process.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def connections_for(options: SinkOptions) -> Connections:
    names = settings_of(AdminConfig)
    settings = {name: value for name, value in options.producer_settings().items() if name in names}
    key = tuple(sorted(settings.items()))
    with _lock:
        connections = _of_process.get(key)
        if connections is None:
            connections = _of_process[key] = Connections(settings)
        return connections


# ---- a task


@dataclass(frozen=True, slots=True)
class Done(WriterCommitMessage):
    """What a task has done, for the driver."""

    result: TaskResult


class TransactionalDelivery(Delivery):
    """Record batches in one transaction, which `finish` prepares."""

    def __init__(self, producer: Producer, opened: TaskResult) -> None:
        """``opened`` is the result of the task until then: without a transaction."""
        super().__init__(producer)
        self._opened = opened
        producer.begin_transaction()

    def finish(self) -> Done:
        """Raises the first error of a batch, and those of `Producer.prepare_transaction`."""
        self.flush()
        transaction = self.producer.prepare_transaction()
        self.producer.close()
        return Done(replace(self._opened, transaction=transaction))

    def abandon(self) -> None:
        """Abort, if a coordinator can be reached; otherwise the next claim does."""
        self.producer.close(timeout_ms=_ABORT_TIMEOUT_MS)


def open_attempt_delivery(
    options: SinkOptions, task: TaskResult, attempt: int, timeout_ms: int
) -> TransactionalDelivery:
    settings = {
        "transaction_timeout_ms": timeout_ms,
        **options.producer_settings(),
        "keep_prepared": True,
    }

    async def open_producer(transactional_id: str) -> Producer:
        return Producer(ProducerConfig.of({**settings, "transactional_id": transactional_id}))

    async def close_producer(producer: Producer) -> None:
        producer.close()

    describe = connections_for(options).describe
    # Its steps block; there is nothing else on this loop.
    producer = asyncio.run(
        open_attempt(open_producer, close_producer, describe, task.claim, task.partition, attempt)
    )
    try:
        return TransactionalDelivery(producer, task)
    except BaseException:
        producer.close(timeout_ms=0)
        raise


# ---- the writers


class _Planned(NamedTuple):
    """What the planner gives to the tasks."""

    claim: Claim
    timeout_ms: int


class _Transactional:
    """The part that both writers share."""

    _options: SinkOptions
    _columns: Sequence[str]
    _planned: _Planned | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickled on the driver: then the name is claimed, once for each writer.

        Spark makes a writer also to commit or to abort. That one is not pickled, and must not claim. Raises
        as `Coordination.claim`, and InvalidConfiguration.
        """
        name = self._options.transactional_id
        if self._planned is None and name is not None:
            connections = connections_for(self._options)
            timeout_ms = connections.max_timeout_ms()
            wanted_ms = self._options.client.get("transaction_timeout_ms", timeout_ms)
            if wanted_ms > timeout_ms:
                raise InvalidConfiguration(
                    f"kafka.transaction.timeout.ms={wanted_ms}: expected at most {timeout_ms}, "
                    f"{_MAX_TIMEOUT} of the brokers"
                )
            claim = connections.coordinate(lambda coordination: coordination.claim(name))
            self._planned = _Planned(claim, timeout_ms)
        return self.__dict__

    def _write(
        self, batches: Iterator[pa.RecordBatch], query_id: str, batch_id: int | None, context: TaskContext
    ) -> Done:
        planned = self._planned
        if planned is None:
            raise RuntimeError("the writer was not pickled by Spark's planner")
        task = TaskResult(planned.claim, query_id, batch_id, context.partitionId())
        if planned.claim.has_decided(query_id, batch_id):
            logger.info("batch %s of query %s was written before", batch_id, query_id)
            return Done(replace(task, was_decided=True))

        def open_delivery(options: SinkOptions) -> TransactionalDelivery:
            return open_attempt_delivery(options, task, context.attemptNumber(), planned.timeout_ms)

        written = write_task(batches, self._options, self._columns, open_delivery)
        return written if isinstance(written, Done) else Done(task)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """On the driver, with the number of the batch in a stream."""
        results = [message.result for message in messages if isinstance(message, Done)]
        connections_for(self._options).coordinate(lambda coordination: coordination.commit(results))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """The error of the failed batch is more important than one of this, which is logged."""
        name = self._options.transactional_id or ""
        claims = [message.result.claim for message in messages if isinstance(message, Done)]
        if self._planned is not None:
            claims.append(self._planned.claim)
        claim = claims[0] if claims else None
        try:
            connections_for(self._options).coordinate(lambda coordination: coordination.abandon(name, claim))
        except BarnabasError as error:
            logger.warning("what a failed batch left is aborted by the next batch or run: %s", error)


class TransactionalWriter(_Transactional, BarnabasWriter):
    """Writes a DataFrame in one piece."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._query_id = f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, self._query_id, None, _task())


class TransactionalStreamWriter(_Transactional, BarnabasStreamWriter):
    """Writes each micro-batch of a query in one piece, and once."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = _task()
        query_id, batch_id = (context.getLocalProperty(name) for name in (_QUERY, _BATCH))
        if query_id is None or batch_id is None:
            raise RuntimeError(f"Spark gives no {_QUERY} and {_BATCH} to the tasks of this stream")
        return self._write(self._batches(iterator), query_id, int(batch_id), context)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a writer writes in Spark's tasks only")
    return context
