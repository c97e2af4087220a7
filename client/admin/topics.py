"""Topics to create and to grow, and the requests for them to the controller.

An answer may be lost after the change was made. The request is then retried, and the second answer does not
show whether the first attempt succeeded: `Answered.is_doubtful`. Belongs to the event loop of the cluster.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from barnabas.client.arguments import check_mapping, several
from barnabas.client.cluster import Cluster
from barnabas.common.backoff import Retries
from barnabas.protocol.errors import (
    ApiError,
    BarnabasError,
    ConnectionClosed,
    ConnectionRefused,
    ErrorCode,
    RequestTimedOutLocally,
    api_error,
)
from barnabas.protocol.ids import TopicId
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataTopic
from barnabas.protocol.messages.topics import (
    USE_DEFAULT,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")

_POLL_S: Final = 0.01
_POLL_TIMEOUT_MS: Final = 2_000
_DELETION_S: Final = 10.0
"""The longest wait for the end of a deletion. One that needs a dead broker may take for ever."""
_DELETION_POLL_S: Final = 0.05
_EXISTS: Final = ErrorCode.TOPIC_ALREADY_EXISTS


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 means the broker's default; ``replica_assignment`` replaces both counts."""

    name: str
    num_partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)
    replica_assignment: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The new total of partitions; ``assignments`` has the replicas of each new partition in order."""

    total_count: int
    assignments: Sequence[Sequence[int]] | None = None


class CreatedTopic(NamedTuple):
    name: str
    topic_id: TopicId
    num_partitions: int
    replication_factor: int


def creatable_topic(topic: NewTopic) -> CreatableTopic:
    check_mapping("configs", topic.configs, "settings to values")
    if topic.replica_assignment is not None:
        check_mapping("replica_assignment", topic.replica_assignment, "partitions to replicas")
    assignments = [
        CreatableReplicaAssignment(
            partition_index=partition, broker_ids=several("replica_assignment", replicas, int)
        )
        for partition, replicas in (topic.replica_assignment or {}).items()
    ]
    return CreatableTopic(
        name=topic.name,
        num_partitions=USE_DEFAULT if assignments else topic.num_partitions,
        replication_factor=USE_DEFAULT if assignments else topic.replication_factor,
        assignments=assignments,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def growing_topic(name: str, more: NewPartitions) -> CreatePartitionsTopic:
    assignments = None
    if more.assignments is not None:
        if not isinstance(more.assignments, list | tuple):
            raise TypeError(f"assignments={more.assignments!r}: expected a list of the replicas of each")
        assignments = [
            CreatePartitionsAssignment(broker_ids=several("assignments", replicas, int))
            for replicas in more.assignments
        ]
    return CreatePartitionsTopic(name=name, count=more.total_count, assignments=assignments)


class Answered(NamedTuple, Generic[R]):
    """An answer, and whether an earlier attempt may have carried out the request, or part of it."""

    response: R
    is_doubtful: bool


def broker_timeout_ms(timeout_ms: int, request_timeout_ms: int) -> int:
    """The time limit for a broker, so that it answers before the client gives up."""
    return min(timeout_ms, request_timeout_ms) * 9 // 10


async def ask_controller(
    cluster: Cluster, request: RequestOf[R], codes: Callable[[R], list[int]], retries: Retries
) -> Answered[R]:
    """Ask brokers until the controller answers. Raises the last error after the timeout."""
    is_doubtful = False
    while True:
        try:
            response = await cluster.request(
                cluster.cache.controller_id,
                request,
                timeout_ms=retries.left_ms(cluster.config.request_timeout_ms),
            )
            topic_codes = codes(response)
            if ErrorCode.NOT_CONTROLLER not in topic_codes:
                return Answered(response, is_doubtful)
            # It may have been the controller for the first of several topics.
            is_doubtful = is_doubtful or ErrorCode.NONE in topic_codes
            error: BarnabasError = api_error(ErrorCode.NOT_CONTROLLER)
        except BarnabasError as failure:
            is_doubtful = is_doubtful or _may_be_done(failure)
            error = failure
        await cluster.refresh_after(error, retries)


def _may_be_done(error: BarnabasError) -> bool:
    return isinstance(error, RequestTimedOutLocally) or (
        isinstance(error, ConnectionClosed) and not isinstance(error, ConnectionRefused)
    )


async def wait_until_everywhere(
    cluster: Cluster,
    names: Iterable[str],
    is_visible: Callable[[Mapping[str, MetadataTopic]], bool],
    deadline: float,
) -> None:
    """Wait until the metadata of every broker has a change, so that later requests to any broker see it.

    ``is_visible`` gets the named topics that a broker has. The controller has answered already and updates
    the others within milliseconds. A broker that does not answer, or lacks the change at the deadline, is
    skipped, because the change is made all the same.
    """
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    for node_id in list(cluster.nodes):
        while (left_ms := int((deadline - time.monotonic()) * 1000)) > 0:
            try:
                answer = await cluster.request(node_id, request, timeout_ms=min(left_ms, _POLL_TIMEOUT_MS))
            except BarnabasError:
                break
            topics = [topic for topic in answer.topics if topic.error_code == ErrorCode.NONE]
            if is_visible({topic.name or "": topic for topic in topics}):
                break
            await asyncio.sleep(_POLL_S)


async def create_topics(
    cluster: Cluster,
    new_topics: Sequence[NewTopic],
    created_before: Callable[[NewTopic], Awaitable[CreatedTopic | None]],
    timeout_ms: int,
    *,
    validate_only: bool,
) -> tuple[dict[str, CreatedTopic], dict[str, ApiError]]:
    """The created topics and the errors of the others; ``created_before`` finds what a lost attempt made.

    A topic of the same name that is still being deleted is waited for.
    """
    retries = cluster.config.make_retries(timeout_ms)
    wait_until = min(retries.deadline, time.monotonic() + _DELETION_S)
    created: dict[str, CreatedTopic] = {}
    errors: dict[str, ApiError] = {}
    left = {topic.name: topic for topic in new_topics}
    topics, is_doubtful = list(new_topics), False
    while True:
        request = CreateTopicsRequest(
            topics=[creatable_topic(topic) for topic in topics],
            timeout_ms=broker_timeout_ms(timeout_ms, cluster.config.request_timeout_ms),
            validate_only=validate_only,
        )
        response, is_now_doubtful = await ask_controller(
            cluster, request, lambda answer: [result.error_code for result in answer.topics], retries
        )
        is_doubtful = is_doubtful or is_now_doubtful
        for result in response.topics:
            outcome = _created(result)
            if isinstance(outcome, ApiError) and is_doubtful and outcome.code == _EXISTS:
                outcome = await created_before(left[result.name]) or outcome
            if isinstance(outcome, CreatedTopic):
                created[result.name] = outcome
            else:
                errors[result.name] = outcome
        leaving = await _being_deleted(cluster, errors) if time.monotonic() < wait_until else set()
        if leaving:
            await asyncio.sleep(_DELETION_POLL_S)
        if not leaving or retries.is_over:
            break
        topics = [left[name] for name in leaving]
        for name in leaving:
            del errors[name]
    if created and not validate_only:
        await wait_until_everywhere(
            cluster,
            created,
            lambda visible: all(
                name in visible and visible[name].topic_id == topic.topic_id
                for name, topic in created.items()
            ),
            time.monotonic() + timeout_ms / 1000,
        )
    return created, errors


def _created(result: CreatableTopicResult) -> CreatedTopic | ApiError:
    if result.error_code == ErrorCode.NONE:
        return CreatedTopic(
            result.name, TopicId(result.topic_id), result.num_partitions, result.replication_factor
        )
    text = result.error_message or f"topic {result.name!r} was not created"
    return api_error(result.error_code, text)


async def _being_deleted(cluster: Cluster, errors: Mapping[str, ApiError]) -> set[str]:
    """The topics that were refused because they exist, and that the controller's metadata has no more."""
    names = {name for name, error in errors.items() if error.code == _EXISTS}
    if not names:
        return names
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    try:
        answer = await cluster.request(cluster.cache.controller_id, request, timeout_ms=_POLL_TIMEOUT_MS)
    except BarnabasError:
        return set()
    return {
        topic.name
        for topic in answer.topics
        if topic.name in names and topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }


async def delete_topics(
    cluster: Cluster, topic_names: Collection[str], timeout_ms: int
) -> dict[str, ApiError]:
    """Returns the errors by topic."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in topic_names],
        timeout_ms=broker_timeout_ms(timeout_ms, cluster.config.request_timeout_ms),
    )
    response, is_doubtful = await ask_controller(
        cluster,
        request,
        lambda answer: [result.error_code for result in answer.responses],
        cluster.config.make_retries(timeout_ms),
    )
    errors: dict[str, ApiError] = {}
    deleted: dict[str, uuid.UUID] = {}
    for result in response.responses:
        is_gone = result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if result.error_code != ErrorCode.NONE and not (is_gone and is_doubtful):
            text = result.error_message or f"topic {result.name!r} was not deleted"
            errors[result.name or ""] = api_error(result.error_code, text)
        else:
            deleted[result.name or ""] = result.topic_id
    if deleted:
        await wait_until_everywhere(
            cluster,
            deleted,
            lambda visible: (
                not any(
                    name in visible and visible[name].topic_id == topic_id
                    for name, topic_id in deleted.items()
                )
            ),
            time.monotonic() + timeout_ms / 1000,
        )
    return errors


async def create_partitions(
    cluster: Cluster,
    growth: Mapping[str, NewPartitions],
    partition_count: Callable[[str], Awaitable[int]],
    timeout_ms: int,
    *,
    validate_only: bool,
) -> dict[str, ApiError]:
    """Returns the errors by topic; ``partition_count`` asks for the present number of partitions."""
    request = CreatePartitionsRequest(
        topics=[growing_topic(name, more) for name, more in growth.items()],
        timeout_ms=broker_timeout_ms(timeout_ms, cluster.config.request_timeout_ms),
        validate_only=validate_only,
    )
    response, is_doubtful = await ask_controller(
        cluster,
        request,
        lambda answer: [result.error_code for result in answer.results],
        cluster.config.make_retries(timeout_ms),
    )
    errors: dict[str, ApiError] = {}
    for result in response.results:
        if result.error_code == ErrorCode.NONE:
            continue
        if (
            is_doubtful
            and result.error_code == ErrorCode.INVALID_PARTITIONS
            and await partition_count(result.name) == growth[result.name].total_count
        ):
            continue
        text = result.error_message or f"no partitions were added to topic {result.name!r}"
        errors[result.name] = api_error(result.error_code, text)
    grown = {name: more.total_count for name, more in growth.items() if name not in errors}
    if grown and not validate_only:
        await wait_until_everywhere(
            cluster,
            grown,
            lambda visible: all(
                name in visible and len(visible[name].partitions) >= count for name, count in grown.items()
            ),
            time.monotonic() + timeout_ms / 1000,
        )
    return errors
