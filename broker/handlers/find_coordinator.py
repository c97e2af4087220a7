"""FindCoordinator: which broker coordinates a group or a transactional id (from version 4 on, several).

The first request creates the internal topic, which takes a while; see `waiting`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from barnabas.broker.coordinators.internal_topic import InternalTopic
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorization import permitted
from barnabas.broker.handlers.services import Services
from barnabas.broker.handlers.waiting import when_known
from barnabas.broker.security.api_operations import DENIED
from barnabas.common.security.acl import Operation, ResourceType
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.messages import find_coordinator as wire

_SEVERAL_SINCE: Final = 4
_RESOURCES: Final = {
    wire.CoordinatorType.GROUP.value: ResourceType.GROUP,
    wire.CoordinatorType.TRANSACTION.value: ResourceType.TRANSACTIONAL_ID,
}


def handle(services: Services, request: ApiRequest) -> None:
    body: wire.FindCoordinatorRequest = request.body
    topic = _topic_of(services, body.key_type)
    if topic is None:
        _answer(services, request, ())
        return
    keys = body.coordinator_keys if request.is_since(_SEVERAL_SINCE) else [body.key]
    shown = permitted(services, request, Operation.DESCRIBE, _RESOURCES[body.key_type], keys)
    if not any(key in shown for key in keys):
        _answer(services, request, shown)
        return
    if not topic.is_known:
        topic.create()
    when_known(services, request, topic, lambda: _answer(services, request, shown))


def _topic_of(services: Services, key_type: int) -> InternalTopic | None:
    """The topic of the coordinators of a type; None for an unknown type."""
    if key_type == wire.CoordinatorType.GROUP:
        return services.groups.topic
    return services.transactions.topic if key_type == wire.CoordinatorType.TRANSACTION else None


def _answer(services: Services, request: ApiRequest, shown: Container[str]) -> None:
    body: wire.FindCoordinatorRequest = request.body
    if request.is_since(_SEVERAL_SINCE):
        keys = dict.fromkeys(body.coordinator_keys)
        texts = ErrorTexts()
        coordinators = [_find(services, request, key, shown, texts) for key in keys]
        request.respond(wire.FindCoordinatorResponse(coordinators=coordinators))
        return
    coordinator = _find(services, request, body.key, shown, ErrorTexts())
    request.respond(
        wire.FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=coordinator.error_message,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )
    )


def _find(
    services: Services, request: ApiRequest, key: str, shown: Container[str], texts: ErrorTexts
) -> wire.Coordinator:
    key_type = request.body.key_type
    topic = _topic_of(services, key_type)
    if topic is None:
        message = f"coordinators of type {key_type} are unknown; expected 0 (group) or 1 (transaction)"
        return wire.Coordinator(
            key=key, error_code=ErrorCode.INVALID_REQUEST, error_message=texts.take(message)
        )
    try:
        if key not in shown:
            raise api_error(DENIED[_RESOURCES[key_type]])
        broker_id, endpoint = topic.coordinator_of(key, request.raw.peer.listener_name)
    except ApiError as error:
        return wire.Coordinator(key=key, error_code=error.code, error_message=texts.of(error))
    return wire.Coordinator(key=key, node_id=broker_id, host=endpoint.host, port=endpoint.port)
