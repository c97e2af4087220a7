"""Metadata in each version, topics created on demand, and DescribeCluster."""

import math
import uuid

import pytest

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.cluster.metadata_cache import ClusterMetadata, MetadataAnswers, MetadataCache
from barnabas.broker.handlers import metadata as handler
from barnabas.broker.security.session import Session
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.metadata import (
    OPERATIONS_UNKNOWN,
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.building import TOPIC_ID, led_by, metadata
from tests.support.serving import EXTERNAL, INTERNAL, Connection, Serving

VERSIONS = [None, *range(13)]
TOPIC = MetadataRequestTopic(name="topic")


def named(*names: str, may_create: bool = True) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=may_create
    )


@pytest.fixture
def hosting(serving: Serving) -> Serving:
    """A cluster of brokers 1 and 2 with one topic."""
    serving.managed.know({1: 10, 2: 20}, led_by(1))
    return serving


@pytest.fixture
def empty(serving: Serving) -> Serving:
    """A cluster of brokers 1 to 3 without topics."""
    serving.managed.know({1: 0, 2: 5, 3: 5})
    return serving


@pytest.fixture
def known(serving: Serving) -> Serving:
    """Topic "topic", led by 1 and 2; brokers 1 to 3 live; 2 is the controller."""
    serving.managed.know({1: 10, 2: 20, 3: 30}, led_by(1), led_by(2, index=1))
    return serving


def ask(serving: Serving, *topics: MetadataRequestTopic) -> MetadataResponse:
    request = MetadataRequest(topics=list(topics), allow_auto_topic_creation=False)
    answer: MetadataResponse = serving.call(request, INTERNAL)
    return answer


def test_metadata_names_brokers_controller_and_leaders(known: Serving) -> None:
    answer = known.call(MetadataRequest(topics=None), INTERNAL)
    assert (answer.cluster_id, answer.controller_id) == ("cluster", 2)
    assert [(one.node_id, one.host, one.port) for one in answer.brokers] == [
        (1, "host", 9001),
        (2, "host", 9002),
        (3, "host", 9003),
    ]
    (topic,) = answer.topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.NONE, "topic", TOPIC_ID)
    assert [(one.partition_index, one.leader_id, one.leader_epoch) for one in topic.partitions] == [
        (0, 1, 0),
        (1, 2, 0),
    ]
    assert topic.partitions[0].replica_nodes == [1, 2, 3]
    assert topic.partitions[0].isr_nodes == [1, 2]
    assert not topic.is_internal
    assert known.call(MetadataRequest(topics=[]), EXTERNAL).brokers == [], "they have no such listener"
    known.managed.metadata.update(
        metadata({1: 10}, led_by(1), topic=OFFSETS_TOPIC, topic_id=uuid.UUID(int=9))
    )
    assert ask(known, MetadataRequestTopic(name=OFFSETS_TOPIC)).topics[0].is_internal


@pytest.mark.parametrize(
    ("requested", "code"),
    [
        (MetadataRequestTopic(name="nowhere"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (MetadataRequestTopic(name=""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (MetadataRequestTopic(name=None), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (MetadataRequestTopic(name="topic", topic_id=uuid.UUID(int=99)), ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_an_unknown_topic_has_an_error(
    known: Serving, requested: MetadataRequestTopic, code: ErrorCode
) -> None:
    missing, existing = ask(known, requested, TOPIC).topics
    assert (missing.error_code, missing.partitions) == (code, [])
    assert existing.error_code == ErrorCode.NONE


def test_a_suspect_is_named_neither_as_leader_nor_as_broker_nor_as_controller(known: Serving) -> None:
    known.managed.metadata.suspect(BrokerId(2))
    answer = ask(known, TOPIC)
    assert [broker.node_id for broker in answer.brokers] == [1, 3]
    assert answer.controller_id == -1
    fine, without = answer.topics[0].partitions
    assert (fine.error_code, fine.leader_id) == (ErrorCode.NONE, 1)
    assert (without.error_code, without.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert answer.topics[0].error_code == ErrorCode.NONE
    known.managed.metadata.trust(BrokerId(2))
    assert ask(known, TOPIC).topics[0].partitions[1].leader_id == 2


def test_replicas_on_dead_brokers_are_offline(known: Serving) -> None:
    known.managed.know({1: 10, 2: 20})
    assert ask(known, TOPIC).topics[0].partitions[0].offline_replicas == [3]


def test_an_empty_list_requests_no_topic_and_in_version_0_all(hosting: Serving) -> None:
    nothing = MetadataRequest(topics=[])
    assert [topic.name for topic in hosting.call(nothing, version=0).topics] == ["topic"]
    for version in (None, 1, 12):
        assert hosting.call(nothing, version=version).topics == []
        [topic] = hosting.call(MetadataRequest(topics=None), version=version).topics
        assert topic.name == "topic"


def test_a_topic_that_is_named_often_is_answered_once(hosting: Serving) -> None:
    """As in Apache Kafka: otherwise a few bytes could request gigabytes."""
    request = named("topic", "none", "topic", "none", "topic")
    assert [topic.name for topic in hosting.call(request, version=9).topics] == ["topic", "none"]
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=TOPIC_ID, name=None)] * 3)
    assert [topic.name for topic in hosting.call(request, version=12).topics] == ["topic"]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_topic_is_created_and_has_no_leader_yet(empty: Serving, version: int | None) -> None:
    made, bad, own = empty.call(named("fresh", "a b", "__consumer_offsets"), version=version).topics
    assert made.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert own.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert empty.auto_created == [["fresh"]]


def test_no_topic_is_created_if_the_request_or_the_settings_forbid_it(empty: Serving) -> None:
    for version in (None, 4):
        [topic] = empty.call(named("fresh", may_create=False), version=version).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    empty.auto_topics.is_enabled = False
    fresh, bad = empty.call(named("fresh", "a b"), version=0).topics
    assert fresh.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert empty.auto_created == []


@pytest.mark.parametrize(
    ("version", "name", "answered"),
    [(None, "another", "another"), (10, None, ""), (11, None, ""), (12, None, None), (12, "", "")],
)
def test_an_id_wins_over_the_name_and_makes_no_topic(
    hosting: Serving, version: int | None, name: str | None, answered: str | None
) -> None:
    requested = [
        MetadataRequestTopic(name=name, topic_id=TOPIC_ID),
        MetadataRequestTopic(name=name, topic_id=uuid.UUID(int=99)),
    ]
    existing, unknown = hosting.call(MetadataRequest(topics=requested), version=version).topics
    assert (existing.error_code, existing.name, existing.topic_id) == (ErrorCode.NONE, "topic", TOPIC_ID)
    assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, answered)
    assert unknown.topic_id == uuid.UUID(int=99)
    assert hosting.auto_created == []


def test_authorized_operations_are_answered_only_on_request(hosting: Serving) -> None:
    plain = hosting.call(named("topic"), version=8)
    assert plain.topics[0].topic_authorized_operations == OPERATIONS_UNKNOWN
    assert plain.cluster_authorized_operations == OPERATIONS_UNKNOWN
    request = named("topic")
    request.include_topic_authorized_operations = request.include_cluster_authorized_operations = True
    full = hosting.call(request, version=8)
    assert full.topics[0].topic_authorized_operations == 3576
    assert full.cluster_authorized_operations == 8096


@pytest.mark.parametrize("version", [None, 0, 1])
def test_the_cluster_is_described_as_metadata_does(empty: Serving, version: int | None) -> None:
    description = empty.call(DescribeClusterRequest(), INTERNAL, version=version)
    answer = empty.call(MetadataRequest(topics=[]), INTERNAL)
    assert (description.error_code, description.cluster_id, description.controller_id) == (
        0,
        "cluster",
        answer.controller_id,
    )
    assert [(broker.broker_id, broker.host, broker.port) for broker in description.brokers] == [
        (broker.node_id, broker.host, broker.port) for broker in answer.brokers
    ]
    assert len(description.brokers) == 3
    assert description.cluster_authorized_operations == OPERATIONS_UNKNOWN
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert empty.call(request, version=version).cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("kind", "code"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (7, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_other_types_of_endpoints_are_refused(empty: Serving, kind: int, code: ErrorCode) -> None:
    answer = empty.call(DescribeClusterRequest(endpoint_type=kind), version=1)
    assert (answer.error_code, answer.brokers) == (code, [])


def test_a_kafka_client_waits_for_a_new_leader_while_the_old_one_is_suspected(hosting: Serving) -> None:
    """It asks once when a connection breaks, and again only a second later."""
    hosting.managed.metadata.suspect(BrokerId(1))
    waiting = hosting.send(named("topic"), version=9)
    assert not waiting.is_answered
    assert hosting.call(named("other", may_create=False), version=9).topics[0].partitions == []
    hosting.managed.metadata.update(metadata({1: 10, 2: 20}, led_by(2, epoch=1)))
    assert waiting.response.topics[0].partitions[0].leader_id == 2


def test_a_wait_for_a_leader_ends_with_the_suspicion_or_soon(hosting: Serving) -> None:
    hosting.managed.metadata.suspect(BrokerId(1))
    waiting = hosting.send(MetadataRequest(topics=None), version=9)
    hosting.managed.metadata.trust(BrokerId(1))
    assert waiting.response.topics[0].partitions[0].leader_id == 1
    hosting.managed.metadata.suspect(BrokerId(1))
    waiting = hosting.send(named("topic"), version=9)
    hosting.expire(after_ms=1_001)
    assert waiting.response.topics[0].partitions[0].leader_id == -1


def test_a_started_broker_answers_when_the_controller_has_told_it_the_cluster(serving: Serving) -> None:
    """Otherwise a client takes the topics for deleted, or the whole list for empty."""
    waiting = [
        serving.send(named("topic"), version=9),
        serving.send(MetadataRequest(topics=None)),
        serving.send(DescribeClusterRequest()),
    ]
    # A new controller's first request may name only the leaders that it has elected.
    serving.managed.metadata.update(metadata({1: 10, 2: 20}, led_by(1), topic="another"))
    assert not any(connection.is_answered for connection in waiting)
    serving.managed.know({1: 10, 2: 20}, led_by(1))
    assert [connection.response.topics[0].name for connection in waiting[:2]] == ["topic"] * 2
    assert waiting[2].response.controller_id == 2


def test_a_started_broker_that_no_controller_tells_anything_answers_at_last(serving: Serving) -> None:
    waiting = serving.send(named("topic", may_create=False), version=9)
    serving.expire(after_ms=1_001)
    assert waiting.response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_first_news_of_a_cluster_without_topics_are_an_answer(serving: Serving) -> None:
    waiting = serving.send(MetadataRequest(topics=None), version=9)
    serving.managed.know({1: 10, 2: 20, 3: 30})
    assert (waiting.response.controller_id, waiting.response.topics) == (2, [])


class Settled:
    """A cluster that has been the same for a while, its clock, and requests on connections of some age."""

    def __init__(self, serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
        self._serving, self._now_ms = serving, monotonic_ms()
        self.metadata = serving.managed.metadata
        self.metadata.death_noticed_ms = self._now_ms - 500
        monkeypatch.setattr(handler, "monotonic_ms", lambda: self._now_ms)
        monkeypatch.setattr(Connection, "received_ns", int(self._now_ms * 1e6))
        monkeypatch.setattr(Connection, "opened_ns", int(self._now_ms * 1e6) - 100_000_000)

    def ask(self) -> Connection:
        return self._serving.send(named("topic"), version=9)

    def brokers(self, session: Session, *topics: str, version: int | None = 9) -> list[int]:
        """The brokers in an answer on the connection of this session."""
        waiting = self._serving.send(named(*topics), INTERNAL, version=version, session=session)
        return sorted(broker.node_id for broker in waiting.response.brokers)

    def wait(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
        self._serving.expire(after_ms=milliseconds + 1)


@pytest.fixture
def settled(hosting: Serving, monkeypatch: pytest.MonkeyPatch) -> Settled:
    return Settled(hosting, monkeypatch)


def leader_in(waiting: Connection) -> int:
    leader: int = waiting.response.topics[0].partitions[0].leader_id
    return leader


def test_a_request_on_an_old_connection_waits_until_the_broker_may_notice_a_death(settled: Settled) -> None:
    waiting = settled.ask()
    assert not waiting.is_answered
    settled.metadata.suspect(BrokerId(1))
    settled.wait(20)
    assert not waiting.is_answered
    settled.metadata.update(metadata({1: 10, 2: 20}, led_by(2, epoch=1)))
    assert leader_in(waiting) == 2


def test_a_request_that_no_death_caused_waits_for_a_moment(settled: Settled) -> None:
    waiting = settled.ask()
    settled.wait(19)
    assert not waiting.is_answered
    settled.wait(1)
    assert leader_in(waiting) == 1
    settled.wait(100)
    assert settled.ask().is_answered, "it was received so long ago, and waited for earlier answers"


def test_a_request_waits_until_the_fetchers_have_looked_at_their_connections(
    settled: Settled, hosting: Serving
) -> None:
    """On a busy broker they notice a death after the moment, and the answer would name the dead leader."""
    hosting.managed.fetchers.is_busy = True
    waiting = settled.ask()
    settled.wait(20)
    assert not waiting.is_answered
    settled.metadata.suspect(BrokerId(1))
    settled.wait(5)
    assert not waiting.is_answered, "from now on it waits for the new leader"
    settled.metadata.trust(BrokerId(1))
    assert leader_in(waiting) == 1

    settled.metadata.death_noticed_ms = -math.inf
    waiting = settled.ask()
    settled.wait(150)
    assert not waiting.is_answered
    settled.wait(50)
    assert leader_in(waiting) == 1, "the wait is bounded"


def test_a_request_just_after_a_death_is_answered_as_soon_as_there_are_leaders(settled: Settled) -> None:
    """What made the client ask is known, and the answers to later requests wait for this one."""
    settled.metadata.update(metadata({1: 10, 2: 20}, led_by(1, epoch=1)))
    assert not settled.ask().is_answered, "new leaders are no death"
    settled.metadata.update(metadata({1: 10}, led_by(1)))
    assert leader_in(settled.ask()) == 1
    settled.metadata.death_noticed_ms = -math.inf
    settled.metadata.suspect(BrokerId(1))
    waiting = settled.ask()
    settled.metadata.update(metadata({1: 10, 2: 20}, led_by(2, epoch=2)))
    assert leader_in(waiting) == 2


def test_a_kafka_client_hears_once_more_of_a_broker_that_died(settled: Settled) -> None:
    """librdkafka may lose the new leaders if the same answer omits the old one."""
    first, second, third = Session(), Session(), Session()
    # Answers with so many partitions are cached.
    moved = [led_by(2, epoch=1, index=index) for index in range(MANY)]
    settled.metadata.update(metadata({1: 10, 2: 20}, *moved))
    settled.metadata.suspect(BrokerId(1))
    assert settled.brokers(first, "topic", version=None) == [2]
    assert settled.brokers(first) == [1, 2], "it has not heard of the new leaders by this"
    assert [settled.brokers(first, "topic") for _ in range(2)] == [[1, 2], [2]]
    settled.metadata.update(metadata({2: 20}))
    assert settled.brokers(first, "topic") == [2], "it is the same death"
    assert [settled.brokers(second, "topic") for _ in range(2)] == [[1, 2], [2]]
    settled.metadata.update(metadata({1: 11, 2: 20}))
    assert settled.brokers(first, "topic") == [1, 2]
    settled.metadata.update(metadata({2: 20}))
    assert [settled.brokers(first, "topic") for _ in range(2)] == [[1, 2], [2]]
    settled.wait(6_000)
    assert settled.brokers(third, "topic") == [2], "that was long ago"


def test_a_client_that_comes_after_a_death_hears_only_of_the_living(
    settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled.metadata.update(metadata({1: 10, 2: 20}, led_by(2, epoch=1)))
    settled.metadata.suspect(BrokerId(1))
    opened_ns = Connection.opened_ns
    monkeypatch.setattr(Connection, "opened_ns", opened_ns + 1_000_000)
    assert settled.brokers(Session(), "topic") == [2], "it may be younger than the suspicion"
    settled.metadata.update(metadata({2: 20}))
    monkeypatch.setattr(Connection, "opened_ns", opened_ns + 60_000_000_000)
    monkeypatch.setattr(Connection, "received_ns", opened_ns + 60_100_000_000)
    assert settled.brokers(Session(), "topic") == [2]


MANY = 50


@pytest.fixture
def large(serving: Serving) -> Serving:
    """A cluster whose topic has so many partitions that an answer about it is cached."""
    serving.managed.know({1: 10, 2: 20}, *(led_by(1 + index % 2, index=index) for index in range(MANY)))
    return serving


def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics for which answers are built from now on."""
    names: list[str] = []
    make = handler._topic

    def note(cache: MetadataCache, current: ClusterMetadata, name: str) -> MetadataTopic:
        names.append(name)
        return make(cache, current, name)

    monkeypatch.setattr(handler, "_topic", note)
    return names


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_about_many_partitions_is_built_once(
    large: Serving, monkeypatch: pytest.MonkeyPatch, version: int | None
) -> None:
    topics = made(monkeypatch)
    # Version 0 has no null.
    everything = MetadataRequest(topics=[] if version == 0 else None)
    questions = [everything, named("topic", may_create=version is not None and version < 4)]
    for question in questions:
        first = large.call(question, version=version)
        assert len(first.topics[0].partitions) == MANY
        assert [large.call(question, version=version) for _ in range(3)] == [first] * 3
    assert topics == ["topic"] * 2
    # Clients of another listener get other addresses.
    for listener in (INTERNAL, EXTERNAL):
        large.call(questions[0], listener, version=version)
    assert topics == ["topic"] * 3


def test_a_cached_answer_ends_with_its_metadata(large: Serving) -> None:
    def leaders(version: int | None) -> set[int]:
        answer = large.call(MetadataRequest(topics=None), version=version)
        return {partition.leader_id for partition in answer.topics[0].partitions}

    # A native client does not wait for leaders that are being replaced.
    assert leaders(None) == leaders(9) == {1, 2}
    large.managed.metadata.suspect(BrokerId(2))
    assert leaders(None) == {1, -1}
    large.managed.metadata.trust(BrokerId(2))
    assert leaders(None) == leaders(9) == {1, 2}
    moved = metadata({1: 10, 2: 20}, *(led_by(1, epoch=1, index=index) for index in range(MANY)))
    large.managed.metadata.update(moved)
    assert leaders(None) == leaders(9) == {1}


@pytest.mark.parametrize("version", [None, 9])
def test_an_unknown_topic_is_created_each_time_beside_one_that_is_built_once(
    large: Serving, monkeypatch: pytest.MonkeyPatch, version: int | None
) -> None:
    def ask(**may: bool) -> list[tuple[int, int]]:
        answer = large.call(named("topic", "fresh", **may), version=version)
        return [(topic.error_code, len(topic.partitions)) for topic in answer.topics]

    topics = made(monkeypatch)
    for _ in range(2):
        assert ask(may_create=True) == [(ErrorCode.NONE, MANY), (ErrorCode.LEADER_NOT_AVAILABLE, 0)]
    assert (large.auto_created, topics) == ([["fresh"], ["fresh"]], ["topic"])
    unknown = [(ErrorCode.NONE, MANY), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)]
    assert [ask(may_create=False) for _ in range(2)] == [unknown] * 2
    large.auto_topics.is_enabled = False
    assert ask(may_create=True) == unknown
    assert (len(large.auto_created), topics) == (2, ["topic"] * 2)


def test_few_answers_are_cached() -> None:
    answers = MetadataAnswers()
    for number in range(100):
        answers.keep(7, number, str(number))
    assert answers.find(7, 99) == "99"
    assert sum(answers.find(7, number) is not None for number in range(100)) <= 16
    assert answers.find(8, 99) is None
