"""A transactional producer that sends single requests, so that a test decides what happens between them."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Self

from barnabas.deploy.running_cluster import RunningCluster
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.describe_transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
)
from barnabas.protocol.messages.find_coordinator import CoordinatorType
from barnabas.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    PrepareTxnRequest,
)
from tests.support.waiting import wait_for

from .group_client import GroupClient
from .raw_client import RawClient, produce_request
from .tools import ClusterView

TOPIC = "t"


class TransactionalId:
    """The producer of one transactional id; a context manager, for one thread."""

    def __init__(self, cluster: RunningCluster, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self._view = ClusterView(cluster)
        self._coordinator = GroupClient(cluster, transactional_id, key_type=CoordinatorType.TRANSACTION)
        self._sequences: dict[TopicPartition, int] = defaultdict(int)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._coordinator.__exit__()

    def init(self, timeout_ms: int = 60_000, *, keep_prepared: bool = False) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            keep_prepared_txn=keep_prepared,
        )
        given: InitProducerIdResponse = self._coordinator.ask(request, lambda answer: answer.error_code)
        assert given.error_code == ErrorCode.NONE
        self._continue_as(given.producer_id, given.producer_epoch)
        return given

    def _continue_as(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def add(self, *partitions: int, topic: str = TOPIC) -> ErrorCode:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=topics,
        )

        def code(answer: object) -> int:
            results = answer.results_by_transaction[0].topic_results[0].results_by_partition  # type: ignore[attr-defined]  # decoded
            found: int = results[0].partition_error_code
            return found

        request = AddPartitionsToTxnRequest(transactions=[transaction])
        return ErrorCode(code(self._coordinator.ask(request, code)))

    def write(self, value: bytes, *partitions: int, topic: str = TOPIC) -> None:
        """Write a value to partitions that were added; it is acknowledged on return."""
        infos = self._view.partitions(topic)
        endpoints = {broker.id: broker.endpoint for broker in self._view.cluster.brokers}
        for partition in partitions:
            request = produce_request([(partition, self._batch(topic, partition, value))], topic=topic)
            request.transactional_id = self.transactional_id
            with RawClient(endpoints[infos[partition].leader]) as client:
                answer = client.ask(request)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    def _batch(self, topic: str, partition: int, value: bytes) -> bytearray:
        name = TopicPartition(topic, partition)
        builder = RecordBatchBuilder()
        builder.append(None, value, None, time.time_ns() // 1_000_000)
        sequence = self._sequences[name]
        self._sequences[name] += 1
        return builder.build(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )

    def end(self, *, committed: bool = True) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        answer = self._coordinator.ask(request, lambda answer: answer.error_code)
        if answer.error_code == ErrorCode.NONE:
            self._continue_as(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def prepare(self) -> ErrorCode:
        request = PrepareTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )
        return ErrorCode(self._coordinator.ask(request, lambda answer: answer.error_code).error_code)

    def describe(self) -> DescribedTransaction:
        answer = self._coordinator.ask(
            DescribeTransactionsRequest(transactional_ids=[self.transactional_id]),
            lambda answer: answer.transaction_states[0].error_code,
        )
        described: DescribedTransaction = answer.transaction_states[0]
        return described

    def wait_state(self, state: str) -> None:
        wait_for(lambda: self.describe().transaction_state == state, lambda: f"{self.describe()}")

    @property
    def coordinator(self) -> int:
        """The broker that answered last."""
        return self._coordinator.coordinator
