"""A broker's metadata: updates, recreated topics, and suspicions."""

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.cluster.metadata_cache import MetadataAnswers, MetadataCache
from barnabas.protocol.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages.inter_broker import (
    LEADER_DURING_DELETE,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from barnabas.zookeeper.znodes import LeadershipState
from tests.support.building import TOPIC_ID, led_by, metadata

ALL = {1: 10, 2: 20, 3: 30}
TWO = BrokerId(2)


@pytest.fixture
def cache() -> MetadataCache:
    """Topic "topic" with two partitions, led by 1 and 2."""
    cache = MetadataCache()
    cache.update(metadata(ALL, led_by(1), led_by(2, index=1), is_full=True, unreadable_topics=[]))
    return cache


def other(*states: UpdateMetadataPartition, **fields: Any) -> UpdateMetadataRequest:
    """An update about another topic."""
    return metadata(ALL, *states, topic="other", topic_id=uuid.UUID(int=9), **fields)


def may_exist(cache: MetadataCache, topic: str, index: int) -> bool:
    return cache.current.may_exist(TopicPartition(topic, index))


def leader(cache: MetadataCache, index: int = 1) -> int:
    return cache.leader_of(cache.current.partitions_of("topic")[index])[0]


def test_an_update_names_live_brokers_and_leaders(cache: MetadataCache) -> None:
    current = cache.current
    assert current.controller_id == 2
    assert current.endpoint(TWO, "INTERNAL") == Endpoint("host", 9002)
    assert current.endpoint(TWO, "EXTERNAL") is None
    assert current.broker_epoch(TWO) == 20
    assert [leader(cache, 0), leader(cache, 1)] == [1, 2]
    assert current.topic_names == {TOPIC_ID: "topic"}


def test_a_partial_update_changes_the_named_partitions_and_all_brokers(cache: MetadataCache) -> None:
    earlier = cache.current
    cache.update(metadata({1: 10, 3: 30}, led_by(3, epoch=1)))
    assert sorted(cache.current.brokers) == [1, 3]
    assert leader(cache, 0) == 3
    assert leader(cache, 1) == NO_BROKER, "broker 2 is not alive"
    cache.update(metadata({1: 10, 3: 30}, led_by(1), topic="other", topic_id=uuid.UUID(int=9)))
    assert sorted(cache.current.topics) == ["other", "topic"]
    assert (sorted(earlier.brokers), earlier.partitions_of("topic")[0].leader) == ([1, 2, 3], 1)


def test_a_full_update_removes_topics_that_it_does_not_name(cache: MetadataCache) -> None:
    touched: list[list[str]] = []
    visible: list[list[str]] = []
    cache.on_update(lambda names: touched.append(sorted(names)))
    cache.on_update(lambda names: visible.append(sorted(cache.current.topics)))
    cache.update(other(led_by(1), is_full=True, unreadable_topics=[]))
    assert (touched, visible) == ([["other", "topic"]], [["other"]])
    assert (may_exist(cache, "other", 0), may_exist(cache, "other", 1)) == (True, False)
    assert not may_exist(cache, "topic", 0)


def test_a_topic_that_the_controller_cannot_read_stays_as_it_was(cache: MetadataCache) -> None:
    cache.update(other(led_by(1), is_full=True, unreadable_topics=["topic", "never seen"]))
    assert [leader(cache, 0), leader(cache, 1)] == [1, 2]
    assert cache.current.topic_names[TOPIC_ID] == "topic"
    assert may_exist(cache, "never seen", 3)
    # It is known not to exist as soon as the controller does not list it any more.
    cache.update(metadata(ALL, led_by(1), unreadable_topics=[]))
    assert not may_exist(cache, "never seen", 3)


def test_a_partition_whose_state_cannot_be_read_stays_as_it_was(cache: MetadataCache) -> None:
    unknown = [led_by(NO_BROKER, epoch=NO_LEADER_EPOCH, index=index) for index in (1, 2)]
    cache.update(metadata(ALL, led_by(1), *unknown, is_full=True, unreadable_topics=[]))
    assert [leader(cache, index) for index in range(3)] == [1, 2, NO_BROKER]
    cache.update(metadata(ALL, led_by(3, index=2), unreadable_topics=[]))
    assert leader(cache, 2) == 3


def test_a_controllers_updates_count_from_its_first_full_one_on(cache: MetadataCache) -> None:
    """Before that one, this broker may lack what the former controller could not send any more."""
    assert cache.current.updates == 1
    cache.update(metadata(ALL, controller_epoch=2))
    assert cache.current.updates == 1
    cache.update(metadata(ALL, controller_epoch=2, is_full=True))
    cache.update(metadata(ALL, controller_epoch=2))
    assert cache.current.updates == 3


def test_after_an_update_that_fails_only_a_full_one_counts(cache: MetadataCache) -> None:
    broken = metadata(ALL, led_by(1))
    broken.topic_states[0].partition_states = [None]  # type: ignore[list-item] # what no codec decodes
    with pytest.raises(AttributeError):
        cache.update(broken)
    cache.update(metadata(ALL))
    assert cache.current.updates == 1
    cache.update(metadata(ALL, is_full=True))
    assert cache.current.updates == 2


def test_a_recreated_topic_has_no_partitions_of_the_earlier_one(cache: MetadataCache) -> None:
    fresh = uuid.UUID(int=8)
    cache.update(metadata(ALL, led_by(3), topic_id=fresh))
    assert sorted(cache.current.partitions_of("topic")) == [0]
    assert cache.current.topic_names == {fresh: "topic"}
    assert cache.current.topics["topic"].topic_id == fresh


def test_a_topic_is_deleted_partition_by_partition(cache: MetadataCache) -> None:
    cache.update(metadata(ALL, led_by(LEADER_DURING_DELETE)))
    assert sorted(cache.current.partitions_of("topic")) == [1]
    cache.update(metadata(ALL, led_by(LEADER_DURING_DELETE, index=1)))
    assert cache.current.topics == {}
    assert TopicId(TOPIC_ID) not in cache.current.topic_names
    cache.update(metadata(ALL, led_by(LEADER_DURING_DELETE, index=1)))


@pytest.mark.parametrize("unreadable", [[], ["other"]], ids=["omitted", "listed"])
def test_only_a_mark_or_another_id_deletes_a_topic(cache: MetadataCache, unreadable: list[str]) -> None:
    deleted: list[dict[str, TopicId]] = []
    cache.on_deletion(lambda topics: deleted.append(dict(topics)))
    cache.update(other(led_by(1)))
    cache.update(metadata(ALL, led_by(1), is_full=True, unreadable_topics=unreadable))
    cache.update(metadata(ALL, led_by(1, epoch=1), unreadable_topics=unreadable))
    assert deleted == []
    cache.update(other(led_by(LEADER_DURING_DELETE), unreadable_topics=[]))
    cache.update(metadata(ALL, led_by(1), topic_id=uuid.UUID(int=10)))
    assert deleted == [{"other": uuid.UUID(int=9)}, {"topic": TOPIC_ID}]


# Suspicions


def test_a_suspect_leads_nothing_until_it_answers(cache: MetadataCache) -> None:
    cache.suspect(TWO)
    assert cache.suspects == {2}
    assert [leader(cache, 0), leader(cache, 1)] == [1, NO_BROKER]
    cache.suspect(TWO)
    cache.trust(BrokerId(3))
    assert leader(cache) == NO_BROKER
    cache.trust(TWO)
    assert leader(cache) == 2
    assert cache.suspects == frozenset()


def test_a_suspect_that_answers_wakes_the_requests_that_wait_for_its_partitions(cache: MetadataCache) -> None:
    touched: list[list[str]] = []
    cache.on_update(lambda names: touched.append(sorted(names)))
    cache.suspect(TWO)
    cache.trust(TWO)
    cache.trust(TWO)
    assert touched == [["topic"]]


def test_a_peer_is_reached_by_its_answer_while_it_has_that_epoch(cache: MetadataCache) -> None:
    def reached() -> list[bool]:
        return [cache.was_reached(TWO, BrokerEpoch(epoch)) for epoch in (20, 21)]

    assert reached() == [False, False]
    cache.trust(TWO)
    cache.trust(BrokerId(9))
    assert reached() == [True, False]
    cache.update(metadata(ALL | {2: 21}))
    assert reached() == [True, False]
    cache.suspect(TWO)
    cache.end_suspicion(TWO)
    assert (cache.suspects, reached()) == (frozenset(), [True, False]), "it has not answered in this epoch"
    cache.trust(TWO)
    assert reached() == [False, True]


def test_the_topics_of_dead_or_suspected_leaders_are_moving(cache: MetadataCache) -> None:
    assert cache.moving_topics() == frozenset()
    cache.suspect(TWO)
    assert cache.moving_topics() == {"topic"}
    assert cache.moving_topics() is cache.moving_topics(), "it is computed once for a version"
    cache.trust(TWO)
    assert cache.moving_topics() == frozenset()
    cache.update(metadata({1: 10, 3: 30}))
    assert cache.moving_topics() == {"topic"}
    # The controller knows that it has no leader; that may last.
    cache.update(metadata({1: 10, 3: 30}, led_by(NO_BROKER, index=1, epoch=1)))
    assert cache.moving_topics() == frozenset()
    cache.update(metadata({1: 10, 3: 30}, led_by(0, index=1, epoch=2)))
    assert cache.moving_topics() == {"topic"}


def test_the_version_rises_with_each_change(cache: MetadataCache) -> None:
    versions = [cache.version]
    changes: list[Callable[[], None]] = [
        lambda: cache.update(metadata(ALL)),
        lambda: cache.suspect(TWO),
        lambda: cache.trust(TWO),
        lambda: cache.learn(leader_and_isr(3, epoch=1)),
    ]
    for change in changes:
        change()
        versions.append(cache.version)
    assert versions == sorted(set(versions))
    assert cache.current.updates == 2


def test_a_suspicion_that_is_repeated_changes_nothing(cache: MetadataCache) -> None:
    """A fetcher repeats it with each attempt to connect, and kept answers are valid for one version."""
    cache.suspect(TWO)
    version = cache.version
    cache.suspect(TWO)
    assert cache.version == version


def test_an_answer_is_kept_for_its_version_and_sixteen_at_most() -> None:
    answers = MetadataAnswers()
    assert answers.find(3, "a") is None
    answers.keep(3, "a", "A")
    answers.keep(3, "b", "B")
    assert [answers.find(3, "a"), answers.find(3, "b"), answers.find(4, "a")] == ["A", "B", None]
    for number in range(16):
        answers.keep(4, number, str(number))
    assert [answers.find(version, question) for version, question in ((3, "a"), (4, "a"))] == [None, None]
    assert all(answers.find(4, number) == str(number) for number in range(16))
    answers.keep(4, 16, "16")
    assert [answers.find(4, number) for number in range(17)] == [*[None] * 16, "16"]


def test_a_suspicion_survives_an_update_without_news(cache: MetadataCache) -> None:
    cache.suspect(TWO)
    cache.update(metadata(ALL))
    cache.update(metadata(ALL, led_by(3, epoch=1)))
    cache.update(metadata(ALL, led_by(2, index=1)))
    assert leader(cache) == NO_BROKER
    cache.update(metadata(ALL, led_by(1), led_by(2, index=1), controller_epoch=2, is_full=True))
    assert leader(cache) == NO_BROKER, "a new controller repeats the state of the former one"


@pytest.mark.parametrize(
    "news",
    [
        pytest.param(metadata(ALL, led_by(2, epoch=1, index=1)), id="elected in a newer epoch"),
        pytest.param(metadata(ALL, led_by(2), topic="other"), id="leads a new topic"),
        pytest.param(metadata(ALL | {2: 21}), id="registered again"),
        pytest.param(metadata({1: 10, 3: 30}), id="dropped by the controller"),
    ],
)
def test_a_suspicion_ends_when_the_controller_reports_a_change(cache: MetadataCache, news: object) -> None:
    cache.suspect(TWO)
    cache.update(news)
    assert cache.suspects == frozenset()


def leader_and_isr(leader: int, epoch: int, *, index: int = 1, **changes: Any) -> LeaderAndIsrRequest:
    state = LeaderAndIsrPartition(
        partition_index=index,
        controller_epoch=1,
        leader=leader,
        leader_epoch=epoch,
        isr=[leader],
        partition_epoch=7,
        replicas=[1, 2, 3],
    )
    settings: dict[str, Any] = {"controller_epoch": 1, "topic_id": TOPIC_ID, "name": "topic", **changes}
    topic = LeaderAndIsrTopic(
        topic_name=settings["name"], topic_id=settings["topic_id"], partition_states=[state]
    )
    return LeaderAndIsrRequest(
        controller_id=2,
        controller_epoch=settings["controller_epoch"],
        broker_epoch=10,
        topic_states=[topic],
        live_brokers=[],
    )


def test_the_cache_learns_leaders_from_leader_and_isr(cache: MetadataCache) -> None:
    touched: list[list[str]] = []
    cache.on_update(lambda names: touched.append(sorted(names)))
    request = leader_and_isr(3, epoch=1, name="unknown")
    request.topic_states += leader_and_isr(3, epoch=1).topic_states
    cache.learn(request)
    assert [leader(cache, 0), leader(cache, 1)] == [1, 3]
    state = cache.current.partitions_of("topic")[1]
    assert (state.leader_epoch, state.isr, state.partition_epoch) == (1, [3], 7)
    assert touched == [["topic"]]
    assert sorted(cache.current.brokers) == [1, 2, 3]


@pytest.mark.parametrize(
    "request_",
    [
        leader_and_isr(3, epoch=0),
        leader_and_isr(3, epoch=1, topic_id=uuid.UUID(int=99)),
        leader_and_isr(3, epoch=1, name="other"),
        leader_and_isr(3, epoch=1, index=5),
    ],
    ids=["no newer epoch", "a recreated topic", "an unknown topic", "a new partition"],
)
def test_leader_and_isr_changes_only_known_partitions_of_earlier_epochs(
    cache: MetadataCache, request_: LeaderAndIsrRequest
) -> None:
    before = cache.current
    cache.learn(request_)
    assert cache.current == before


def test_the_cache_learns_a_leader_from_zookeeper(cache: MetadataCache) -> None:
    touched: list[list[str]] = []
    cache.on_update(lambda names: touched.append(sorted(names)))
    cache.suspect(BrokerId(3))
    state = LeadershipState(
        leader=BrokerId(3),
        leader_epoch=LeaderEpoch(1),
        isr=(BrokerId(3),),
        controller_epoch=ControllerEpoch(2),
        partition_epoch=9,
    )
    for index in (1, 1, 5):
        cache.learn_leader(TopicPartition("topic", index), state)
    cache.learn_leader(TopicPartition("unknown", 0), state)
    assert [leader(cache, 0), leader(cache, 1)] == [1, 3]
    assert touched == [["topic"]]
    cache.learn_leader(TopicPartition("topic", 1), dataclasses.replace(state, leader=TWO))
    assert leader(cache) == 3, "it is no newer epoch"


def test_a_suspect_that_the_controller_elects_is_named_again(cache: MetadataCache) -> None:
    cache.suspect(BrokerId(3))
    cache.learn(leader_and_isr(3, epoch=1))
    assert leader(cache, 1) == 3
