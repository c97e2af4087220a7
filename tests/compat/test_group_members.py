"""confluent-kafka, kafka-python and aiokafka as members of one group, each in a process of its own.

They share the partitions of a topic, take over from each other, and go on when their coordinator is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

import pytest

from barnabas.deploy.local import LocalCluster
from tests.support.waiting import wait_for

from .drivers.lost_join import recall_lost_join

with warnings.catch_warnings():
    # What the clients do at their import is not ours to judge.
    warnings.simplefilter("ignore")
    import aiokafka
    import confluent_kafka
    import kafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = pytest.mark.timeout(420)
PARTITIONS = 6
DEADLINE_S = 60.0
SESSION_TIMEOUT_MS = 6_000
StartCluster = Callable[..., LocalCluster]
Place = tuple[int, int]
"""Partition and offset."""


class Member(ABC):
    """A consumer in a process of its own, where it may leave what it likes; commits what it has read."""

    def __init__(self, bootstrap: str, topic: str, group: str, pipe: Connection) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self._pipe = pipe
        self._is_stopping = False

    @property
    def is_stopping(self) -> bool:
        if self._pipe.poll():
            # Taken out: a pipe that ends with something in it is reset, and what was told is lost.
            self._pipe.recv()
            self._is_stopping = True
        return self._is_stopping

    def tell(self, assigned: Iterable[int], read: list[Place]) -> None:
        """What it has now, and what it has read since the last time."""
        self._pipe.send((frozenset(assigned), read, None))

    @abstractmethod
    def run(self) -> None:
        """Poll, tell and commit until it is stopping, then leave."""

    def work(self) -> None:
        problem = None
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - told by the test, whatever it is
            problem = repr(error)
        self._pipe.send((frozenset(), [], problem))


def _work(kind: type[Member], bootstrap: str, topic: str, group: str, pipe: Connection) -> None:
    kind(bootstrap, topic, group, pipe).work()


class Running:
    """A member as the test sees it."""

    def __init__(self, kind: type[Member], bootstrap: str, topic: str, group: str) -> None:
        self.name, self.group = kind.__name__, group
        self.read: list[Place] = []
        self.assigned: frozenset[int] = frozenset()
        self.problem: str | None = None
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (kind, bootstrap, topic, group, theirs)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def refresh(self) -> None:
        """Take in what it has told."""
        with contextlib.suppress(EOFError):
            while self._pipe.poll():
                self.assigned, read, problem = self._pipe.recv()
                self.read += read
                self.problem = self.problem or problem

    def stop(self) -> None:
        """Have it leave the group and end."""
        if self._process.is_alive():
            with contextlib.suppress(OSError):
                self._pipe.send(None)
        self._process.join(DEADLINE_S)
        self.refresh()

    def close(self) -> None:
        self.stop()
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()


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
        while not self.is_stopping:
            messages = [one for one in consumer.consume(100, 0.2) if one.error() is None]
            assigned = [one.partition for one in consumer.assignment()]
            self.tell(assigned, [(one.partition(), one.offset()) for one in messages])
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
        while not self.is_stopping:
            recall_lost_join(consumer)
            found = consumer.poll(200)
            read = [(one.partition, one.offset) for records in found.values() for one in records]
            self.tell([one.partition for one in consumer.assignment()], read)
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
            while not self.is_stopping:
                found = await consumer.getmany(timeout_ms=200)
                read = [(one.partition, one.offset) for records in found.values() for one in records]
                self.tell([one.partition for one in consumer.assignment()], read)
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
def members(bootstrap: str, topic: str, *kinds: type[Member]) -> Iterator[list[Running]]:
    with ExitStack() as stack:
        started = []
        for kind in kinds:
            started.append(Running(kind, bootstrap, topic, f"{topic}-group"))
            stack.callback(started[-1].close)
        yield started


def wait_in(all_members: list[Running], condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition of members that all have no problem."""

    def holds() -> bool:
        for member in all_members:
            member.refresh()
        assert [member.problem for member in all_members if member.problem is not None] == []
        return condition()

    def state() -> str:
        members = [(member.name, sorted(member.assigned), len(member.read)) for member in all_members]
        return f"{what}: {members}"

    wait_for(holds, state)


def wait_shared(sharing: list[Running], all_members: list[Running]) -> None:
    """Wait until these, and nobody else, have all partitions, each one of them."""

    def are_shared() -> bool:
        parts = [member.assigned for member in sharing]
        return all(parts) and sorted(index for part in parts for index in part) == list(range(PARTITIONS))

    wait_in(all_members, are_shared, "the partitions are not shared")


def wait_read(places: set[Place], all_members: list[Running]) -> None:
    wait_in(
        all_members,
        lambda: places <= {place for member in all_members for place in member.read},
        f"{len(places)} records are not all read",
    )


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


def test_a_group_begins_where_it_committed(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    first = produce(bootstrap, topic, 20)
    for kind in KINDS:
        with members(bootstrap, topic, kind) as (member,):
            wait_read(first, [member])
        assert set(member.read) == first, "it read what was committed before it"
        first = produce(bootstrap, topic, 20)


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
