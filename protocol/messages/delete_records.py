"""DeleteRecords: drop the records below an offset (KIP-107)."""

from __future__ import annotations

from barnabas.protocol.schema import ApiKey, RequestOf, array, int16, int32, int64, message, request, string

DELETE_TO_HIGH_WATERMARK = -1
"""As an offset: all committed records."""


@message
class DeleteRecordsPartitionResult:
    """``low_watermark`` is the least log start offset of the in-sync replicas; -1 with an error."""

    partition_index: int = int32()
    low_watermark: int = int64(default=-1)
    error_code: int = int16()


@message
class DeleteRecordsTopicResult:
    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


@message
class DeleteRecordsResponse:
    throttle_time_ms: int = int32(default=0)
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)


@message
class DeleteRecordsPartition:
    """``offset`` is the first offset to keep, or `DELETE_TO_HIGH_WATERMARK`."""

    partition_index: int = int32()
    offset: int = int64()


@message
class DeleteRecordsTopic:
    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


@request(ApiKey.DELETE_RECORDS, DeleteRecordsResponse, versions=(0, 2), flexible_since=2)
@message
class DeleteRecordsRequest(RequestOf[DeleteRecordsResponse]):
    """Sent to leaders. Answered when the followers have caught up, or after ``timeout_ms``."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()
