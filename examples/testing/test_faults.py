"""How to test with faults of two brokers at a time, of a link and of the protocol, and our own client."""

from __future__ import annotations

import pytest

from barnabas.client.blocking import Consumer, Producer
from pytest_barnabas import Cluster

pytestmark = pytest.mark.barnabas_topic(partitions=1)


def read(consumer: Consumer[bytes, bytes], topic: str, count: int) -> list[bytes | None]:
    consumer.subscribe([topic])
    return [next(consumer).value for _ in range(count)]


def test_an_order_waits_for_a_second_replica(
    barnabas_cluster: Cluster, barnabas_topic: str, barnabas_producer: Producer[bytes, bytes]
) -> None:
    leader = barnabas_cluster.leader_of(barnabas_topic)
    one, other = (id for id in barnabas_cluster.broker_ids if id != leader)
    with barnabas_cluster.killed(one), barnabas_cluster.killed(other):
        sent = barnabas_producer.send(barnabas_topic, b"order")
        with pytest.raises(TimeoutError):
            sent.result(0.5)
    assert sent.result(30).offset == 0


def test_a_lost_acknowledgement_makes_no_second_order(
    barnabas_cluster: Cluster,
    barnabas_topic: str,
    barnabas_producer: Producer[bytes, bytes],
    barnabas_consumer: Consumer[bytes, bytes],
) -> None:
    # Written, then the connection is closed instead of the answer.
    with barnabas_cluster.faults(
        api="Produce", topic=barnabas_topic, disconnect=True, after=True, times=1
    ) as fault:
        barnabas_producer.send_and_wait(barnabas_topic, b"order 1")
        assert fault.hits == 1
    barnabas_producer.send_and_wait(barnabas_topic, b"order 2")
    assert read(barnabas_consumer, barnabas_topic, 2) == [b"order 1", b"order 2"]


async def test_orders_arrive_over_a_slow_link_while_a_replica_is_down(
    barnabas_cluster: Cluster, barnabas_topic: str
) -> None:
    leader = await barnabas_cluster.aio.leader_of(barnabas_topic)
    follower = next(id for id in barnabas_cluster.broker_ids if id != leader)
    async with barnabas_cluster.stopped(follower), barnabas_cluster.slow("client", leader, delay_ms=50):
        async with barnabas_cluster.aio.producer() as producer:
            await producer.send_and_wait(barnabas_topic, b"order")
    async with barnabas_cluster.aio.consumer() as consumer:
        consumer.subscribe([barnabas_topic])
        assert (await anext(consumer)).value == b"order"
