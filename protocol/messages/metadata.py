"""Metadata: the brokers, and the leaders of partitions; DescribeCluster (KIP-700, KIP-919)."""

from __future__ import annotations

import uuid
from typing import Final

from barnabas.protocol import schema as s
from barnabas.protocol.ids import NO_TOPIC_ID

OPERATIONS_UNKNOWN: Final = -(2**31)
"""Authorized operations that were not asked for (KIP-430)."""


@s.message
class MetadataBroker:
    node_id: int = s.int32()
    host: str = s.string()
    port: int = s.int32()
    rack: str | None = s.string(since=1, nullable_since=1, default=None)


@s.message
class MetadataPartition:
    """Without a leader, ``leader_id`` is -1 and the error code LEADER_NOT_AVAILABLE."""

    error_code: int = s.int16()
    partition_index: int = s.int32()
    leader_id: int = s.int32()
    leader_epoch: int = s.int32(since=7, default=-1)
    replica_nodes: list[int] = s.array(s.WireType.INT32)
    isr_nodes: list[int] = s.array(s.WireType.INT32)
    offline_replicas: list[int] = s.array(s.WireType.INT32, since=5, default_factory=list)


@s.message
class MetadataTopic:
    error_code: int = s.int16()
    name: str | None = s.string(nullable_since=12)
    topic_id: uuid.UUID = s.topic_uuid(since=10, default=NO_TOPIC_ID)
    is_internal: bool = s.boolean(since=1, default=False)
    partitions: list[MetadataPartition] = s.array(MetadataPartition)
    topic_authorized_operations: int = s.int32(since=8, default=OPERATIONS_UNKNOWN)


@s.message
class MetadataResponse:
    throttle_time_ms: int = s.int32(since=3, default=0)
    brokers: list[MetadataBroker] = s.array(MetadataBroker)
    cluster_id: str | None = s.string(since=2, nullable_since=2, default=None)
    controller_id: int = s.int32(since=1, default=-1)
    topics: list[MetadataTopic] = s.array(MetadataTopic)
    cluster_authorized_operations: int = s.int32(since=8, until=10, default=OPERATIONS_UNKNOWN)
    error_code: int = s.int16(since=13, default=0)


@s.message
class MetadataRequestTopic:
    """A topic by name, or by id if that is not all zero."""

    topic_id: uuid.UUID = s.topic_uuid(since=10, default=NO_TOPIC_ID)
    name: str | None = s.string(nullable_since=10)


@s.request(s.ApiKey.METADATA, versions=(0, 13), flexible_since=9)
class MetadataRequest(s.RequestOf[MetadataResponse]):
    """``topics`` None asks for all, an empty list for none."""

    topics: list[MetadataRequestTopic] | None = s.array(MetadataRequestTopic, nullable_since=1)
    allow_auto_topic_creation: bool = s.boolean(since=4, default=True, ignorable=False)
    include_cluster_authorized_operations: bool = s.boolean(since=8, until=10, default=False, ignorable=False)
    include_topic_authorized_operations: bool = s.boolean(since=8, default=False, ignorable=False)


BROKER_ENDPOINTS = 1
CONTROLLER_ENDPOINTS = 2


@s.message
class DescribeClusterBroker:
    broker_id: int = s.int32()
    host: str = s.string()
    port: int = s.int32()
    rack: str | None = s.string(nullable_since=0, default=None)


@s.message
class DescribeClusterResponse:
    """``controller_id`` is -1 while there is no controller."""

    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16()
    error_message: str | None = s.string(nullable_since=0, default=None)
    endpoint_type: int = s.int8(since=1, default=BROKER_ENDPOINTS)
    cluster_id: str = s.string()
    controller_id: int = s.int32(default=-1)
    brokers: list[DescribeClusterBroker] = s.array(DescribeClusterBroker)
    cluster_authorized_operations: int = s.int32(default=OPERATIONS_UNKNOWN)


@s.request(s.ApiKey.DESCRIBE_CLUSTER, versions=(0, 1), flexible_since=0)
class DescribeClusterRequest(s.RequestOf[DescribeClusterResponse]):
    include_cluster_authorized_operations: bool = s.boolean(default=False)
    endpoint_type: int = s.int8(since=1, default=BROKER_ENDPOINTS, ignorable=False)
