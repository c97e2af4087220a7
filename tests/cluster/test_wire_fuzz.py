"""Every API in every version that Kafka's clients may use, and natively, odd and broken, to real brokers.

The seed is printed with a failure; ``WIRE_FUZZ_FRAMES`` sends more than the few thousand of a test run.
"""

import asyncio
import os
import random
from collections import Counter

import pytest

from barnabas.deploy.local import LocalCluster

from . import wire_fuzz
from .tools import UNHARMED, ClusterView, resident_bytes, writes_and_reads

FRAMES = int(os.environ.get("WIRE_FUZZ_FRAMES", "4000"))
CONNECTIONS = 8
PATIENCE_S = 0.2
MORE_MEMORY_BYTES = 200_000_000
BYSTANDER = "bystander"


class Attack:
    """Sends frames to all brokers, each over a new connection, several at a time."""

    def __init__(self, chance: random.Random, cluster: LocalCluster) -> None:
        self._chance = chance
        self._endpoints = [broker.endpoint for broker in cluster.brokers]
        self._apis = wire_fuzz.advertised()
        with ClusterView(cluster).admin() as admin:
            known = admin.describe_topics(wire_fuzz.TOPICS)
        self._maker = wire_fuzz.Maker(chance, [topic.topic_id for topic in known.values()])
        self._left = FRAMES
        self.outcomes: Counter[str] = Counter()
        self.answered: set[tuple[int, bool]] = set()
        """(API key, is native) of the undamaged frames that were answered."""

    async def run(self) -> None:
        await asyncio.gather(*(self._send_until_done() for _ in range(CONNECTIONS)))

    async def _send_until_done(self) -> None:
        chance = self._chance
        while self._left > 0:
            self._left -= 1
            # Every API has its turns, also one with a single version.
            api, is_native = chance.choice(self._apis), chance.random() < 0.5
            version = api.versions[1] if is_native else chance.randint(*api.versions)
            data = self._maker.frame(api, version, is_native=is_native)
            is_spoilt = chance.random() < 0.6
            if is_spoilt:
                data = wire_fuzz.spoilt(chance, data)
            outcome = await self._send(data, resets=chance.random() < 0.3)
            self.outcomes[outcome] += 1
            if outcome == "answered" and not is_spoilt:
                self.answered.add((api.key, is_native))

    async def _send(self, data: bytes, *, resets: bool) -> str:
        endpoint = self._chance.choice(self._endpoints)
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        try:
            writer.write(data)
            await asyncio.wait_for(reader.readexactly(4), PATIENCE_S)
            return "answered"
        except TimeoutError:
            return "left waiting"
        except (asyncio.IncompleteReadError, ConnectionError):
            return "closed"
        finally:
            if resets:
                writer.transport.abort()
            writer.close()


def make_topics(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    view.create_topic(BYSTANDER, 1, 3)
    for name in wire_fuzz.TOPICS:
        view.create_topic(name, 2, 3)


@pytest.mark.brokers(settings=UNHARMED)
async def test_odd_and_broken_frames_of_every_api_do_no_harm(cluster: LocalCluster) -> None:
    seed = random.randrange(1 << 32)
    await asyncio.to_thread(make_topics, cluster)
    pids = [broker.running_process.pid for broker in cluster.brokers]
    before = [resident_bytes(pid) for pid in pids]
    attack = await asyncio.to_thread(Attack, random.Random(seed), cluster)
    running = asyncio.create_task(attack.run())
    served = 0
    while not running.done():
        assert await asyncio.to_thread(writes_and_reads, cluster.bootstrap, BYSTANDER), f"seed {seed}"
        served += 1
    await running

    assert served > 0
    for broker in cluster.brokers:
        broker.check_alive()
    assert [broker.running_process.pid for broker in cluster.brokers] == pids, f"seed {seed}"
    grown = [resident_bytes(pid) - size for pid, size in zip(pids, before, strict=True)]
    assert max(grown) < MORE_MEMORY_BYTES, f"seed {seed}: {grown}"
    assert min(attack.outcomes["answered"], attack.outcomes["closed"]) > FRAMES // 10, f"seed {seed}"
    never = {
        (api.key.name, is_native)
        for api in wire_fuzz.advertised()
        for is_native in (False, True)
        if (api.key, is_native) not in attack.answered
    }
    assert not never, f"seed {seed}: never answered: {never}"
    for broker in cluster.brokers:
        for log in (broker.directory / "logs").iterdir():
            text = log.read_text()
            for unforeseen in ("its request failed", "Traceback", "CRITICAL"):
                assert unforeseen not in text, f"seed {seed}: {unforeseen} in {log}"
    ClusterView(cluster).wait_isr(BYSTANDER, 3)
