"""confluent-kafka, kafka-python and aiokafka as members of one group, in this process.

They share the partitions of a topic, take over from each other, and go on when their coordinator is killed.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import wait_until

with warnings.catch_warnings():
    # What the clients do at their import is not ours to judge.
    warnings.simplefilter("ignore")
    import aiokafka
    import confluent_kafka
    import kafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 6
DEADLINE_S = 60.0
SESSION_TIMEOUT_MS = 6_000
StartCluster = Callable[..., LocalCluster]
Place = tuple[int, int]
"""Partition and offset."""


class Member(ABC):
    """A consumer on a thread of its own; it notes what it is assigned and what it reads, and commits that."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self.assigned: frozenset[int] = frozenset()
        self.read: list[Place] = []
        self.problem: Exception | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._guarded, daemon=True)

    def _guarded(self) -> None:
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - told by the test, whatever it is
            self.problem = error
        finally:
            self.assigned = frozenset()

    @abstractmethod
    def run(self) -> None:
        """Poll and commit until it is stopping, then leave."""

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(DEADLINE_S)


class ConfluentMember(Member):
    def run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 500,
                "partition.assignment.strategy": "range",
                "log_level": 0,
            }
        )
        consumer.subscribe([self.topic])
        while not self.stopping.is_set():
            messages = [one for one in consumer.consume(100, 0.2) if one.error() is None]
            self.assigned = frozenset(one.partition for one in consumer.assignment())
            self.read += [(one.partition(), one.offset()) for one in messages]
            if messages:
                consumer.commit(asynchronous=True)
        consumer.close()


class KafkaPythonMember(Member):
    def run(self) -> None:
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=500,
        )
        while not self.stopping.is_set():
            found = consumer.poll(200)
            self.assigned = frozenset(one.partition for one in consumer.assignment())
            self.read += [(one.partition, one.offset) for records in found.values() for one in records]
            if found:
                consumer.commit_async()
        consumer.close()


class AiokafkaMember(Member):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=500,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        await consumer.start()
        try:
            while not self.stopping.is_set():
                found = await consumer.getmany(timeout_ms=200)
                self.assigned = frozenset(one.partition for one in consumer.assignment())
                self.read += [(one.partition, one.offset) for records in found.values() for one in records]
                if found:
                    try:
                        await consumer.commit()
                    except aiokafka.errors.CommitFailedError:
                        # A rebalance took them meanwhile: who has them now reads them again.
                        continue
        finally:
            await consumer.stop()


KINDS = (ConfluentMember, KafkaPythonMember, AiokafkaMember)


def make_topic(bootstrap: str) -> str:
    name = f"group-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, PARTITIONS, 3)])[name].result(DEADLINE_S)
    return name


def produce(bootstrap: str, topic: str, count: int) -> set[Place]:
    """As many records to each partition; where they are."""
    places: set[Place] = set()

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        assert error is None
        places.add((message.partition(), message.offset()))

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for number in range(count * PARTITIONS):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS, on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    return places


@contextmanager
def members(bootstrap: str, topic: str, *kinds: type[Member]) -> Iterator[list[Member]]:
    group = f"{topic}-group"
    started = [kind(bootstrap, topic, group) for kind in kinds]
    with ExitStack() as stack:
        for member in started:
            stack.callback(member.stop)
            member.thread.start()
        yield started


def wait_for(condition: Callable[[], bool], all_members: list[Member], what: str) -> None:
    def holds() -> bool:
        assert [one.problem for one in all_members if one.problem is not None] == []
        return condition()

    begun = time.monotonic()
    seen = lambda: [(type(one).__name__, sorted(one.assigned), len(one.read)) for one in all_members]  # noqa: E731
    assert wait_until(holds, DEADLINE_S), f"{what}: {seen()} after {time.monotonic() - begun:.0f} s"


def wait_shared(sharing: list[Member], all_members: list[Member]) -> None:
    """Wait until these, and nobody else, have all partitions, each one of them."""

    def are_shared() -> bool:
        parts = [member.assigned for member in sharing]
        return all(parts) and sorted(index for part in parts for index in part) == list(range(PARTITIONS))

    wait_for(are_shared, all_members, "the partitions are not shared")


def wait_read(places: set[Place], all_members: list[Member]) -> None:
    wait_for(
        lambda: places <= {place for member in all_members for place in member.read},
        all_members,
        f"{len(places)} records are not all read",
    )


@pytest.mark.timeout(240)
def test_members_of_three_clients_share_a_topic_and_take_over_from_each_other(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with members(bootstrap, topic, *KINDS) as sharing:
        wait_shared(sharing, sharing)
        places = produce(bootstrap, topic, 20)
        wait_read(places, sharing)
        sharing[0].stop()
        wait_shared(sharing[1:], sharing)
        places = produce(bootstrap, topic, 20)
        wait_read(places, sharing)
    assert [member.problem for member in sharing] == [None, None, None]


@pytest.mark.timeout(240)
def test_a_group_begins_where_it_committed(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    first = produce(bootstrap, topic, 20)
    for kind in KINDS:
        with members(bootstrap, topic, kind) as (member,):
            wait_read(first, [member])
        assert set(member.read) == first, "it read what was committed before it"
        first = produce(bootstrap, topic, 20)


@pytest.mark.timeout(240)
def test_a_group_goes_on_when_its_coordinator_is_killed(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    topic = make_topic(cluster.bootstrap)
    with members(cluster.bootstrap, topic, *KINDS) as sharing:
        wait_shared(sharing, sharing)
        wait_read(produce(cluster.bootstrap, topic, 20), sharing)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        described = admin.describe_consumer_groups([sharing[0].group])[sharing[0].group].result(DEADLINE_S)
        cluster.kill(described.coordinator.id)
        places = produce(cluster.bootstrap, topic, 20)
        wait_read(places, sharing)
        wait_shared(sharing, sharing)
    assert [member.problem for member in sharing] == [None, None, None]
