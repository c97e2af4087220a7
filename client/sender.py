"""What brings the batches to the brokers: one request per leader, with batches of many partitions.

It is driven by events, not by a loop that polls: a new batch, an answer, fresh metadata or a timer schedules
one round, and a round sends whatever may be sent. Guarantees: every batch ends delivered or failed, within
`delivery_timeout_ms` of its first record; a batch is sent again only after an error that a retry can cure.

It runs on the producer's event loop alone, and changes queues under the accumulator's lock.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial
from typing import Final, NamedTuple

from barnabas.client.accumulator import Accumulator, PartitionQueue
from barnabas.client.cluster import Cluster
from barnabas.client.config import ProducerConfig
from barnabas.client.errors import DeliveryTimedOut
from barnabas.client.producer_batch import ProducerBatch, now
from barnabas.protocol.errors import BarnabasError, ErrorCode, LocalError, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

log = logging.getLogger(__name__)

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
"""Codes that smaller batches may cure: above ``max.message.bytes``, or larger than a segment."""
_LEADERSHIP: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Codes after which another broker may lead: the next attempt waits for metadata, not for a back-off."""


class _Sent(NamedTuple):
    queue: PartitionQueue
    batch: ProducerBatch


class Sender:
    """Rounds of sending; see the module."""

    def __init__(self, cluster: Cluster, accumulator: Accumulator, config: ProducerConfig) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._config = config
        self.loop = asyncio.get_running_loop()
        self.is_scheduled = False
        """Set until a round begins, which is before it takes the lock."""
        self._timer: asyncio.TimerHandle | None = None
        self._in_flight: dict[BrokerId, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.flushing = 0
        """How many wait for everything to be sent: then nothing lingers."""
        cluster.add_listener(self.wake)

    def wake(self) -> None:
        """Have a round soon. On the event loop only."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self.loop.call_soon(self._round)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _round(self) -> None:
        self.is_scheduled = False
        present = now()
        with self._accumulator.lock:
            requests, next_at = self._collect(present)
        for node_id, sent in requests:
            self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
            task = self.loop.create_task(self._produce(node_id, sent))
            self._tasks.add(task)
            task.add_done_callback(partial(self._produced, node_id, sent))
        self._arm(present, next_at)

    def _arm(self, present: float, next_at: float) -> None:
        if self._timer is not None and abs(self._timer.when() - self.loop.time() - next_at + present) < 1e-3:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_at < float("inf"):
            self._timer = self.loop.call_later(max(0.0, next_at - present), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.wake()

    def _collect(self, present: float) -> tuple[list[tuple[BrokerId, list[_Sent]]], float]:
        """Take what may be sent now, by request; and when to look again at the latest."""
        accumulator, config = self._accumulator, self._config
        lingers = not (self.flushing or accumulator.is_short_of_memory)
        requests: list[tuple[BrokerId, list[_Sent]]] = []
        filling: dict[BrokerId, tuple[list[_Sent], int]] = {}
        next_at = float("inf")
        needs_metadata = False
        for queue in list(accumulator.active.values()):
            next_at = min(next_at, self._expire(queue, present))
            if queue.in_flight is not None or not queue.batches:
                continue
            batch = queue.batches[0]
            ready_at = queue.retry_at
            if lingers and not batch.attempts and batch is queue.open and not batch.is_full:
                ready_at = max(ready_at, batch.created_at + config.linger_ms / 1000)
            if ready_at > present:
                next_at = min(next_at, ready_at)
                continue
            leader = self._cluster.leader_for(queue.tp)
            if leader is None:
                needs_metadata = True
                continue
            node_id = leader.node_id
            sent, size = filling.get(node_id, ([], 0))
            if not sent or size + batch.size_bytes > config.max_request_size:
                under_way = self._in_flight.get(node_id, 0) + sum(
                    1 for other, _ in requests if other == node_id
                )
                if under_way >= config.max_in_flight_requests_per_connection:
                    continue
                sent, size = [], 0
                requests.append((node_id, sent))
            batch = accumulator.take(queue)
            sent.append(_Sent(queue, batch))
            filling[node_id] = (sent, size + batch.size_bytes)
        if needs_metadata:
            self._cluster.request_refresh()
        return requests, next_at

    def _expire(self, queue: PartitionQueue, present: float) -> float:
        """Fail what is over its time; returns when the queue's oldest batch will be."""
        timeout = self._config.delivery_timeout_ms / 1000
        while (batch := queue.in_flight or (queue.batches[0] if queue.batches else None)) is not None:
            if batch.created_at + timeout > present:
                return batch.created_at + timeout
            self._fail(queue, batch, self._timed_out(batch))
        return float("inf")

    async def _produce(self, node_id: BrokerId, sent: list[_Sent]) -> None:
        request = self._request(sent)
        try:
            if request.acks == 0:
                await self._cluster.send_oneway(node_id, request)
                response = None
            else:
                response = await self._cluster.request(node_id, request)
        except BarnabasError as error:
            with self._accumulator.lock:
                for queue, batch in sent:
                    self._retry_or_fail(queue, batch, error, 0.0)
            return
        with self._accumulator.lock:
            if response is None:
                for queue, batch in sent:
                    if not batch.is_done:
                        self._accumulator.delivered(queue, batch, -1, -1)
            else:
                self._settle(node_id, sent, response)

    def _request(self, sent: list[_Sent]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for queue, batch in sent:
            data = PartitionProduceData(index=queue.tp.partition, records=batch.encoded)
            topics.setdefault(queue.tp.topic, []).append(data)
        return ProduceRequest(
            acks=self._config.acks,
            # The broker gives up first: its answer says more than our timeout, which costs the connection.
            timeout_ms=max(1, self._config.request_timeout_ms * 9 // 10),
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )

    def _settle(self, node_id: BrokerId, sent: list[_Sent], response: ProduceResponse) -> None:
        answers = {
            (topic.name, answer.index): answer
            for topic in response.responses
            for answer in topic.partition_responses
        }
        for queue, batch in sent:
            if batch.is_done:
                continue
            answer = answers.get(queue.tp)
            if answer is None:
                text = f"broker {node_id} did not answer for {queue.tp}"
                self._fail(queue, batch, api_error(ErrorCode.UNKNOWN_SERVER_ERROR, text))
            elif answer.error_code == ErrorCode.NONE:
                self._accumulator.delivered(queue, batch, answer.base_offset, answer.log_append_time_ms)
            else:
                self._refused(queue, batch, answer)

    def _refused(self, queue: PartitionQueue, batch: ProducerBatch, answer: PartitionProduceResponse) -> None:
        code = answer.error_code
        error = api_error(code, f"{queue.tp}: {answer.error_message or 'refused by the broker'}")
        if code in _TOO_LARGE and batch.may_split and batch.record_count > 1:
            log.info("%s: a batch of %d records is too large and is halved", queue.tp, batch.record_count)
            self._accumulator.split(queue, batch)
            return
        backoff_ms = 0.0
        if code in _LEADERSHIP:
            self._cluster.invalidate(queue.tp)
        else:
            config = self._config
            backoff_ms = min(
                config.retry_backoff_max_ms, config.retry_backoff_ms * 2.0 ** min(batch.attempts, 30)
            ) * random.uniform(0.8, 1.2)
        self._retry_or_fail(queue, batch, error, backoff_ms)

    def _retry_or_fail(
        self, queue: PartitionQueue, batch: ProducerBatch, error: BarnabasError, backoff_ms: float
    ) -> None:
        if batch.is_done:
            return
        batch.attempts += 1
        batch.last_error = error
        present = now()
        if not error.retriable or batch.attempts > self._config.retries:
            self._fail(queue, batch, error)
        elif present >= batch.created_at + self._config.delivery_timeout_ms / 1000:
            self._fail(queue, batch, self._timed_out(batch))
        else:
            log.debug("%s: attempt %d failed, will retry: %s", queue.tp, batch.attempts, error)
            self._accumulator.put_back(queue, batch, present + backoff_ms / 1000)

    def _timed_out(self, batch: ProducerBatch) -> DeliveryTimedOut:
        why = f"; last error: {batch.last_error}" if batch.last_error is not None else ""
        error = DeliveryTimedOut(
            f"not acknowledged by {batch.tp} within delivery_timeout_ms "
            f"({self._config.delivery_timeout_ms}), {batch.attempts} attempts failed{why}"
        )
        error.__cause__ = batch.last_error
        return error

    def _fail(self, queue: PartitionQueue, batch: ProducerBatch, error: BarnabasError) -> None:
        count = batch.record_count or (batch.builder.record_count if batch.builder is not None else 0)
        log.warning("%d records for %s were not delivered: %s", count, queue.tp, error)
        self._accumulator.failed(queue, batch, error)

    def fail_all(self, error: BarnabasError) -> None:
        """Fail whatever is not done, for a close that does not wait any longer."""
        with self._accumulator.lock:
            for queue in list(self._accumulator.active.values()):
                if queue.in_flight is not None:
                    self._fail(queue, queue.in_flight, error)
                while queue.batches:
                    self._fail(queue, queue.batches[0], error)

    def _produced(self, node_id: BrokerId, sent: list[_Sent], task: asyncio.Task[None]) -> None:
        """After a request, however it ended; a bug of ours must not leave its records without an outcome."""
        self._tasks.discard(task)
        self._in_flight[node_id] -= 1
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.loop.call_exception_handler({"message": "sending records failed", "exception": error})
            with self._accumulator.lock:
                for queue, batch in sent:
                    if not batch.is_done:
                        self._fail(queue, batch, LocalError(f"{type(error).__name__}: {error}"))
        self.wake()
