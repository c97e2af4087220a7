"""DescribeProducers, DescribeTransactions, ListTransactions: transactions as operators see them (KIP-664)."""

from __future__ import annotations

from barnabas.protocol import schema as s
from barnabas.protocol.messages.partitions import TopicPartitionIndexes, TopicPartitions


@s.message
class ActiveProducer:
    """A producer of a partition; ``current_txn_start_offset`` is -1 without an ongoing transaction."""

    producer_id: int = s.int64()
    producer_epoch: int = s.int32()
    last_sequence: int = s.int32(default=-1)
    last_timestamp: int = s.int64(default=-1)
    coordinator_epoch: int = s.int32()
    current_txn_start_offset: int = s.int64(default=-1)


@s.message
class DescribeProducersPartitionResponse:
    partition_index: int = s.int32()
    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default=None)
    active_producers: list[ActiveProducer] = s.array(ActiveProducer, default_factory=list)


@s.message
class DescribeProducersTopicResponse:
    name: str = s.string()
    partitions: list[DescribeProducersPartitionResponse] = s.array(DescribeProducersPartitionResponse)


@s.message
class DescribeProducersResponse:
    throttle_time_ms: int = s.int32(default=0)
    topics: list[DescribeProducersTopicResponse] = s.array(DescribeProducersTopicResponse)


@s.request(s.ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), flexible_since=0)
class DescribeProducersRequest(s.RequestOf[DescribeProducersResponse]):
    topics: list[TopicPartitionIndexes] = s.array(TopicPartitionIndexes)


@s.message
class DescribedTransaction:
    """``transaction_start_time_ms`` is -1 without an ongoing transaction.

    In errors everything is zero, as in Kafka: there are clients that cannot decode -1 here.
    """

    error_code: int = s.int16(default=0)
    transactional_id: str = s.string()
    transaction_state: str = s.string(default="")
    transaction_timeout_ms: int = s.int32(default=0)
    transaction_start_time_ms: int = s.int64(default=0)
    producer_id: int = s.int64(default=0)
    producer_epoch: int = s.int16(default=0)
    topics: list[TopicPartitions] = s.array(TopicPartitions, default_factory=list)
    is_prepared: bool = s.boolean(native_only=True, default=False)


@s.message
class DescribeTransactionsResponse:
    throttle_time_ms: int = s.int32(default=0)
    transaction_states: list[DescribedTransaction] = s.array(DescribedTransaction, default_factory=list)


@s.request(s.ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0), flexible_since=0)
class DescribeTransactionsRequest(s.RequestOf[DescribeTransactionsResponse]):
    transactional_ids: list[str] = s.array(s.WireType.STRING)


@s.message
class ListedTransaction:
    transactional_id: str = s.string()
    producer_id: int = s.int64()
    transaction_state: str = s.string()


@s.message
class ListTransactionsResponse:
    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16(default=0)
    unknown_state_filters: list[str] = s.array(s.WireType.STRING, default_factory=list)
    transaction_states: list[ListedTransaction] = s.array(ListedTransaction, default_factory=list)


@s.request(s.ApiKey.LIST_TRANSACTIONS, versions=(0, 1), flexible_since=0)
class ListTransactionsRequest(s.RequestOf[ListTransactionsResponse]):
    """Empty filters accept everything; ``duration_filter`` is the shortest duration in ms, or -1."""

    state_filters: list[str] = s.array(s.WireType.STRING, default_factory=list)
    producer_id_filters: list[int] = s.array(s.WireType.INT64, default_factory=list)
    duration_filter: int = s.int64(since=1, default=-1, ignorable=False)
