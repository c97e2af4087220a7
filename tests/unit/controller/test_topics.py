from __future__ import annotations

import random
import uuid
from collections.abc import Mapping

import pytest

from barnabas.controller.controller_writer import ControllerMoved
from barnabas.controller.topics import TopicAdmin, TopicSettings, validate_topic_name
from barnabas.controller.znodes import TopicAssignment
from barnabas.controller.zookeeper import ZooKeeperUnavailable
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerId
from barnabas.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    DeleteTopicState,
)
from tests.unit.controller.fakes import Cluster, FakeWriter, FakeZooKeeper


class Active:
    """A controller that is active until it is deposed."""

    def __init__(self, zookeeper: FakeZooKeeper) -> None:
        self._writer = zookeeper.become_controller()
        self.live = (BrokerId(1), BrokerId(2), BrokerId(3))
        self.is_active = True

    @property
    def live_brokers(self) -> tuple[BrokerId, ...]:
        return self.live

    @property
    def writer(self) -> FakeWriter:
        if not self.is_active:
            raise api_error(ErrorCode.NOT_CONTROLLER)
        return self._writer


class Desk:
    def __init__(self, **settings: object) -> None:
        self.zookeeper = Cluster(1, 2, 3).zookeeper
        self.controller = Active(self.zookeeper)
        self.admin = TopicAdmin(
            self.zookeeper,
            self.controller,
            settings=TopicSettings(**settings),
            validate_config=self.validate,
            rng=random.Random(1),
        )

    @staticmethod
    def validate(config: Mapping[str, str | None]) -> None:
        if "nosuch" in config:
            raise ValueError("unknown topic setting nosuch")

    def create(self, *topics: CreatableTopic, validate_only: bool = False) -> list[tuple[ErrorCode, str]]:
        results = self.admin.create_topics(topics, validate_only=validate_only)
        return [(result.error, result.message or "") for result in results]


def refusal(found: list[tuple[ErrorCode, str]], code: ErrorCode, text: str) -> None:
    [(error, message)] = found
    assert error is code
    assert text in message


def test_a_topic_is_written_with_its_replicas_and_overrides() -> None:
    desk = Desk()
    config = [CreatableTopicConfig(name="min.insync.replicas", value="2")]
    [result] = desk.admin.create_topics(
        [CreatableTopic(name="t", num_partitions=6, replication_factor=3, configs=config)]
    )
    assert (result.error, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 6, 3)
    written = desk.zookeeper.assignments["t"]
    assert isinstance(written, TopicAssignment)
    assert written.topic_id == result.topic_id != NO_TOPIC_ID
    assert sorted(replicas[0] for replicas in written.replicas.values()) == [1, 1, 2, 2, 3, 3]
    assert desk.zookeeper.configs["t"].values == {"min.insync.replicas": "2"}


def test_numbers_left_open_are_the_brokers_defaults() -> None:
    desk = Desk(num_partitions=4, default_replication_factor=2)
    [result] = desk.admin.create_topics([CreatableTopic(name="t")])
    assert (result.num_partitions, result.replication_factor) == (4, 2)


def test_an_assignment_by_hand_is_kept() -> None:
    desk = Desk()
    by_hand = [CreatableReplicaAssignment(partition_index=0, broker_ids=[3, 1])]
    assert desk.create(CreatableTopic(name="t", assignments=by_hand)) == [(ErrorCode.NONE, "")]
    written = desk.zookeeper.assignments["t"]
    assert isinstance(written, TopicAssignment)
    assert written.replicas == {0: (3, 1)}


def test_validation_alone_writes_nothing() -> None:
    desk = Desk()
    assert desk.create(CreatableTopic(name="t"), validate_only=True) == [(ErrorCode.NONE, "")]
    assert desk.zookeeper.assignments == {}


@pytest.mark.parametrize(
    ("topic", "code", "text"),
    [
        (CreatableTopic(name="a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "'a b' may hold only"),
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
            "do not live",
        ),
    ],
)
def test_a_bad_topic_is_refused_by_name(topic: CreatableTopic, code: ErrorCode, text: str) -> None:
    desk = Desk()
    refusal(desk.create(topic), code, text)
    assert desk.zookeeper.assignments == {}


def test_one_bad_topic_keeps_no_other_back() -> None:
    desk = Desk()
    found = desk.create(CreatableTopic(name=".."), CreatableTopic(name="good"))
    assert [error for error, _ in found] == [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]


def test_a_topic_that_exists_is_refused_and_one_being_deleted_says_so() -> None:
    desk = Desk()
    desk.create(CreatableTopic(name="t"))
    refusal(desk.create(CreatableTopic(name="t")), ErrorCode.TOPIC_ALREADY_EXISTS, "exists already")
    desk.admin.delete_topics([DeleteTopicState(name="t")])
    refusal(desk.create(CreatableTopic(name="t")), ErrorCode.TOPIC_ALREADY_EXISTS, "still being deleted")


def test_names_that_differ_in_dot_and_underscore_alone_collide() -> None:
    desk = Desk()
    desk.create(CreatableTopic(name="a.b"))
    refusal(desk.create(CreatableTopic(name="a_b")), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with 'a.b'")
    assert [error for error, _ in desk.create(CreatableTopic(name="c.d"), CreatableTopic(name="c_d"))] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


def test_a_topic_named_twice_in_a_request_is_made_not_at_all() -> None:
    desk = Desk()
    found = desk.create(CreatableTopic(name="t"), CreatableTopic(name="t"))
    assert [error for error, _ in found] == [ErrorCode.INVALID_REQUEST] * 2
    assert desk.zookeeper.assignments == {}


def test_topics_are_deleted_by_name_or_by_id() -> None:
    desk = Desk()
    [a, b] = desk.admin.create_topics([CreatableTopic(name="a"), CreatableTopic(name="b")])
    found = desk.admin.delete_topics([DeleteTopicState(name="a"), DeleteTopicState(topic_id=b.topic_id)])
    assert [(one.name, one.topic_id, one.error) for one in found] == [
        ("a", a.topic_id, ErrorCode.NONE),
        ("b", b.topic_id, ErrorCode.NONE),
    ]
    assert desk.zookeeper.deletions == ["a", "b"]


def test_an_unknown_topic_cannot_be_deleted() -> None:
    desk = Desk()
    unknown = uuid.uuid4()
    found = desk.admin.delete_topics(
        [DeleteTopicState(name="x"), DeleteTopicState(topic_id=unknown), DeleteTopicState()]
    )
    assert [one.error for one in found] == [
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
    assert result.error is ErrorCode.TOPIC_DELETION_DISABLED
    assert desk.zookeeper.deletions == []


def test_a_broker_that_is_no_controller_says_so_whatever_is_asked() -> None:
    desk = Desk()
    desk.controller.is_active = False
    with pytest.raises(ApiError, match="NOT_CONTROLLER"):
        desk.admin.create_topics([CreatableTopic(name="a b")])
    with pytest.raises(ApiError, match="NOT_CONTROLLER"):
        desk.admin.delete_topics([DeleteTopicState(name="x")])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ControllerMoved("gone"), ErrorCode.NOT_CONTROLLER),
        (ZooKeeperUnavailable("away"), ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_what_goes_wrong_in_zookeeper_becomes_an_error_of_the_protocol(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: ErrorCode
) -> None:
    desk = Desk()

    def fail(*arguments: object) -> bool:
        raise error

    monkeypatch.setattr(FakeWriter, "create_topic", fail)
    with pytest.raises(ApiError) as refused:
        desk.create(CreatableTopic(name="t"))
    assert refused.value.code is code


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_legal_names_pass(name: str) -> None:
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "ä", "a\n", "a b", "a\0"])
def test_illegal_names_are_refused(name: str) -> None:
    with pytest.raises(ApiError, match="INVALID_TOPIC"):
        validate_topic_name(name)
