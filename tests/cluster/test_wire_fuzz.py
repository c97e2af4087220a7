"""Every API in every version that Kafka's clients may use, and natively, odd and broken, to real brokers.

The seed is printed with a failure. `wire_soak` does more harm for longer.
"""

import asyncio
import random
import uuid

import pytest

from barnabas.deploy.local import LocalCluster

from . import wire_fuzz
from .tools import UNHARMED, ClusterView, resident_bytes, unforeseen_lines, writes_and_reads
from .wire_attack import Attack

FRAMES = 4_000
MORE_MEMORY_BYTES = 200_000_000
BYSTANDER = "bystander"


def make_topics(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    view.create_topic(BYSTANDER, 1, 3)
    for name in wire_fuzz.TOPICS:
        view.create_topic(name, 2, 3)


def topic_ids(cluster: LocalCluster) -> list[uuid.UUID]:
    with ClusterView(cluster).admin() as admin:
        return [topic.topic_id for topic in admin.describe_topics(wire_fuzz.TOPICS).values()]


@pytest.mark.brokers(settings=UNHARMED)
async def test_odd_and_broken_frames_of_every_api_do_no_harm(cluster: LocalCluster) -> None:
    seed = random.randrange(1 << 32)
    await asyncio.to_thread(make_topics, cluster)
    pids = [broker.running_process.pid for broker in cluster.brokers]
    before = [resident_bytes(pid) for pid in pids]
    attack = Attack(
        seed,
        [broker.endpoint for broker in cluster.brokers],
        topic=BYSTANDER,
        topic_ids=await asyncio.to_thread(topic_ids, cluster),
        manners=[Attack.frame],
    )
    running = asyncio.create_task(attack.run(iter(range(FRAMES))))
    served = 0
    while not running.done():
        assert await asyncio.to_thread(writes_and_reads, cluster, BYSTANDER), f"seed {seed}"
        served += 1
    await running

    assert served > 0
    for broker in cluster.brokers:
        broker.check_alive()
    assert [broker.running_process.pid for broker in cluster.brokers] == pids, f"seed {seed}"
    grown = [resident_bytes(pid) - size for pid, size in zip(pids, before, strict=True)]
    assert max(grown) < MORE_MEMORY_BYTES, f"seed {seed}: {grown}"
    ends = [attack.outcomes[f"frame: {end}"] for end in ("answered", "closed")]
    assert min(ends) > FRAMES // 10, f"seed {seed}: {attack.outcomes}"
    never = {
        (api.key.name, is_native)
        for api in wire_fuzz.advertised()
        for is_native in (False, True)
        if (api.key, is_native) not in attack.answered
    }
    assert not never, f"seed {seed}: never answered: {never}"
    for broker in cluster.brokers:
        assert list(unforeseen_lines(broker.directory / "logs")) == [], f"seed {seed}"
    ClusterView(cluster).wait_isr(BYSTANDER, 3)
