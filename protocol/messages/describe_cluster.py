"""DescribeCluster: the brokers and the controller (KIP-700, KIP-919)."""

from __future__ import annotations

from barnabas.protocol.schema import (
    ApiKey,
    RequestOf,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    request,
    string,
)

BROKER_ENDPOINTS = 1
CONTROLLER_ENDPOINTS = 2
OPERATIONS_UNKNOWN = -(2**31)


@message
class DescribeClusterBroker:
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)


@message
class DescribeClusterResponse:
    """``controller_id`` is -1 while there is no controller."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    endpoint_type: int = int8(since=1, default=BROKER_ENDPOINTS)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=OPERATIONS_UNKNOWN)


@request(ApiKey.DESCRIBE_CLUSTER, DescribeClusterResponse, versions=(0, 1), flexible_since=0)
@message
class DescribeClusterRequest(RequestOf[DescribeClusterResponse]):
    include_cluster_authorized_operations: bool = boolean(default=False)
    endpoint_type: int = int8(since=1, default=BROKER_ENDPOINTS, ignorable=False)
