"""OffsetForLeaderEpoch: the end of an epoch in the leader's log (KIP-101, KIP-279, KIP-320)."""

from __future__ import annotations

from barnabas.protocol.schema import (
    ApiKey,
    RequestOf,
    array,
    int16,
    int32,
    int64,
    message,
    request,
    string,
)

DEBUGGING_REPLICA_ID = -2


@message
class LeaderEpochEndOffset:
    """The largest epoch not above the requested one, and the offset at which the next one starts."""

    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@message
class OffsetForLeaderTopicResult:
    topic: str = string()
    partitions: list[LeaderEpochEndOffset] = array(LeaderEpochEndOffset)


@message
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = int32(since=2, default=0)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)


@message
class OffsetForLeaderPartition:
    partition: int = int32()
    current_leader_epoch: int = int32(since=2, default=-1)
    leader_epoch: int = int32()


@message
class OffsetForLeaderTopic:
    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


@request(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochResponse, versions=(2, 4), flexible_since=4)
@message
class OffsetForLeaderEpochRequest(RequestOf[OffsetForLeaderEpochResponse]):
    """``replica_id`` is -1 for a consumer, else the follower's broker id."""

    replica_id: int = int32(since=3, default=DEBUGGING_REPLICA_ID)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)
