"""Lag and lead of a consumer: the worst of its partitions, once a fetch has told them."""

from __future__ import annotations

from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.partition_state import PartitionState, consumer_metrics
from barnabas.protocol.ids import TopicPartition
from tests.support.fake_broker import FakeCluster

from .test_consumer import fill


def state(position: int | None, log_start_offset: int, high_watermark: int) -> PartitionState:
    found = PartitionState(TopicPartition("t", 0), check_crcs=True)
    found.position, found.log_start_offset, found.high_watermark = position, log_start_offset, high_watermark
    return found


def test_the_worst_partition_counts() -> None:
    states = [state(10, 2, 30), state(100, 99, 101), state(5, 0, 5)]
    assert consumer_metrics(states) == {"records-lag-max": 20, "records-lead-min": 1}


def test_partitions_of_which_nothing_is_known_do_not_count() -> None:
    assert consumer_metrics([]) == {}
    assert consumer_metrics([state(None, 0, 10), state(3, -1, -1)]) == {}
    assert consumer_metrics([state(None, 0, 10), state(3, 1, 4)]) == {
        "records-lag-max": 1,
        "records-lead-min": 2,
    }


def test_a_position_outside_the_log_is_neither_behind_nor_ahead() -> None:
    assert consumer_metrics([state(9, 10, 8)]) == {"records-lag-max": 0, "records-lead-min": 0}


async def test_a_consumer_tells_how_far_behind_it_is() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        fill(cluster.partition("t"), 0, 100)
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            assert consumer.metrics() == {}
            assert len(await consumer.poll(5_000, max_records=40)) == 40
            assert consumer.metrics() == {"records-lag-max": 60, "records-lead-min": 40}
