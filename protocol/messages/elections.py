"""ElectLeaders: elect the preferred or any live replica of partitions (KIP-183, KIP-460)."""

from __future__ import annotations

from enum import IntEnum

from barnabas.protocol import schema as s
from barnabas.protocol.messages.partitions import TopicPartitions


class ElectionType(IntEnum):
    """What is elected: the first replica of the assignment, or any live replica, with loss."""

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
