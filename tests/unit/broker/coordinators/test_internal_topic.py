"""The offsets topic has its settings, and a group has the same partition as in Kafka."""

from __future__ import annotations

import pytest

from barnabas.broker.coordinators.internal_topic import (
    java_hash,
    new_offsets_topic,
    new_transactions_topic,
    partition_of,
)
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


def test_a_negative_hash_gives_a_partition_too() -> None:
    assert partition_of("grüppe", 50) == 1_233_264_812 % 50


def test_the_topic_never_has_fewer_replicas_than_configured() -> None:
    config = make_config(offsets_topic_num_partitions=7, offsets_topic_segment_bytes=12345)
    topic = new_offsets_topic(config)
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("__consumer_offsets", 7, 3)
    assert {one.name: one.value for one in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "12345",
    }


def test_the_topic_of_transactions_needs_its_replicas_in_sync_and_elects_only_these() -> None:
    config = make_config(transaction_state_log_num_partitions=7, transaction_state_log_segment_bytes=12345)
    topic = new_transactions_topic(config)
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("__transaction_state", 7, 3)
    assert {one.name: one.value for one in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "12345",
        "unclean.leader.election.enable": "false",
    }
