"""The register of the exactly-once sinks on real brokers, and the producer that takes an identity over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from barnabas.client import Admin, Producer
from barnabas.client.admin.configs import ConfigResource
from barnabas.client.cluster import Cluster
from barnabas.client.config import ClientConfig
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import ProducerFenced
from barnabas.deploy.local import LocalCluster
from barnabas.spark_connector.sink.sink_register import RegisterTopic, partition_of, register_id
from barnabas.spark_connector.source.ranges import REGISTER_TOPIC
from tests.support.names import fresh_name


class Sinks:
    def __init__(self, bootstrap: str, admin: Admin, cluster: Cluster) -> None:
        self.bootstrap = bootstrap
        self.admin = admin
        self.cluster = cluster
        self.register = self.another_driver()

    def another_driver(self) -> RegisterTopic:
        return RegisterTopic(self.admin, self.cluster, {"bootstrap_servers": self.bootstrap})

    async def claim(self, name: str) -> ProducerIdAndEpoch:
        return (await self.admin.fence_producers([register_id(name)]))[register_id(name)]


@asynccontextmanager
async def sinks(cluster: LocalCluster) -> AsyncIterator[Sinks]:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        connections = Cluster(ClientConfig.of({"bootstrap_servers": cluster.bootstrap}))
        await connections.start()
        try:
            yield Sinks(cluster.bootstrap, admin, connections)
        finally:
            connections.close()


async def test_the_last_claimant_writes_the_record_and_others_read_it(shared_cluster: LocalCluster) -> None:
    async with sinks(shared_cluster) as here:
        name, other = fresh_name("sink"), fresh_name("sink")
        holder = await here.claim(name)
        assert await here.register.read(name) is None
        after = await here.register.write(name, holder, b"1")
        assert await here.register.read(name) == b"1"
        await here.register.write(name, after, b"2")
        await here.register.write(other, await here.claim(other), b"other")
        for register in (here.register, here.another_driver()):
            assert await register.read(name) == b"2"
            assert await register.read(other) == b"other"
        described = await here.admin.describe_configs(ConfigResource.topic(REGISTER_TOPIC))
        settings = described[ConfigResource.topic(REGISTER_TOPIC)]
        assert settings["cleanup.policy"].value == "compact"
        assert settings["min.insync.replicas"].value == "2"


async def test_a_claimant_that_was_overtaken_cannot_write(shared_cluster: LocalCluster) -> None:
    async with sinks(shared_cluster) as here:
        name = fresh_name("sink")
        earlier = await here.claim(name)
        later = await here.claim(name)
        with pytest.raises(ProducerFenced):
            await here.register.write(name, earlier, b"earlier")
        await here.register.write(name, later, b"later")
        with pytest.raises(ProducerFenced):
            await here.register.write(name, later, b"again")
        assert await here.register.read(name) == b"later"


async def test_a_read_waits_for_an_open_transaction_before_the_last_record(
    shared_cluster: LocalCluster,
) -> None:
    async with sinks(shared_cluster) as here:
        name = fresh_name("sink")
        holder = await here.claim(name)
        assert await here.register.read(name) is None
        tp = partition_of(name)
        # Another sink that is deciding.
        async with Producer(bootstrap_servers=here.bootstrap, transactional_id=fresh_name("id")) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(tp.topic, b"x", b"another", partition=tp.partition)
            await here.register.write(name, holder, b"1")
            reading = asyncio.create_task(here.register.read(name))
            done, _ = await asyncio.wait([reading], timeout=0.3)
            assert not done
            await producer.abort_transaction()
        assert await reading == b"1"
        assert await here.register.read("another") is None


async def test_a_register_that_was_made_again_is_read_from_its_start(shared_cluster: LocalCluster) -> None:
    async with sinks(shared_cluster) as here:
        name = fresh_name("sink")
        await here.register.read(name)
        await here.register.write(name, await here.claim(name), b"1")
        assert await here.register.read(name) == b"1"
        await here.admin.delete_topics(REGISTER_TOPIC)
        assert await here.register.read(name) is None
        await here.register.write(name, await here.claim(name), b"2")
        assert await here.register.read(name) == b"2"


async def test_a_producer_takes_an_identity_over_once(shared_cluster: LocalCluster) -> None:
    async with sinks(shared_cluster) as here:
        name = fresh_name("sink")
        given = await here.claim(name)
        settings = {"bootstrap_servers": here.bootstrap, "transactional_id": register_id(name)}
        async with Producer(takes_over=given, **settings) as producer:
            assert producer.identity == (given.producer_id, given.producer_epoch + 1)
            async with Producer(**settings):
                with pytest.raises(ProducerFenced):
                    await Producer(takes_over=given, **settings).start()
