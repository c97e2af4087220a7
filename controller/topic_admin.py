"""`TopicAdmin`: creates topics, adds partitions and requests deletions, on the controller's broker.

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
from typing import Final, NamedTuple, TypeVar

from barnabas.controller.assignment import (
    MAX_PARTITIONS,
    added_partitions,
    assign_replicas,
    check_assignment,
)
from barnabas.controller.controller import Controller
from barnabas.protocol import schema
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId
from barnabas.protocol.messages import topics as wire
from barnabas.protocol.topic_names import metric_name, validate_topic_name
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.errors import as_api_errors
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.requests import retry_cas
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import ReplicaAssignment, TopicAssignment, random_uuid

log = logging.getLogger("barnabas.controller")

T = TypeVar("T")
N = TypeVar("N", wire.CreatableTopic, wire.CreatePartitionsTopic)
R = TypeVar("R")

_KRAFT_TOPIC: Final = "__cluster_metadata"
"""The log of Kafka's KRaft mode; Kafka refuses a topic with this name in every mode."""


Charge = Callable[[int], None]
"""Called with the number of partitions that are about to be created or deleted; raises ApiError to refuse."""


def free_of_charge(partitions: int) -> None:
    """For changes without a quota."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSettings:
    """The settings of a broker that concern the creation and deletion of topics."""

    num_partitions: int
    default_replication_factor: int
    delete_topic_enable: bool
    folds_case: bool = False
    """Whether the topics ``Orders`` and ``orders`` would have one folder."""

    def common_name(self, topic: str) -> str:
        """The same one for topics that may not exist beside each other."""
        name = metric_name(topic)
        return name.lower() if self.folds_case else name


class GrownTopic(NamedTuple):
    """The result of adding partitions to a topic, and the number of its partitions afterwards."""

    result: wire.CreatePartitionsTopicResult
    topic_id: TopicId = NO_TOPIC_ID
    num_partitions: int = -1


class _Topics(NamedTuple):
    """Topics as ZooKeeper has them, without those that do not exist."""

    assignments: Mapping[str, TopicAssignment | MalformedZnode]
    deleted: Collection[str]

    def added_by(self, topic: wire.CreatePartitionsTopic) -> int:
        """How many partitions the topic would get."""
        current = self.assignments.get(topic.name)
        return topic.count - len(current.partitions) if isinstance(current, TopicAssignment) else 0


class TopicAdmin:
    """`validate_config` raises ValueError for overrides that are unknown or out of range."""

    def __init__(
        self,
        store: ClusterStore,
        controller: Controller,
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
        self,
        topics: Sequence[wire.CreatableTopic],
        *,
        validate_only: bool = False,
        charge: Charge = free_of_charge,
    ) -> list[wire.CreatableTopicResult]:
        """One result per name, in order."""
        try:
            with as_api_errors():
                writer = self._controller.writer
                _check_sum(map(self._requested_partitions, topics))
                existing = set(self._store.topics())
                # Read last: a deletion removes its request last, so a topic in neither set is gone.
                deleted = set(self._store.deletion_requests())
        except ApiError as error:
            return _refused(topics, error, _not_created)

        common_name = self._settings.common_name
        by_common_name = {common_name(name): name for name in existing}

        def create(topic: wire.CreatableTopic) -> wire.CreatableTopicResult:
            _check_available(topic.name, existing, deleted)
            _check_collision(topic.name, by_common_name.get(common_name(topic.name)))
            result = self._create(topic, None if validate_only else writer, charge)
            by_common_name[common_name(topic.name)] = topic.name
            return result

        return _result_by_name(topics, create, _not_created)

    def create_partitions(
        self,
        topics: Sequence[wire.CreatePartitionsTopic],
        *,
        validate_only: bool = False,
        charge: Charge = free_of_charge,
    ) -> list[GrownTopic]:
        """One result per name, in order."""
        try:
            with as_api_errors():
                writer = self._controller.writer
                # Each topic takes a partition at least.
                _check_sum([len(topics)])
                state = self._read(topic.name for topic in topics)
                _check_sum(state.added_by(topic) for topic in topics)
        except ApiError as error:
            return _refused(topics, error, _not_grown)
        return _result_by_name(
            topics,
            lambda topic: self._grow(topic, None if validate_only else writer, state, charge),
            _not_grown,
        )

    def delete_topics(
        self, topics: Sequence[wire.DeleteTopicState], *, charge: Charge = free_of_charge
    ) -> list[wire.DeletableTopicResult]:
        """Request deletions; one result per name and per id, in order."""
        try:
            with as_api_errors():
                writer = self._controller.writer
                existing = self._store.topic_assignments(self._store.topics())
        except ApiError as error:
            return _refused(topics, error, _not_deleted)
        ids = {name: topic.topic_id for name, topic in existing.items() if isinstance(topic, TopicAssignment)}
        by_id = {topic_id: name for name, topic_id in ids.items() if topic_id != NO_TOPIC_ID}
        requested: dict[str, TopicId] = {}

        def delete(topic: wire.DeleteTopicState) -> wire.DeletableTopicResult:
            name = _name_of(topic, existing, by_id)
            if not self._settings.delete_topic_enable:
                raise api_error(ErrorCode.TOPIC_DELETION_DISABLED)
            topic_id = ids.get(name, NO_TOPIC_ID)
            # By name it is for any topic of the name; by id it must not delete one that is made in between.
            wanted = topic_id if TopicId(topic.topic_id) != NO_TOPIC_ID else NO_TOPIC_ID
            present = existing.get(name)
            charge(len(present.partitions) if isinstance(present, TopicAssignment) else 0)
            if not writer.request_deletion(name, wanted):
                if name not in requested:
                    requested.update(self._store.deletion_requests())
                earlier_id = requested.get(name, topic_id)
                if earlier_id not in (NO_TOPIC_ID, topic_id):
                    # The controller removes that request.
                    text = f"an earlier topic {name!r} is still being deleted, with the id {earlier_id}"
                    raise api_error(ErrorCode.REQUEST_TIMED_OUT, text)
            log.info("deletion of topic %s is requested", name)
            return wire.DeletableTopicResult(name=name, topic_id=topic_id, error_code=ErrorCode.NONE)

        named_once = {(topic.name, topic.topic_id): topic for topic in topics}
        return _results(named_once.values(), delete, _not_deleted)

    def count_partitions(self, topic: str) -> int | None:
        """How many partitions a topic has in ZooKeeper, None for no such topic; raises ApiError."""
        with as_api_errors():
            assignment = self._store.topic_assignments([topic]).get(topic)
        if isinstance(assignment, MalformedZnode):
            raise api_error(ErrorCode.UNKNOWN_SERVER_ERROR, str(assignment))
        return None if assignment is None else len(assignment.partitions)

    def _read(self, names: Iterable[str]) -> _Topics:
        """In ZooKeeper an illegal name could be the path of another node."""
        assignments = self._store.topic_assignments(name for name in names if _is_legal(name))
        return _Topics(assignments, self._store.deletion_requests())

    def _grow(
        self,
        topic: wire.CreatePartitionsTopic,
        writer: ControllerWriter | None,
        state: _Topics,
        charge: Charge,
    ) -> GrownTopic:
        try:
            validate_topic_name(topic.name)
        except ApiError as error:
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error.text) from None

        charged: list[int] = []

        def attempt() -> GrownTopic | None:
            nonlocal state
            current = state.assignments.get(topic.name)
            if current is None:
                raise api_error(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {topic.name!r} does not exist"
                )
            if isinstance(current, MalformedZnode):
                raise api_error(ErrorCode.UNKNOWN_SERVER_ERROR, str(current))
            if topic.name in state.deleted:
                raise api_error(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"the topic {topic.name!r} is being deleted"
                )
            assignments = (
                None
                if topic.assignments is None
                else [assignment.broker_ids for assignment in topic.assignments]
            )
            added = added_partitions(
                topic.name, current.partitions, topic.count, assignments, self._controller.live_racks
            )
            grown = replace(current, partitions={**current.partitions, **added})
            if writer is not None and not charged:
                charge(len(added))
                charged.append(len(added))
            if writer is None or writer.set_topic_assignment(topic.name, grown):
                if writer is not None:
                    shown = {index: list(assignment.replicas) for index, assignment in added.items()}
                    log.info("topic %s gets partitions %s", topic.name, shown)
                result = wire.CreatePartitionsTopicResult(name=topic.name, error_code=ErrorCode.NONE)
                return GrownTopic(result, current.topic_id, len(grown.partitions))
            state = self._read([topic.name])
            return None

        return retry_cas(attempt, f"topic {topic.name!r} is changed by others again and again")

    def _create(
        self, topic: wire.CreatableTopic, writer: ControllerWriter | None, charge: Charge
    ) -> wire.CreatableTopicResult:
        config = {setting.name: setting.value for setting in topic.configs}
        if any(value is None for value in config.values()):
            nulls = sorted(name for name, value in config.items() if value is None)
            raise api_error(ErrorCode.INVALID_CONFIG, f"no value for {', '.join(nulls)}")
        try:
            self._validate_config(config)
        except ValueError as error:
            raise api_error(ErrorCode.INVALID_CONFIG, str(error)) from error
        partitions = self._assign(topic)
        result = wire.CreatableTopicResult(
            name=topic.name,
            error_code=ErrorCode.NONE,
            num_partitions=len(partitions),
            replication_factor=len(partitions[0].replicas),
        )
        overrides = {name: value for name, value in config.items() if value is not None}
        if writer is None:
            return result
        charge(len(partitions))
        assignment = TopicAssignment(topic_id=TopicId(random_uuid()), partitions=partitions)
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
        return schema.replace(result, topic_id=assignment.topic_id)

    def _requested_partitions(self, topic: wire.CreatableTopic) -> int:
        if topic.assignments:
            return len(topic.assignments)
        count = topic.num_partitions
        return self._settings.num_partitions if count == wire.USE_DEFAULT else count

    def _assign(self, topic: wire.CreatableTopic) -> dict[int, ReplicaAssignment]:
        live = self._controller.live_racks
        if topic.assignments:
            if topic.num_partitions != wire.USE_DEFAULT or topic.replication_factor != wire.USE_DEFAULT:
                raise api_error(
                    ErrorCode.INVALID_REQUEST,
                    f"topic {topic.name!r} has an assignment; then partitions and replication factor are -1, "
                    f"not {topic.num_partitions} and {topic.replication_factor}",
                )
            counts = Counter(assignment.partition_index for assignment in topic.assignments)
            doubled = sorted(partition for partition, count in counts.items() if count > 1)
            if doubled:
                raise api_error(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"topic {topic.name!r} has more than one assignment of partitions {doubled}",
                )
            return check_assignment(
                {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments}, live
            )
        factor = topic.replication_factor
        if factor == wire.USE_DEFAULT:
            factor = self._settings.default_replication_factor
        count = max(1, len(live))
        return assign_replicas(
            live,
            self._requested_partitions(topic),
            factor,
            start_index=self._rng.randrange(count),
            start_shift=self._rng.randrange(count),
        )


def _refused(
    topics: Iterable[T], error: ApiError, refuse: Callable[[T, ErrorCode, str | None], R]
) -> list[R]:
    texts = ErrorTexts()
    return [refuse(topic, error.code, texts.of(error)) for topic in topics]


def _results(
    topics: Iterable[T], act: Callable[[T], R], refuse: Callable[[T, ErrorCode, str | None], R]
) -> list[R]:
    """One result per topic, in order; an error concerns one topic alone."""
    results = []
    texts = ErrorTexts()
    for topic in topics:
        try:
            with as_api_errors():
                results.append(act(topic))
        except ApiError as error:
            results.append(refuse(topic, error.code, texts.of(error)))
    return results


def _result_by_name(
    topics: Sequence[N], act: Callable[[N], R], refuse: Callable[[N, ErrorCode, str | None], R]
) -> list[R]:
    """`_results`, but one for each name; a name that occurs twice is refused."""
    counts = Counter(topic.name for topic in topics)

    def act_once(topic: N) -> R:
        if counts[topic.name] > 1:
            raise api_error(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is named twice in one request")
        return act(topic)

    return _results({topic.name: topic for topic in topics}.values(), act_once, refuse)


def _check_sum(counts: Iterable[int]) -> None:
    """Raises POLICY_VIOLATION if a request asks for too many partitions, as Kafka does in KRaft mode.

    An impossible number does not count: its topic is refused alone.
    """
    total = sum(count if 0 < count <= MAX_PARTITIONS else 1 for count in counts)
    if total > MAX_PARTITIONS:
        text = (
            f"the request asks for {total} partitions; one request may ask for {MAX_PARTITIONS} in all topics"
        )
        raise api_error(ErrorCode.POLICY_VIOLATION, text)


def _is_legal(name: str) -> bool:
    try:
        validate_topic_name(name)
    except ApiError:
        return False
    return True


def _check_available(name: str, existing: Collection[str], deleted: Collection[str]) -> None:
    validate_topic_name(name)
    if name == _KRAFT_TOPIC:
        raise api_error(ErrorCode.INVALID_REQUEST, f"the name {name} is reserved for Kafka")
    if name in deleted:
        raise api_error(
            ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists: it is still being deleted"
        )
    if name in existing:
        raise api_error(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")


def _check_collision(name: str, other: str | None) -> None:
    if other is None:
        return
    rule = "names may not differ in '.' and '_' alone"
    if metric_name(name) != metric_name(other):
        rule = "the file system of the log dirs takes upper and lower case for the same"
    raise api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} collides with {other!r}: {rule}")


def _name_of(
    topic: wire.DeleteTopicState, existing: Mapping[str, object], by_id: Mapping[TopicId, str]
) -> str:
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


def _not_created(topic: wire.CreatableTopic, code: ErrorCode, text: str | None) -> wire.CreatableTopicResult:
    return wire.CreatableTopicResult(name=topic.name, error_code=code, error_message=text)


def _not_grown(topic: wire.CreatePartitionsTopic, code: ErrorCode, text: str | None) -> GrownTopic:
    return GrownTopic(wire.CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=text))


def _not_deleted(
    topic: wire.DeleteTopicState, code: ErrorCode, text: str | None
) -> wire.DeletableTopicResult:
    return wire.DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=text
    )
