"""Topics to create and to grow, and the requests for them to the controller.

An answer may be lost after the change was made. The request is then retried, and the second answer does not
show whether the first attempt succeeded: `Answered.is_doubtful`. Belongs to the event loop of the client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from barnabas.client.admin.base import error_of, raise_errors
from barnabas.client.admin.configs import ConfigAdmin, ConfigResource
from barnabas.client.arguments import check_mapping, several
from barnabas.client.metadata import TopicInfo, topic_info
from barnabas.common.suggestions import did_you_mean
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, TopicAlreadyExistsError, api_error
from barnabas.protocol.ids import TopicId
from barnabas.protocol.messages import topics as wire
from barnabas.protocol.messages.configs import ConfigSource
from barnabas.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)

_POLL_S: Final = 0.01
_POLL_TIMEOUT_MS: Final = 2_000
_DELETION_S: Final = 10.0
"""The longest wait for the end of a deletion. One that needs a dead broker may take for ever."""
_DELETION_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 means the broker's default; ``replica_assignment`` replaces both counts."""

    name: str
    num_partitions: int = wire.USE_DEFAULT
    replication_factor: int = wire.USE_DEFAULT
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


class TopicAdmin(ConfigAdmin):
    """The methods of `Admin` for topics."""

    async def create_topics(
        self,
        topics: Iterable[NewTopic] | NewTopic,
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
    ) -> dict[str, CreatedTopic]:
        """Create topics and wait until each partition has a leader that every reachable broker reports.

        A topic of the same name that is still being deleted is waited for, for at most 10 s.
        Raises the topic's own error for a single topic, and TopicErrors if some of several topics failed.
        """
        new_topics = several("topics", topics, NewTopic)
        limit_ms = self._timeout(timeout_ms)
        retries = self.config.make_retries(limit_ms)
        wait_until = min(retries.deadline, time.monotonic() + _DELETION_S)
        outcomes: dict[str, CreatedTopic | ApiError] = {}
        by_name = {topic.name: topic for topic in new_topics}
        left, is_doubtful = list(new_topics), False
        while True:
            request = wire.CreateTopicsRequest(
                topics=[creatable_topic(topic) for topic in left], validate_only=validate_only
            )
            answered = await self._ask_controller(request, limit_ms, retries)
            is_doubtful = is_doubtful or answered.is_doubtful
            for result in answered.response.topics:
                outcome = error_of(result, f"topic {result.name!r} was not created") or CreatedTopic(
                    result.name, TopicId(result.topic_id), result.num_partitions, result.replication_factor
                )
                if isinstance(outcome, TopicAlreadyExistsError) and is_doubtful:
                    outcome = await self._created_before(by_name[result.name]) or outcome
                outcomes[result.name] = outcome
            leaving = await self._being_deleted(outcomes) if time.monotonic() < wait_until else set()
            if leaving:
                await asyncio.sleep(_DELETION_POLL_S)
            if not leaving or retries.is_over:
                break
            left = [by_name[name] for name in leaving]
        created = {name: topic for name, topic in outcomes.items() if isinstance(topic, CreatedTopic)}
        if not validate_only:
            await self._wait_until_everywhere(
                created,
                lambda name, topic: topic is not None and topic.topic_id == created[name].topic_id,
                limit_ms,
            )
        raise_errors(outcomes, len(new_topics))
        return created

    async def _created_before(self, new_topic: NewTopic) -> CreatedTopic | None:
        """The existing topic, if an attempt whose answer was lost may have created it."""
        resource = ConfigResource.topic(new_topic.name)
        try:
            info = (await self.describe_topics(new_topic.name))[new_topic.name]
            configs = (await self.describe_configs(resource))[resource]
        except ApiError:
            return None
        replicas = {partition.partition: partition.replicas for partition in info.partitions}
        overridden = {
            name: entry.value
            for name, entry in configs.items()
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
        factor = len(replicas[0])
        if new_topic.replica_assignment is not None:
            assignment = {index: tuple(brokers) for index, brokers in new_topic.replica_assignment.items()}
            is_same = assignment == replicas
        else:
            is_same = new_topic.num_partitions in (wire.USE_DEFAULT, len(replicas)) and (
                new_topic.replication_factor in (wire.USE_DEFAULT, factor)
            )
        if not is_same or overridden != dict(new_topic.configs):
            return None
        return CreatedTopic(new_topic.name, info.topic_id, len(replicas), factor)

    async def _being_deleted(self, outcomes: Mapping[str, CreatedTopic | ApiError]) -> set[str]:
        """The topics that were refused because they exist, and that the controller's metadata has no more."""
        names = {name for name, error in outcomes.items() if isinstance(error, TopicAlreadyExistsError)}
        if not names:
            return names
        cluster = self._open()
        try:
            answer = await cluster.request(
                cluster.cache.controller_id, _about(names), timeout_ms=_POLL_TIMEOUT_MS
            )
        except BarnabasError:
            return set()
        return {
            topic.name
            for topic in answer.topics
            if topic.name in names and topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }

    async def delete_topics(self, names: Iterable[str] | str, *, timeout_ms: int | None = None) -> None:
        """Delete topics and wait until no broker's metadata has them. Raises as `create_topics`."""
        topic_names = several("names", names, str)
        states = [wire.DeleteTopicState(name=name) for name in topic_names]
        request = wire.DeleteTopicsRequest(topics=states, timeout_ms=self._timeout(timeout_ms))
        response, _, is_doubtful = await self._ask_controller(request, timeout_ms)
        outcomes: dict[str, ApiError | None] = {}
        deleted: dict[str, TopicId] = {}
        for result in response.responses:
            name = result.name or ""
            is_gone = is_doubtful and result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            outcomes[name] = None if is_gone else error_of(result, f"topic {name!r} was not deleted")
            if outcomes[name] is None:
                deleted[name] = TopicId(result.topic_id)
        await self._wait_until_everywhere(
            deleted,
            lambda name, topic: topic is None or topic.topic_id != deleted[name],
            self._timeout(timeout_ms),
        )
        raise_errors(outcomes, len(topic_names))

    async def create_partitions(
        self,
        topics: Mapping[str, int | NewPartitions],
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
    ) -> None:
        """Raise topics to these numbers of partitions, and wait until each partition has a leader.

        Keys then map to other partitions. Raises as `create_topics`.
        """
        check_mapping("topics", topics, "topics to numbers of partitions, such as {'orders': 6}")
        growth = {
            name: more if isinstance(more, NewPartitions) else NewPartitions(more)
            for name, more in topics.items()
        }
        request = wire.CreatePartitionsRequest(
            topics=[growing_topic(name, more) for name, more in growth.items()], validate_only=validate_only
        )
        response, _, is_doubtful = await self._ask_controller(request, timeout_ms)
        outcomes: dict[str, ApiError | None] = dict.fromkeys(growth)
        for result in response.results:
            name = result.name
            if is_doubtful and result.error_code == ErrorCode.INVALID_PARTITIONS:
                present = len((await self.describe_topics(name))[name].partitions)
                if present == growth[name].total_count:
                    continue
            outcomes[name] = error_of(result, f"no partitions were added to topic {name!r}")
        grown = {name: more.total_count for name, more in growth.items() if outcomes[name] is None}
        if not validate_only:
            await self._wait_until_everywhere(
                grown,
                lambda name, topic: topic is not None and len(topic.partitions) >= grown[name],
                self._timeout(timeout_ms),
            )
        raise_errors(outcomes, len(growth))

    async def _wait_until_everywhere(
        self,
        names: Collection[str],
        is_visible: Callable[[str, MetadataTopic | None], bool],
        timeout_ms: int,
    ) -> None:
        """Wait until the metadata of every broker has a change, so that later requests to any see it.

        ``is_visible`` gets the name of a topic, and the topic if the broker has it. The controller has
        answered already and the others learn of it within milliseconds. A broker that does not answer, or
        lacks the change at the deadline, is skipped, because the change is made all the same.
        """
        cluster, deadline = self._open(), time.monotonic() + timeout_ms / 1000
        for node_id in list(cluster.cache.nodes) if names else ():
            while (left_ms := int((deadline - time.monotonic()) * 1000)) > 0:
                try:
                    limit_ms = min(left_ms, _POLL_TIMEOUT_MS)
                    answer = await cluster.request(node_id, _about(names), timeout_ms=limit_ms)
                except BarnabasError:
                    break
                topics = {topic.name: topic for topic in answer.topics if topic.error_code == ErrorCode.NONE}
                if all(is_visible(name, topics.get(name)) for name in names):
                    break
                await asyncio.sleep(_POLL_S)

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        response = await self._metadata(None)
        return sorted(
            topic.name or "" for topic in response.topics if include_internal or not topic.is_internal
        )

    async def describe_topics(self, names: Iterable[str] | str | None = None) -> dict[str, TopicInfo]:
        """Partitions, leaders, replicas and ISRs by topic; None asks for all topics.

        Raises as `create_topics`; for an unknown topic the text names topics with similar names.
        """
        topic_names = None if names is None else several("names", names, str)
        return await self._topics_of(await self._metadata(topic_names), len(topic_names or ()))

    async def _topics_of(self, response: MetadataResponse, requested: int = 0) -> dict[str, TopicInfo]:
        outcomes: dict[str, Any] = {}
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                outcomes[name] = topic_info(topic)
            elif topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                hint = did_you_mean(name, await self.list_topics(include_internal=True), at_most=3)
                outcomes[name] = api_error(topic.error_code, f"there is no topic {name!r}{hint}")
            else:
                outcomes[name] = api_error(topic.error_code, f"topic {name!r}")
        raise_errors(outcomes, requested)
        return outcomes

    async def _metadata(self, topics: list[str] | None) -> MetadataResponse:
        return await self._open().ask_any(_about(topics))


def _about(topics: Iterable[str] | None) -> MetadataRequest:
    requested = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    return MetadataRequest(topics=requested, allow_auto_topic_creation=False)


def creatable_topic(topic: NewTopic) -> wire.CreatableTopic:
    check_mapping("configs", topic.configs, "settings to values")
    if topic.replica_assignment is not None:
        check_mapping("replica_assignment", topic.replica_assignment, "partitions to replicas")
    assignments = [
        wire.CreatableReplicaAssignment(
            partition_index=partition, broker_ids=several("replica_assignment", replicas, int)
        )
        for partition, replicas in (topic.replica_assignment or {}).items()
    ]
    return wire.CreatableTopic(
        name=topic.name,
        num_partitions=wire.USE_DEFAULT if assignments else topic.num_partitions,
        replication_factor=wire.USE_DEFAULT if assignments else topic.replication_factor,
        assignments=assignments,
        configs=[wire.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def growing_topic(name: str, more: NewPartitions) -> wire.CreatePartitionsTopic:
    assignments = None
    if more.assignments is not None:
        if not isinstance(more.assignments, list | tuple):
            raise TypeError(f"assignments={more.assignments!r}: expected a list of the replicas of each")
        assignments = [
            wire.CreatePartitionsAssignment(broker_ids=several("assignments", replicas, int))
            for replicas in more.assignments
        ]
    return wire.CreatePartitionsTopic(name=name, count=more.total_count, assignments=assignments)
