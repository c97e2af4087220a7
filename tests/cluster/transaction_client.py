"""A transactional producer that sends each request when a test says so, in a chosen protocol version."""

import time
from collections.abc import Callable
from typing import Any

from barnabas.deploy.running_cluster import RunningCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import Endpoint, TopicPartition, by_topic
from barnabas.protocol.messages.describe_transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
)
from barnabas.protocol.messages.find_coordinator import CoordinatorType, FindCoordinatorRequest
from barnabas.protocol.messages.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    PrepareTxnRequest,
)
from tests.support import logs
from tests.support.waiting import wait_for

from .group_client import PASSING
from .raw_client import RawClient
from .tools import ClusterView


class TransactionalClient:
    """``version`` is that of Produce, None for the native protocol.

    From version 12 on, and in the native protocol, the brokers add partitions, and EndTxn raises the epoch.
    """

    def __init__(self, cluster: RunningCluster, transactional_id: str, version: int | None = None) -> None:
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self._cluster = cluster
        self._version = version
        self._is_v2 = version is None or version >= 12

    @property
    def coordinator(self) -> int:
        """The broker that coordinates the transactional id."""
        return int(self._find().node_id)

    def init(self, timeout_ms: int = 60_000, *, keep_prepared: bool = False) -> InitProducerIdResponse:
        """Get the producer's id and epoch."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            keep_prepared_txn=keep_prepared,
        )
        answer: InitProducerIdResponse = self.ask_coordinator(request, None, lambda answer: answer.error_code)
        assert answer.error_code == ErrorCode.NONE, answer
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return answer

    def add(self, *partitions: TopicPartition) -> None:
        assert self.add_error(*partitions) is ErrorCode.NONE

    def add_error(self, *partitions: TopicPartition) -> ErrorCode:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in by_topic((name, name.partition) for name in partitions).items()
            ],
        )

        def code(answer: Any) -> int:
            codes = {
                partition.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for partition in topic.results_by_partition
            }
            return int(max(codes))

        return ErrorCode(code(self.ask_coordinator(request, 3, code)))

    def request(
        self,
        partition: TopicPartition,
        sequence: int,
        epoch: int | None = None,
        value: bytes | None = None,
    ) -> ProduceRequest:
        """One record; by default of the present epoch."""
        batch = logs.produced(
            sequence,
            producer_id=self.producer_id,
            epoch=self.epoch if epoch is None else epoch,
            timestamp_ms=time.time_ns() // 1_000_000,
            is_transactional=True,
            value=value,
        )
        data = [PartitionProduceData(index=partition.partition, records=bytes(batch))]
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=partition.topic, partition_data=data)],
        )

    def produce(
        self,
        partition: TopicPartition,
        sequence: int,
        epoch: int | None = None,
        value: bytes | None = None,
    ) -> ErrorCode:
        """Send a record once."""
        leader = ClusterView(self._cluster).leader(*partition)
        with RawClient(self._cluster.broker(leader).endpoint) as client:
            return self.result(client.ask(self.request(partition, sequence, epoch, value), self._version))

    def write(self, value: bytes, *partitions: TopicPartition, sequence: int = 0) -> None:
        """Write a record to these partitions, by default the first of the producer's epoch."""
        for partition in partitions:
            self.produce_at_last(partition, sequence, value)

    def produce_at_last(self, partition: TopicPartition, sequence: int, value: bytes | None = None) -> None:
        """Send a record until it is written, as producers do while a coordinator moves or is new."""
        seen: list[ErrorCode] = []

        def is_written() -> bool:
            seen.append(self.produce(partition, sequence, value=value))
            assert seen[-1] is ErrorCode.NONE or seen[-1].retriable, seen
            return seen[-1] is ErrorCode.NONE

        wait_for(is_written, lambda: f"the record is not written: {seen[-3:]}")

    @staticmethod
    def result(answer: Any) -> ErrorCode:
        """The error of the one partition."""
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    def end(self, *, committed: bool) -> None:
        assert self.end_error(committed=committed) is ErrorCode.NONE

    def end_error(self, *, committed: bool) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        version = None if self._version is None else 5 if self._is_v2 else 3
        answer = self.ask_coordinator(request, version, lambda answer: answer.error_code)
        if self._is_v2 and answer.error_code == ErrorCode.NONE:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    def prepare(self) -> None:
        request = PrepareTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )
        answer = self.ask_coordinator(request, None, lambda answer: answer.error_code)
        assert answer.error_code == ErrorCode.NONE, answer

    def describe(self) -> DescribedTransaction:
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        answer = self.ask_coordinator(request, None, lambda answer: answer.transaction_states[0].error_code)
        described: DescribedTransaction = answer.transaction_states[0]
        return described

    def wait_state(self, state: str) -> None:
        wait_for(lambda: self.describe().transaction_state == state, lambda: self.describe())

    def ask_coordinator(self, request: Any, version: int | None, code_of: Callable[[Any], int]) -> Any:
        """The first answer without a retriable error."""
        answers: list[Any] = []

        def is_answered() -> bool:
            found = self._find()
            try:
                with RawClient(Endpoint(found.host, found.port)) as client:
                    answers.append(client.ask(request, version))
            except OSError as error:
                answers.append(error)
                return False
            code = ErrorCode(code_of(answers[-1]))
            return code not in PASSING and code is not ErrorCode.CONCURRENT_TRANSACTIONS

        wait_for(is_answered, lambda: f"{type(request).__name__}: {answers[-1]}")
        return answers[-1]

    def _find(self) -> Any:
        request = FindCoordinatorRequest(
            coordinator_keys=[self.transactional_id], key_type=CoordinatorType.TRANSACTION.value
        )
        seen: list[Any] = []

        def is_known() -> bool:
            for broker in self._cluster.brokers:
                if broker.state != "running":
                    continue
                try:
                    with RawClient(broker.endpoint) as client:
                        seen.append(client.ask(request).coordinators[0])
                except OSError as error:
                    seen.append(error)
                    continue
                if seen[-1].error_code == ErrorCode.NONE:
                    return True
            return False

        wait_for(is_known, lambda: f"no broker knows the coordinator: {seen[-3:]}")
        return seen[-1]
