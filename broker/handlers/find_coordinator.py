"""FindCoordinator: which broker coordinates a group (several at once from version 4 on).

The first request has the offsets topic created, and is answered when it exists, or with a retriable error if
that takes too long. There is no transaction coordinator; requests for one get COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.offsets_topic_wait import is_there, when_there
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.messages.find_coordinator import (
    Coordinator,
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_SEVERAL_SINCE = 4


def handle(services: Services, request: ApiRequest) -> None:
    body: FindCoordinatorRequest = request.body
    if body.key_type != CoordinatorType.GROUP:
        _answer(services, request)
        return
    if not is_there(services):
        services.groups.topic.create()
    when_there(services, request.answering(lambda: _answer(services, request)))


def _answer(services: Services, request: ApiRequest) -> None:
    body: FindCoordinatorRequest = request.body
    if request.api_version is None or request.api_version >= _SEVERAL_SINCE:
        found = [_find(services, request, body.key_type, key) for key in body.coordinator_keys]
        request.respond(FindCoordinatorResponse(coordinators=found))
        return
    one = _find(services, request, body.key_type, body.key)
    request.respond(
        FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )
    )


def _find(services: Services, request: ApiRequest, key_type: int, key: str) -> Coordinator:
    if key_type == CoordinatorType.TRANSACTION:
        return _not_found(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "there is no transaction coordinator")
    if key_type != CoordinatorType.GROUP:
        message = f"coordinators of type {key_type} are not known; expected 0 (group) or 1 (transaction)"
        return _not_found(key, ErrorCode.INVALID_REQUEST, message)
    try:
        broker_id, endpoint = services.groups.topic.coordinator_of(key, request.peer.listener_name)
    except ApiError as error:
        return _not_found(key, error.code, error.text)
    return Coordinator(key=key, node_id=broker_id, host=endpoint.host, port=endpoint.port)


def _not_found(key: str, code: int, message: str) -> Coordinator:
    return Coordinator(key=key, error_code=code, error_message=message)
