"""Produce: append record batches to partitions."""

from __future__ import annotations

from barnabas.protocol.schema import (
    ApiKey,
    RecordsToSend,
    RequestOf,
    array,
    int16,
    int32,
    int64,
    message,
    records,
    request,
    string,
)


@message
class RecordError:
    """One refused record, by its place in the batch."""

    batch_index: int = int32(since=8)
    batch_index_error_message: str | None = string(since=8, nullable_since=8, default=None)


@message
class PartitionProduceResponse:
    """``base_offset`` is the offset of the first record; -1 if nothing was written."""

    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64(default=-1)
    log_append_time_ms: int = int64(since=2, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    record_errors: list[RecordError] = array(RecordError, since=8, default_factory=list)
    error_message: str | None = string(since=8, nullable_since=8, default=None)


@message
class TopicProduceResponse:
    name: str = string()
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@message
class ProduceResponse:
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(since=1, default=0)


@message
class PartitionProduceData:
    index: int = int32()
    records: RecordsToSend = records(nullable_since=0)


@message
class TopicProduceData:
    name: str = string()
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@request(ApiKey.PRODUCE, ProduceResponse, versions=(0, 9), flexible_since=9)
@message
class ProduceRequest(RequestOf[ProduceResponse]):
    """``acks`` is 0 (no answer at all), 1 (written by the leader) or -1 (by every in-sync replica)."""

    transactional_id: str | None = string(since=3, nullable_since=3, default=None, ignorable=False)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)
