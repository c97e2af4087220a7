"""CreateTopics, DeleteTopics and CreatePartitions (KIP-195)."""

from __future__ import annotations

import uuid

from barnabas.protocol import schema as s
from barnabas.protocol.ids import NO_TOPIC_ID

USE_DEFAULT = -1
"""As a number of partitions or replicas: the broker's default (KIP-464)."""


@s.message
class CreatableReplicaAssignment:
    partition_index: int = s.int32()
    broker_ids: list[int] = s.array(s.WireType.INT32)


@s.message
class CreatableTopicConfig:
    name: str = s.string()
    value: str | None = s.string(nullable_since=0)


@s.message
class CreatableTopic:
    """With ``assignments`` given, both counts are -1."""

    name: str = s.string()
    num_partitions: int = s.int32(default=USE_DEFAULT)
    replication_factor: int = s.int16(default=USE_DEFAULT)
    assignments: list[CreatableReplicaAssignment] = s.array(CreatableReplicaAssignment, default_factory=list)
    configs: list[CreatableTopicConfig] = s.array(CreatableTopicConfig, default_factory=list)


@s.message
class CreatableTopicConfigResult:
    name: str = s.string(since=5)
    value: str | None = s.string(since=5, nullable_since=5)
    read_only: bool = s.boolean(since=5)
    config_source: int = s.int8(since=5, default=-1)
    is_sensitive: bool = s.boolean(since=5)


@s.message
class CreatableTopicResult:
    name: str = s.string()
    topic_id: uuid.UUID = s.topic_uuid(since=7, default=NO_TOPIC_ID)
    error_code: int = s.int16()
    error_message: str | None = s.string(since=1, nullable_since=0, default=None)
    topic_config_error_code: int = s.int16(since=5, tag=0, default=0)
    num_partitions: int = s.int32(since=5, default=-1)
    replication_factor: int = s.int16(since=5, default=-1)
    configs: list[CreatableTopicConfigResult] | None = s.array(
        CreatableTopicConfigResult, since=5, nullable_since=5, default=None
    )


@s.message
class CreateTopicsResponse:
    throttle_time_ms: int = s.int32(since=2, default=0)
    topics: list[CreatableTopicResult] = s.array(CreatableTopicResult)


@s.request(s.ApiKey.CREATE_TOPICS, versions=(2, 7), flexible_since=5)
class CreateTopicsRequest(s.RequestOf[CreateTopicsResponse]):
    """Answered when every partition has a leader, or after ``timeout_ms``."""

    topics: list[CreatableTopic] = s.array(CreatableTopic)
    timeout_ms: int = s.int32(default=60_000)
    validate_only: bool = s.boolean(since=1, default=False)


@s.message
class DeletableTopicResult:
    name: str | None = s.string(nullable_since=6)
    topic_id: uuid.UUID = s.topic_uuid(since=6, default=NO_TOPIC_ID)
    error_code: int = s.int16()
    error_message: str | None = s.string(since=5, nullable_since=5, default=None)


@s.message
class DeleteTopicsResponse:
    throttle_time_ms: int = s.int32(since=1, default=0)
    responses: list[DeletableTopicResult] = s.array(DeletableTopicResult)


@s.message
class DeleteTopicState:
    """A topic by name, or by id if that is not all zero."""

    name: str | None = s.string(since=6, nullable_since=6, default=None)
    topic_id: uuid.UUID = s.topic_uuid(since=6, default=NO_TOPIC_ID)


@s.request(s.ApiKey.DELETE_TOPICS, versions=(1, 6), flexible_since=4)
class DeleteTopicsRequest(s.RequestOf[DeleteTopicsResponse]):
    """The native codec uses ``topics`` alone; ``topic_names`` is the older versions' form."""

    topics: list[DeleteTopicState] = s.array(DeleteTopicState, since=6, default_factory=list, ignorable=False)
    topic_names: list[str] = s.array(s.WireType.STRING, until=5, default_factory=list)
    timeout_ms: int = s.int32()


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


@s.request(s.ApiKey.CREATE_PARTITIONS, versions=(0, 3), flexible_since=2)
class CreatePartitionsRequest(s.RequestOf[CreatePartitionsResponse]):
    """Answered when every new partition has a leader, or after ``timeout_ms``."""

    topics: list[CreatePartitionsTopic] = s.array(CreatePartitionsTopic)
    timeout_ms: int = s.int32(default=60_000)
    validate_only: bool = s.boolean(default=False)
