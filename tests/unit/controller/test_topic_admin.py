from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from barnabas.controller.topic_admin import TopicAdmin, TopicSettings
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerId
from barnabas.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsTopic,
    DeleteTopicState,
)
from barnabas.protocol.topic_names import validate_topic_name
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.errors import ControllerMoved, ZooKeeperUnavailable
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import TopicAssignment
from tests.support.controller_fakes import Znodes, assigned


class Active:
    """A controller that is active until it is deposed."""

    def __init__(self, writer: ControllerWriter) -> None:
        self._writer = writer
        self.live = (BrokerId(1), BrokerId(2), BrokerId(3))
        self.is_active = True

    @property
    def live_brokers(self) -> tuple[BrokerId, ...]:
        return self.live

    @property
    def writer(self) -> ControllerWriter:
        if not self.is_active:
            raise api_error(ErrorCode.NOT_CONTROLLER)
        return self._writer


class Desk:
    def __init__(self, **settings: object) -> None:
        self.zookeeper = Znodes()
        store = self.zookeeper.open_store()
        self.controller = Active(self.zookeeper.become_controller(store))
        self.admin = TopicAdmin(
            store,
            self.controller,
            settings=TopicSettings(
                **{"num_partitions": 1, "default_replication_factor": 1, "delete_topic_enable": True}
                | settings
            ),
            validate_config=self.validate,
            rng=random.Random(1),
        )

    @staticmethod
    def validate(config: Mapping[str, str | None]) -> None:
        if "nosuch" in config:
            raise ValueError("unknown topic setting nosuch")

    def create(self, *topics: CreatableTopic, validate_only: bool = False) -> list[tuple[ErrorCode, str]]:
        results = self.admin.create_topics(topics, validate_only=validate_only)
        return [(result.error_code, result.error_message or "") for result in results]


def refusal(found: list[tuple[ErrorCode, str]], code: ErrorCode, text: str) -> None:
    [(error, message)] = found
    assert error == code
    assert text in message


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_topic_is_written_with_its_replicas_and_overrides(desk: Desk) -> None:
    config = [CreatableTopicConfig(name="min.insync.replicas", value="2")]
    [result] = desk.admin.create_topics(
        [CreatableTopic(name="t", num_partitions=6, replication_factor=3, configs=config)]
    )
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 6, 3)
    written = desk.zookeeper.assignments["t"]
    assert isinstance(written, TopicAssignment)
    assert written.topic_id == result.topic_id != NO_TOPIC_ID
    assert sorted(assignment.replicas[0] for assignment in written.partitions.values()) == [1, 1, 2, 2, 3, 3]
    assert desk.zookeeper.configs["t"].values == {"min.insync.replicas": "2"}


def test_numbers_left_open_are_the_brokers_defaults() -> None:
    desk = Desk(num_partitions=4, default_replication_factor=2)
    [result] = desk.admin.create_topics([CreatableTopic(name="t")])
    assert (result.num_partitions, result.replication_factor) == (4, 2)


def test_an_assignment_by_hand_is_kept(desk: Desk) -> None:
    by_hand = [CreatableReplicaAssignment(partition_index=0, broker_ids=[3, 1])]
    assert desk.create(CreatableTopic(name="t", assignments=by_hand)) == [(ErrorCode.NONE, "")]
    written = desk.zookeeper.assignments["t"]
    assert isinstance(written, TopicAssignment)
    assert written.partitions == {0: assigned(3, 1)}


def test_validation_alone_writes_nothing(desk: Desk) -> None:
    [result] = desk.admin.create_topics([CreatableTopic(name="t")], validate_only=True)
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 1, 1)
    assert result.topic_id == NO_TOPIC_ID
    assert desk.zookeeper.assignments == {}


@pytest.mark.parametrize(
    ("topic", "code", "text"),
    [
        (CreatableTopic(name="a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "'a b' is invalid: it may hold only"),
        (CreatableTopic(name="t", num_partitions=0), ErrorCode.INVALID_PARTITIONS, "0 partitions"),
        (
            CreatableTopic(name="t", replication_factor=4),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "4 is larger than the number of live brokers, 3",
        ),
        (
            CreatableTopic(name="t", configs=[CreatableTopicConfig(name="nosuch", value="1")]),
            ErrorCode.INVALID_CONFIG,
            "unknown topic setting nosuch",
        ),
        (
            CreatableTopic(name="t", configs=[CreatableTopicConfig(name="retention.ms", value=None)]),
            ErrorCode.INVALID_CONFIG,
            "no value for retention.ms",
        ),
        (
            CreatableTopic(
                name="t",
                num_partitions=2,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
            ),
            ErrorCode.INVALID_REQUEST,
            "has an assignment",
        ),
        (
            CreatableTopic(
                name="t", assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[9])]
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "are not alive",
        ),
        (
            CreatableTopic(
                name="t",
                assignments=[
                    CreatableReplicaAssignment(partition_index=0, broker_ids=[broker]) for broker in (1, 2)
                ],
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "more than one assignment of partitions [0]",
        ),
        (CreatableTopic(name="__cluster_metadata"), ErrorCode.INVALID_REQUEST, "__cluster_metadata"),
    ],
)
def test_a_bad_topic_is_refused_by_name(
    topic: CreatableTopic, code: ErrorCode, text: str, desk: Desk
) -> None:
    refusal(desk.create(topic), code, text)
    assert desk.zookeeper.assignments == {}


def test_one_bad_topic_keeps_no_other_back(desk: Desk) -> None:
    found = desk.create(CreatableTopic(name=".."), CreatableTopic(name="good"))
    assert [error for error, _ in found] == [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]


def test_a_topic_that_exists_is_refused_and_one_being_deleted_says_so(desk: Desk) -> None:
    desk.create(CreatableTopic(name="t"))
    refusal(desk.create(CreatableTopic(name="t")), ErrorCode.TOPIC_ALREADY_EXISTS, "already exists")
    desk.admin.delete_topics([DeleteTopicState(name="t")])
    refusal(desk.create(CreatableTopic(name="t")), ErrorCode.TOPIC_ALREADY_EXISTS, "still being deleted")


def test_a_name_is_free_only_when_the_last_node_of_the_topic_before_is_gone(desk: Desk) -> None:
    """The topic's node goes first, its overrides next: a topic made in between would lose its own."""
    desk.create(CreatableTopic(name="t"))
    desk.admin.delete_topics([DeleteTopicState(name="t")])
    del desk.zookeeper.assignments["t"]
    refusal(desk.create(CreatableTopic(name="t")), ErrorCode.TOPIC_ALREADY_EXISTS, "still being deleted")
    desk.controller.writer.delete_topic("t")
    assert desk.create(CreatableTopic(name="t")) == [(ErrorCode.NONE, "")]


def test_names_that_differ_in_dot_and_underscore_alone_collide(desk: Desk) -> None:
    desk.create(CreatableTopic(name="a.b"))
    refusal(desk.create(CreatableTopic(name="a_b")), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with 'a.b'")
    assert [error for error, _ in desk.create(CreatableTopic(name="c.d"), CreatableTopic(name="c_d"))] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


def test_a_topic_named_twice_in_a_request_is_made_not_at_all(desk: Desk) -> None:
    found = desk.create(CreatableTopic(name="t"), CreatableTopic(name="t"))
    assert [error for error, _ in found] == [ErrorCode.INVALID_REQUEST]
    assert desk.zookeeper.assignments == {}


def test_topics_are_deleted_by_name_or_by_id(desk: Desk) -> None:
    [a, b] = desk.admin.create_topics([CreatableTopic(name="a"), CreatableTopic(name="b")])
    found = desk.admin.delete_topics([DeleteTopicState(name="a"), DeleteTopicState(topic_id=b.topic_id)])
    assert [(one.name, one.topic_id, one.error_code) for one in found] == [
        ("a", a.topic_id, ErrorCode.NONE),
        ("b", b.topic_id, ErrorCode.NONE),
    ]
    assert desk.zookeeper.deletions == ["a", "b"]


def test_an_unknown_topic_cannot_be_deleted(desk: Desk) -> None:
    unknown = uuid.uuid4()
    found = desk.admin.delete_topics(
        [DeleteTopicState(name="x"), DeleteTopicState(topic_id=unknown), DeleteTopicState()]
    )
    assert [one.error_code for one in found] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert found[1].topic_id == unknown
    assert desk.zookeeper.deletions == []


def test_deletion_can_be_disabled() -> None:
    desk = Desk(delete_topic_enable=False)
    desk.create(CreatableTopic(name="t"))
    [result] = desk.admin.delete_topics([DeleteTopicState(name="t")])
    assert result.error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert desk.zookeeper.deletions == []


def test_a_broker_that_is_not_the_controller_refuses_all_topic_requests(desk: Desk) -> None:
    desk.controller.is_active = False
    answers: list[Any] = [
        *desk.admin.create_topics([CreatableTopic(name="a b")]),
        *desk.admin.delete_topics([DeleteTopicState(name="x")]),
        *(grown.result for grown in desk.admin.create_partitions([CreatePartitionsTopic(name="x", count=2)])),
    ]
    assert [answer.error_code for answer in answers] == [ErrorCode.NOT_CONTROLLER] * 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ControllerMoved("gone"), ErrorCode.NOT_CONTROLLER),
        (ZooKeeperUnavailable("away"), ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_errors_of_zookeeper_become_errors_of_the_protocol(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: ErrorCode, desk: Desk
) -> None:
    create = ControllerWriter.create_topic

    def fail(writer: Any, name: str = "", *arguments: Any) -> bool:
        if name == "first":
            return create(writer, name, *arguments)
        raise error

    monkeypatch.setattr(ControllerWriter, "create_topic", fail)
    found = desk.create(CreatableTopic(name="first"), CreatableTopic(name="t"))
    assert [made for made, _ in found] == [ErrorCode.NONE, code]
    monkeypatch.setattr(ClusterStore, "topics", fail)
    [(refused, _)] = desk.create(CreatableTopic(name="t"))
    assert refused == code


def test_a_topic_is_named_by_name_or_by_id_and_not_by_both(desk: Desk) -> None:
    [made] = desk.admin.create_topics([CreatableTopic(name="t")])
    [result] = desk.admin.delete_topics([DeleteTopicState(name="t", topic_id=made.topic_id)])
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert desk.zookeeper.deletions == []


# Adding partitions


def growing(replication_factor: int = 2) -> Desk:
    desk = Desk()
    desk.create(CreatableTopic(name="t", num_partitions=3, replication_factor=replication_factor))
    return desk


def more(
    desk: Desk, count: int, assignments: Sequence[Sequence[int]] | None = None, *, validate_only: bool = False
) -> list[tuple[ErrorCode, str]]:
    named = (
        None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignments]
    )
    topic = CreatePartitionsTopic(name="t", count=count, assignments=named)
    results = [grown.result for grown in desk.admin.create_partitions([topic], validate_only=validate_only)]
    return [(result.error_code, result.error_message or "") for result in results]


def replicas(desk: Desk) -> Mapping[int, tuple[BrokerId, ...]]:
    found = desk.zookeeper.assignments["t"]
    assert isinstance(found, TopicAssignment)
    return {index: assignment.replicas for index, assignment in found.partitions.items()}


def test_added_partitions_are_spread_like_the_existing_ones() -> None:
    desk = growing()
    before = dict(replicas(desk))
    assert more(desk, 9) == [(ErrorCode.NONE, "")]
    after = replicas(desk)
    assert {index: after[index] for index in before} == before
    assert sorted(after) == list(range(9))
    assert {len(set(brokers)) for brokers in after.values()} == {2}
    leaders = [brokers[0] for brokers in after.values()]
    assert {leaders.count(BrokerId(broker)) for broker in (1, 2, 3)} == {3}


def test_the_replicas_of_new_partitions_may_be_given() -> None:
    desk = growing()
    assert more(desk, 5, [(3, 1), (1, 2)]) == [(ErrorCode.NONE, "")]
    assert (replicas(desk)[3], replicas(desk)[4]) == ((3, 1), (1, 2))


def test_validation_alone_adds_nothing() -> None:
    desk = growing()
    assert more(desk, 5, validate_only=True) == [(ErrorCode.NONE, "")]
    refusal(more(desk, 2, validate_only=True), ErrorCode.INVALID_PARTITIONS, "cannot be removed")
    assert len(replicas(desk)) == 3


@pytest.mark.parametrize(
    ("count", "assignments", "code", "text"),
    [
        (2, None, ErrorCode.INVALID_PARTITIONS, "has 3 partitions already, more than the 2"),
        (3, None, ErrorCode.INVALID_PARTITIONS, "has 3 partitions already"),
        (10_001, None, ErrorCode.INVALID_PARTITIONS, "at most 10000"),
        (5, [(1, 2)], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "2 partitions are to be added"),
        (4, [(1, 9)], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "are not alive: [9]"),
        (4, [(1, 1)], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "names a broker twice"),
        (4, [(1,)], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "expected 2"),
    ],
)
def test_an_impossible_growth_is_refused_with_its_reason(
    count: int, assignments: Sequence[Sequence[int]] | None, code: ErrorCode, text: str
) -> None:
    desk = growing()
    refusal(more(desk, count, assignments), code, text)
    assert len(replicas(desk)) == 3


def test_an_unknown_or_deleted_topic_gets_no_partitions() -> None:
    desk = growing()
    desk.admin.delete_topics([DeleteTopicState(name="t")])
    refusal(more(desk, 5), ErrorCode.INVALID_TOPIC_EXCEPTION, "is being deleted")
    [grown] = desk.admin.create_partitions([CreatePartitionsTopic(name="x", count=5)])
    assert grown.result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    twice = [CreatePartitionsTopic(name="t", count=5), CreatePartitionsTopic(name="t", count=6)]
    assert [one.result.error_code for one in desk.admin.create_partitions(twice)] == [
        ErrorCode.INVALID_REQUEST
    ]


def test_fewer_live_brokers_than_replicas_allow_no_new_partition() -> None:
    desk = growing(replication_factor=3)
    desk.controller.live = desk.controller.live[:2]
    refusal(more(desk, 5), ErrorCode.INVALID_REPLICATION_FACTOR, "number of live brokers, 2")


def test_a_concurrent_change_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = growing()
    grow = ControllerWriter.set_topic_assignment

    def interrupted(writer: ControllerWriter, name: str, topic: TopicAssignment) -> bool:
        monkeypatch.setattr(ControllerWriter, "set_topic_assignment", grow)
        desk.zookeeper.grow("t", {3: (1, 2)})
        return grow(writer, name, topic)

    monkeypatch.setattr(ControllerWriter, "set_topic_assignment", interrupted)
    assert more(desk, 5) == [(ErrorCode.NONE, "")]
    assert replicas(desk)[3] == (1, 2)
    assert len(replicas(desk)) == 5


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_legal_names_pass(name: str) -> None:
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "ä", "a\n", "a b", "a\0"])
def test_illegal_names_are_refused(name: str) -> None:
    with pytest.raises(ApiError, match="INVALID_TOPIC"):
        validate_topic_name(name)
