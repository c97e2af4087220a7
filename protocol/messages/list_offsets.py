"""ListOffsets: the offset of a timestamp, or of the earliest or latest position."""

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
    """``timestamp`` in ms, or one of the special values of this module."""

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
