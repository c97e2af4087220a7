"""Metadata: the brokers, and the leaders of partitions."""

from __future__ import annotations

import uuid

from barnabas.protocol.ids import NO_TOPIC_ID
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
    topic_uuid,
)

OPERATIONS_UNKNOWN = -(2**31)


@message
class MetadataBroker:
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, nullable_since=1, default=None)


@message
class MetadataPartition:
    """Without a leader, ``leader_id`` is -1 and the error code LEADER_NOT_AVAILABLE."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1)
    replica_nodes: list[int] = array(WireType.INT32)
    isr_nodes: list[int] = array(WireType.INT32)
    offline_replicas: list[int] = array(WireType.INT32, since=5, default_factory=list)


@message
class MetadataTopic:
    error_code: int = int16()
    name: str | None = string(nullable_since=12)
    topic_id: uuid.UUID = topic_uuid(since=10, default=NO_TOPIC_ID)
    is_internal: bool = boolean(since=1, default=False)
    partitions: list[MetadataPartition] = array(MetadataPartition)
    topic_authorized_operations: int = int32(since=8, default=OPERATIONS_UNKNOWN)


@message
class MetadataResponse:
    throttle_time_ms: int = int32(since=3, default=0)
    brokers: list[MetadataBroker] = array(MetadataBroker)
    cluster_id: str | None = string(since=2, nullable_since=2, default=None)
    controller_id: int = int32(since=1, default=-1)
    topics: list[MetadataTopic] = array(MetadataTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=OPERATIONS_UNKNOWN)


@message
class MetadataRequestTopic:
    """A topic by name, or by id if that is not all zero."""

    topic_id: uuid.UUID = topic_uuid(since=10, default=NO_TOPIC_ID)
    name: str | None = string(nullable_since=10)


@request(ApiKey.METADATA, MetadataResponse, versions=(0, 12), flexible_since=9)
@message
class MetadataRequest(RequestOf[MetadataResponse]):
    """``topics`` None asks for all, an empty list for none."""

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable_since=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True, ignorable=False)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10, default=False, ignorable=False)
    include_topic_authorized_operations: bool = boolean(since=8, default=False, ignorable=False)
