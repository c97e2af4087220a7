"""OffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of a group.

Sources: KIP-320 (leader epochs), KIP-345 (instance ids), KIP-447 (``require_stable``), KIP-496
(OffsetDelete), KIP-709 (several groups in one OffsetFetch).
"""

from __future__ import annotations

import uuid

from barnabas.protocol import schema as s
from barnabas.protocol.ids import NO_LEADER_EPOCH, NO_OFFSET, NO_TOPIC_ID
from barnabas.protocol.messages.groups import NO_GENERATION, NO_MEMBER
from barnabas.protocol.messages.partitions import TopicPartitionIndexes, TopicResult


@s.message
class OffsetCommitResponse:
    throttle_time_ms: int = s.int32(since=3, default=0)
    topics: list[TopicResult] = s.array(TopicResult)


@s.message
class OffsetCommitRequestPartition:
    """``committed_offset`` is the next offset to read; ``committed_leader_epoch`` is of the record before."""

    partition_index: int = s.int32()
    committed_offset: int = s.int64()
    committed_leader_epoch: int = s.int32(since=6, default=NO_LEADER_EPOCH)
    committed_metadata: str | None = s.string(nullable_since=0, default=None)


@s.message
class OffsetCommitRequestTopic:
    """``topic_id`` is that of the topic that was read; an offset in another one of that name is refused."""

    name: str = s.string()
    partitions: list[OffsetCommitRequestPartition] = s.array(OffsetCommitRequestPartition)
    topic_id: uuid.UUID = s.topic_uuid(native_only=True, default=NO_TOPIC_ID)


@s.request(s.ApiKey.OFFSET_COMMIT, versions=(2, 8), flexible_since=8)
class OffsetCommitRequest(s.RequestOf[OffsetCommitResponse]):
    """Without a generation and a member id, a commit from outside the group's protocol.

    ``retention_time_ms`` is the time to keep the offsets, in versions that still have it, or -1 (KIP-211).
    """

    group_id: str = s.string()
    generation_id_or_member_epoch: int = s.int32(default=NO_GENERATION)
    member_id: str = s.string(default=NO_MEMBER)
    group_instance_id: str | None = s.string(since=7, nullable_since=7, default=None, ignorable=False)
    retention_time_ms: int = s.int64(since=2, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = s.array(OffsetCommitRequestTopic)


@s.message
class OffsetFetchResponsePartition:
    """``committed_offset`` is -1 if nothing was committed, or with an error."""

    partition_index: int = s.int32()
    committed_offset: int = s.int64(default=NO_OFFSET)
    committed_leader_epoch: int = s.int32(since=5, default=NO_LEADER_EPOCH)
    metadata: str | None = s.string(nullable_since=0, default="")
    error_code: int = s.int16(default=0)


@s.message
class OffsetFetchResponseTopic:
    name: str = s.string()
    partitions: list[OffsetFetchResponsePartition] = s.array(OffsetFetchResponsePartition)


@s.message
class OffsetFetchResponseGroup:
    group_id: str = s.string()
    topics: list[OffsetFetchResponseTopic] = s.array(OffsetFetchResponseTopic, default_factory=list)
    error_code: int = s.int16(default=0)


@s.message
class OffsetFetchResponse:
    """``groups`` has one entry per group; ``topics`` and ``error_code`` are the older versions' form."""

    throttle_time_ms: int = s.int32(since=3, default=0)
    topics: list[OffsetFetchResponseTopic] = s.array(OffsetFetchResponseTopic, until=7, default_factory=list)
    error_code: int = s.int16(since=2, until=7, default=0)
    groups: list[OffsetFetchResponseGroup] = s.array(OffsetFetchResponseGroup, since=8, default_factory=list)


@s.message
class OffsetFetchRequestGroup:
    """``topics`` None asks for all offsets of the group."""

    group_id: str = s.string()
    topics: list[TopicPartitionIndexes] | None = s.array(
        TopicPartitionIndexes, nullable_since=0, default=None
    )


@s.request(s.ApiKey.OFFSET_FETCH, versions=(1, 8), flexible_since=6)
class OffsetFetchRequest(s.RequestOf[OffsetFetchResponse]):
    """The native codec uses ``groups`` alone; ``group_id`` and ``topics`` are the older versions' form.

    ``require_stable`` requests UNSTABLE_OFFSET_COMMIT while offsets of a transaction are pending.
    """

    group_id: str = s.string(until=7, default="")
    topics: list[TopicPartitionIndexes] | None = s.array(
        TopicPartitionIndexes, until=7, nullable_since=2, default_factory=list
    )
    groups: list[OffsetFetchRequestGroup] = s.array(
        OffsetFetchRequestGroup, since=8, default_factory=list, ignorable=False
    )
    require_stable: bool = s.boolean(since=7, default=False, ignorable=False)


@s.message
class OffsetDeleteResponse:
    error_code: int = s.int16(default=0)
    throttle_time_ms: int = s.int32(default=0)
    topics: list[TopicResult] = s.array(TopicResult, default_factory=list)


@s.message
class OffsetDeleteRequestPartition:
    partition_index: int = s.int32()


@s.message
class OffsetDeleteRequestTopic:
    name: str = s.string()
    partitions: list[OffsetDeleteRequestPartition] = s.array(OffsetDeleteRequestPartition)


@s.request(s.ApiKey.OFFSET_DELETE, versions=(0, 0))
class OffsetDeleteRequest(s.RequestOf[OffsetDeleteResponse]):
    group_id: str = s.string()
    topics: list[OffsetDeleteRequestTopic] = s.array(OffsetDeleteRequestTopic)
