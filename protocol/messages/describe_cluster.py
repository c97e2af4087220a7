"""DescribeCluster: the brokers and the controller (KIP-700, KIP-919)."""

from __future__ import annotations

from barnabas.protocol import schema as s

BROKER_ENDPOINTS = 1
CONTROLLER_ENDPOINTS = 2
OPERATIONS_UNKNOWN = -(2**31)


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


@s.request(s.ApiKey.DESCRIBE_CLUSTER, DescribeClusterResponse, versions=(0, 1), flexible_since=0)
class DescribeClusterRequest(s.RequestOf[DescribeClusterResponse]):
    include_cluster_authorized_operations: bool = s.boolean(default=False)
    endpoint_type: int = s.int8(since=1, default=BROKER_ENDPOINTS, ignorable=False)
