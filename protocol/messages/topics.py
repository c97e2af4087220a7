"""CreateTopics and DeleteTopics."""

from __future__ import annotations

import uuid

from barnabas.protocol.ids import NO_TOPIC_ID
from barnabas.protocol.schema import (
    ApiKey,
    RequestOf,
    WireType,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    request,
    string,
    topic_uuid,
)

USE_DEFAULT = -1
"""As a number of partitions or replicas: the broker's default (KIP-464)."""


@message
class CreatableReplicaAssignment:
    partition_index: int = int32()
    broker_ids: list[int] = array(WireType.INT32)


@message
class CreatableTopicConfig:
    name: str = string()
    value: str | None = string(nullable_since=0)


@message
class CreatableTopic:
    """With ``assignments`` given, both counts are -1."""

    name: str = string()
    num_partitions: int = int32(default=USE_DEFAULT)
    replication_factor: int = int16(default=USE_DEFAULT)
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, default_factory=list)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, default_factory=list)


@message
class CreatableTopicConfigResult:
    name: str = string(since=5)
    value: str | None = string(since=5, nullable_since=5)
    read_only: bool = boolean(since=5)
    config_source: int = int8(since=5, default=-1)
    is_sensitive: bool = boolean(since=5)


@message
class CreatableTopicResult:
    name: str = string()
    topic_id: uuid.UUID = topic_uuid(since=7, default=NO_TOPIC_ID)
    error_code: int = int16()
    error_message: str | None = string(since=1, nullable_since=0, default=None)
    topic_config_error_code: int = int16(since=5, tag=0, default=0)
    num_partitions: int = int32(since=5, default=-1)
    replication_factor: int = int16(since=5, default=-1)
    configs: list[CreatableTopicConfigResult] | None = array(
        CreatableTopicConfigResult, since=5, nullable_since=5, default=None
    )


@message
class CreateTopicsResponse:
    throttle_time_ms: int = int32(since=2, default=0)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


@request(ApiKey.CREATE_TOPICS, CreateTopicsResponse, versions=(2, 7), flexible_since=5)
@message
class CreateTopicsRequest(RequestOf[CreateTopicsResponse]):
    """Answered when every partition has a leader, or after ``timeout_ms``."""

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60_000)
    validate_only: bool = boolean(since=1, default=False)


@message
class DeletableTopicResult:
    name: str | None = string(nullable_since=6)
    topic_id: uuid.UUID = topic_uuid(since=6, default=NO_TOPIC_ID)
    error_code: int = int16()
    error_message: str | None = string(since=5, nullable_since=5, default=None)


@message
class DeleteTopicsResponse:
    throttle_time_ms: int = int32(since=1, default=0)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


@message
class DeleteTopicState:
    """A topic by name, or by id if that is not all zero."""

    name: str | None = string(since=6, nullable_since=6, default=None)
    topic_id: uuid.UUID = topic_uuid(since=6, default=NO_TOPIC_ID)


@request(ApiKey.DELETE_TOPICS, DeleteTopicsResponse, versions=(1, 6), flexible_since=4)
@message
class DeleteTopicsRequest(RequestOf[DeleteTopicsResponse]):
    """The native codec uses ``topics`` alone; ``topic_names`` is the older versions' form."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6, default_factory=list, ignorable=False)
    topic_names: list[str] = array(WireType.STRING, until=5, default_factory=list)
    timeout_ms: int = int32()
