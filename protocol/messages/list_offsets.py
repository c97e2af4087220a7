"""ListOffsets: the offset of a timestamp, or of the earliest or latest position."""

from __future__ import annotations

from barnabas.protocol.schema import (
    ApiKey,
    RequestOf,
    array,
    int8,
    int16,
    int32,
    int64,
    message,
    request,
    string,
)

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4


@message
class ListOffsetsPartitionResponse:
    """``offset`` is -1 if no record is as recent as the requested timestamp."""

    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(default=-1)
    offset: int = int64(default=-1)
    leader_epoch: int = int32(since=4, default=-1)


@message
class ListOffsetsTopicResponse:
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@message
class ListOffsetsResponse:
    throttle_time_ms: int = int32(since=2, default=0)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


@message
class ListOffsetsPartition:
    """``timestamp`` in ms, or one of the special values of this module."""

    partition_index: int = int32()
    current_leader_epoch: int = int32(since=4, default=-1)
    timestamp: int = int64()


@message
class ListOffsetsTopic:
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@request(ApiKey.LIST_OFFSETS, ListOffsetsResponse, versions=(1, 8), flexible_since=6)
@message
class ListOffsetsRequest(RequestOf[ListOffsetsResponse]):
    """``isolation_level`` 0 ends at the high watermark, 1 at the last stable offset."""

    replica_id: int = int32(default=-1)
    isolation_level: int = int8(since=2, default=0, ignorable=False)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
