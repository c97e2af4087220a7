"""DeleteRecords: drop the records below an offset (KIP-107)."""

from __future__ import annotations

from barnabas.protocol import schema as s

DELETE_TO_HIGH_WATERMARK = -1
"""As an offset: all committed records."""


@s.message
class DeleteRecordsPartitionResult:
    """``low_watermark`` is the least log start offset of the in-sync replicas; -1 with an error."""

    partition_index: int = s.int32()
    low_watermark: int = s.int64(default=-1)
    error_code: int = s.int16()


@s.message
class DeleteRecordsTopicResult:
    name: str = s.string()
    partitions: list[DeleteRecordsPartitionResult] = s.array(DeleteRecordsPartitionResult)


@s.message
class DeleteRecordsResponse:
    throttle_time_ms: int = s.int32(default=0)
    topics: list[DeleteRecordsTopicResult] = s.array(DeleteRecordsTopicResult)


@s.message
class DeleteRecordsPartition:
    """``offset`` is the first offset to keep, or `DELETE_TO_HIGH_WATERMARK`."""

    partition_index: int = s.int32()
    offset: int = s.int64()


@s.message
class DeleteRecordsTopic:
    name: str = s.string()
    partitions: list[DeleteRecordsPartition] = s.array(DeleteRecordsPartition)


@s.request(s.ApiKey.DELETE_RECORDS, versions=(0, 2), flexible_since=2)
class DeleteRecordsRequest(s.RequestOf[DeleteRecordsResponse]):
    """Sent to leaders. Answered when the followers have caught up, or after ``timeout_ms``."""

    topics: list[DeleteRecordsTopic] = s.array(DeleteRecordsTopic)
    timeout_ms: int = s.int32()
