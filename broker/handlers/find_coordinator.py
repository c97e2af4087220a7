"""FindCoordinator: which broker coordinates a group or a transactional id (from version 4 on, several).

The first request creates the internal topic, which takes a while. librdkafka's admin client asks three times
within 300 ms, and then its caller waits for the full time-out. It also returns the error of a coordinator
that does not know the topic yet. So answers wait until this broker knows the topic, and descriptions of
groups wait until the groups are loaded. After `_WAIT_MS` the answer is a retriable error.

The answers are sent on the workers or on the purgatory's reaper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from barnabas.broker.coordinators.internal_topic import InternalTopic
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts
from barnabas.protocol.messages.find_coordinator import (
    Coordinator,
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_SEVERAL_SINCE: Final = 4
_WAIT_MS: Final = 3_000
"""Shorter than the request time-outs of clients, which retry after a refusal."""


def when_topic_known(services: Services, request: ApiRequest, answer: Callable[[], None]) -> None:
    """Answer when this broker knows the offsets topic, or after the longest wait."""
    _when(services, request, services.groups.topic, lambda: services.groups.topic.is_known, answer)


def when_loaded(
    services: Services, request: ApiRequest, group_ids: Collection[str], answer: Callable[[], None]
) -> None:
    """Answer when, in addition, no group of the request is being loaded here."""
    groups = services.groups
    _when(
        services,
        request,
        groups.topic,
        lambda: groups.topic.is_known and not groups.are_loading(group_ids),
        answer,
    )


def _when(
    services: Services,
    request: ApiRequest,
    topic: InternalTopic,
    is_due: Callable[[], bool],
    answer: Callable[[], None],
) -> None:
    request.answer_when(
        is_due, answer, purgatory=services.topic_purgatory, keys=[topic.name], wait_ms=_WAIT_MS
    )


def handle(services: Services, request: ApiRequest) -> None:
    body: FindCoordinatorRequest = request.body
    topic = _topic_of(services, body.key_type)
    if topic is None:
        _answer(services, request)
        return
    if not topic.is_known:
        topic.create()
    _when(services, request, topic, lambda: topic.is_known, lambda: _answer(services, request))


def _topic_of(services: Services, key_type: int) -> InternalTopic | None:
    """The topic of the coordinators of a type; None for an unknown type."""
    if key_type == CoordinatorType.GROUP:
        return services.groups.topic
    return services.transactions.topic if key_type == CoordinatorType.TRANSACTION else None


def _answer(services: Services, request: ApiRequest) -> None:
    body: FindCoordinatorRequest = request.body
    if request.is_since(_SEVERAL_SINCE):
        keys = dict.fromkeys(body.coordinator_keys)
        texts = ErrorTexts()
        coordinators = [_find(services, request, body.key_type, key, texts) for key in keys]
        request.respond(FindCoordinatorResponse(coordinators=coordinators))
        return
    coordinator = _find(services, request, body.key_type, body.key, ErrorTexts())
    request.respond(
        FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=coordinator.error_message,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )
    )


def _find(services: Services, request: ApiRequest, key_type: int, key: str, texts: ErrorTexts) -> Coordinator:
    topic = _topic_of(services, key_type)
    if topic is None:
        message = f"coordinators of type {key_type} are unknown; expected 0 (group) or 1 (transaction)"
        return _not_found(key, ErrorCode.INVALID_REQUEST, texts.take(message))
    try:
        broker_id, endpoint = topic.coordinator_of(key, request.peer.listener_name)
    except ApiError as error:
        return _not_found(key, error.code, texts.of(error))
    return Coordinator(key=key, node_id=broker_id, host=endpoint.host, port=endpoint.port)


def _not_found(key: str, code: int, message: str | None) -> Coordinator:
    return Coordinator(key=key, error_code=code, error_message=message)
