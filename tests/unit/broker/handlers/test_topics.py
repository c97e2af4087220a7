"""CreateTopics, CreatePartitions and DeleteTopics: answered once, by the metadata or at the deadline."""

import uuid

import msgspec
import pytest

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import TopicId
from barnabas.protocol.messages.configs import ConfigSource
from barnabas.protocol.messages.inter_broker import UpdateMetadataRequest
from barnabas.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.support.building import TOPIC_ID, led_by, metadata
from tests.support.serving import Connection, QueuedWork, Serving

LIVE = {1: 10, 2: 20}
RECREATED = uuid.UUID(int=9)


def create(serving: Serving) -> Connection:
    topics = [CreatableTopic(name="topic", num_partitions=2)]
    return serving.send(CreateTopicsRequest(topics=topics, timeout_ms=60_000))


def made(name: str = "topic", error: ErrorCode = ErrorCode.NONE) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, topic_id=TOPIC_ID, error_code=error, num_partitions=2, replication_factor=1
    )


def delete(serving: Serving) -> Connection:
    return serving.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="topic")], timeout_ms=60_000))


def deleted(error: ErrorCode = ErrorCode.NONE) -> DeletableTopicResult:
    return DeletableTopicResult(name="topic", topic_id=TOPIC_ID, error_code=error)


def codes(connection: Connection) -> list[int]:
    fields = msgspec.structs.asdict(connection.response).values()
    (results,) = (field for field in fields if isinstance(field, list))
    return [topic.error_code for topic in results]


# Creating


def test_a_creation_is_answered_when_every_partition_has_a_live_leader(serving: Serving) -> None:
    serving.topics.created = [made()]
    connection = create(serving)
    assert serving.topics.calls == [(["topic"], False)]
    for news in (
        metadata(LIVE, led_by(1)),
        metadata(LIVE, led_by(1), led_by(2, index=1), topic_id=RECREATED),
        metadata(LIVE, led_by(1), led_by(3, index=1)),
        metadata(LIVE, led_by(1), topic="other", topic_id=RECREATED),
    ):
        serving.managed.metadata.update(news)
        assert not connection.is_answered
    serving.managed.metadata.update(metadata(LIVE, led_by(2, epoch=1, index=1)))
    (topic,) = connection.response.topics
    assert (topic.error_code, topic.topic_id, topic.num_partitions) == (ErrorCode.NONE, TOPIC_ID, 2)
    serving.expire(after_ms=60_001)
    assert len(connection.answers) == 1
    assert serving.topic_purgatory.waiting == 0


def test_at_the_deadline_a_creation_is_answered_without_leaders(serving: Serving) -> None:
    serving.topics.created = [made(), made("bad", ErrorCode.INVALID_TOPIC_EXCEPTION)]
    connection = create(serving)
    serving.expire(after_ms=0)
    assert not connection.is_answered
    serving.expire(after_ms=60_001)
    assert codes(connection) == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert "not every partition has a leader" in connection.response.topics[0].error_message


def test_only_the_controllers_broker_creates_and_deletes_topics(serving: Serving) -> None:
    serving.controller.is_active = False
    for connection in (create(serving), delete(serving), add_partitions(serving)):
        assert codes(connection) == [ErrorCode.NOT_CONTROLLER]
    assert "Metadata names the one that is" in create(serving).response.topics[0].error_message
    assert serving.topics.calls == []


def test_queued_work_is_dropped_with_its_connection(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = QueuedWork()
    monkeypatch.setattr(serving.slow, "submit", queued.submit)
    connections = [create(serving), create(serving)]
    connections[0].request.abandon()
    queued.run()
    assert len(serving.topics.calls) == 1


def test_an_unforeseen_failure_closes_the_connection(serving: Serving) -> None:
    serving.topics.failure = OSError("ZooKeeper is on fire")
    connection = create(serving)
    assert connection.closed is not None
    assert "ZooKeeper is on fire" in connection.closed


# Deleting


def begin_deletion(serving: Serving) -> Connection:
    """The controller deletes a topic that the metadata has."""
    serving.managed.metadata.update(metadata(LIVE, led_by(1)))
    serving.topics.deleted = [deleted()]
    return delete(serving)


@pytest.mark.parametrize("news", [metadata(LIVE, led_by(-2)), metadata(LIVE, led_by(1), topic_id=RECREATED)])
def test_a_deletion_is_answered_when_the_metadata_no_longer_has_the_topic(
    serving: Serving, news: UpdateMetadataRequest
) -> None:
    connection = begin_deletion(serving)
    serving.managed.metadata.update(metadata(LIVE))
    assert not connection.is_answered
    serving.managed.metadata.update(news)
    assert codes(connection) == [ErrorCode.NONE]


def test_at_the_deadline_a_deletion_is_under_way(serving: Serving) -> None:
    connection = begin_deletion(serving)
    serving.expire(after_ms=60_001)
    assert codes(connection) == [ErrorCode.REQUEST_TIMED_OUT]
    assert "under way" in connection.response.responses[0].error_message


def test_a_refused_deletion_is_answered_at_once(serving: Serving) -> None:
    serving.managed.metadata.update(metadata(LIVE, led_by(1)))
    serving.topics.deleted = [deleted(ErrorCode.TOPIC_DELETION_DISABLED)]
    assert codes(delete(serving)) == [ErrorCode.TOPIC_DELETION_DISABLED]


def test_older_clients_get_a_code_that_they_know_if_deletion_is_disabled(serving: Serving) -> None:
    for version in range(1, 7):
        serving.topics.deleted = [deleted(ErrorCode.TOPIC_DELETION_DISABLED)]
        request = DeleteTopicsRequest(topic_names=["topic"], timeout_ms=1)
        if version == 6:
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name="topic")], timeout_ms=1)
        [response] = serving.call(request, version=version).responses
        assert serving.topics.calls[-1] == ["topic"]
        known = ErrorCode.INVALID_REQUEST if version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        assert response.error_code == known


# The settings of a created topic


def test_the_answer_to_a_creation_has_the_topics_settings(serving: Serving) -> None:
    serving.topics.created = [made(), made("bad", ErrorCode.INVALID_CONFIG)]
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name="topic", configs=[CreatableTopicConfig(name="retention.ms", value="5")])],
        validate_only=True,
    )
    good, bad = serving.call(request, version=7).topics
    assert serving.topics.calls == [(["topic"], True)], "it is validated and not created"
    assert good.configs is not None
    settings = {config.name: (config.value, config.config_source) for config in good.configs}
    assert settings["retention.ms"] == ("5", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert settings["segment.bytes"] == ("1073741824", ConfigSource.DEFAULT_CONFIG)
    assert bad.configs is None
    for version in range(2, 8):
        assert serving.call(request, version=version).topics[0].error_code == ErrorCode.NONE


def test_the_answer_to_the_creation_of_many_topics_fits_into_a_message(serving: Serving) -> None:
    names = [f"{number:06}" for number in range(6_000)]
    serving.topics.created = [made(name) for name in names]
    topics = [CreatableTopic(name=name) for name in names]
    answer = serving.call(CreateTopicsRequest(topics=topics, timeout_ms=0, validate_only=True))
    assert answer.topics[0].configs
    assert (answer.topics[-1].error_code, answer.topics[-1].configs) == (ErrorCode.NONE, None)
    assert answer.topics[-1].topic_config_error_code == ErrorCode.MESSAGE_TOO_LARGE
    described = [topic for topic in answer.topics if topic.configs is not None]
    assert 500 < len(described) < 4_000


def test_nothing_is_done_if_its_answer_would_not_fit_into_a_message(serving: Serving) -> None:
    names = ["t" * 30_000] * 140
    creation = CreateTopicsRequest(topics=[CreatableTopic(name=name) for name in names], timeout_ms=0)
    states = [DeleteTopicState(name=name) for name in names * 2][1:]
    deletion = DeleteTopicsRequest(topics=states, timeout_ms=0)
    assert set(codes(serving.send(creation))) == {ErrorCode.POLICY_VIOLATION}
    assert "cannot be sent" in (serving.send(deletion).closed or "")
    assert serving.topics.calls == []
    serving.topics.created = [made()]
    serving.send(creation, version=7)
    assert len(serving.topics.calls) == 1


def test_unreadable_settings_do_not_fail_a_creation(serving: Serving) -> None:
    serving.topics.created = [made()]
    serving.configs.trouble = api_error(ErrorCode.REQUEST_TIMED_OUT, "no ZooKeeper")
    [topic] = serving.call(
        CreateTopicsRequest(topics=[CreatableTopic(name="topic")], validate_only=True), version=7
    ).topics
    assert (topic.error_code, topic.topic_config_error_code) == (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)
    assert topic.configs is None


# Adding partitions


def grown(error: ErrorCode = ErrorCode.NONE) -> tuple[CreatePartitionsTopicResult, TopicId, int]:
    return CreatePartitionsTopicResult(name="topic", error_code=error), TopicId(TOPIC_ID), 2


def add_partitions(serving: Serving, *, validate_only: bool = False) -> Connection:
    return serving.send(
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="topic", count=2)], validate_only=validate_only
        )
    )


def begin_growth(serving: Serving) -> Connection:
    """The controller adds a partition to a topic that the metadata has."""
    serving.managed.metadata.update(metadata(LIVE, led_by(1)))
    serving.topics.grown = [grown()]
    return add_partitions(serving)


def test_partitions_are_added_when_each_has_a_leader(serving: Serving) -> None:
    connection = begin_growth(serving)
    assert serving.topics.calls == [([("topic", 2)], False)]
    assert not connection.is_answered
    serving.managed.metadata.update(metadata(LIVE, led_by(1), led_by(-1, index=1)))
    assert not connection.is_answered
    serving.managed.metadata.update(metadata(LIVE, led_by(1), led_by(2, epoch=1, index=1)))
    [result] = connection.response.results
    assert (result.name, result.error_code) == ("topic", ErrorCode.NONE)


def test_partitions_that_are_validated_or_refused_are_answered_at_once(serving: Serving) -> None:
    for validate_only, code in ((True, ErrorCode.NONE), (False, ErrorCode.INVALID_PARTITIONS)):
        serving.topics.grown = [grown(code)]
        assert codes(add_partitions(serving, validate_only=validate_only)) == [code]
        assert serving.topics.calls.pop() == ([("topic", 2)], validate_only)


def test_internal_topics_may_be_deleted(serving: Serving) -> None:
    serving.topics.deleted = [deleted()]
    serving.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="__consumer_offsets")], timeout_ms=0))
    assert serving.topics.calls == [["__consumer_offsets"]]


def test_internal_topics_do_not_grow(serving: Serving) -> None:
    topics = [CreatePartitionsTopic(name=name, count=100) for name in ("__consumer_offsets", "topic")]
    refused = CreatePartitionsTopicResult(name="topic", error_code=ErrorCode.INVALID_PARTITIONS)
    serving.topics.grown = [(refused, TopicId(TOPIC_ID), 2)]
    results = serving.call(CreatePartitionsRequest(topics=topics, timeout_ms=0)).results
    assert serving.topics.calls == [([("topic", 100)], False)]
    assert [(result.name, result.error_code) for result in results] == [
        ("topic", ErrorCode.INVALID_PARTITIONS),
        ("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
