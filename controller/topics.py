"""`TopicAdmin`: creates topics, adds partitions and asks for deletions, on the controller's broker.

It validates and writes to ZooKeeper, fenced by the controller's epoch. The controller does the rest (leaders,
replicas, files), triggered by its watches. A result is returned when the write has been made, not when every
partition has a leader. Any thread; blocks for a few round trips to ZooKeeper.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from barnabas.controller.assignment import added_partitions, assign_replicas, check_assignment
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerId, TopicId
from barnabas.protocol.messages.partitions import CreatePartitionsTopic
from barnabas.protocol.messages.topics import USE_DEFAULT, CreatableTopic, DeleteTopicState
from barnabas.protocol.topic_names import metric_name, validate_topic_name
from barnabas.zookeeper.controller_writer import ControllerMoved
from barnabas.zookeeper.session import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.znodes import MalformedZnode, TopicAssignment, random_uuid

log = logging.getLogger("barnabas.controller")

_GROWTH_ROUNDS: Final = 10
_KRAFT_TOPIC: Final = "__cluster_metadata"
"""The log of Kafka's KRaft mode; Kafka lets nobody make a topic of that name in any mode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSettings:
    """What of a broker's settings concerns the making of topics."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicResult:
    """What became of one topic of a request; counts are -1 when nothing was or would be created."""

    name: str | None
    topic_id: TopicId = NO_TOPIC_ID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    num_partitions: int = -1
    replication_factor: int = -1


class TopicStore(Protocol):
    """What is read; `ClusterStore` is one."""

    def topics(self) -> list[str]: ...

    def topic_assignments(self, topics: Iterable[str]) -> dict[str, TopicAssignment | MalformedZnode]: ...

    def deletion_requests(self) -> list[str]: ...


class TopicWriter(Protocol):
    """What is written; `ControllerWriter` is one."""

    def create_topic(self, name: str, topic: TopicAssignment, config: Mapping[str, str]) -> bool: ...

    def grow_topic(self, name: str, topic: TopicAssignment) -> bool: ...

    def request_deletion(self, topic: str) -> bool: ...


class ActiveController(Protocol):
    """Both raise NOT_CONTROLLER on a broker that is not the controller; `Controller` is one."""

    @property
    def live_brokers(self) -> tuple[BrokerId, ...]: ...

    @property
    def writer(self) -> TopicWriter: ...


class TopicAdmin:
    """See the module. `validate_config` raises ValueError for overrides that are unknown or out of range."""

    def __init__(
        self,
        store: TopicStore,
        controller: ActiveController,
        *,
        settings: TopicSettings,
        validate_config: Callable[[Mapping[str, str | None]], object],
        rng: random.Random | None = None,
    ) -> None:
        self._store = store
        self._controller = controller
        self._settings = settings
        self._validate_config = validate_config
        self._rng = rng or random.Random()

    def create_topics(
        self, topics: Sequence[CreatableTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """One result per name, in order.

        Raises NOT_CONTROLLER when we are not the controller, and REQUEST_TIMED_OUT when ZooKeeper cannot be
        reached; when that happens on the way, the topics that were made before are told apart from the rest.
        """
        with _zookeeper_trouble():
            writer = self._controller.writer
            existing = set(self._store.topics())
            # Read last: of a topic's nodes the request to delete it goes last, so what is in neither is gone.
            leaving = set(self._store.deletion_requests())
        counts = Counter(topic.name for topic in topics)
        results = []
        for topic in {topic.name: topic for topic in topics}.values():
            try:
                with _zookeeper_trouble():
                    _check_named_once(topic.name, counts)
                    _check_not_taken(topic.name, existing, leaving)
                    result = self._create(topic, None if validate_only else writer)
            except ApiError as error:
                results.append(_failed(topic.name, error))
            else:
                existing.add(topic.name)
                results.append(result)
        return results

    def create_partitions(
        self, topics: Sequence[CreatePartitionsTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """One result per topic, with the number of partitions that it then has. Raises as `create_topics`."""
        with _zookeeper_trouble():
            writer = self._controller.writer
        counts = Counter(topic.name for topic in topics)
        results = []
        for topic in {topic.name: topic for topic in topics}.values():
            try:
                with _zookeeper_trouble():
                    _check_named_once(topic.name, counts)
                    results.append(self._grow(topic, None if validate_only else writer))
            except ApiError as error:
                results.append(_failed(topic.name, error))
        return results

    def delete_topics(self, topics: Sequence[DeleteTopicState]) -> list[TopicResult]:
        """One result per topic, named by name or by id. Raises as `create_topics` does."""
        with _zookeeper_trouble():
            writer = self._controller.writer
            existing = self._store.topic_assignments(self._store.topics())
            ids = {
                name: found.topic_id for name, found in existing.items() if isinstance(found, TopicAssignment)
            }
        by_id = {topic_id: name for name, topic_id in ids.items() if topic_id != NO_TOPIC_ID}
        results = []
        for topic in topics:
            try:
                with _zookeeper_trouble():
                    name = _name_of(topic, existing, by_id)
                    if not self._settings.delete_topic_enable:
                        raise api_error(ErrorCode.TOPIC_DELETION_DISABLED)
                    writer.request_deletion(name)
            except ApiError as error:
                results.append(_failed(topic.name, error, TopicId(topic.topic_id)))
            else:
                log.info("deletion of topic %s is asked for", name)
                results.append(TopicResult(name=name, topic_id=ids.get(name, NO_TOPIC_ID)))
        return results

    def _grow(self, topic: CreatePartitionsTopic, writer: TopicWriter | None) -> TopicResult:
        try:
            validate_topic_name(topic.name)
        except ApiError as error:
            # No topic, though in ZooKeeper it could be the path of something else.
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error.text) from None
        for _ in range(_GROWTH_ROUNDS):
            current = self._store.topic_assignments([topic.name]).get(topic.name)
            if current is None:
                raise api_error(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {topic.name!r} does not exist"
                )
            if isinstance(current, MalformedZnode):
                raise api_error(ErrorCode.UNKNOWN_SERVER_ERROR, str(current))
            if topic.name in self._store.deletion_requests():
                raise api_error(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"the topic {topic.name!r} is being deleted"
                )
            assignments = None if topic.assignments is None else [one.broker_ids for one in topic.assignments]
            added = added_partitions(
                topic.name, current.replicas, topic.count, assignments, self._controller.live_brokers
            )
            grown = replace(current, replicas={**current.replicas, **added})
            if writer is None or writer.grow_topic(topic.name, grown):
                if writer is not None:
                    log.info("topic %s gets partitions %s", topic.name, added)
                return TopicResult(
                    name=topic.name, topic_id=current.topic_id, num_partitions=len(grown.replicas)
                )
        raise api_error(
            ErrorCode.REQUEST_TIMED_OUT, f"topic {topic.name!r} is changed by others again and again"
        )

    def _create(self, topic: CreatableTopic, writer: TopicWriter | None) -> TopicResult:
        config = {one.name: one.value for one in topic.configs}
        if any(value is None for value in config.values()):
            nulls = sorted(name for name, value in config.items() if value is None)
            raise api_error(ErrorCode.INVALID_CONFIG, f"no value for {', '.join(nulls)}")
        try:
            self._validate_config(config)
        except ValueError as error:
            raise api_error(ErrorCode.INVALID_CONFIG, str(error)) from error
        replicas = self._assign(topic)
        result = TopicResult(
            name=topic.name, num_partitions=len(replicas), replication_factor=len(replicas[0])
        )
        if writer is None:
            return result
        assignment = TopicAssignment(topic_id=TopicId(random_uuid()), replicas=replicas)
        overrides = {name: value for name, value in config.items() if value is not None}
        if not writer.create_topic(topic.name, assignment, overrides):
            raise api_error(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} already exists")
        log.info(
            "created topic %s (id %s) with %d partitions, replication factor %d, overrides %s",
            topic.name,
            assignment.topic_id,
            result.num_partitions,
            result.replication_factor,
            overrides,
        )
        return replace(result, topic_id=assignment.topic_id)

    def _assign(self, topic: CreatableTopic) -> dict[int, tuple[BrokerId, ...]]:
        live = self._controller.live_brokers
        if topic.assignments:
            if topic.num_partitions != USE_DEFAULT or topic.replication_factor != USE_DEFAULT:
                raise api_error(
                    ErrorCode.INVALID_REQUEST,
                    f"topic {topic.name!r} has an assignment; then partitions and replication factor are -1, "
                    f"not {topic.num_partitions} and {topic.replication_factor}",
                )
            counts = Counter(one.partition_index for one in topic.assignments)
            doubled = sorted(partition for partition, count in counts.items() if count > 1)
            if doubled:
                raise api_error(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"topic {topic.name!r} has more than one assignment of partitions {doubled}",
                )
            return check_assignment({one.partition_index: one.broker_ids for one in topic.assignments}, live)
        partitions, factor = topic.num_partitions, topic.replication_factor
        if partitions == USE_DEFAULT:
            partitions = self._settings.num_partitions
        if factor == USE_DEFAULT:
            factor = self._settings.default_replication_factor
        count = max(1, len(live))
        return assign_replicas(
            live,
            partitions,
            factor,
            start_index=self._rng.randrange(count),
            start_shift=self._rng.randrange(count),
        )


def _check_named_once(name: str, counts: Mapping[str, int]) -> None:
    if counts[name] > 1:
        raise api_error(ErrorCode.INVALID_REQUEST, f"topic {name!r} is named twice in one request")


def _check_not_taken(name: str, existing: Collection[str], leaving: Collection[str]) -> None:
    validate_topic_name(name)
    if name == _KRAFT_TOPIC:
        raise api_error(ErrorCode.INVALID_REQUEST, f"the name {name} is kept for Kafka's own use")
    if name in leaving:
        raise api_error(
            ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists: it is still being deleted"
        )
    if name in existing:
        raise api_error(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
    for other in existing:
        if metric_name(other) == metric_name(name):
            raise api_error(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} collides with {other!r}: names may not differ in '.' and '_' alone",
            )


def _name_of(topic: DeleteTopicState, existing: Mapping[str, object], by_id: Mapping[TopicId, str]) -> str:
    topic_id = TopicId(topic.topic_id)
    if topic_id != NO_TOPIC_ID:
        if topic.name:
            raise api_error(
                ErrorCode.INVALID_REQUEST, f"expected a name or an id, not both {topic.name!r} and {topic_id}"
            )
        if topic_id not in by_id:
            raise api_error(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        return by_id[topic_id]
    if not topic.name or topic.name not in existing:
        raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic is called {topic.name!r}")
    return topic.name


def _failed(name: str | None, error: ApiError, topic_id: TopicId = NO_TOPIC_ID) -> TopicResult:
    return TopicResult(name=name, topic_id=topic_id, error=error.code, message=error.text)


class _zookeeper_trouble:
    """Turns what ZooKeeper's absence or a newer controller raises into errors that a client understands."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ControllerMoved):
            raise api_error(ErrorCode.NOT_CONTROLLER, str(error)) from error
        if isinstance(error, ZooKeeperUnavailable | SessionLost):
            raise api_error(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
