"""OffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of a group.

Sources: KIP-320 (leader epochs), KIP-345 (instance ids), KIP-447 (``require_stable``), KIP-496
(OffsetDelete), KIP-709 (several groups in one OffsetFetch).
"""

from __future__ import annotations

from barnabas.protocol.ids import NO_LEADER_EPOCH, NO_OFFSET
from barnabas.protocol.messages.join_group import NO_GENERATION, NO_MEMBER
from barnabas.protocol.schema import (
    ApiKey,
    RequestOf,
    WireType,
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    request,
    string,
)


@message
class OffsetCommitResponsePartition:
    partition_index: int = int32()
    error_code: int = int16()


@message
class OffsetCommitResponseTopic:
    name: str = string()
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


@message
class OffsetCommitResponse:
    throttle_time_ms: int = int32(since=3, default=0)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


@message
class OffsetCommitRequestPartition:
    """``committed_offset`` is the next to read, ``committed_leader_epoch`` that of the last record read."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=NO_LEADER_EPOCH)
    committed_metadata: str | None = string(nullable_since=0, default=None)


@message
class OffsetCommitRequestTopic:
    name: str = string()
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


@request(ApiKey.OFFSET_COMMIT, OffsetCommitResponse, versions=(2, 8), flexible_since=8)
@message
class OffsetCommitRequest(RequestOf[OffsetCommitResponse]):
    """Without a generation and a member id, a commit from outside the group's protocol.

    ``retention_time_ms`` is the time to keep the offsets, in versions that still have it, or -1 (KIP-211).
    """

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=NO_GENERATION)
    member_id: str = string(default=NO_MEMBER)
    group_instance_id: str | None = string(since=7, nullable_since=7, default=None, ignorable=False)
    retention_time_ms: int = int64(since=2, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


@message
class OffsetFetchResponsePartition:
    """``committed_offset`` is -1 if nothing was committed, or with an error."""

    partition_index: int = int32()
    committed_offset: int = int64(default=NO_OFFSET)
    committed_leader_epoch: int = int32(since=5, default=NO_LEADER_EPOCH)
    metadata: str | None = string(nullable_since=0, default="")
    error_code: int = int16(default=0)


@message
class OffsetFetchResponseTopic:
    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


@message
class OffsetFetchResponseGroup:
    group_id: str = string()
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, default_factory=list)
    error_code: int = int16(default=0)


@message
class OffsetFetchResponse:
    """``groups`` has one entry per group; ``topics`` and ``error_code`` are the older versions' form."""

    throttle_time_ms: int = int32(since=3, default=0)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7, default_factory=list)
    error_code: int = int16(since=2, until=7, default=0)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8, default_factory=list)


@message
class OffsetFetchRequestTopic:
    name: str = string()
    partition_indexes: list[int] = array(WireType.INT32)


@message
class OffsetFetchRequestGroup:
    """``topics`` None asks for all offsets of the group."""

    group_id: str = string()
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, nullable_since=0, default=None
    )


@request(ApiKey.OFFSET_FETCH, OffsetFetchResponse, versions=(1, 8), flexible_since=6)
@message
class OffsetFetchRequest(RequestOf[OffsetFetchResponse]):
    """The native codec uses ``groups`` alone; ``group_id`` and ``topics`` are the older versions' form.

    ``require_stable`` requests UNSTABLE_OFFSET_COMMIT while offsets of a transaction are pending.
    """

    group_id: str = string(until=7, default="")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, until=7, nullable_since=2, default_factory=list
    )
    groups: list[OffsetFetchRequestGroup] = array(
        OffsetFetchRequestGroup, since=8, default_factory=list, ignorable=False
    )
    require_stable: bool = boolean(since=7, default=False, ignorable=False)


@message
class OffsetDeleteResponsePartition:
    partition_index: int = int32()
    error_code: int = int16()


@message
class OffsetDeleteResponseTopic:
    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


@message
class OffsetDeleteResponse:
    error_code: int = int16(default=0)
    throttle_time_ms: int = int32(default=0)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, default_factory=list)


@message
class OffsetDeleteRequestPartition:
    partition_index: int = int32()


@message
class OffsetDeleteRequestTopic:
    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


@request(ApiKey.OFFSET_DELETE, OffsetDeleteResponse, versions=(0, 0))
@message
class OffsetDeleteRequest(RequestOf[OffsetDeleteResponse]):
    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)
