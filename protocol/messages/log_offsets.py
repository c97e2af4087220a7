"""Offsets of logs: ListOffsets, DeleteRecords (KIP-107), OffsetForLeaderEpoch (KIP-101, KIP-279, KIP-320).

ListOffsets asks for the offset of a timestamp, or of the earliest or latest position; OffsetForLeaderEpoch
for the end of an epoch in the leader's log. DeleteRecords drops the records below an offset.
"""

from __future__ import annotations

from barnabas.protocol import schema as s

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6


@s.message
class ListOffsetsPartitionResponse:
    """``offset`` is -1 if no record is as recent as the requested timestamp."""

    partition_index: int = s.int32()
    error_code: int = s.int16()
    timestamp: int = s.int64(default=-1)
    offset: int = s.int64(default=-1)
    leader_epoch: int = s.int32(since=4, default=-1)


@s.message
class ListOffsetsTopicResponse:
    name: str = s.string()
    partitions: list[ListOffsetsPartitionResponse] = s.array(ListOffsetsPartitionResponse)


@s.message
class ListOffsetsResponse:
    throttle_time_ms: int = s.int32(since=2, default=0)
    topics: list[ListOffsetsTopicResponse] = s.array(ListOffsetsTopicResponse)


@s.message
class ListOffsetsPartition:
    """``timestamp`` in ms, or one of the special timestamps of this module."""

    partition_index: int = s.int32()
    current_leader_epoch: int = s.int32(since=4, default=-1)
    timestamp: int = s.int64()


@s.message
class ListOffsetsTopic:
    name: str = s.string()
    partitions: list[ListOffsetsPartition] = s.array(ListOffsetsPartition)


@s.request(s.ApiKey.LIST_OFFSETS, versions=(1, 11), flexible_since=6)
class ListOffsetsRequest(s.RequestOf[ListOffsetsResponse]):
    """``isolation_level`` 0 ends at the high watermark, 1 at the last stable offset.

    ``timeout_ms`` bounds reads from tiered storage, which there is not.
    """

    replica_id: int = s.int32(default=-1)
    isolation_level: int = s.int8(since=2, default=0, ignorable=False)
    topics: list[ListOffsetsTopic] = s.array(ListOffsetsTopic)
    timeout_ms: int = s.int32(since=10, default=0)


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


DEBUGGING_REPLICA_ID = -2


@s.message
class LeaderEpochEndOffset:
    """The largest epoch not above the requested one, and the offset at which the next one starts."""

    error_code: int = s.int16()
    partition: int = s.int32()
    leader_epoch: int = s.int32(default=-1)
    end_offset: int = s.int64(default=-1)


@s.message
class OffsetForLeaderTopicResult:
    topic: str = s.string()
    partitions: list[LeaderEpochEndOffset] = s.array(LeaderEpochEndOffset)


@s.message
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = s.int32(since=2, default=0)
    topics: list[OffsetForLeaderTopicResult] = s.array(OffsetForLeaderTopicResult)


@s.message
class OffsetForLeaderPartition:
    partition: int = s.int32()
    current_leader_epoch: int = s.int32(since=2, default=-1)
    leader_epoch: int = s.int32()


@s.message
class OffsetForLeaderTopic:
    topic: str = s.string()
    partitions: list[OffsetForLeaderPartition] = s.array(OffsetForLeaderPartition)


@s.request(s.ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4), flexible_since=4)
class OffsetForLeaderEpochRequest(s.RequestOf[OffsetForLeaderEpochResponse]):
    """``replica_id`` is -1 for a consumer, else the follower's broker id."""

    replica_id: int = s.int32(since=3, default=DEBUGGING_REPLICA_ID)
    topics: list[OffsetForLeaderTopic] = s.array(OffsetForLeaderTopic)
