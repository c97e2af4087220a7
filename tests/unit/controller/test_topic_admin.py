import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from barnabas.controller import topic_admin
from barnabas.controller.topic_admin import TopicAdmin, TopicSettings
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerId, TopicId
from barnabas.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsTopic,
    DeleteTopicState,
)
from barnabas.protocol.topic_names import metric_name, validate_topic_name
from barnabas.zookeeper import admin_requests, paths
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.errors import ControllerMoved, ZooKeeperUnavailable
from barnabas.zookeeper.json_nodes import MalformedZnode
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
    def live_racks(self) -> dict[BrokerId, str | None]:
        return dict.fromkeys(self.live)

    @property
    def writer(self) -> ControllerWriter:
        if not self.is_active:
            raise api_error(ErrorCode.NOT_CONTROLLER)
        return self._writer


class Rig:
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


def refusal(results: list[tuple[ErrorCode, str]], code: ErrorCode, text: str) -> None:
    [(error, message)] = results
    assert error == code
    assert text in message


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_topic_is_written_with_its_replicas_and_overrides(rig: Rig) -> None:
    config = [CreatableTopicConfig(name="min.insync.replicas", value="2")]
    [result] = rig.admin.create_topics(
        [CreatableTopic(name="t", num_partitions=6, replication_factor=3, configs=config)]
    )
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 6, 3)
    written = rig.zookeeper.assignments["t"]
    assert isinstance(written, TopicAssignment)
    assert written.topic_id == result.topic_id != NO_TOPIC_ID
    assert sorted(assignment.replicas[0] for assignment in written.partitions.values()) == [1, 1, 2, 2, 3, 3]
    assert rig.zookeeper.configs["t"].values == {"min.insync.replicas": "2"}


def test_an_assignment_by_hand_is_kept(rig: Rig) -> None:
    by_hand = [CreatableReplicaAssignment(partition_index=0, broker_ids=[3, 1])]
    assert rig.create(CreatableTopic(name="t", assignments=by_hand)) == [(ErrorCode.NONE, "")]
    written = rig.zookeeper.assignments["t"]
    assert isinstance(written, TopicAssignment)
    assert written.partitions == {0: assigned(3, 1)}


def test_validation_alone_writes_nothing_and_tells_the_brokers_defaults() -> None:
    rig = Rig(num_partitions=4, default_replication_factor=2)
    [result] = rig.admin.create_topics([CreatableTopic(name="t")], validate_only=True)
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 4, 2)
    assert result.topic_id == NO_TOPIC_ID
    assert rig.zookeeper.assignments == {}


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
def test_a_bad_topic_is_refused_by_name(topic: CreatableTopic, code: ErrorCode, text: str, rig: Rig) -> None:
    refusal(rig.create(topic), code, text)
    assert rig.zookeeper.assignments == {}


def test_a_topic_that_exists_is_refused_and_one_being_deleted_says_so(rig: Rig) -> None:
    rig.create(CreatableTopic(name="t"))
    refusal(rig.create(CreatableTopic(name="t")), ErrorCode.TOPIC_ALREADY_EXISTS, "already exists")
    rig.admin.delete_topics([DeleteTopicState(name="t")])
    refusal(rig.create(CreatableTopic(name="t")), ErrorCode.TOPIC_ALREADY_EXISTS, "still being deleted")
    # The request is removed last: a topic created in between would be deleted by it.
    del rig.zookeeper.assignments["t"]
    refusal(rig.create(CreatableTopic(name="t")), ErrorCode.TOPIC_ALREADY_EXISTS, "still being deleted")
    rig.controller.writer.delete_topic("t")
    assert rig.create(CreatableTopic(name="t")) == [(ErrorCode.NONE, "")]


def test_names_that_differ_in_case_alone_collide_if_they_would_share_a_folder(rig: Rig) -> None:
    both = CreatableTopic(name="Orders"), CreatableTopic(name="orders")
    assert rig.create(*both) == [(ErrorCode.NONE, "")] * 2
    first, second = Rig(folds_case=True).create(*both)
    assert first == (ErrorCode.NONE, "")
    refusal([second], ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with 'Orders': the file system")


def test_names_that_differ_in_dot_and_underscore_alone_collide(rig: Rig) -> None:
    rig.create(CreatableTopic(name="a.b"))
    refusal(rig.create(CreatableTopic(name="a_b")), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with 'a.b'")
    assert [error for error, _ in rig.create(CreatableTopic(name="c.d"), CreatableTopic(name="c_d"))] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


def test_the_work_of_a_creation_grows_with_its_topics_alone(
    monkeypatch: pytest.MonkeyPatch, rig: Rig
) -> None:
    compared = []

    def counting(topic: str) -> str:
        compared.append(topic)
        return metric_name(topic)

    monkeypatch.setattr(topic_admin, "metric_name", counting)
    topics = [CreatableTopic(name=f"t{number}", num_partitions=1) for number in range(300)]
    assert {error for error, _ in rig.create(*topics, validate_only=True)} == {ErrorCode.NONE}
    assert len(compared) <= 3 * len(topics)


def test_the_partitions_of_one_request_are_bounded_in_all_its_topics() -> None:
    rig = growing()
    half = [CreatableTopic(name=name, num_partitions=5_000) for name in "ab"]
    by_default = CreatableTopic(name="c")
    results = rig.create(*half, by_default, validate_only=True)
    assert [error for error, _ in results] == [ErrorCode.POLICY_VIOLATION] * 3
    assert "10001 partitions; one request may ask for 10000 in all topics" in results[0][1]
    assert {error for error, _ in rig.create(*half, validate_only=True)} == {ErrorCode.NONE}
    # A topic with an impossible number of partitions is refused alone.
    impossible = CreatableTopic(name="d", num_partitions=10_001)
    assert [error for error, _ in rig.create(half[0], impossible, validate_only=True)] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_PARTITIONS,
    ]
    rig.create(CreatableTopic(name="u"))
    both = [CreatePartitionsTopic(name="t", count=5_003), CreatePartitionsTopic(name="u", count=5_002)]
    refused = rig.admin.create_partitions(both, validate_only=True)
    assert [grown.result.error_code for grown in refused] == [ErrorCode.POLICY_VIOLATION] * 2


def test_many_names_cost_few_reads_of_zookeeper(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    rig.create(CreatableTopic(name="t"), CreatableTopic(name="u"))
    reads: list[str] = []
    for name in ("topic_assignments", "deletion_requests"):
        count_calls(monkeypatch, ClusterStore, name, reads)
    rig.admin.create_partitions([CreatePartitionsTopic(name=f"x{i}", count=2) for i in range(100)])
    assert len(reads) == 2
    rig.admin.delete_topics([DeleteTopicState(name=name) for name in "tu"])
    reads.clear()
    requested: list[str] = []
    count_calls(monkeypatch, ControllerWriter, "request_deletion", requested)
    results = rig.admin.delete_topics([DeleteTopicState(name=name) for name in "tu" * 50])
    assert [(result.name, result.error_code) for result in results] == [("t", 0), ("u", 0)]
    assert len(requested) == 2
    assert len(reads) == 2


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, calls: list[str]) -> None:
    original = getattr(owner, name)

    def counting(*args: Any, **keywords: Any) -> Any:
        calls.append(name)
        return original(*args, **keywords)

    monkeypatch.setattr(owner, name, counting)


def test_topics_are_deleted_by_name_or_by_id(rig: Rig) -> None:
    [a, b] = rig.admin.create_topics([CreatableTopic(name="a"), CreatableTopic(name="b")])
    results = rig.admin.delete_topics([DeleteTopicState(name="a"), DeleteTopicState(topic_id=b.topic_id)])
    assert [(result.name, result.topic_id, result.error_code) for result in results] == [
        ("a", a.topic_id, ErrorCode.NONE),
        ("b", b.topic_id, ErrorCode.NONE),
    ]
    assert rig.zookeeper.deletions == ["a", "b"]
    # Kafka's brokers write no data and read none.
    data = [rig.zookeeper.server.data(paths.delete_topic(name)) for name in ("a", "b")]
    assert data[0] == b""
    assert admin_requests.decode_deletion(data[1]) == b.topic_id


@pytest.mark.parametrize("is_by_id", [True, False])
def test_a_request_to_delete_an_earlier_topic_of_the_name_holds_up_another(rig: Rig, is_by_id: bool) -> None:
    [made] = rig.admin.create_topics([CreatableTopic(name="t")])
    wish = DeleteTopicState(topic_id=made.topic_id) if is_by_id else DeleteTopicState(name="t")
    for topic_id, code in [(uuid.uuid4(), ErrorCode.REQUEST_TIMED_OUT), (made.topic_id, ErrorCode.NONE)]:
        rig.zookeeper.put(paths.delete_topic("t"), admin_requests.encode_deletion(TopicId(topic_id)))
        [result] = rig.admin.delete_topics([wish])
        assert result.error_code == code


def test_an_unknown_topic_cannot_be_deleted(rig: Rig) -> None:
    unknown = uuid.uuid4()
    results = rig.admin.delete_topics(
        [DeleteTopicState(name="x"), DeleteTopicState(topic_id=unknown), DeleteTopicState()]
    )
    assert [result.error_code for result in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert results[1].topic_id == unknown
    assert rig.zookeeper.deletions == []


def test_deletion_can_be_disabled() -> None:
    rig = Rig(delete_topic_enable=False)
    rig.create(CreatableTopic(name="t"))
    [result] = rig.admin.delete_topics([DeleteTopicState(name="t")])
    assert result.error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert rig.zookeeper.deletions == []


def test_a_broker_that_is_not_the_controller_refuses_all_topic_requests(rig: Rig) -> None:
    rig.controller.is_active = False
    answers: list[Any] = [
        *rig.admin.create_topics([CreatableTopic(name="a b")]),
        *rig.admin.delete_topics([DeleteTopicState(name="x")]),
        *(grown.result for grown in rig.admin.create_partitions([CreatePartitionsTopic(name="x", count=2)])),
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
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: ErrorCode, rig: Rig
) -> None:
    def fail(*_: object) -> None:
        raise error

    for owner, name in ((ControllerWriter, "create_topic"), (ClusterStore, "topics")):
        monkeypatch.setattr(owner, name, fail)
        [(refused, _)] = rig.create(CreatableTopic(name="t"))
        assert refused == code


def test_a_topic_that_another_created_meanwhile_exists(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    monkeypatch.setattr(ControllerWriter, "create_topic", lambda *_: False)
    refusal(rig.create(CreatableTopic(name="t")), ErrorCode.TOPIC_ALREADY_EXISTS, "'t' already exists")


def test_a_topic_is_named_by_name_or_by_id_and_not_by_both(rig: Rig) -> None:
    [made] = rig.admin.create_topics([CreatableTopic(name="t")])
    [result] = rig.admin.delete_topics([DeleteTopicState(name="t", topic_id=made.topic_id)])
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert rig.zookeeper.deletions == []


# Adding partitions


def growing(replication_factor: int = 2) -> Rig:
    rig = Rig()
    rig.create(CreatableTopic(name="t", num_partitions=3, replication_factor=replication_factor))
    return rig


def more(
    rig: Rig, count: int, assignments: Sequence[Sequence[int]] | None = None, *, validate_only: bool = False
) -> list[tuple[ErrorCode, str]]:
    named = (
        None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignments]
    )
    topic = CreatePartitionsTopic(name="t", count=count, assignments=named)
    results = [grown.result for grown in rig.admin.create_partitions([topic], validate_only=validate_only)]
    return [(result.error_code, result.error_message or "") for result in results]


def replicas(rig: Rig) -> Mapping[int, tuple[BrokerId, ...]]:
    results = rig.zookeeper.assignments["t"]
    assert isinstance(results, TopicAssignment)
    return {index: assignment.replicas for index, assignment in results.partitions.items()}


def test_the_replicas_of_new_partitions_may_be_given() -> None:
    rig = growing()
    given = [(3, 1), (1, 2)]
    assert more(rig, 5, given, validate_only=True) == [(ErrorCode.NONE, "")]
    assert len(replicas(rig)) == 3
    assert more(rig, 5, given) == [(ErrorCode.NONE, "")]
    assert (replicas(rig)[3], replicas(rig)[4]) == ((3, 1), (1, 2))
    assert rig.admin.count_partitions("t") == 5


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
    rig = growing()
    refusal(more(rig, count, assignments), code, text)
    assert len(replicas(rig)) == 3


def test_an_unknown_or_deleted_topic_gets_no_partitions() -> None:
    rig = growing()
    rig.admin.delete_topics([DeleteTopicState(name="t")])
    refusal(more(rig, 5), ErrorCode.INVALID_TOPIC_EXCEPTION, "is being deleted")
    # A name could be the path of another node.
    rig.zookeeper.put(paths.topic_partitions("t"), b"")
    for unknown in ("x", "t/partitions"):
        [grown] = rig.admin.create_partitions([CreatePartitionsTopic(name=unknown, count=5)])
        assert grown.result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert rig.admin.count_partitions("x") is None
    twice = [CreatePartitionsTopic(name="t", count=5), CreatePartitionsTopic(name="t", count=6)]
    assert [result.result.error_code for result in rig.admin.create_partitions(twice)] == [
        ErrorCode.INVALID_REQUEST
    ]


def test_a_topic_that_cannot_be_read_gets_no_partitions() -> None:
    rig = growing()
    rig.zookeeper.assignments["t"] = MalformedZnode("odd")
    refusal(more(rig, 5), ErrorCode.UNKNOWN_SERVER_ERROR, "/brokers/topics/t")
    with pytest.raises(ApiError, match="/brokers/topics/t"):
        rig.admin.count_partitions("t")


def test_a_concurrent_change_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = growing()
    before = replicas(rig)
    grow = ControllerWriter.set_topic_assignment

    def interrupted(writer: ControllerWriter, name: str, topic: TopicAssignment) -> bool:
        monkeypatch.setattr(ControllerWriter, "set_topic_assignment", grow)
        rig.zookeeper.grow("t", {3: (1, 2)})
        return grow(writer, name, topic)

    monkeypatch.setattr(ControllerWriter, "set_topic_assignment", interrupted)
    assert more(rig, 5) == [(ErrorCode.NONE, "")]
    assert {**replicas(rig), 4: ()} == {**before, 3: (1, 2), 4: ()}
    assert len(set(replicas(rig)[4])) == 2
    # Others may not stop changing it.
    monkeypatch.setattr(ControllerWriter, "set_topic_assignment", lambda *_: False)
    refusal(more(rig, 6), ErrorCode.REQUEST_TIMED_OUT, "'t' is changed by others again and again")


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_legal_names_pass(name: str) -> None:
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "ä", "a\n", "a b", "a\0"])
def test_illegal_names_are_refused(name: str) -> None:
    with pytest.raises(ApiError, match="INVALID_TOPIC"):
        validate_topic_name(name)


def test_changes_of_topics_are_charged_by_partitions_and_a_refused_one_is_not_made(rig: Rig) -> None:
    charged: list[int] = []

    def charge(partitions: int) -> None:
        if sum(charged) + partitions > 9:
            raise api_error(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "wait")
        charged.append(partitions)

    def new(name: str, partitions: int) -> CreatableTopic:
        return CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )

    rig.admin.create_topics([new("validated", 5)], validate_only=True, charge=charge)
    made = rig.admin.create_topics([new("a", 3), new("b", 9), new("a-b", 1)], charge=charge)
    assert [result.error_code for result in made] == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED, 0]
    growth = [CreatePartitionsTopic(name="a", count=5, assignments=None)]
    rig.admin.create_partitions(growth, validate_only=True, charge=charge)
    assert rig.admin.create_partitions(growth, charge=charge)[0].num_partitions == 5
    assert charged == [3, 1, 2]
    deletions = [DeleteTopicState(name=name) for name in ("a", "a-b", "b")]
    gone = rig.admin.delete_topics(deletions, charge=charge)
    assert [result.error_code for result in gone] == [
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert charged == [3, 1, 2, 1]
