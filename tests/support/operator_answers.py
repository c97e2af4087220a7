"""Scripted answers about transactions, for the tests of operators' tools."""

import time
from collections.abc import Callable
from typing import Any

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.describe_transactions import (
    ActiveProducer,
    DescribedTransaction,
    DescribeProducersPartitionResponse,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsResponse,
)
from barnabas.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from barnabas.protocol.messages.partitions import TopicPartitions
from barnabas.protocol.messages.produce import InitProducerIdResponse
from barnabas.protocol.messages.transactions import (
    EndTxnResponse,
)
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.marker_answers import markers_answer


class Transactions:
    """The answers of two brokers; the coordinator of an id is the broker in its name."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.described: dict[str, DescribedTransaction] = {}
        self.producers: dict[TopicPartition, list[ActiveProducer]] = {}
        self.moved_to: int | None = None
        """The coordinator of all ids after a move, in place of the brokers in their names."""
        answers: dict[int, Callable[[FakeBroker, Any], Any]] = {
            ApiKey.FIND_COORDINATOR: self._find,
            ApiKey.LIST_TRANSACTIONS: self._list,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe,
            ApiKey.DESCRIBE_PRODUCERS: self._describe_producers,
            ApiKey.WRITE_TXN_MARKERS: self.write,
            ApiKey.INIT_PRODUCER_ID: lambda broker, body: InitProducerIdResponse(
                error_code=0, producer_id=77, producer_epoch=3
            ),
            ApiKey.END_TXN: lambda broker, body: EndTxnResponse(),
        }
        cluster.intercept.update(answers)

    def add(
        self, name: str, producer_id: int, state: str, *partitions: int, is_prepared: bool = False
    ) -> None:
        self.described[name] = DescribedTransaction(
            transactional_id=name,
            transaction_state=state,
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=1_000 if state == "Ongoing" else -1,
            producer_id=producer_id,
            producer_epoch=5,
            topics=[TopicPartitions(topic="t", partitions=list(partitions))] if partitions else [],
            is_prepared=is_prepared,
        )

    def coordinator(self, name: str) -> int:
        return self.moved_to or int(name[-1])

    def _find(self, broker: FakeBroker, body: Any) -> Any:
        assert body.key_type == 1
        (name,) = body.coordinator_keys
        return FindCoordinatorResponse(
            coordinators=[Coordinator(key=name, node_id=self.coordinator(name), host="127.0.0.1", port=1)]
        )

    def _list(self, broker: FakeBroker, body: Any) -> Any:
        states = {transaction.transaction_state for transaction in self.described.values()}
        return ListTransactionsResponse(
            unknown_state_filters=[state for state in body.state_filters if state not in states],
            transaction_states=[
                ListedTransaction(
                    transactional_id=name,
                    producer_id=described.producer_id,
                    transaction_state=described.transaction_state,
                )
                for name, described in self.described.items()
                if self.coordinator(name) == broker.node_id
                and (not body.state_filters or described.transaction_state in body.state_filters)
                and (not body.producer_id_filters or described.producer_id in body.producer_id_filters)
            ],
        )

    def describe(self, broker: FakeBroker, body: Any) -> Any:
        return DescribeTransactionsResponse(
            transaction_states=[self._described(broker, name) for name in body.transactional_ids]
        )

    def _described(self, broker: FakeBroker, name: str) -> DescribedTransaction:
        if self.coordinator(name) != broker.node_id:
            return DescribedTransaction(transactional_id=name, error_code=ErrorCode.NOT_COORDINATOR)
        if name not in self.described:
            return DescribedTransaction(
                transactional_id=name, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            )
        return self.described[name]

    def _describe_producers(self, broker: FakeBroker, body: Any) -> Any:
        def answer(tp: TopicPartition) -> DescribeProducersPartitionResponse:
            is_leader = self.cluster.partition(*tp).leader == broker.node_id
            return DescribeProducersPartitionResponse(
                partition_index=tp.partition,
                error_code=0 if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                active_producers=self.producers.get(tp, []) if is_leader else [],
            )

        return DescribeProducersResponse(
            topics=[
                DescribeProducersTopicResponse(
                    name=topic.name,
                    partitions=[
                        answer(TopicPartition(topic.name, index)) for index in topic.partition_indexes
                    ],
                )
                for topic in body.topics
            ]
        )

    def write(self, broker: FakeBroker, body: Any) -> Any:
        def code_of(tp: TopicPartition) -> int:
            is_leader = self.cluster.partition(*tp).leader == broker.node_id
            return ErrorCode.NONE if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

        return markers_answer(body.markers, code_of)


def active(
    producer_id: int, start: int = -1, *, age_ms: int = 0, coordinator_epoch: int = 4
) -> ActiveProducer:
    return ActiveProducer(
        producer_id=producer_id,
        producer_epoch=2,
        last_sequence=9,
        last_timestamp=int(time.time() * 1000) - age_ms,
        coordinator_epoch=coordinator_epoch,
        current_txn_start_offset=start,
    )
