"""FindCoordinator: which broker coordinates a group or a transactional id (from version 4 on, several).

The first request creates the internal topic, which takes a while; see `waiting`.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.coordinators.internal_topic import InternalTopic
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.handlers.waiting import when_known
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts
from barnabas.protocol.messages import find_coordinator as wire

_SEVERAL_SINCE: Final = 4


def handle(services: Services, request: ApiRequest) -> None:
    body: wire.FindCoordinatorRequest = request.body
    topic = _topic_of(services, body.key_type)
    if topic is None:
        _answer(services, request)
        return
    if not topic.is_known:
        topic.create()
    when_known(services, request, topic, lambda: _answer(services, request))


def _topic_of(services: Services, key_type: int) -> InternalTopic | None:
    """The topic of the coordinators of a type; None for an unknown type."""
    if key_type == wire.CoordinatorType.GROUP:
        return services.groups.topic
    return services.transactions.topic if key_type == wire.CoordinatorType.TRANSACTION else None


def _answer(services: Services, request: ApiRequest) -> None:
    body: wire.FindCoordinatorRequest = request.body
    if request.is_since(_SEVERAL_SINCE):
        keys = dict.fromkeys(body.coordinator_keys)
        texts = ErrorTexts()
        coordinators = [_find(services, request, body.key_type, key, texts) for key in keys]
        request.respond(wire.FindCoordinatorResponse(coordinators=coordinators))
        return
    coordinator = _find(services, request, body.key_type, body.key, ErrorTexts())
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
    services: Services, request: ApiRequest, key_type: int, key: str, texts: ErrorTexts
) -> wire.Coordinator:
    topic = _topic_of(services, key_type)
    if topic is None:
        message = f"coordinators of type {key_type} are unknown; expected 0 (group) or 1 (transaction)"
        return wire.Coordinator(
            key=key, error_code=ErrorCode.INVALID_REQUEST, error_message=texts.take(message)
        )
    try:
        broker_id, endpoint = topic.coordinator_of(key, request.raw.peer.listener_name)
    except ApiError as error:
        return wire.Coordinator(key=key, error_code=error.code, error_message=texts.of(error))
    return wire.Coordinator(key=key, node_id=broker_id, host=endpoint.host, port=endpoint.port)
