"""CreateTopics, CreatePartitions and DeleteTopics: served by the controller, answered when the change is
visible.

The work in ZooKeeper blocks, so it runs on the slow-work thread. Then the answer waits in the purgatory until
this broker's metadata has a leader for every partition, or has forgotten the topic, or until the timeout. The
brokers' own topics may be deleted, as in Apache Kafka, and are recreated when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from barnabas.broker.clocks import monotonic_ms
from barnabas.broker.config import describe as config_rules
from barnabas.broker.config.dynamic import ConfigLayers
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.handlers.slow import submit
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.purgatory import DelayedOperation
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import NO_BROKER, TopicId
from barnabas.protocol.messages.partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from barnabas.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigResult,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from barnabas.protocol.topic_names import INTERNAL_TOPICS
from barnabas.zookeeper.configs import ALL_BROKERS, Entity

_ASK_THE_CONTROLLER: Final = "this broker is not the controller; Metadata names the one that is"
_DISABLED_CODE_SINCE: Final = 3
"""DeleteTopics knows TOPIC_DELETION_DISABLED from this version on."""


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


def _answer_when(
    services: Services,
    names: Collection[str],
    timeout_ms: int,
    holds: Callable[[], bool],
    answer: Callable[[], None],
    late: Callable[[], None],
) -> None:
    """Answer as soon as the metadata of these topics shows it, or after ``late`` when the time is over."""
    deadline_ms = int(monotonic_ms()) + max(0, timeout_ms)
    operation = DelayedTopics(deadline_ms, holds, answer, late)
    services.topic_purgatory.try_complete_else_watch(operation, list(names))


class _Expected(NamedTuple):
    """A topic that is to be served with so many partitions, and the result to tell otherwise by."""

    result: CreatableTopicResult | CreatePartitionsTopicResult
    topic_id: TopicId
    num_partitions: int


def _answer_when_served(
    services: Services,
    expected: Collection[_Expected],
    timeout_ms: int,
    answer: Callable[[], None],
    *,
    what_is_done: str,
) -> None:
    """Answer when each of these partitions has a leader, or tell of the others at the deadline."""

    def waiting() -> list[_Expected]:
        return [
            one
            for one in expected
            if not _is_served(services.metadata, one.result.name, one.topic_id, one.num_partitions)
        ]

    def late() -> None:
        for one in waiting():
            one.result.error_code = ErrorCode.REQUEST_TIMED_OUT
            one.result.error_message = f"{what_is_done}, but not every partition has a leader yet"

    names = [one.result.name for one in expected]
    _answer_when(services, names, timeout_ms, lambda: not waiting(), answer, late)


def _is_served(metadata: MetadataCache, name: str, topic_id: TopicId, num_partitions: int) -> bool:
    found = metadata.current.topics.get(name)
    if found is None or found.topic_id != topic_id or len(found.partitions) < num_partitions:
        return False
    return all(metadata.leader_of(partition)[0] != NO_BROKER for partition in found.partitions.values())


# Creating


def handle_create(services: Services, request: ApiRequest) -> None:
    body: CreateTopicsRequest = request.body
    if services.controller.is_active:
        submit(services, request, _create, services, request, body)
        return
    request.respond(
        CreateTopicsResponse(
            topics=[
                CreatableTopicResult(
                    name=topic.name, error_code=ErrorCode.NOT_CONTROLLER, error_message=_ASK_THE_CONTROLLER
                )
                for topic in body.topics
            ]
        )
    )


def _create(services: Services, request: ApiRequest, body: CreateTopicsRequest) -> None:
    results = services.topics.create_topics(body.topics, validate_only=body.validate_only)
    _describe_configs(services, body.topics, results)
    made = [] if body.validate_only else [one for one in results if one.error_code == ErrorCode.NONE]
    _answer_when_served(
        services,
        [_Expected(one, TopicId(one.topic_id), one.num_partitions) for one in made],
        body.timeout_ms,
        lambda: request.respond(CreateTopicsResponse(topics=results)),
        what_is_done="the topic is made",
    )


def _describe_configs(
    services: Services, topics: Collection[CreatableTopic], results: Collection[CreatableTopicResult]
) -> None:
    """Tell the settings that the topics have (KIP-525), where that can be told."""
    own = Entity.broker(services.config.broker_id)
    made = [result for result in results if result.error_code == ErrorCode.NONE]
    if not made:
        return
    try:
        found = services.configs.values({own, ALL_BROKERS})
    except ApiError as error:
        for result in made:
            result.topic_config_error_code = error.code
        return
    layers, _ = ConfigLayers.of(services.config, found[own], found[ALL_BROKERS])
    given = {topic.name: topic.configs for topic in topics}
    for result in made:
        overrides = {one.name: one.value for one in given.get(result.name, ()) if one.value is not None}
        result.configs = [
            CreatableTopicConfigResult(
                name=one.name,
                value=one.value,
                read_only=one.read_only,
                config_source=one.config_source,
                is_sensitive=one.is_sensitive,
            )
            for one in config_rules.describe_topic(overrides, layers)
        ]


# Adding partitions


def handle_create_partitions(services: Services, request: ApiRequest) -> None:
    body: CreatePartitionsRequest = request.body
    if services.controller.is_active:
        submit(services, request, _create_partitions, services, request, body)
        return
    request.respond(
        CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(
                    name=topic.name, error_code=ErrorCode.NOT_CONTROLLER, error_message=_ASK_THE_CONTROLLER
                )
                for topic in body.topics
            ]
        )
    )


def _create_partitions(services: Services, request: ApiRequest, body: CreatePartitionsRequest) -> None:
    wanted = [topic for topic in body.topics if topic.name not in INTERNAL_TOPICS]
    grown = services.topics.create_partitions(wanted, validate_only=body.validate_only)
    refused = [_not_growing(topic.name) for topic in body.topics if topic.name in INTERNAL_TOPICS]
    results = [result for result, _, _ in grown] + refused
    done = [] if body.validate_only else [_Expected(*one) for one in grown if one[0].error_code == 0]
    _answer_when_served(
        services,
        done,
        body.timeout_ms,
        lambda: request.respond(CreatePartitionsResponse(results=results)),
        what_is_done="the partitions are added",
    )


def _not_growing(name: str) -> CreatePartitionsTopicResult:
    """Apache Kafka lets them grow, and then looks for groups where they are not once it is started anew."""
    return CreatePartitionsTopicResult(
        name=name,
        error_code=ErrorCode.INVALID_TOPIC_EXCEPTION,
        error_message=f"{name} cannot grow: the number of its partitions decides where every group is, and "
        "what was committed would not be found any more",
    )


# Deleting


def handle_delete(services: Services, request: ApiRequest) -> None:
    body: DeleteTopicsRequest = request.body
    topics = body.topics + [DeleteTopicState(name=name) for name in body.topic_names]
    if services.controller.is_active:
        submit(services, request, _delete, services, request, topics, body.timeout_ms)
        return
    request.respond(
        DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    error_code=ErrorCode.NOT_CONTROLLER,
                    error_message=_ASK_THE_CONTROLLER,
                )
                for topic in topics
            ]
        )
    )


def _delete(services: Services, request: ApiRequest, topics: list[DeleteTopicState], timeout_ms: int) -> None:
    results = services.topics.delete_topics(topics)
    if request.api_version is not None and request.api_version < _DISABLED_CODE_SINCE:
        for result in results:
            if result.error_code == ErrorCode.TOPIC_DELETION_DISABLED:
                result.error_code = ErrorCode.INVALID_REQUEST
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

    _answer_when(
        services,
        deleted,
        timeout_ms,
        lambda: not waiting(),
        lambda: request.respond(DeleteTopicsResponse(responses=results)),
        late,
    )
