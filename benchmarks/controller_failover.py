"""Measures the failover of 2,000 partitions, and the return of 1,000 to their preferred leaders.

Three brokers, three replicas. Failover: kill -9 of the controller, until the metadata of both other brokers
shows every partition with a leader that lives. Then the broker comes back, and once all ISRs are whole one
ElectLeaders request returns the leadership of every partition that it is preferred for and 1,000 in all, from
the request until its answer, while a producer with acks=all writes to all partitions: it must see no error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import uvloop

from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.metadata import PartitionInfo
from barnabas.client.producer.producer import Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ApiError, BarnabasError
from barnabas.protocol.ids import TopicPartition
from benchmarks.support import Figure, Options, run, running_cluster, tell

_TOPICS: Final = 20
_TIMEOUT_S: Final = 180.0
_LOOK_S: Final = 0.02
_PAUSE_S: Final = 0.05


class _Load:
    """Writes one record after the other to all partitions, for as long as it runs."""

    def __init__(self, producer: Producer, partitions: Sequence[TopicPartition]) -> None:
        self._producer = producer
        self._partitions = partitions
        self.acknowledged = 0
        self._awaited = 0
        self._reached = asyncio.Event()
        self.errors: list[BarnabasError] = []

    async def run(self) -> None:
        while True:
            for number, tp in enumerate(self._partitions):
                await self._producer.send(
                    tp.topic, b"value", partition=tp.partition, on_delivery=self._delivered
                )
                if number % 20 == 19:
                    await asyncio.sleep(_LOOK_S)

    async def wait_for(self, more: int) -> None:
        """Wait until so many more records are acknowledged."""
        self._awaited = self.acknowledged + more
        self._reached.clear()
        async with asyncio.timeout(_TIMEOUT_S):
            await self._reached.wait()

    def _delivered(self, _: object, error: BarnabasError | None) -> None:
        if error is None:
            self.acknowledged += 1
            if self.acknowledged >= self._awaited:
                self._reached.set()
        else:
            self.errors.append(error)


async def _partitions(admin: Admin, topic: str | None = None) -> list[PartitionInfo]:
    return [one for found in (await admin.describe_topics(topic)).values() for one in found.partitions]


async def wait_for_partitions(
    admin: Admin, count: int, is_done: Callable[[PartitionInfo], bool], topic: str | None = None
) -> None:
    """Wait until so many partitions are shown, of a topic or of all, and each is done."""
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            try:
                found = await _partitions(admin, topic)
            except ApiError as error:
                if not error.retriable:
                    raise
                found = []
            if len(found) == count and all(map(is_done, found)):
                return
            await asyncio.sleep(_PAUSE_S)


async def _fail_over(cluster: LocalCluster, count: int) -> float:
    """Seconds from the kill of the controller to new leaders for all that it led; then it is whole again."""
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        victim = (await admin.describe_cluster()).controller_id
    others = [broker.endpoint for broker in cluster.brokers if broker.id != victim]
    began = time.perf_counter()
    await asyncio.to_thread(cluster.kill, victim)
    for endpoint in others:
        async with Admin(bootstrap_servers=str(endpoint)) as admin:
            await wait_for_partitions(admin, count, lambda one: one.leader not in (-1, victim))
    seconds = time.perf_counter() - began
    await asyncio.to_thread(cluster.start_broker, victim, _TIMEOUT_S)
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await wait_for_partitions(admin, count, lambda one: len(one.isr) == len(cluster.brokers))
    tell(f"failover from broker {victim}: {seconds:.2f} s")
    return seconds


async def _elect(cluster: LocalCluster, moved: int) -> tuple[float, int, int]:
    """Seconds of an election of the preferred leaders, the records written meanwhile, and the failed ones."""
    async with (
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer,
    ):
        found = await _partitions(admin)
        load = _Load(producer, [TopicPartition(one.topic, one.partition) for one in found])
        sending = asyncio.create_task(load.run())
        try:
            await load.wait_for(len(found))
            asked = [
                TopicPartition(one.topic, one.partition) for one in found if one.leader != one.replicas[0]
            ][:moved]
            before, began = load.acknowledged, time.perf_counter()
            await admin.elect_leaders(asked, timeout_ms=int(_TIMEOUT_S * 1000))
            seconds = time.perf_counter() - began
            written = load.acknowledged - before
            await load.wait_for(2 * len(found))
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    failed = len(load.errors)
    tell(f"{len(asked)} preferred leaders: {seconds:.2f} s, {written} records meanwhile, {failed} failed")
    return seconds, len(asked), failed


async def _create(cluster: LocalCluster, count: int) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topics(
            [
                NewTopic(f"failover-{number}", num_partitions=count // _TOPICS, replication_factor=3)
                for number in range(_TOPICS)
            ],
            timeout_ms=int(_TIMEOUT_S * 1000),
        )
        await wait_for_partitions(admin, count, lambda one: len(one.isr) == len(cluster.brokers))


def measure(options: Options) -> list[Figure]:
    count = options.amount(2_000, 200)
    moved = count // 2
    failovers: list[float] = []
    elections: list[float] = []
    failed = 0
    with running_cluster(options, auto_leader_rebalance_enable="false") as cluster:
        uvloop.run(_create(cluster, count))
        for _ in range(options.rounds):
            for _ in range(2):
                failovers.append(uvloop.run(_fail_over(cluster, count)))
            seconds, elected, errors = uvloop.run(_elect(cluster, moved))
            if elected < moved * 0.9:
                raise RuntimeError(f"only {elected} partitions had lost their preferred leader")
            elections.append(seconds)
            failed += errors
            uvloop.run(_elect(cluster, count))
    return [
        Figure.of(f"controller killed, {count:,} partitions led again", failovers, "s", at_most=1.5),
        Figure.of(f"preferred leaders of about {moved:,} partitions", elections, "s", at_most=2.0),
        Figure.of("records that failed meanwhile", [failed], "", at_most=0),
    ]


if __name__ == "__main__":
    run(__doc__, measure)
