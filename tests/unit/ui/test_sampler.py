"""Looks at a cluster of fake brokers: their cost in requests, and what other software does not tell."""

import asyncio
from collections import Counter
from typing import NoReturn

import msgspec
import pytest

from barnabas.protocol.schema import ApiKey
from barnabas.ui import sampler as sampler_module
from barnabas.ui.context import Context
from barnabas.ui.sampler import Sampler
from barnabas.ui.snapshot import State
from tests.support.admins import quick_admin
from tests.support.batches import build_batch
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import until

BROKERS = 3
LOOKS = 4


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "TICK_S", 0.0)


async def look(sampler: Sampler, times: int = 1) -> None:
    """As many new states."""
    listener = sampler.listen(())
    listener.needs_state = False
    running = asyncio.create_task(sampler.run())
    try:
        async with asyncio.timeout(20):
            for _ in range(times):
                await listener.wait()
    finally:
        running.cancel()
        sampler.leave(listener)


async def test_a_look_asks_once_for_metadata_and_each_broker_for_its_replicas() -> None:
    async with FakeCluster(BROKERS) as cluster, quick_admin(cluster) as admin:
        cluster.add_topic("t", 3)
        sampler = Sampler(Context(admin=admin, bootstrap=cluster.bootstrap, settings={}))
        await look(sampler, 2)
        for broker in cluster.brokers.values():
            broker.received.clear()
        await look(sampler, LOOKS)
        asked = Counter(api for broker in cluster.brokers.values() for api, _ in broker.received)
        assert asked.pop(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0) <= 1, "every two seconds"
        assert asked.keys() == {ApiKey.METADATA, ApiKey.DESCRIBE_REPLICAS}
        # Another look may have begun.
        assert asked[ApiKey.METADATA] <= LOOKS + 1
        assert asked[ApiKey.DESCRIBE_REPLICAS] <= BROKERS * (LOOKS + 1)


async def test_a_page_gets_the_partition_that_it_draws_and_hears_that_others_changed() -> None:
    async with FakeCluster(1) as cluster, quick_admin(cluster) as admin:
        cluster.add_topic("t", 2)
        sampler = Sampler(Context(admin=admin, bootstrap=cluster.bootstrap, settings={}))
        await look(sampler, 3)
        names = {"partitions/t-1": {"t-1"}, "partitions": {"t-0", "t-1"}, "partitions/gone": set(), "": set()}
        listeners = {part: sampler.listen([part]) for part in names}
        heard: dict[str, list[set[str]]] = {part: [] for part in names}

        def hear() -> bool:
            for part, listener in listeners.items():
                listener.needs_state = False
                changes = map(msgspec.json.decode, listener.take())
                heard[part] += [{*change["partitions"]} for change in changes if "partitions" in change]
            return set().union(*heard["partitions"]) == names["partitions"]

        for number in (0, 1):
            cluster.partition("t", number).append(build_batch([(None, b"v")]))
        looking = asyncio.create_task(sampler.run())
        await until(hear)
        looking.cancel()
    for part, shown in names.items():
        assert msgspec.json.decode(sampler.whole(listeners[part].parts))["partitions"].keys() == shown, part
        assert heard[part], f"{part}: no change was heard"
        assert set().union(*heard[part]) == shown, part


async def test_a_look_that_fails_leaves_no_partition_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeCluster(1) as cluster, quick_admin(cluster) as admin:
        cluster.add_topic("t", 1)
        sampler = Sampler(Context(admin=admin, bootstrap=cluster.bootstrap, settings={}))
        await look(sampler, 4)
        cluster.partition("t", 0).append(build_batch([(None, b"v")]))
        ends: list[int] = []

        def fail(state: State, before: State | None) -> NoReturn:
            ends.append(state["partitions"]["t-0"]["replicas"]["1"]["log_end_offset"])
            raise RuntimeError("planted")

        with monkeypatch.context() as planted:
            planted.setattr(sampler_module, "figures_of", fail)
            looking = asyncio.create_task(sampler.run())
            listener = sampler.listen([])
            await until(lambda: ends[-3:] == [1, 1, 1])
            looking.cancel()
            sampler.leave(listener)
        await look(sampler, 2)
        assert sampler.state is not None
        assert sampler.state["partitions"]["t-0"]["replicas"]["1"]["log_end_offset"] == 1


async def test_reassignments_are_looked_at_at_once_when_replicas_change() -> None:
    async with FakeCluster(BROKERS) as cluster, quick_admin(cluster) as admin:
        cluster.add_topic("t", 1)
        sampler = Sampler(Context(admin=admin, bootstrap=cluster.bootstrap, settings={}))
        await look(sampler, 3)
        for broker in cluster.brokers.values():
            broker.received.clear()
        cluster.grow_topic("t", 2)
        await look(sampler, 4)
        asked = [api for broker in cluster.brokers.values() for api, _ in broker.received]
        assert ApiKey.LIST_PARTITION_REASSIGNMENTS in asked


async def test_a_controller_that_waits_for_zookeeper_tells_of_its_replicas() -> None:
    """A broker answers the requests of one connection in their order: a slow answer delays the others."""
    async with FakeCluster(1) as cluster, quick_admin(cluster) as admin, quick_admin(cluster) as watcher:
        broker = cluster.brokers[1]
        broker.gate(ApiKey.LIST_PARTITION_REASSIGNMENTS)
        context = Context(admin=admin, watcher=watcher, bootstrap=cluster.bootstrap, settings={})

        def asked(api: ApiKey) -> int:
            return sum(api == each for each, _ in broker.received)

        looking = asyncio.create_task(look(Sampler(context), 1000))
        await until(lambda: asked(ApiKey.LIST_PARTITION_REASSIGNMENTS))
        enough = asked(ApiKey.DESCRIBE_REPLICAS) + 2
        # The next question is asked once the one before is answered.
        await until(lambda: asked(ApiKey.DESCRIBE_REPLICAS) >= enough, timeout_s=15)
        looking.cancel()


@pytest.mark.parametrize("is_kafka", [False, True])
async def test_the_page_has_of_each_replica_what_the_protocol_tells(is_kafka: bool) -> None:
    async with FakeCluster(1) as cluster:
        cluster.add_topic("t", 1)
        cluster.partition("t", 0).append(build_batch([(None, b"v")] * 20))
        cluster.brokers[1].is_kafka = is_kafka
        async with quick_admin(cluster, wire="kafka" if is_kafka else "native") as admin:
            sampler = Sampler(Context(admin=admin, bootstrap=cluster.bootstrap, settings={}))
            await look(sampler, 3)
        assert sampler.state is not None
        replica = sampler.state["partitions"]["t-0"]["replicas"]["1"]
        assert (replica["log_start_offset"], replica["high_watermark"], replica["log_end_offset"]) == (
            0,
            20,
            20,
        )
        assert sampler.state["brokers"]["1"]["state"] == "running"
