"""One group of our consumer, confluent-kafka and aiokafka together: each may lead, and all understand it."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import aiokafka
import confluent_kafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from barnabas.client.consumer.consumer import Consumer
from barnabas.client.producer.producer import Producer
from barnabas.deploy.local import LocalCluster
from tests.support.names import fresh_name
from tests.support.waiting import until

from .tools import ClusterView

PARTITIONS = 6
DEADLINE_S = 60.0


class Reader(ABC):
    """A member that reads on by itself; ``seen`` counts the values."""

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        self.bootstrap, self.group, self.topic, self.strategy = bootstrap, group, topic, strategy
        self.seen: Counter[bytes] = Counter()
        self.held: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        self._over = threading.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        self._over.set()
        assert self._task is not None
        await self._task

    @abstractmethod
    async def read(self) -> None:
        """Join the group and read until it is over, then leave."""


class OurReader(Reader):
    async def read(self) -> None:
        consumer = Consumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=self.strategy,
            heartbeat_interval_ms=500,
        )
        async with consumer:
            consumer.subscribe([self.topic])
            while not self._over.is_set():
                for record in await consumer.poll(100):
                    self.seen[record.value or b""] += 1
                self.held = {tp.partition for tp in consumer.assignment()}


class AiokafkaReader(Reader):
    async def read(self) -> None:
        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
        }
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[assignors[self.strategy]],
            heartbeat_interval_ms=500,
        )
        await consumer.start()
        try:
            while not self._over.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    self.seen.update(record.value for record in records)
                self.held = {tp.partition for tp in consumer.assignment()}
        finally:
            await consumer.stop()


class ConfluentReader(Reader):
    async def read(self) -> None:
        await asyncio.to_thread(self._read)

    def _read(self) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": self.strategy,
            "heartbeat.interval.ms": 500,
        }
        consumer = confluent_kafka.Consumer(settings)
        try:
            consumer.subscribe([self.topic])
            while not self._over.is_set():
                for message in consumer.consume(100, timeout=0.1):
                    assert message.error() is None
                    self.seen[message.value()] += 1
                self.held = {tp.partition for tp in consumer.assignment()}
        finally:
            consumer.close()


ALL = (OurReader, AiokafkaReader, ConfluentReader)
CASES = [
    *[(strategy, kinds) for strategy in ("range", "roundrobin") for kinds in (ALL, ALL[1:] + ALL[:1])],
    ("range", ALL[2:] + ALL[:2]),
    ("sticky", (OurReader, AiokafkaReader)),
    ("sticky", (AiokafkaReader, OurReader)),
    ("cooperative-sticky", (OurReader, ConfluentReader, OurReader)),
    ("cooperative-sticky", (ConfluentReader, OurReader, ConfluentReader)),
]
"""The first reader leads the group."""


@pytest.mark.parametrize(("strategy", "kinds"), CASES)
async def test_clients_of_several_makers_share_a_group(
    shared_cluster: LocalCluster, strategy: str, kinds: tuple[type[Reader], ...]
) -> None:
    bootstrap, topic = shared_cluster.bootstrap, fresh_name("t")
    await asyncio.to_thread(ClusterView(shared_cluster).create_topic, topic, PARTITIONS, 1)
    readers = [kind(bootstrap, f"g-{topic}", topic, strategy) for kind in kinds]

    def is_shared(*present: Reader) -> bool:
        held = Counter(number for reader in present for number in reader.held)
        even = all(len(reader.held) == PARTITIONS // len(present) for reader in present)
        return even and held == Counter(range(PARTITIONS))

    async with AsyncExitStack() as present:
        for count, reader in enumerate(readers, 1):
            await present.enter_async_context(reader)
            await until(lambda: is_shared(*readers[:count]))  # noqa: B023 - called within the turn
        async with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(120):
                await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        await until(lambda: sum(len(reader.seen) for reader in readers) >= 120)
        seen = sum((reader.seen for reader in readers), Counter[bytes]())
        assert seen == Counter(b"%d" % number for number in range(120))
        await readers[-1].stop()
        await until(lambda: is_shared(*readers[:-1]))
