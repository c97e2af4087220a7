"""CreatePartitions: add partitions to existing topics (KIP-195)."""

from __future__ import annotations

from barnabas.protocol import schema as s


@s.message
class CreatePartitionsTopicResult:
    name: str = s.string()
    error_code: int = s.int16()
    error_message: str | None = s.string(nullable_since=0, default=None)


@s.message
class CreatePartitionsResponse:
    throttle_time_ms: int = s.int32(default=0)
    results: list[CreatePartitionsTopicResult] = s.array(CreatePartitionsTopicResult)


@s.message
class CreatePartitionsAssignment:
    """The replicas of one new partition, the preferred leader first."""

    broker_ids: list[int] = s.array(s.WireType.INT32)


@s.message
class CreatePartitionsTopic:
    """``count`` is the number after the change; ``assignments`` None lets the controller choose."""

    name: str = s.string()
    count: int = s.int32()
    assignments: list[CreatePartitionsAssignment] | None = s.array(
        CreatePartitionsAssignment, nullable_since=0, default=None
    )


@s.request(s.ApiKey.CREATE_PARTITIONS, CreatePartitionsResponse, versions=(0, 3), flexible_since=2)
class CreatePartitionsRequest(s.RequestOf[CreatePartitionsResponse]):
    """Answered when every new partition has a leader, or after ``timeout_ms``."""

    topics: list[CreatePartitionsTopic] = s.array(CreatePartitionsTopic)
    timeout_ms: int = s.int32(default=60_000)
    validate_only: bool = s.boolean(default=False)
