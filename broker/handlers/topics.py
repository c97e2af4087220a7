"""CreateTopics and DeleteTopics: done in ZooKeeper by the controller's broker, answered when it shows.

The work in ZooKeeper blocks, so it runs on the slow-work thread. Then the answer waits in the purgatory until
this broker's metadata has a leader for every partition, or has forgotten the topic, or until the timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.broker.clocks import monotonic_ms
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.purgatory import DelayedOperation
from barnabas.broker.slow_work import SlowWorkRefused
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_BROKER, TopicId
from barnabas.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)


class DelayedTopics(DelayedOperation):
    """Waits until a condition on the metadata holds; ``late`` runs first when the deadline wins."""

    def __init__(
        self,
        deadline_ms: int,
        holds: Callable[[], bool],
        answer: Callable[[], None],
        late: Callable[[], None],
    ) -> None:
        super().__init__(deadline_ms)
        self._holds = holds
        self._answer = answer
        self._late = late

    def try_complete(self) -> bool:
        return self._holds()

    def on_expiration(self) -> None:
        self._late()

    def on_complete(self) -> None:
        self._answer()


def handle_create(services: Services, request: ApiRequest) -> None:
    body: CreateTopicsRequest = request.body
    if not services.controller.is_active:
        request.respond(CreateTopicsResponse(topics=[_not_controller(topic) for topic in body.topics]))
        return
    _submit(services, request, _create, services, request, body)


def _submit(services: Services, request: ApiRequest, work: Callable[..., None], *args: Any) -> None:
    """Do the work on the slow-work thread; if it fails, the client is told by closing its connection."""

    def failed(error: Exception) -> None:
        request.close_connection(f"{request} failed: {error!r}")

    try:
        services.slow_work.submit(failed, work, *args)
    except SlowWorkRefused as error:
        request.close_connection(str(error))


def _not_controller(topic: CreatableTopic) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name, error_code=ErrorCode.NOT_CONTROLLER, error_message="ask the controller"
    )


def _create(services: Services, request: ApiRequest, body: CreateTopicsRequest) -> None:
    results = services.topics.create(body.topics, validate_only=body.validate_only)
    created = {} if body.validate_only else {r.name: r for r in results if r.error_code == ErrorCode.NONE}

    def waiting() -> list[CreatableTopicResult]:
        return [result for result in created.values() if not _is_served(services.metadata, result)]

    def late() -> None:
        for result in waiting():
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.error_message = "the topic is made, but not every partition has a leader yet"

    operation = DelayedTopics(
        int(monotonic_ms()) + max(0, body.timeout_ms),
        lambda: not waiting(),
        lambda: request.respond(CreateTopicsResponse(topics=results)),
        late,
    )
    services.topic_purgatory.try_complete_else_watch(operation, list(created))


def _is_served(metadata: MetadataCache, result: CreatableTopicResult) -> bool:
    found = metadata.current.topics.get(result.name)
    if found is None or found.topic_id != result.topic_id or len(found.partitions) < result.num_partitions:
        return False
    return all(metadata.leader_of(partition)[0] != NO_BROKER for partition in found.partitions.values())


def handle_delete(services: Services, request: ApiRequest) -> None:
    body: DeleteTopicsRequest = request.body
    topics = body.topics + [DeleteTopicState(name=name) for name in body.topic_names]
    if not services.controller.is_active:
        request.respond(
            DeleteTopicsResponse(
                responses=[
                    DeletableTopicResult(
                        name=topic.name,
                        topic_id=topic.topic_id,
                        error_code=ErrorCode.NOT_CONTROLLER,
                        error_message="ask the controller",
                    )
                    for topic in topics
                ]
            )
        )
        return
    _submit(services, request, _delete, services, request, topics, body.timeout_ms)


def _delete(services: Services, request: ApiRequest, topics: list[DeleteTopicState], timeout_ms: int) -> None:
    results = services.topics.delete(topics)
    deleted = {r.name: r for r in results if r.error_code == ErrorCode.NONE and r.name is not None}

    def waiting() -> list[DeletableTopicResult]:
        known = services.metadata.current.topics
        return [
            result
            for name, result in deleted.items()
            if name in known and known[name].topic_id == TopicId(result.topic_id)
        ]

    def late() -> None:
        for result in waiting():
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.error_message = "the deletion is under way; it goes on when all its brokers are back"

    operation = DelayedTopics(
        int(monotonic_ms()) + max(0, timeout_ms),
        lambda: not waiting(),
        lambda: request.respond(DeleteTopicsResponse(responses=results)),
        late,
    )
    services.topic_purgatory.try_complete_else_watch(operation, list(deleted))
