"""Failover: kill -9 of a leader under load, until every partition that it led has acknowledged a new write.

60 partitions, 3 replicas, min.insync.replicas 2, and one `Producer` (acks=all) that keeps sending to all of
them. A partition's time runs from the kill until the first acknowledgement of a record that was handed to the
producer after the kill. Every second time the controller is killed, else the broker that leads most; the
next kill comes when the killed one is back in every ISR.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Collection

import uvloop

from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.metadata import PartitionInfo
from barnabas.client.producer.batch import DeliveryCallback, RecordMetadata
from barnabas.client.producer.producer import Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ApiError, BarnabasError
from benchmarks.support import Figure, Options, run, running_cluster, tell

_PARTITIONS = 60
_TOPIC = "failover"
_INTERVAL_S = 0.02
"""Every partition is sent one record in this time: the resolution of the figure."""
_SETTLE_S = 1.0
_TIMEOUT_S = 30.0


class _Load:
    """Sends to all partitions for as long as it runs, and notes the first acknowledgement after a kill."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._killed_at = float("inf")
        self._acknowledged: dict[int, float] = {}
        self._waited_for: set[int] = set()
        self._all_acknowledged = asyncio.Event()
        self.errors: list[BarnabasError] = []

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            for partition in range(_PARTITIONS):
                await self._producer.send(
                    _TOPIC, b"value", partition=partition, on_delivery=self._noting(partition)
                )
            await asyncio.sleep(max(0.0, began + _INTERVAL_S - time.perf_counter()))

    def killed(self, moved: Collection[int]) -> None:
        """The leader of these partitions is being killed: the clock runs from now."""
        self._acknowledged = {}
        self._waited_for = set(moved)
        self._all_acknowledged.clear()
        self._killed_at = time.perf_counter()

    async def seconds(self) -> list[float]:
        """How long each of those partitions had no acknowledged write, once all have one."""
        await self._all_acknowledged.wait()
        return [self._acknowledged[partition] - self._killed_at for partition in sorted(self._acknowledged)]

    def _noting(self, partition: int) -> DeliveryCallback:
        sent_at = time.perf_counter()

        def delivered(metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
            if error is not None:
                self.errors.append(error)
            elif sent_at > self._killed_at and partition in self._waited_for:
                self._acknowledged[partition] = time.perf_counter()
                self._waited_for.remove(partition)
                if not self._waited_for:
                    self._all_acknowledged.set()

        return delivered


async def _wait_whole(admin: Admin, replicas: int) -> list[PartitionInfo]:
    """The partitions, once each has all its replicas in sync."""
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            try:
                partitions = list((await admin.describe_topics(_TOPIC))[_TOPIC].partitions)
            except ApiError as error:
                # The broker that was asked has yet to hear of the new topic.
                if not error.retriable:
                    raise
                partitions = []
            if partitions and all(len(partition.isr) == replicas for partition in partitions):
                return partitions
            await asyncio.sleep(0.05)


async def _kill_once(
    cluster: LocalCluster, admin: Admin, load: _Load, number: int
) -> tuple[bool, list[float]]:
    """Whether the controller was killed, and the seconds of each partition that the killed broker led."""
    partitions = await _wait_whole(admin, len(cluster.broker_ids))
    controller = (await admin.describe_cluster()).controller_id
    led = Counter(partition.leader for partition in partitions)
    victim = led.most_common(1)[0][0]
    if number % 2 and led[controller]:
        victim = controller
    moved = [partition.partition for partition in partitions if partition.leader == victim]
    load.killed(moved)
    await asyncio.to_thread(cluster.kill, victim)
    async with asyncio.timeout(_TIMEOUT_S):
        seconds = await load.seconds()
    which = f"broker {victim} (controller)" if victim == controller else f"broker {victim}"
    tell(
        f"kill {number + 1}: {which}, {len(moved)} partitions: "
        f"median {statistics.median(seconds) * 1000:.0f} ms, worst {max(seconds) * 1000:.0f} ms"
    )
    await asyncio.to_thread(cluster.start_broker, victim)
    return victim == controller, seconds


async def _measure(cluster: LocalCluster, kills: int) -> tuple[list[list[float]], int, int]:
    """The seconds per kill and partition, how often the controller was killed, and failed records."""
    found: list[list[float]] = []
    of_controller = 0
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topics(NewTopic(_TOPIC, num_partitions=_PARTITIONS, replication_factor=3))
        await _wait_whole(admin, 3)
        async with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            load = _Load(producer)
            sending = asyncio.create_task(load.run())
            try:
                for number in range(kills):
                    await asyncio.sleep(_SETTLE_S)
                    was_controller, seconds = await _kill_once(cluster, admin, load, number)
                    of_controller += was_controller
                    found.append(seconds)
                    if sending.done():
                        sending.result()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    return found, of_controller, len(load.errors)


def measure(options: Options) -> list[Figure]:
    kills = options.amount(10, 3)
    with running_cluster(options, min_insync_replicas="2") as cluster:
        found, of_controller, failed = uvloop.run(_measure(cluster, kills))
    every = [seconds * 1000 for kill in found for seconds in kill]
    note = (
        f"{kills} kills, {of_controller} of the controller, {len(every)} partitions moved, "
        f"{failed} records failed"
    )
    return [
        Figure(
            name="failover of a partition: median",
            measured=statistics.median(every),
            unit="ms",
            at_most=500,
            rounds=[statistics.median(kill) * 1000 for kill in found],
            note=note,
        ),
        Figure(
            name="failover of a partition: worst",
            measured=max(every),
            unit="ms",
            at_most=1500,
            rounds=[max(kill) * 1000 for kill in found],
        ),
    ]


if __name__ == "__main__":
    run(__doc__, measure)
