"""Internal topics have their settings and their size, and a group has the same partition as in Kafka."""

import logging
import types
import uuid
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.coordinators.internal_topic import (
    TOO_FEW_EVERY_MS,
    InternalTopic,
    java_hash,
    new_topic,
    partition_of,
)
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.support.defaults import make_config


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("my-group", -1_906_497_762),
        ("grüppe", -1_233_264_812),
        ("群", 32_676),
        ("😀", 1_772_899),
        ("polygenelubricants", -2_147_483_648),
    ],
)
def test_the_hash_is_javas(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


def test_the_hash_without_a_positive_counterpart_counts_as_zero() -> None:
    assert partition_of("polygenelubricants", 50) == 0


def test_the_topic_never_has_fewer_replicas_than_configured() -> None:
    config = make_config(offsets_topic_num_partitions=7, offsets_topic_segment_bytes=12345)
    topic = new_topic(OFFSETS_TOPIC, config)
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("__consumer_offsets", 7, 3)
    assert {one.name: one.value for one in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "12345",
    }


def test_the_topic_of_transactions_needs_its_replicas_in_sync_and_elects_only_these() -> None:
    config = make_config(transaction_state_log_num_partitions=7, transaction_state_log_segment_bytes=12345)
    topic = new_topic(TRANSACTIONS_TOPIC, config)
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("__transaction_state", 7, 3)
    assert {one.name: one.value for one in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "12345",
        "unclean.leader.election.enable": "false",
    }


class TopicRig:
    """An offsets topic of 5 partitions and 3 replicas, over metadata that the test changes."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.creations = 0
        self.counted: int | None = 5
        self.submitted: list[Callable[[], object]] = []
        self.topics: dict[str, Any] = {}
        self.brokers = {1: "a", 2: "b", 3: "c"}
        self.leaders = {0: 1}
        current = types.SimpleNamespace(
            topics=self.topics,
            brokers=self.brokers,
            partitions_of=lambda name: self.leaders,
            endpoint=lambda broker, listener: self.brokers.get(broker),
        )
        metadata = types.SimpleNamespace(current=current, leader_of=lambda state: (state, 0))
        self.topic = InternalTopic(
            "__consumer_offsets",
            make_config(offsets_topic_num_partitions=5),
            cast("MetadataCache", metadata),
            create_topic=self.create,
            count_partitions=lambda topic: self.counted,
            submit=self.submitted.append,
            now_ms=lambda: self.now_ms,
        )

    def create(self, topic: str) -> None:
        self.creations += 1

    def know(self, partitions: Iterable[int]) -> None:
        self.topics["__consumer_offsets"] = types.SimpleNamespace(
            topic_id=uuid.uuid4(), partitions=dict.fromkeys(partitions)
        )

    def refusal(self) -> str:
        with pytest.raises(ApiError) as caught:
            self.topic.partition_of("g")
        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        return str(caught.value)


def test_a_topic_is_created_once_enough_brokers_are_alive(caplog: pytest.LogCaptureFixture) -> None:
    rig = TopicRig()
    assert "does not exist yet" in rig.refusal()
    del rig.brokers[3]
    with caplog.at_level(logging.WARNING):
        for rig.now_ms in (5.0, 6.0, 4.0 + TOO_FEW_EVERY_MS, 5.0 + TOO_FEW_EVERY_MS):
            rig.topic.create()
    assert len(caplog.records) == 2
    assert "offsets.topic.replication.factor is 3, alive are 2" in rig.refusal()
    assert rig.creations == 0
    rig.brokers[3] = "c"
    rig.topic.create()
    assert rig.creations == 1


def test_the_coordinator_is_the_leader_of_the_groups_partition() -> None:
    rig = TopicRig()
    rig.know(range(5))
    index = rig.topic.partition_of("g")
    rig.leaders = {index: 2}
    assert rig.topic.coordinator_of("g", "PLAINTEXT") == (2, "b")
    for leaders in ({index: 9}, {}):
        rig.leaders = leaders
        with pytest.raises(ApiError) as caught:
            rig.topic.coordinator_of("g", "PLAINTEXT")
        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_topic_of_another_size_is_counted_once_at_a_time() -> None:
    rig = TopicRig()
    rig.know([0, 1, 2, 3, 6])
    del rig.brokers[3]
    for _ in range(2):
        assert "does not exist yet" in rig.refusal()
    assert len(rig.submitted) == 1
    rig.counted = 7
    rig.submitted.pop()()
    rig.refusal()
    rig.counted = 5
    rig.submitted.pop()()
    assert 0 <= rig.topic.partition_of("g") < 5
    assert rig.submitted == []
    rig.know(range(6))
    rig.refusal()
    assert len(rig.submitted) == 1
