"""Our consumers in one group, with real coordinators."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.errors import CommitFailed, RebalanceInProgressError
from barnabas.client.producer.producer import Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import BrokerId, TopicPartition
from tests.support.names import fresh_name

PARTITIONS = 6
DEADLINE_S = 60.0
WIRES = ["native", "kafka"]
STRATEGIES = ["range", "cooperative-sticky"]


async def make_topic(bootstrap: str) -> str:
    name = fresh_name("t")
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(NewTopic(name, PARTITIONS, 3))
    return name


async def produce(bootstrap: str, topic: str, start: int, end: int) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(start, end):
            await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        await producer.flush()


def consumer_of(bootstrap: str, group: str, **settings: object) -> Consumer:
    return Consumer(
        **{
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": 6_000,
            "heartbeat_interval_ms": 500,
            **settings,
        }
    )


class Readers:
    """Consumers that are polled together; it counts the records that they read."""

    def __init__(self, *consumers: Consumer) -> None:
        self.consumers = list(consumers)
        self.seen: Counter[bytes | None] = Counter()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await self.poll()

    async def poll(self) -> None:
        for found in await asyncio.gather(*(consumer.poll(50) for consumer in self.consumers)):
            self.seen.update(record.value for record in found)

    async def commit_until(self, partitions: list[TopicPartition], offset: int) -> None:
        """Commit until all partitions have an offset; after a rebalance, poll before the next commit."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    for consumer in self.consumers:
                        await consumer.commit()
                    found = await self.consumers[0].committed(partitions)
                    if all(one is not None and one.offset == offset for one in found.values()):
                        return
                except (CommitFailed, RebalanceInProgressError):
                    pass
                await self.poll()

    def shares(self) -> list[int]:
        return sorted(len(consumer.assignment()) for consumer in self.consumers)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("wire", WIRES)
async def test_three_members_share_and_read_everything_once(
    shared_cluster: LocalCluster, wire: str, strategy: str
) -> None:
    bootstrap = shared_cluster.bootstrap
    topic = await make_topic(bootstrap)
    settings = {"wire": wire, "partition_assignment_strategy": strategy}
    group = f"g-{topic}"
    async with (
        consumer_of(bootstrap, group, **settings) as first,
        consumer_of(bootstrap, group, **settings) as second,
        consumer_of(bootstrap, group, **settings) as third,
    ):
        readers = Readers(first, second, third)
        for consumer in readers.consumers:
            consumer.subscribe([topic])
        await readers.until(lambda: readers.shares() == [2, 2, 2])
        await produce(bootstrap, topic, 0, 600)
        await readers.until(lambda: len(readers.seen) == 600)
        assert set(readers.seen.values()) == {1}
    # Closing a consumer commits.
    async with consumer_of(bootstrap, group, **settings) as consumer:
        found = await consumer.committed([(topic, number) for number in range(PARTITIONS)])
    assert [one.offset for one in found.values() if one is not None] == [100] * PARTITIONS


_MEMBER = """
import sys
from barnabas.client.blocking import Consumer
bootstrap, group, topic = sys.argv[1:]
consumer = Consumer(bootstrap_servers=bootstrap, group_id=group, session_timeout_ms=6_000,
                    heartbeat_interval_ms=500, auto_offset_reset="earliest", enable_auto_commit=False)
consumer.subscribe([topic])
while True:
    consumer.poll(100)
    print(len(consumer.assignment()), flush=True)
"""


async def test_other_members_get_the_partitions_of_a_killed_member(
    shared_cluster: LocalCluster,
) -> None:
    bootstrap = shared_cluster.bootstrap
    topic = await make_topic(bootstrap)
    async with consumer_of(bootstrap, f"g-{topic}") as first:
        first.subscribe([topic])
        readers = Readers(first)
        await readers.until(lambda: readers.shares() == [6])
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _MEMBER, bootstrap, f"g-{topic}", topic, stdout=subprocess.PIPE
        )
        try:
            await readers.until(lambda: readers.shares() == [3])
            await produce(bootstrap, topic, 0, 60)
        finally:
            os.kill(other.pid, signal.SIGKILL)
            await other.wait()
        await readers.until(lambda: readers.shares() == [6] and len(readers.seen) == 60)


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_group_survives_its_coordinator(cluster: LocalCluster, how: str) -> None:
    bootstrap = cluster.bootstrap
    topic = await make_topic(bootstrap)
    group = f"g-{topic}"
    async with consumer_of(bootstrap, group) as first, consumer_of(bootstrap, group) as second:
        readers = Readers(first, second)
        for consumer in readers.consumers:
            consumer.subscribe([topic])
        await readers.until(lambda: readers.shares() == [3, 3])
        await produce(bootstrap, topic, 0, 60)
        await readers.until(lambda: len(readers.seen) == 60)
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        await readers.commit_until(partitions, 10)
        assert first._group is not None
        member = first._group.member
        await readers.until(lambda: member.coordinator is not None)
        victim = member.coordinator
        assert victim is not None
        (cluster.kill if how == "kill" else cluster.pause)(BrokerId(victim))
        await produce(bootstrap, topic, 60, 120)
        await readers.until(lambda: len(readers.seen) == 120)
        await readers.until(lambda: readers.shares() == [3, 3])
        await readers.commit_until(partitions, 20)
