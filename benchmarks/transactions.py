"""Transactions: how fast one producer commits and copies, and how long a kill -9 stops it.

On three brokers, in the native protocol: one `Producer` commits one transaction after another, each with 1,
10 or 100 records over 6 partitions of 3 replicas. A commit's time is that of ``commit_transaction()``, which
also delivers the records; the CPU time is that of the three brokers and the client. A copy consumes, produces
and commits the offsets in transactions of 500 records.

Failover: the producer commits in a loop, 6 records each, while a broker gets SIGKILL: the coordinator of its
transactional id, or another broker, which leads data partitions. The figure is the longest time between the
ends of two successive committed transactions. `transaction_loading` measures coordinators with many ids.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import uvloop

from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.cluster import Cluster
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.coordinators import find_coordinator
from barnabas.client.producer.producer import Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ApiError, BarnabasError
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.find_coordinator import CoordinatorType
from benchmarks import transaction_loading
from benchmarks.support import (
    Figure,
    Options,
    broker_pids,
    cpu_seconds,
    percentile,
    run,
    running_cluster,
    tell,
)

_PARTITIONS: Final = 6
_RECORDS: Final = (1, 10, 100)
_VALUE: Final = b"v" * 100
_WARM_UP: Final = 20
"""Transactions before the first that counts."""
_COPIED_AT_ONCE: Final = 500
_RECORDS_WHILE_KILLED: Final = 6
_COMMITS_AFTER_A_KILL: Final = 50
_SETTLE_S: Final = 1.0
_TIMEOUT_S: Final = 60.0
_STATE_TOPIC: Final = "__transaction_state"


def _name() -> str:
    return f"transactions-{os.urandom(4).hex()}"


async def _new_topic(admin: Admin) -> str:
    topic = _name()
    await admin.create_topics(NewTopic(topic, num_partitions=_PARTITIONS, replication_factor=3))
    await _wait_whole(admin, [topic])
    return topic


async def _wait_whole(admin: Admin, topics: list[str]) -> None:
    """Return when all partitions of the topics have three replicas in sync."""
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            try:
                described = (await admin.describe_topics(topics)).values()
                if all(len(one.isr) == 3 for topic in described for one in topic.partitions):
                    return
            except ApiError as error:
                # The broker that was asked has yet to hear of the new topic.
                if not error.retriable:
                    raise
            await asyncio.sleep(0.05)


# -- commits and copies ------------------------------------------------------------------------------------


@dataclass
class _Rounds:
    """The figures of one kind of transaction, one of each for a round."""

    per_second: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def figures(self, name: str) -> list[Figure]:
        return [
            Figure.of(name, self.per_second, "1/s"),
            Figure.of(f"{name}: commit p50", self.p50_ms, "ms"),
            Figure.of(f"{name}: commit p99", self.p99_ms, "ms"),
            Figure.of(f"{name}: CPU of brokers and client", self.cpu_ms, "ms"),
        ]


async def _commit_one(producer: Producer, topic: str, records: int, first: int = 0) -> float:
    """The seconds that ``commit_transaction`` took."""
    await producer.begin_transaction()
    for number in range(first, first + records):
        await producer.send(topic, _VALUE, partition=number % _PARTITIONS)
    asked = time.perf_counter()
    await producer.commit_transaction()
    return time.perf_counter() - asked


async def _commits(cluster: LocalCluster, topic: str, records: int, count: int, into: _Rounds) -> None:
    pids = [*broker_pids(cluster), os.getpid()]
    async with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=_name()) as producer:
        for number in range(_WARM_UP):
            await _commit_one(producer, topic, records, number * records)
        cpu, started = cpu_seconds(*pids), time.perf_counter()
        seconds = [await _commit_one(producer, topic, records, number * records) for number in range(count)]
        took = time.perf_counter() - started
        into.per_second.append(count / took)
        into.cpu_ms.append((cpu_seconds(*pids) - cpu) / count * 1000)
    into.p50_ms.append(statistics.median(seconds) * 1000)
    into.p99_ms.append(percentile(seconds, 99) * 1000)
    tell(
        f"{records} records: {count / took:.0f}/s, p50 {into.p50_ms[-1]:.1f} ms, CPU {into.cpu_ms[-1]:.1f} ms"
    )


async def _copy(bootstrap: str, source: str, target: str, count: int) -> float:
    """The records per second that are consumed, produced and committed with their offsets."""
    group = _name()
    async with (
        Producer(bootstrap_servers=bootstrap, transactional_id=group) as producer,
        Consumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer,
    ):
        consumer.assign([(source, partition) for partition in range(_PARTITIONS)])
        left, started = count, time.perf_counter()
        while left:
            async with asyncio.timeout(_TIMEOUT_S):
                records = await consumer.poll(1_000, max_records=_COPIED_AT_ONCE)
            if not records:
                continue
            async with producer.transaction():
                for record in records:
                    await producer.send(target, record.value, partition=record.partition)
                offsets = {TopicPartition(source, one.partition): one.offset + 1 for one in records}
                await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            left -= len(records)
        seconds = time.perf_counter() - started
    await _check_count(bootstrap, target, count)
    return count / seconds


async def _check_count(bootstrap: str, topic: str, count: int) -> None:
    """Raise RuntimeError unless exactly so many records are committed."""
    found = 0
    async with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        partitions = [TopicPartition(topic, partition) for partition in range(_PARTITIONS)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        # The ends may be those before the last markers: a commit returns before its markers are written.
        with suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                while found < count or any([await consumer.position(one) < ends[one] for one in partitions]):
                    found += len(await consumer.poll(100))
    if found != count:
        raise RuntimeError(f"{topic}: {found} records are committed, expected {count}")


async def _speed(cluster: LocalCluster, options: Options) -> list[Figure]:
    rounds = {records: _Rounds() for records in _RECORDS}
    copies: list[float] = []
    count, copied = options.amount(500, 100), options.amount(50_000, 10_000)
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for _ in range(options.rounds):
            for records, into in rounds.items():
                topic = await _new_topic(admin)
                await _commits(cluster, topic, records, count, into)
                await _check_count(cluster.bootstrap, topic, records * (count + _WARM_UP))
            source, target = [await _new_topic(admin) for _ in range(2)]
            async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                for number in range(copied):
                    await producer.send(source, _VALUE, partition=number % _PARTITIONS)
            copies.append(await _copy(cluster.bootstrap, source, target, copied))
            tell(f"copied {copies[-1]:,.0f} records/s")
    return [
        *(figure for records in _RECORDS for figure in rounds[records].figures(_kind(records))),
        Figure.of(f"consume-transform-produce, {_COPIED_AT_ONCE} records each", copies, "records/s"),
    ]


def _kind(records: int) -> str:
    return f"transactions of {records} record{'s' if records > 1 else ''}"


# -- failover ----------------------------------------------------------------------------------------------


class _Load:
    """Commits one transaction after another; aborts those that fail."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self.topic = topic
        self.ended_at: list[float] = []
        """The ends of the committed transactions."""
        self.aborted = 0
        self._one_more = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                async with self._producer.transaction():
                    for partition in range(_RECORDS_WHILE_KILLED):
                        await self._producer.send(self.topic, _VALUE, partition=partition)
            except BarnabasError as error:
                self.aborted += 1
                tell(f"aborted: {error}")
            else:
                self.ended_at.append(time.perf_counter())
                self._one_more.set()

    async def longest_gap_s(self, since: float) -> float:
        """The longest time between two commits of which the later one is after ``since``; waits for some."""
        first = sum(ended < since for ended in self.ended_at)
        async with asyncio.timeout(_TIMEOUT_S):
            while len(self.ended_at) < first + _COMMITS_AFTER_A_KILL:
                self._one_more.clear()
                await self._one_more.wait()
        return max(later - earlier for earlier, later in pairwise(self.ended_at[first - 1 :]))


async def _kill(cluster: LocalCluster, admin: Admin, load: _Load, victim: int) -> float:
    """The milliseconds without a commit; the broker is back in sync afterwards."""
    killed_at = time.perf_counter()
    await asyncio.to_thread(cluster.kill, victim)
    found_ms = await load.longest_gap_s(killed_at) * 1000
    await asyncio.to_thread(cluster.start_broker, victim)
    await _wait_whole(admin, [load.topic, _STATE_TOPIC])
    return found_ms


async def _coordinator(bootstrap: str, transactional_id: str) -> BrokerId:
    cluster = Cluster(ConsumerConfig.of({"bootstrap_servers": bootstrap}))
    await cluster.start()
    try:
        return await find_coordinator(cluster, CoordinatorType.TRANSACTION, transactional_id)
    finally:
        cluster.close()


async def _failover(cluster: LocalCluster, kills: int) -> list[Figure]:
    """The gaps after the kill of a coordinator, and of another broker, in turn."""
    gaps: dict[bool, list[float]] = {True: [], False: []}
    transactional_id = _name()
    async with (
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(bootstrap_servers=cluster.bootstrap, transactional_id=transactional_id) as producer,
    ):
        load = _Load(producer, await _new_topic(admin))
        committing = asyncio.create_task(load.run())
        try:
            for number in range(2 * kills):
                await asyncio.sleep(_SETTLE_S)
                coordinator = await _coordinator(cluster.bootstrap, transactional_id)
                is_coordinator = number % 2 == 0
                others = [broker for broker in cluster.broker_ids if broker != coordinator]
                victim = coordinator if is_coordinator else others[number // 2 % 2]
                gaps[is_coordinator].append(await _kill(cluster, admin, load, victim))
                which = "coordinator" if is_coordinator else "other leader"
                tell(
                    f"kill {number + 1}: {which} {victim}: {gaps[is_coordinator][-1]:.0f} ms without a commit"
                )
                if committing.done():
                    committing.result()
        finally:
            committing.cancel()
            await asyncio.gather(committing, return_exceptions=True)
    note = f"{load.aborted} transactions aborted in all"
    return [
        Figure.of("kill of the coordinator: longest time between commits", gaps[True], "ms", at_most=500),
        Figure(name="  worst", measured=max(gaps[True]), unit="ms", note=note),
        Figure.of("kill of another leader: longest time between commits", gaps[False], "ms", at_most=500),
        Figure(name="  worst", measured=max(gaps[False]), unit="ms"),
    ]


def measure(options: Options) -> list[Figure]:
    with running_cluster(options) as cluster:
        figures = uvloop.run(_speed(cluster, options))
    with running_cluster(options, min_insync_replicas="2") as cluster:
        figures += uvloop.run(_failover(cluster, options.amount(6, 2)))
    return [*figures, *transaction_loading.measure(options)]


if __name__ == "__main__":
    run(__doc__, measure)
