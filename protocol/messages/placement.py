"""Leaders and replicas of partitions: ElectLeaders (KIP-183, KIP-460), AlterPartitionReassignments and
ListPartitionReassignments (KIP-455, KIP-860).
"""

from __future__ import annotations

from enum import IntEnum

from barnabas.protocol import schema as s
from barnabas.protocol.messages.partitions import TopicPartitionIndexes, TopicPartitions


class ElectionType(IntEnum):
    """The choice of the new leader.

    PREFERRED elects the first replica of the assignment. UNCLEAN elects any live replica, even if that loses
    acknowledged records.
    """

    PREFERRED = 0
    UNCLEAN = 1


@s.message
class PartitionElectionResult:
    partition_id: int = s.int32()
    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default=None)


@s.message
class ReplicaElectionResult:
    topic: str = s.string()
    partition_result: list[PartitionElectionResult] = s.array(PartitionElectionResult)


@s.message
class ElectLeadersResponse:
    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16(since=1, default=0)
    replica_election_results: list[ReplicaElectionResult] = s.array(
        ReplicaElectionResult, default_factory=list
    )


@s.request(s.ApiKey.ELECT_LEADERS, versions=(0, 2), flexible_since=2)
class ElectLeadersRequest(s.RequestOf[ElectLeadersResponse]):
    """Sent to the controller; ``topic_partitions`` None names all partitions."""

    election_type: int = s.int8(since=1, default=int(ElectionType.PREFERRED))
    topic_partitions: list[TopicPartitions] | None = s.array(TopicPartitions, nullable_since=0, default=None)
    timeout_ms: int = s.int32(default=60_000)


@s.message
class ReassignablePartitionResponse:
    partition_index: int = s.int32()
    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default=None)


@s.message
class ReassignableTopicResponse:
    name: str = s.string()
    partitions: list[ReassignablePartitionResponse] = s.array(ReassignablePartitionResponse)


@s.message
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int = s.int32(default=0)
    allow_replication_factor_change: bool = s.boolean(since=1, default=True)
    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default=None)
    responses: list[ReassignableTopicResponse] = s.array(ReassignableTopicResponse, default_factory=list)


@s.message
class ReassignablePartition:
    """``replicas`` None cancels a reassignment."""

    partition_index: int = s.int32()
    replicas: list[int] | None = s.array(s.WireType.INT32, nullable_since=0, default=None)


@s.message
class ReassignableTopic:
    name: str = s.string()
    partitions: list[ReassignablePartition] = s.array(ReassignablePartition)


@s.request(s.ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1), flexible_since=0)
class AlterPartitionReassignmentsRequest(s.RequestOf[AlterPartitionReassignmentsResponse]):
    timeout_ms: int = s.int32(default=60_000)
    allow_replication_factor_change: bool = s.boolean(since=1, default=True, ignorable=False)
    topics: list[ReassignableTopic] = s.array(ReassignableTopic)


@s.message
class OngoingPartitionReassignment:
    partition_index: int = s.int32()
    replicas: list[int] = s.array(s.WireType.INT32)
    adding_replicas: list[int] = s.array(s.WireType.INT32)
    removing_replicas: list[int] = s.array(s.WireType.INT32)


@s.message
class OngoingTopicReassignment:
    name: str = s.string()
    partitions: list[OngoingPartitionReassignment] = s.array(OngoingPartitionReassignment)


@s.message
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default=None)
    topics: list[OngoingTopicReassignment] = s.array(OngoingTopicReassignment, default_factory=list)


@s.request(s.ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0), flexible_since=0)
class ListPartitionReassignmentsRequest(s.RequestOf[ListPartitionReassignmentsResponse]):
    """``topics`` None asks for all."""

    timeout_ms: int = s.int32(default=60_000)
    topics: list[TopicPartitionIndexes] | None = s.array(
        TopicPartitionIndexes, nullable_since=0, default=None
    )
