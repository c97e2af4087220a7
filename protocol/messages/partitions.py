"""CreatePartitions: add partitions to existing topics (KIP-195)."""

from __future__ import annotations

from barnabas.protocol.schema import (
    ApiKey,
    RequestOf,
    WireType,
    array,
    boolean,
    int16,
    int32,
    message,
    request,
    string,
)


@message
class CreatePartitionsTopicResult:
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@message
class CreatePartitionsResponse:
    throttle_time_ms: int = int32(default=0)
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


@message
class CreatePartitionsAssignment:
    """The replicas of one new partition, the preferred leader first."""

    broker_ids: list[int] = array(WireType.INT32)


@message
class CreatePartitionsTopic:
    """``count`` is the number after the change; ``assignments`` None lets the controller choose."""

    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, nullable_since=0, default=None
    )


@request(ApiKey.CREATE_PARTITIONS, CreatePartitionsResponse, versions=(0, 3), flexible_since=2)
@message
class CreatePartitionsRequest(RequestOf[CreatePartitionsResponse]):
    """Answered when every new partition has a leader, or after ``timeout_ms``."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32(default=60_000)
    validate_only: bool = boolean(default=False)
