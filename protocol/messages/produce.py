"""Produce, and InitProducerId: the id and epoch of a producer (KIP-98, KIP-360)."""

from __future__ import annotations

from typing import Final

from barnabas.protocol import schema as s
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.partitions import LeaderIdAndEpoch, NodeEndpoint
from barnabas.protocol.schema import RecordsToSend

NOT_YET_CONFIRMED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Codes of a native Produce whose transaction the coordinator cannot confirm yet: its former transaction
ends, or the coordinator moves or loads. Nothing is written, and the wait is short."""


@s.message
class RecordError:
    """One refused record, by its place in the batch."""

    batch_index: int = s.int32(since=8)
    batch_index_error_message: str | None = s.string(since=8, nullable_since=8, default=None)


@s.message
class PartitionProduceResponse:
    """``base_offset`` is the offset of the first record; -1 if nothing was written."""

    index: int = s.int32()
    error_code: int = s.int16()
    base_offset: int = s.int64(default=-1)
    log_append_time_ms: int = s.int64(since=2, default=-1)
    log_start_offset: int = s.int64(since=5, default=-1)
    record_errors: list[RecordError] = s.array(RecordError, since=8, default_factory=list)
    error_message: str | None = s.string(since=8, nullable_since=8, default=None)
    current_leader: LeaderIdAndEpoch = s.struct(
        LeaderIdAndEpoch, since=10, tag=0, default_factory=LeaderIdAndEpoch
    )


@s.message
class TopicProduceResponse:
    name: str = s.string()
    partition_responses: list[PartitionProduceResponse] = s.array(PartitionProduceResponse)


@s.message
class ProduceResponse:
    responses: list[TopicProduceResponse] = s.array(TopicProduceResponse)
    throttle_time_ms: int = s.int32(since=1, default=0)
    node_endpoints: list[NodeEndpoint] = s.array(NodeEndpoint, since=10, tag=0, default_factory=list)


@s.message
class PartitionProduceData:
    index: int = s.int32()
    records: RecordsToSend = s.records(nullable_since=0)


@s.message
class TopicProduceData:
    name: str = s.string()
    partition_data: list[PartitionProduceData] = s.array(PartitionProduceData)


@s.request(s.ApiKey.PRODUCE, versions=(0, 12), flexible_since=9)
class ProduceRequest(s.RequestOf[ProduceResponse]):
    """``acks`` is 0 (no answer at all), 1 (written by the leader) or -1 (by every in-sync replica)."""

    transactional_id: str | None = s.string(since=3, nullable_since=3, default=None, ignorable=False)
    acks: int = s.int16()
    timeout_ms: int = s.int32()
    topic_data: list[TopicProduceData] = s.array(TopicProduceData)


@s.message
class InitProducerIdResponse:
    """``producer_id`` is -1 if there is an error."""

    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16()
    producer_id: int = s.int64(default=-1)
    producer_epoch: int = s.int16(default=-1)
    ongoing_txn_producer_id: int = s.int64(native_only=True, default=-1)
    ongoing_txn_producer_epoch: int = s.int16(native_only=True, default=-1)


@s.request(s.ApiKey.INIT_PRODUCER_ID, versions=(0, 5), flexible_since=2)
class InitProducerIdRequest(s.RequestOf[InitProducerIdResponse]):
    """``transactional_id`` None requests idempotence only; the timeout is then ignored.

    ``producer_id`` and ``producer_epoch`` are -1, or the producer's present ones, to raise the epoch. With
    ``keep_prepared_txn`` a prepared transaction stays, and the answer names it as the ongoing one (KIP-939).
    """

    transactional_id: str | None = s.string(nullable_since=0, default=None)
    transaction_timeout_ms: int = s.int32(default=60_000)
    producer_id: int = s.int64(since=3, default=-1, ignorable=False)
    producer_epoch: int = s.int16(since=3, default=-1, ignorable=False)
    keep_prepared_txn: bool = s.boolean(native_only=True, default=False)
