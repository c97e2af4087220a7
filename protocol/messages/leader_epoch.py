"""OffsetForLeaderEpoch: the end of an epoch in the leader's log (KIP-101, KIP-279, KIP-320)."""

from __future__ import annotations

from barnabas.protocol import schema as s

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
