"""How to test code that uses aiokafka: faults are also asynchronous context managers."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from pytest_barnabas import Cluster

ORDERS = [b"order %d" % number for number in range(200)]


async def write(servers: str, topic: str, values: list[bytes]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True) as producer:
        await asyncio.gather(*[await producer.send(topic, value) for value in values])


async def read(servers: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
    async with consumer:
        return [(await asyncio.wait_for(anext(consumer), 30)).value for _ in range(count)]


async def test_every_order_is_read_back(barnabas_cluster: Cluster, barnabas_topic: str) -> None:
    await write(barnabas_cluster.bootstrap_servers, barnabas_topic, ORDERS)
    assert sorted(await read(barnabas_cluster.bootstrap_servers, barnabas_topic, 200)) == sorted(ORDERS)


@pytest.mark.barnabas_topic(partitions=1)
@pytest.mark.parametrize("fault", ["killed", "stopped"])
async def test_orders_survive_the_loss_of_the_leader(
    fault: str, barnabas_cluster: Cluster, barnabas_topic: str
) -> None:
    servers = barnabas_cluster.bootstrap_servers
    await write(servers, barnabas_topic, ORDERS[:100])
    leader = await asyncio.to_thread(barnabas_cluster.leader_of, barnabas_topic)
    async with getattr(barnabas_cluster, fault)(leader):
        await write(servers, barnabas_topic, ORDERS[100:])
    assert await read(servers, barnabas_topic, 200) == ORDERS
