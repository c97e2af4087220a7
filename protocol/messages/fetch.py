"""Fetch: read record batches, for consumers and for followers; the epochs of fetch sessions (KIP-227)."""

from __future__ import annotations

import uuid
from typing import Final

from barnabas.protocol import schema as s
from barnabas.protocol.ids import NO_TOPIC_ID
from barnabas.protocol.messages.partitions import LeaderIdAndEpoch, NodeEndpoint
from barnabas.protocol.schema import RecordsToSend

CONSUMER_REPLICA_ID = -1
"""The replica id of an ordinary consumer."""
NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""A full fetch, which may open a session; its first incremental request has epoch 1, the next 2."""
NO_SUBSCRIPTION: Final = 0
PUSHES: Final = 0x7FFFFFFF
"""The correlation id of pushes; no request has it."""
FINAL_EPOCH: Final = -1
"""A full fetch that does not open a session."""
_MAX_INT: Final = (1 << 31) - 1


def next_epoch(epoch: int) -> int:
    """The epoch that the next request must carry; it wraps around to 1, since 0 opens a new session."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _MAX_INT else epoch + 1


@s.message
class EpochEndOffset:
    """The end of an epoch in the leader's log, in the answer to a follower that diverges (KIP-595)."""

    epoch: int = s.int32(default=-1)
    end_offset: int = s.int64(default=-1)


@s.message
class AbortedTransaction:
    producer_id: int = s.int64()
    first_offset: int = s.int64()


@s.message
class FetchPartitionResponse:
    """``fetch_offset`` is where a push was read: the follower's log must end there."""

    partition_index: int = s.int32()
    error_code: int = s.int16()
    high_watermark: int = s.int64(default=-1)
    last_stable_offset: int = s.int64(default=-1)
    log_start_offset: int = s.int64(since=5, default=-1)
    diverging_epoch: EpochEndOffset = s.struct(
        EpochEndOffset, since=12, tag=0, default_factory=EpochEndOffset
    )
    current_leader: LeaderIdAndEpoch = s.struct(
        LeaderIdAndEpoch, since=12, tag=1, default_factory=LeaderIdAndEpoch
    )
    aborted_transactions: list[AbortedTransaction] | None = s.array(
        AbortedTransaction, nullable_since=0, default=None
    )
    preferred_read_replica: int = s.int32(since=11, default=-1)
    records: RecordsToSend = s.records(nullable_since=0, default=None)
    fetch_offset: int = s.int64(native_only=True, default=-1)


@s.message
class FetchTopicResponse:
    topic: str = s.string(until=12, default="")
    topic_id: uuid.UUID = s.topic_uuid(since=13, default=NO_TOPIC_ID)
    partitions: list[FetchPartitionResponse] = s.array(FetchPartitionResponse)


@s.message
class FetchResponse:
    """A ``subscription`` in an answer is the one that the answer opens: the leader pushes what follows.

    A push is another `FetchResponse`, in a frame with the correlation id `PUSHES`. It has a number, from 1
    on; the answer counts as number 0. A push without partitions ends its subscription.
    """

    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16(since=7, default=0)
    session_id: int = s.int32(since=7, default=0)
    responses: list[FetchTopicResponse] = s.array(FetchTopicResponse)
    node_endpoints: list[NodeEndpoint] = s.array(NodeEndpoint, since=16, tag=0, default_factory=list)
    subscription: int = s.int32(native_only=True, default=NO_SUBSCRIPTION)
    push_number: int = s.int64(native_only=True, default=0)


@s.message
class FetchPartition:
    """``last_fetched_epoch`` and ``current_leader_epoch`` are -1 if unknown to the reader."""

    partition: int = s.int32()
    current_leader_epoch: int = s.int32(since=9, default=-1)
    fetch_offset: int = s.int64()
    last_fetched_epoch: int = s.int32(since=12, default=-1)
    log_start_offset: int = s.int64(since=5, default=-1)
    partition_max_bytes: int = s.int32()


@s.message
class FetchTopic:
    topic: str = s.string(until=12, default="")
    topic_id: uuid.UUID = s.topic_uuid(since=13, default=NO_TOPIC_ID)
    partitions: list[FetchPartition] = s.array(FetchPartition)


@s.message
class ForgottenTopic:
    topic: str = s.string(since=7, until=12, default="")
    topic_id: uuid.UUID = s.topic_uuid(since=13, default=NO_TOPIC_ID)
    partitions: list[int] = s.array(s.WireType.INT32, since=7)


@s.message
class ReplicaState:
    """The fetching replica in later versions, with the follower's broker epoch (KIP-903)."""

    replica_id: int = s.int32(default=CONSUMER_REPLICA_ID)
    replica_epoch: int = s.int64(default=-1)


# Kafka's ReplicaVerificationTool sends version 17 without asking which versions are offered.
@s.request(s.ApiKey.FETCH, versions=(4, 16), flexible_since=12, served_to=17)
class FetchRequest(s.RequestOf[FetchResponse]):
    """``replica_id`` is -1 for a consumer, -2 for a tool that compares replicas, else the follower's id.

    ``replica_epoch`` is the follower's broker epoch, so that a fetch of an earlier registration does not
    count for the ISR (KIP-903). ``subscribes``: the follower takes pushes until its next fetch.
    """

    cluster_id: str | None = s.string(since=12, nullable_since=12, tag=0, default=None)
    replica_id: int = s.int32(until=14, default=CONSUMER_REPLICA_ID)
    max_wait_ms: int = s.int32()
    min_bytes: int = s.int32()
    max_bytes: int = s.int32(default=0x7FFFFFFF)
    isolation_level: int = s.int8(default=0)
    session_id: int = s.int32(since=7, default=0)
    session_epoch: int = s.int32(since=7, default=-1)
    topics: list[FetchTopic] = s.array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = s.array(ForgottenTopic, since=7, default_factory=list)
    rack_id: str = s.string(since=11, default="")
    replica_epoch: int = s.int64(native_only=True, default=-1)
    replica_state: ReplicaState = s.struct(ReplicaState, since=15, tag=1, default_factory=ReplicaState)
    subscribes: bool = s.boolean(native_only=True, default=False)


@s.message
class FollowerPartitionProgress:
    """The end of a follower's log, as in the follower's next fetch."""

    partition: int = s.int32()
    fetch_offset: int = s.int64()
    last_fetched_epoch: int = s.int32(default=-1)
    log_start_offset: int = s.int64(default=-1)


@s.message
class FollowerTopicProgress:
    topic: str = s.string()
    partitions: list[FollowerPartitionProgress] = s.array(FollowerPartitionProgress)


@s.message
class FetchProgressResponse:
    """Never sent: the leader does not answer progress."""

    error_code: int = s.int16(default=0)


@s.request(s.ApiKey.FETCH_PROGRESS, versions=s.NATIVE_ONLY)
class FetchProgressRequest(s.RequestOf[FetchProgressResponse]):
    """A follower has applied the push of that number. It is not answered.

    ``topics`` are the partitions whose position has changed since the follower last named it.
    """

    session_id: int = s.int32()
    subscription: int = s.int32()
    push_number: int = s.int64()
    topics: list[FollowerTopicProgress] = s.array(FollowerTopicProgress, default_factory=list)
