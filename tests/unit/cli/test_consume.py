"""Where `barnabas consume` begins."""

import pytest

from barnabas.cli.consume import _seek
from barnabas.client.consumer.consumer import Consumer
from barnabas.protocol.ids import TopicPartition
from tests.support.fake_broker import FakeCluster

from ..client.test_consumer import fill

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize(("start", "position"), [(0, 5), (7, 7), (20, 20), (1_000, 20)])
async def test_an_offset_outside_the_log_means_its_nearest_end(start: int, position: int) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        fill(cluster.partition("t"), 0, 20)
        cluster.partition("t").delete_records(5)
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([T0])
            await _seek(consumer, [T0], start)
            assert await consumer.position(T0) == position
