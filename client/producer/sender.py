"""Sends the batches to the brokers: one request per leader, with batches of many partitions.

It is driven by events, not by a loop that polls: a new batch, an answer, fresh metadata or a timer schedules
one round, and a round sends all batches that may be sent. Guarantees: every batch ends delivered or failed,
within `delivery_timeout_ms` of its first record; a batch is sent again only after a retriable error. The
partition's pipeline (`sequences`) decides the order and the sequence numbers; in a transaction `transactions`
decides whether, and as which producer, and the first failed batch ends it. A bug of ours fails the batch
that could not be encoded, or else the batches of its partition, its request or its round; the others go on.

It runs on the producer's event loop alone, and changes queues under the accumulator's lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from barnabas.client.cluster import Cluster
from barnabas.client.errors import DeliveryTimedOut, report_bug
from barnabas.client.metadata import LEADERSHIP_ERRORS
from barnabas.client.producer.accumulator import Accumulator, PartitionQueue
from barnabas.client.producer.batch import BatchState, ProducerBatch, now
from barnabas.client.producer.identities import GAP, NOT_WRITTEN, TOO_LARGE, IdentitySource
from barnabas.client.producer.transactions import (
    CONCURRENT_BACKOFF_MS,
    LAST_PRODUCE_OF_OLD_PROTOCOL,
    TransactionMachine,
)
from barnabas.client.reactions import Api, reaction_to
from barnabas.common.backoff import doubled, jittered
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, TopicPartition, by_topic
from barnabas.protocol.messages import produce as wire

log = logging.getLogger(__name__)

_GATHER_S: Final = 0.05
"""The time that the open batch collects records while others of its partition are in flight."""

_BUG: Final = "sending records failed"


class _Sent(NamedTuple):
    """A batch in a request, with its attempt."""

    queue: PartitionQueue
    batch: ProducerBatch
    flight: int

    @property
    def is_awaited(self) -> bool:
        """Whether the batch has neither failed nor been sent again since."""
        return self.batch.flight == self.flight and self.batch.state is BatchState.IN_FLIGHT


class Sender:
    """Sends the due batches, round by round."""

    def __init__(
        self, cluster: Cluster, accumulator: Accumulator, transactions: TransactionMachine | None = None
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._config = config = accumulator.config
        self._transactions = transactions
        self.add_partitions: Callable[[], None] = lambda: None
        """Called when `TransactionMachine.wanted` has partitions."""
        self.loop = asyncio.get_running_loop()
        self.is_scheduled = False
        """Set until a round begins, which is before it takes the lock."""
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        """The timer's time, kept here because uvloop's timers do not have it if it is now."""
        self._in_flight: dict[BrokerId, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushing = 0
        """The number of flushes that wait; meanwhile batches do not linger."""
        self.identities = IdentitySource(cluster, self.wake)
        if config.is_idempotent and transactions is None:
            self.identities.ask()
        cluster.add_listener(self.wake)

    def wake(self) -> None:
        """Schedule a round. On the event loop only."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self.loop.call_soon(self._round)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.identities.close()
        for task in self._tasks:
            task.cancel()

    def _round(self) -> None:
        self.is_scheduled = False
        present = now()
        try:
            with self._accumulator.lock:
                requests, next_at = self._collect(present)
        except Exception as bug:  # noqa: BLE001 - reported, and the outcome of the records
            self.fail_all(report_bug(_BUG, bug))
            return
        for node_id, sent in requests:
            self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
            task = self.loop.create_task(self._produce(node_id, sent))
            self._tasks.add(task)
            task.add_done_callback(partial(self._produced, node_id, sent))
        self._arm(present, next_at)

    def _arm(self, present: float, next_at: float) -> None:
        next_at = max(present, next_at)
        if self._timer is not None and abs(self._timer_at - next_at) < 1e-3:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_at < float("inf"):
            self._timer = self.loop.call_later(next_at - present, self._timer_fired)
            self._timer_at = next_at

    def _timer_fired(self) -> None:
        self._timer = None
        self.wake()

    def _collect(self, present: float) -> tuple[list[tuple[BrokerId, list[_Sent]]], float]:
        """The batches to send now, by request, and the latest time for the next round."""
        transactions = self._transactions
        accumulator, config = self._accumulator, self._config
        lingers = not (self._flushing or accumulator.is_short_of_memory)
        requests: list[tuple[BrokerId, list[_Sent]]] = []
        filling: dict[BrokerId, tuple[list[_Sent], int]] = {}
        next_at = float("inf")
        needs_metadata = False
        for queue in list(accumulator.active.values()):
            try:
                leader = self._cluster.cache.leader_for(queue.tp)
                if leader is not None:
                    self._reclaim(queue, leader.node_id)
                if transactions is not None:
                    self._drop_aborted(transactions, queue)
                next_at = min(next_at, self._expire(queue, present))
                batch, ready_at = self._candidate(queue, lingers=lingers)
                if batch is None or ready_at > present:
                    next_at = min(next_at, ready_at)
                    continue
                if leader is None:
                    needs_metadata = True
                    if self._fail_refused(queue, batch):
                        next_at = present
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
                if not batch.flight and not self._take(queue, batch):
                    next_at = present
                    continue
                queue.pipeline.launch(batch, node_id)
                if queue.batches and queue.pipeline.takes_new:
                    # A request holds one batch of a partition: the next one goes in the next round.
                    next_at = present
                if not sent:
                    requests.append((node_id, sent))
                sent.append(_Sent(queue, batch, batch.flight))
                filling[node_id] = (sent, size + batch.size_bytes)
            except Exception as bug:  # noqa: BLE001 - reported, and the outcome of the records
                self._abandon(queue, report_bug(_BUG, bug))
        self.identities.failure = None
        if transactions is not None and transactions.wanted:
            self.add_partitions()
        if needs_metadata:
            self._cluster.request_refresh()
        return requests, next_at

    def _fail_refused(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Fail a batch without a leader if the cluster has refused this client since the batch began."""
        cluster = self._cluster
        if cluster.refusal is None or cluster.refused_at < batch.created_at:
            return False
        self._fail(queue, batch, cluster.refusal.again(), may_be_written=batch.may_be_written)
        return True

    def _take(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Encode and number a batch that was never sent; False if a bug of ours has ended it."""
        try:
            self._accumulator.take(queue)
        except Exception as bug:  # noqa: BLE001 - reported, and the outcome of the records
            # It has no number yet, so that the next batch leaves no gap.
            self._fail(queue, batch, report_bug(_BUG, bug), may_be_written=False)
            return False
        return True

    def _candidate(self, queue: PartitionQueue, *, lingers: bool) -> tuple[ProducerBatch | None, float]:
        """The next batch of a partition, or None, and the time from which it may be sent."""
        if self._transactions is not None:
            if not self._join_transaction(self._transactions, queue):
                return None, float("inf")
        elif queue.pipeline.is_numbered and queue.pipeline.identity is None and not self._identify(queue):
            return None, float("inf")
        pipeline = queue.pipeline
        batch = pipeline.retry
        if batch is not None:
            return batch, queue.retry_at
        if not queue.batches or not pipeline.takes_new:
            return None, float("inf")
        batch = queue.batches[0]
        if not lingers or batch is not queue.open or (batch.is_full and pipeline.is_idle):
            return batch, queue.retry_at
        # A full batch that waits for others grows, up to the size at which the next one begins.
        linger_s = self._config.linger_ms / 1000
        wait_s = linger_s if pipeline.is_idle else max(linger_s, _GATHER_S)
        return batch, max(queue.retry_at, batch.created_at + wait_s)

    def _join_transaction(self, transactions: TransactionMachine, queue: PartitionQueue) -> bool:
        """Give a partition the transaction's identity; False if its batches must not be sent now."""
        identity = transactions.identity_for(queue.tp)
        if identity is None:
            return False
        if queue.pipeline.identity != identity:
            # All batches of the former epoch are done, because their transaction has ended.
            queue.pipeline = self._accumulator.make_pipeline()
            queue.pipeline.identify(identity)
        return True

    def _drop_aborted(self, transactions: TransactionMachine, queue: PartitionQueue) -> None:
        """Fail the batches that are not in flight, if their transaction can only be aborted."""
        is_present = transactions.is_sending and queue.pipeline.identity == transactions.identity
        if is_present and queue.pipeline.is_broken:
            gap = api_error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{queue.tp}: a batch is missing")
            self._fail_transaction(gap)
        if (error := transactions.dropped()) is None:
            return
        for batch in [*queue.pipeline.batches, *queue.batches]:
            if batch.state in (BatchState.OPEN, BatchState.CLOSED):
                if batch.flight:
                    transactions.outdate_epoch()
                self._accumulator.failed(queue, batch, error, may_be_written=batch.may_be_written)

    def _fail_transaction(self, error: BarnabasError) -> None:
        """A record of the transaction failed: the transaction can only be aborted."""
        if self._transactions is not None:
            self._transactions.failed(reaction_to(Api.PRODUCE, error), error)
            refusal = self._transactions.refusal()
            if refusal is not None:
                self._accumulator.refuse(refusal)
            self.wake()

    def _identify(self, queue: PartitionQueue) -> bool:
        """Give a partition the producer id; False if we have no id yet."""
        failure = self.identities.failure
        if failure is not None:
            while (batch := queue.oldest) is not None:
                self._fail(queue, batch, failure, may_be_written=batch.may_be_written)
            return False
        identity = self.identities.ask(queue.pipeline.exhausted_id)
        if identity is None:
            return False
        queue.pipeline.identify(identity)
        return queue.pipeline.identity is not None

    def _reclaim(self, queue: PartitionQueue, leader: BrokerId) -> None:
        """Take back batches in flight to a former leader, which may not answer for long.

        Only if they have sequence numbers, which keep the next leader from writing them twice.
        """
        if queue.pipeline.is_numbered:
            for batch in list(queue.pipeline.batches):
                if batch.state is BatchState.IN_FLIGHT and batch.node_id != leader:
                    batch.may_be_written = True
                    self._accumulator.put_back(queue, batch, 0.0)

    def _expire(self, queue: PartitionQueue, present: float) -> float:
        """Fail expired batches; returns the time at which the queue's oldest batch expires."""
        timeout = self._config.delivery_timeout_ms / 1000
        while (batch := queue.oldest) is not None:
            if batch.created_at + timeout > present:
                return batch.created_at + timeout
            is_unknown = batch.may_be_written or batch.state is BatchState.IN_FLIGHT
            self._fail(queue, batch, self._timed_out(batch), may_be_written=is_unknown)
        return float("inf")

    async def flush(self) -> None:
        """Return when all records sent before are delivered or have failed; ends their linger time."""
        with self._accumulator.lock:
            batches = list(self._accumulator.incomplete)
        self._flushing += 1
        self.wake()
        try:
            for batch in batches:
                await batch.wait_delivered()
            # The loop already has the callbacks of batches that were done just before; let them run first.
            await asyncio.sleep(0)
        finally:
            self._flushing -= 1

    async def _produce(self, node_id: BrokerId, sent: list[_Sent]) -> None:
        sent = self._leaving(sent)
        if not sent:
            return
        request, metrics, sent_at = self._request(sent), self._accumulator.metrics, now()
        metrics.leaves([(batch.size_bytes, batch.record_count, batch.flight > 1) for _, batch, _ in sent])
        try:
            if request.acks == 0:
                await self._cluster.send_oneway(node_id, request)
                response = None
            else:
                # A later version would add partitions to the transaction.
                is_old = self._transactions is not None and not self._transactions.uses_new_protocol
                last_version = LAST_PRODUCE_OF_OLD_PROTOCOL if is_old else None
                response = await self._cluster.request(node_id, request, last_version=last_version)
        except BarnabasError as error:
            self._settle(sent, partial(self._unanswered, error))
            return
        if response is None:
            self._settle(sent, self._sent_oneway)
        else:
            metrics.answered(now() - sent_at, response.throttle_time_ms)
            answers = {
                TopicPartition(topic.name, answer.index): answer
                for topic in response.responses
                for answer in topic.partition_responses
            }
            self._settle(sent, partial(self._answered, node_id, answers))

    def _leaving(self, sent: list[_Sent]) -> list[_Sent]:
        """The batches that may still be sent, now that the request is written to the connection.

        Since the round, an earlier batch may have returned to the queue, and no batch may overtake it.
        """
        leaving = []
        with self._accumulator.lock:
            for entry in sent:
                if entry.is_awaited and entry.queue.pipeline.may_leave(entry.batch):
                    leaving.append(entry)
                elif entry.is_awaited:
                    self._accumulator.put_back(entry.queue, entry.batch, 0.0)
        return leaving

    def _request(self, sent: list[_Sent]) -> wire.ProduceRequest:
        topics = by_topic(
            (queue.tp, wire.PartitionProduceData(index=queue.tp.partition, records=batch.encoded))
            for queue, batch, _ in sent
        )
        transactions = self._transactions
        if transactions is not None:
            transactions.is_started = True
        return wire.ProduceRequest(
            transactional_id=None if transactions is None else transactions.transactional_id,
            acks=self._config.required_acks,
            # The broker's time limit ends first, because its answer is better than our timeout, which closes
            # the connection.
            timeout_ms=max(1, self._config.request_timeout_ms * 9 // 10),
            topic_data=[
                wire.TopicProduceData(name=name, partition_data=data) for name, data in topics.items()
            ],
        )

    def _settle(self, sent: list[_Sent], settle: Callable[[_Sent], None]) -> None:
        """Settle the batches of a request one by one, so that a bug of ours keeps no outcome from others."""
        with self._accumulator.lock:
            for entry in sent:
                try:
                    settle(entry)
                except Exception as bug:  # noqa: BLE001 - reported, and the outcome of the records
                    self._abandon(entry.queue, report_bug(_BUG, bug))

    def _unanswered(self, error: BarnabasError, entry: _Sent) -> None:
        if entry.is_awaited:
            entry.batch.may_be_written = True
            self._retry_or_fail(entry.queue, entry.batch, error, 0.0)

    def _sent_oneway(self, entry: _Sent) -> None:
        if entry.is_awaited:
            self._accumulator.delivered(entry.queue, entry.batch, -1, -1)

    def _answered(
        self, node_id: BrokerId, answers: Mapping[TopicPartition, wire.PartitionProduceResponse], entry: _Sent
    ) -> None:
        queue, batch = entry.queue, entry.batch
        answer = answers.get(queue.tp)
        if not entry.is_awaited:
            if batch in queue.pipeline.doubtful and answer and answer.error_code == ErrorCode.NONE:
                queue.pipeline.acknowledged(batch, answer.base_offset)
        elif answer is None:
            text = f"broker {node_id} did not answer for {queue.tp}"
            error = api_error(ErrorCode.UNKNOWN_SERVER_ERROR, text)
            self._fail(queue, batch, error, may_be_written=True)
        elif answer.error_code == ErrorCode.NONE:
            if self._transactions is not None:
                self._transactions.is_confirmed = True
            self._accumulator.delivered(queue, batch, answer.base_offset, answer.log_append_time_ms)
        else:
            self._refused(queue, batch, answer)

    def _refused(
        self, queue: PartitionQueue, batch: ProducerBatch, answer: wire.PartitionProduceResponse
    ) -> None:
        code = answer.error_code
        error = api_error(code, f"{queue.tp}: {answer.error_message or 'refused by the broker'}")
        batch.may_be_written = batch.may_be_written or code not in NOT_WRITTEN
        if queue.pipeline.is_numbered and code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # Written long ago: the broker no longer has its offset.
            self._accumulator.delivered(queue, batch, -1, -1)
            return
        if queue.pipeline.is_numbered and code in GAP:
            self._out_of_order(queue, batch, error)
            return
        if code in TOO_LARGE and batch.may_split and batch.record_count > 1:
            log.info("%s: a batch of %d records is too large and is halved", queue.tp, batch.record_count)
            try:
                self._accumulator.metrics.batch_splits += 1
                self._accumulator.split(queue, batch)
            except Exception as bug:  # noqa: BLE001 - reported, and the outcome of the records
                self._fail(queue, batch, report_bug(_BUG, bug), may_be_written=batch.may_be_written)
            return
        backoff_ms = 0.0
        if code in LEADERSHIP_ERRORS:
            self._cluster.invalidate(queue.tp)
        else:
            backoff_ms = self._backoff_ms(batch, code)
        self._retry_or_fail(queue, batch, error, backoff_ms)

    def _backoff_ms(self, batch: ProducerBatch, code: int) -> float:
        """The wait before the next attempt. Attempts that waited for nothing do not make it longer."""
        first_ms, longest_ms = self._config.retry_backoff_ms, self._config.retry_backoff_max_ms
        if code in wire.NOT_YET_CONFIRMED:
            first_ms, longest_ms = CONCURRENT_BACKOFF_MS, max(CONCURRENT_BACKOFF_MS, first_ms)
        batch.pauses += 1
        return jittered(doubled(first_ms, batch.pauses - 1, longest_ms))

    def _out_of_order(self, queue: PartitionQueue, batch: ProducerBatch, error: ApiError) -> None:
        """The broker lacks an earlier batch, which is still to be sent again, or there is a gap.

        For the oldest batch there is a gap: the broker has lost an acknowledged batch, or an earlier one was
        failed and was never written. The numbering restarts (KIP-360); in a transaction the batch fails.
        """
        if batch.is_written:
            # The broker has only later batches, so this one is written; its offset is unknown.
            self._accumulator.delivered(queue, batch, -1, -1)
            return
        if not batch.is_oldest:
            batch.last_error = error
            self._accumulator.put_back(queue, batch, 0.0)
            return
        if queue.pipeline.is_transactional:
            self._fail(queue, batch, error, may_be_written=batch.may_be_written)
            return
        log.warning("%s: the broker lacks an earlier batch; restarting the numbering: %s", queue.tp, error)
        self._accumulator.put_back(queue, batch, now() + self._backoff_ms(batch, error.code) / 1000)
        batch.attempts += 1
        batch.last_error = error
        queue.pipeline.restart()

    def _retry_or_fail(
        self, queue: PartitionQueue, batch: ProducerBatch, error: BarnabasError, backoff_ms: float
    ) -> None:
        batch.attempts += 1
        batch.last_error = error
        present = now()
        if not error.retriable or batch.attempts > self._config.retries:
            self._fail(queue, batch, error, may_be_written=batch.may_be_written)
        elif present >= batch.created_at + self._config.delivery_timeout_ms / 1000:
            self._fail(queue, batch, self._timed_out(batch), may_be_written=batch.may_be_written)
        else:
            log.debug("%s: attempt %d failed, will retry: %s", queue.tp, batch.attempts, error)
            self._accumulator.put_back(queue, batch, present + backoff_ms / 1000)

    def _timed_out(self, batch: ProducerBatch) -> DeliveryTimedOut:
        last_error = batch.last_error or self.identities.last_error
        why = f"; last error: {last_error}" if last_error is not None else ""
        error = DeliveryTimedOut(
            f"not acknowledged by {batch.tp} within delivery_timeout_ms "
            f"({self._config.delivery_timeout_ms}), {batch.attempts} attempts failed{why}"
        )
        error.__cause__ = last_error
        return error

    def _fail(
        self, queue: PartitionQueue, batch: ProducerBatch, error: BarnabasError, *, may_be_written: bool
    ) -> None:
        self._log_failed(queue, [batch], error)
        self._fail_transaction(error)
        self._accumulator.failed(queue, batch, error, may_be_written=may_be_written)

    def _abandon(self, queue: PartitionQueue, error: BarnabasError) -> None:
        """Fail all unfinished batches of a partition; its state may be wrong after a bug."""
        self._log_failed(queue, [*queue.pipeline.batches, *queue.batches], error)
        self._fail_transaction(error)
        self._accumulator.abandon(queue, error)

    def _log_failed(
        self, queue: PartitionQueue, batches: Iterable[ProducerBatch], error: BarnabasError
    ) -> None:
        for batch in batches:
            if not batch.is_done:
                # The builder of an open batch counts its records.
                count = (batch.builder or batch).record_count
                self._accumulator.metrics.failed_records += count
                log.warning("%d records for %s were not delivered: %s", count, queue.tp, error)

    def fail_all(self, error: BarnabasError) -> None:
        """Fail all unfinished batches: a close waits no longer, or a bug of ours ended the sender."""
        with self._accumulator.lock:
            for queue in list(self._accumulator.active.values()):
                self._abandon(queue, error)

    def _produced(self, node_id: BrokerId, sent: list[_Sent], task: asyncio.Task[None]) -> None:
        """Settle a request after any end; a bug of ours must not leave its records without an outcome."""
        self._tasks.discard(task)
        self._in_flight[node_id] -= 1
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._settle(sent, partial(self._unanswered, report_bug(_BUG, error)))
        self.wake()
