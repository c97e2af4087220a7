"""The admin client: topics, offsets, groups and the state of the cluster.

Requests that change something go to the controller and follow it when it moves. A request whose answer was
lost is retried; if the change is already made (a topic exists exactly as requested, or is gone), the call
succeeds.

An admin client belongs to the event loop that it was started on.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from barnabas.client.admin.configs import (
    Append,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    Subtract,
    alter_configs,
    describe_configs,
)
from barnabas.client.admin.controller_calls import ask_controller, broker_timeout_ms
from barnabas.client.admin.groups import AdminGroups, GroupDescription, GroupListing, MemberDescription
from barnabas.client.cluster import Cluster, ClusterOwner
from barnabas.client.config import AdminConfig
from barnabas.client.errors import ClientClosed, TopicErrors
from barnabas.client.metadata import Node, TopicInfo, nodes_of, topic_info
from barnabas.client.offsets import ListedOffset, OffsetSpec, list_offsets
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from barnabas.protocol.messages.configs import ConfigSource
from barnabas.protocol.messages.describe_replicas import DescribeReplicasRequest, ReplicaDescription
from barnabas.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from barnabas.protocol.messages.partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from barnabas.protocol.messages.topics import (
    USE_DEFAULT,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from barnabas.protocol.suggestions import did_you_mean

__all__ = [
    "Admin",
    "Append",
    "BrokerReplicas",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "CreatedTopic",
    "GroupDescription",
    "GroupListing",
    "MemberDescription",
    "NewPartitions",
    "NewTopic",
    "Subtract",
]


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


class ClusterDescription(NamedTuple):
    """``controller_id`` is -1 while there is no controller."""

    cluster_id: str | None
    controller_id: BrokerId
    nodes: list[Node]


class BrokerReplicas(NamedTuple):
    """The replicas of a broker, by partition, or the error of the request."""

    node: Node
    replicas: dict[TopicPartition, ReplicaDescription]
    error: BarnabasError | None


_KNOWN_POLL_S: Final = 0.01
_KNOWN_TIMEOUT_MS: Final = 2_000


class Admin(ClusterOwner, AdminGroups):
    """Settings as in `AdminConfig`, by name or as one ``config``; see the module."""

    def __init__(self, config: AdminConfig | None = None, **settings: Any) -> None:
        self.config = config if config is not None else AdminConfig.of(settings)

    async def start(self) -> None:
        """Reach the cluster. Raises NoBrokerReachable naming every server that was tried."""
        if self._cluster is not None:
            raise ClientClosed("an admin client can be started only once")
        self._cluster = Cluster(self.config)
        try:
            await self._cluster.start()
        except BaseException:
            self._cluster.close()
            raise

    async def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def create_topics(
        self,
        topics: Iterable[NewTopic] | NewTopic,
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
    ) -> dict[str, CreatedTopic]:
        """Create topics and wait until each partition has a leader that every reachable broker reports.

        Raises the topic's own error for a single topic, and TopicErrors if some of several topics failed.
        """
        wanted = [topics] if isinstance(topics, NewTopic) else list(topics)
        timeout_ms = self._timeout(timeout_ms)
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in wanted],
            timeout_ms=broker_timeout_ms(timeout_ms, self.config.request_timeout_ms),
            validate_only=validate_only,
        )
        response, is_doubtful = await ask_controller(
            self._open(), request, lambda answer: [result.error_code for result in answer.topics], timeout_ms
        )
        by_name = {topic.name: topic for topic in wanted}
        errors: dict[str, ApiError] = {}
        created: dict[str, CreatedTopic] = {}
        for result in response.topics:
            if result.error_code == ErrorCode.NONE:
                created[result.name] = CreatedTopic(
                    result.name, TopicId(result.topic_id), result.num_partitions, result.replication_factor
                )
                continue
            if is_doubtful and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                found = await self._created_before(by_name[result.name])
                if found is not None:
                    created[result.name] = found
                    continue
            text = result.error_message or f"topic {result.name!r} was not created"
            errors[result.name] = api_error(result.error_code, text)
        if created and not validate_only:
            await self._wait_until_everybody(
                created,
                lambda known: all(
                    name in known and known[name].topic_id == topic.topic_id
                    for name, topic in created.items()
                ),
                time.monotonic() + timeout_ms / 1000,
            )
        _raise_errors(errors, created, len(wanted))
        return created

    async def _created_before(self, wanted: NewTopic) -> CreatedTopic | None:
        """The existing topic, if an attempt whose answer was lost may have created it."""
        resource = ConfigResource.topic(wanted.name)
        try:
            info = (await self.describe_topics(wanted.name))[wanted.name]
            configs = (await self.describe_configs(resource))[resource]
        except ApiError:
            return None
        replicas = {one.partition: one.replicas for one in info.partitions}
        overridden = {
            name: entry.value
            for name, entry in configs.items()
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
        factor = len(replicas[0])
        if wanted.replica_assignment is not None:
            given = {index: tuple(brokers) for index, brokers in wanted.replica_assignment.items()}
            is_same = given == replicas
        else:
            is_same = wanted.num_partitions in (USE_DEFAULT, len(replicas)) and (
                wanted.replication_factor in (USE_DEFAULT, factor)
            )
        if not is_same or overridden != dict(wanted.configs):
            return None
        return CreatedTopic(wanted.name, info.topic_id, len(replicas), factor)

    async def _wait_until_everybody(
        self, names: Iterable[str], knows: Callable[[Mapping[str, MetadataTopic]], bool], deadline: float
    ) -> None:
        """Wait until every broker's metadata has a change, so that later requests to any broker see it.

        ``knows`` gets those of the topics that a broker has. The controller has answered already; it updates
        the others within milliseconds. A broker that does not answer, or lacks the change at the deadline, is
        skipped, because the change is made all the same.
        """
        cluster = self._open()
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        for node_id in list(cluster.nodes):
            while (left_ms := int((deadline - time.monotonic()) * 1000)) > 0:
                try:
                    answer = await cluster.request(
                        node_id, request, timeout_ms=min(left_ms, _KNOWN_TIMEOUT_MS)
                    )
                except BarnabasError:
                    break
                if knows({one.name or "": one for one in answer.topics if one.error_code == ErrorCode.NONE}):
                    break
                await asyncio.sleep(_KNOWN_POLL_S)

    async def delete_topics(self, names: Iterable[str] | str, *, timeout_ms: int | None = None) -> None:
        """Delete topics and wait until they are gone from all metadata. Raises as `create_topics`."""
        wanted = [names] if isinstance(names, str) else list(names)
        timeout_ms = self._timeout(timeout_ms)
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in wanted],
            timeout_ms=broker_timeout_ms(timeout_ms, self.config.request_timeout_ms),
        )
        response, is_doubtful = await ask_controller(
            self._open(),
            request,
            lambda answer: [result.error_code for result in answer.responses],
            timeout_ms,
        )
        errors = {}
        deleted: dict[str, uuid.UUID] = {}
        for result in response.responses:
            is_gone = result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if result.error_code != ErrorCode.NONE and not (is_gone and is_doubtful):
                text = result.error_message or f"topic {result.name!r} was not deleted"
                errors[result.name or ""] = api_error(result.error_code, text)
            else:
                deleted[result.name or ""] = result.topic_id
        if deleted:
            await self._wait_until_everybody(
                deleted,
                lambda known: (
                    not any(
                        name in known and known[name].topic_id == topic_id
                        for name, topic_id in deleted.items()
                    )
                ),
                time.monotonic() + timeout_ms / 1000,
            )
        _raise_errors(errors, {name: None for name in wanted if name not in errors}, len(wanted))

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
        wanted = {
            name: more if isinstance(more, NewPartitions) else NewPartitions(more)
            for name, more in topics.items()
        }
        timeout_ms = self._timeout(timeout_ms)
        request = CreatePartitionsRequest(
            topics=[_growing(name, more) for name, more in wanted.items()],
            timeout_ms=broker_timeout_ms(timeout_ms, self.config.request_timeout_ms),
            validate_only=validate_only,
        )
        response, is_doubtful = await ask_controller(
            self._open(), request, lambda answer: [result.error_code for result in answer.results], timeout_ms
        )
        errors = {}
        for result in response.results:
            if result.error_code == ErrorCode.NONE:
                continue
            if is_doubtful and result.error_code == ErrorCode.INVALID_PARTITIONS:
                info = (await self.describe_topics(result.name))[result.name]
                if len(info.partitions) == wanted[result.name].total_count:
                    continue
            text = result.error_message or f"topic {result.name!r} got no partitions"
            errors[result.name] = api_error(result.error_code, text)
        grown = {name: more.total_count for name, more in wanted.items() if name not in errors}
        if grown and not validate_only:
            await self._wait_until_everybody(
                grown,
                lambda known: all(
                    name in known and len(known[name].partitions) >= count for name, count in grown.items()
                ),
                time.monotonic() + timeout_ms / 1000,
            )
        _raise_errors(errors, {name: None for name in wanted if name not in errors}, len(wanted))

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource] | ConfigResource,
        names: Iterable[str] | None = None,
        *,
        include_documentation: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """The settings of topics and brokers, all or the named ones, by resource and name.

        Raises a resource's own error for a single resource, and TopicErrors if some of several failed.
        """
        wanted = [resources] if isinstance(resources, ConfigResource) else list(resources)
        found, errors = await describe_configs(
            self._open(),
            wanted,
            names,
            documentation=include_documentation,
            timeout_ms=self._timeout(timeout_ms),
        )
        named = {str(resource): entries for resource, entries in found.items()}
        _raise_errors({str(resource): error for resource, error in errors.items()}, named, len(wanted))
        return found

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, ConfigChange]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Change settings one by one: a new value, None for the default, `Append` or `Subtract` for lists.

        The settings of one resource change together or not at all. Raises as `describe_configs`.
        """
        errors = await alter_configs(
            self._open(), changes, validate_only=validate_only, timeout_ms=self._timeout(timeout_ms)
        )
        done = {str(resource): None for resource in changes if resource not in errors}
        _raise_errors({str(resource): error for resource, error in errors.items()}, done, len(changes))

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
        wanted = [names] if isinstance(names, str) else None if names is None else list(names)
        response = await self._metadata(wanted)
        errors: dict[str, ApiError] = {}
        found: dict[str, TopicInfo] = {}
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                found[name] = topic_info(topic)
            elif topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                hint = did_you_mean(name, await self.list_topics(include_internal=True), at_most=3)
                errors[name] = api_error(topic.error_code, f"there is no topic {name!r}{hint}")
            else:
                errors[name] = api_error(topic.error_code, f"topic {name!r}")
        _raise_errors(errors, found, len(wanted or ()))
        return found

    async def describe_cluster(self) -> ClusterDescription:
        response = await self._metadata([])
        return ClusterDescription(
            response.cluster_id,
            BrokerId(response.controller_id),
            sorted(nodes_of(response).values()),
        )

    async def list_offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset of each partition: ``earliest``, ``latest`` (the high watermark), or by time in ms."""
        keyed = {TopicPartition(*tp): spec for tp, spec in specs.items()}
        return await list_offsets(self._open(), keyed, self._timeout(timeout_ms))

    async def describe_replicas(self, topics: Iterable[str] | None = None) -> list[BrokerReplicas]:
        """The replicas of every live broker: leader, ISR, high watermark, log end, size."""
        cluster = self._open()
        await cluster.refresh()
        names = None if topics is None else list(topics)
        found = []
        for node in sorted(cluster.nodes.values()):
            replicas: dict[TopicPartition, ReplicaDescription] = {}
            error: BarnabasError | None = None
            try:
                response = await cluster.request(node.node_id, DescribeReplicasRequest(topics=names))
                if response.error_code != ErrorCode.NONE:
                    error = api_error(response.error_code, f"broker {node.node_id}")
                for topic in response.topics:
                    for replica in topic.replicas:
                        replicas[TopicPartition(topic.topic_name, replica.partition_index)] = replica
            except BarnabasError as failure:
                error = failure
            found.append(BrokerReplicas(node, replicas, error))
        return found

    async def _metadata(self, topics: list[str] | None) -> MetadataResponse:
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        return await self._open().ask_any(MetadataRequest(topics=asked, allow_auto_topic_creation=False))

    def _timeout(self, timeout_ms: int | None) -> int:
        return self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms

    def _open(self) -> Cluster:
        if self._cluster is None:
            raise ClientClosed("the admin client is not started; use `async with Admin(…)`")
        return self._cluster


def _creatable(topic: NewTopic) -> CreatableTopic:
    assignments = [
        CreatableReplicaAssignment(partition_index=partition, broker_ids=list(replicas))
        for partition, replicas in (topic.replica_assignment or {}).items()
    ]
    return CreatableTopic(
        name=topic.name,
        num_partitions=USE_DEFAULT if assignments else topic.num_partitions,
        replication_factor=USE_DEFAULT if assignments else topic.replication_factor,
        assignments=assignments,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _growing(name: str, more: NewPartitions) -> CreatePartitionsTopic:
    assignments = None
    if more.assignments is not None:
        assignments = [CreatePartitionsAssignment(broker_ids=list(replicas)) for replicas in more.assignments]
    return CreatePartitionsTopic(name=name, count=more.total_count, assignments=assignments)


def _raise_errors(errors: dict[str, ApiError], results: Mapping[str, object], asked: int) -> None:
    if errors and asked == 1:
        raise next(iter(errors.values()))
    if errors:
        raise TopicErrors(errors, results)
