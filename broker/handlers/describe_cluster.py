"""DescribeCluster: the live brokers and the controller (KIP-700)."""

from __future__ import annotations

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorized_operations import CLUSTER_OPERATIONS
from barnabas.broker.handlers.metadata import after_first_update, live_brokers, named_controller
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.metadata import (
    BROKER_ENDPOINTS,
    CONTROLLER_ENDPOINTS,
    OPERATIONS_UNKNOWN,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


def handle(services: Services, request: ApiRequest) -> None:
    body: DescribeClusterRequest = request.body
    if body.endpoint_type != BROKER_ENDPOINTS:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        if body.endpoint_type == CONTROLLER_ENDPOINTS:
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        request.respond(
            DescribeClusterResponse(
                error_code=code,
                error_message=f"endpoint type {body.endpoint_type}; expected 1 (brokers)",
                cluster_id=services.cluster_id,
                brokers=[],
            )
        )
        return
    after_first_update(services, request, lambda: _answer(services, request))


def _answer(services: Services, request: ApiRequest) -> None:
    body: DescribeClusterRequest = request.body
    cache, current = services.metadata, services.metadata.current
    request.respond(
        DescribeClusterResponse(
            error_code=ErrorCode.NONE,
            cluster_id=services.cluster_id,
            controller_id=named_controller(cache, current),
            brokers=[
                DescribeClusterBroker(
                    broker_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
                )
                for broker in live_brokers(cache, current, request.peer.listener_name)
            ],
            cluster_authorized_operations=CLUSTER_OPERATIONS
            if body.include_cluster_authorized_operations
            else OPERATIONS_UNKNOWN,
        )
    )
