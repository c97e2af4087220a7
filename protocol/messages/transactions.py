"""The APIs of transactions: adding partitions and offsets, ending, markers.

``producer_id`` and ``producer_epoch`` name the producer's present incarnation; a request of an earlier one is
refused. Producers of the native protocol, and of Kafka's from Produce 12 and TxnOffsetCommit 5 on, do not add
partitions or offsets themselves: the brokers do it at the first write (KIP-890).

Sources: KIP-98, KIP-447 (member and generation in TxnOffsetCommit), KIP-890, KIP-939 (PrepareTxn).
"""

from __future__ import annotations

from barnabas.protocol import schema as s
from barnabas.protocol.ids import NO_LEADER_EPOCH
from barnabas.protocol.messages.groups import NO_GENERATION, NO_MEMBER
from barnabas.protocol.messages.partitions import TopicPartitionIndexes, TopicResult


@s.message
class AddPartitionsToTxnPartitionResult:
    partition_index: int = s.int32()
    partition_error_code: int = s.int16()


@s.message
class AddPartitionsToTxnTopicResult:
    name: str = s.string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = s.array(AddPartitionsToTxnPartitionResult)


@s.message
class AddPartitionsToTxnResult:
    transactional_id: str = s.string()
    topic_results: list[AddPartitionsToTxnTopicResult] = s.array(AddPartitionsToTxnTopicResult)


@s.message
class AddPartitionsToTxnResponse:
    """``results_by_topic_v3_and_below`` is the older versions' form, for one transaction."""

    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16(since=4, default=0)
    results_by_transaction: list[AddPartitionsToTxnResult] = s.array(
        AddPartitionsToTxnResult, since=4, default_factory=list
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = s.array(
        AddPartitionsToTxnTopicResult, until=3, default_factory=list
    )


@s.message
class AddPartitionsToTxnTopic:
    name: str = s.string()
    partitions: list[int] = s.array(s.WireType.INT32)


@s.message
class AddPartitionsToTxnTransaction:
    """``verify_only`` asks whether the partitions are in the ongoing transaction, and adds nothing."""

    transactional_id: str = s.string()
    producer_id: int = s.int64()
    producer_epoch: int = s.int16()
    verify_only: bool = s.boolean(default=False)
    topics: list[AddPartitionsToTxnTopic] = s.array(AddPartitionsToTxnTopic)


@s.request(s.ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 5), flexible_since=3)
class AddPartitionsToTxnRequest(s.RequestOf[AddPartitionsToTxnResponse]):
    """From version 4 on, and in the native codec, for several transactions, and from brokers only."""

    transactions: list[AddPartitionsToTxnTransaction] = s.array(
        AddPartitionsToTxnTransaction, since=4, default_factory=list, ignorable=False
    )
    v3_and_below_transactional_id: str = s.string(until=3, default="")
    v3_and_below_producer_id: int = s.int64(until=3, default=-1)
    v3_and_below_producer_epoch: int = s.int16(until=3, default=-1)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = s.array(
        AddPartitionsToTxnTopic, until=3, default_factory=list
    )


@s.message
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16(default=0)


@s.request(s.ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4), flexible_since=3)
class AddOffsetsToTxnRequest(s.RequestOf[AddOffsetsToTxnResponse]):
    transactional_id: str = s.string()
    producer_id: int = s.int64()
    producer_epoch: int = s.int16()
    group_id: str = s.string()


@s.message
class EndTxnResponse:
    """The id and the epoch of the producer's next transaction, for clients with a new epoch for each."""

    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16(default=0)
    producer_id: int = s.int64(since=5, default=-1)
    producer_epoch: int = s.int16(since=5, default=-1)


@s.request(s.ApiKey.END_TXN, versions=(0, 5), flexible_since=3)
class EndTxnRequest(s.RequestOf[EndTxnResponse]):
    transactional_id: str = s.string()
    producer_id: int = s.int64()
    producer_epoch: int = s.int16()
    committed: bool = s.boolean()


@s.message
class WritableTxnMarkerResult:
    producer_id: int = s.int64()
    topics: list[TopicResult] = s.array(TopicResult)


@s.message
class WriteTxnMarkersResponse:
    """One result for each marker of the request, in its order."""

    markers: list[WritableTxnMarkerResult] = s.array(WritableTxnMarkerResult)


@s.message
class WritableTxnMarker:
    """``transaction_result`` is true for a commit; ``coordinator_epoch`` is -1 from an operator's tool.

    ``transaction_version`` 2: the epoch was raised for the marker, so it is above that of all records.
    """

    producer_id: int = s.int64()
    producer_epoch: int = s.int16()
    transaction_result: bool = s.boolean()
    topics: list[TopicPartitionIndexes] = s.array(TopicPartitionIndexes)
    coordinator_epoch: int = s.int32()
    transaction_version: int = s.int8(native_only=True, default=0)


@s.request(s.ApiKey.WRITE_TXN_MARKERS, versions=(0, 1), flexible_since=1)
class WriteTxnMarkersRequest(s.RequestOf[WriteTxnMarkersResponse]):
    """Sent by coordinators, and by tools that end a hanging transaction."""

    markers: list[WritableTxnMarker] = s.array(WritableTxnMarker)


@s.message
class TxnOffsetCommitResponse:
    throttle_time_ms: int = s.int32(default=0)
    topics: list[TopicResult] = s.array(TopicResult)


@s.message
class TxnOffsetCommitRequestPartition:
    partition_index: int = s.int32()
    committed_offset: int = s.int64()
    committed_leader_epoch: int = s.int32(since=2, default=NO_LEADER_EPOCH)
    committed_metadata: str | None = s.string(nullable_since=0, default=None)


@s.message
class TxnOffsetCommitRequestTopic:
    name: str = s.string()
    partitions: list[TxnOffsetCommitRequestPartition] = s.array(TxnOffsetCommitRequestPartition)


@s.request(s.ApiKey.TXN_OFFSET_COMMIT, versions=(0, 5), flexible_since=3)
class TxnOffsetCommitRequest(s.RequestOf[TxnOffsetCommitResponse]):
    """Without a generation and a member id, a commit that no group fences."""

    transactional_id: str = s.string()
    group_id: str = s.string()
    producer_id: int = s.int64()
    producer_epoch: int = s.int16()
    generation_id: int = s.int32(since=3, default=NO_GENERATION)
    member_id: str = s.string(since=3, default=NO_MEMBER)
    group_instance_id: str | None = s.string(since=3, nullable_since=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = s.array(TxnOffsetCommitRequestTopic)


@s.message
class PrepareTxnResponse:
    error_code: int = s.int16(default=0)


@s.request(s.ApiKey.PREPARE_TXN, versions=s.NATIVE_ONLY)
class PrepareTxnRequest(s.RequestOf[PrepareTxnResponse]):
    """Keep the ongoing transaction, without a time-out, until a process ends it."""

    transactional_id: str = s.string()
    producer_id: int = s.int64()
    producer_epoch: int = s.int16()
