"""The level of ``transaction.version`` changes while our producers, of both kinds, are in transactions."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from barnabas.broker.cluster.features import NEW_CLUSTER
from barnabas.client import Producer
from barnabas.client.errors import TransactionAbortable
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.features import TRANSACTION_VERSION
from tests.support.names import fresh_name

from .test_producer_transactions import make_topics, read_values
from .tools import ClusterView
from .transaction_client import TransactionalClient
from .transaction_level import finalised, set_level

PARTS = (b"a", b"b", b"c")
HIGHEST = NEW_CLUSTER[TRANSACTION_VERSION]


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """It has its first level again after each test."""
    with finalised(shared_cluster, HIGHEST):
        yield shared_cluster


async def become(cluster: LocalCluster, level: int) -> None:
    await asyncio.to_thread(set_level, cluster, level)


async def write_some(producer: Producer, topic: str, name: bytes, parts: tuple[bytes, ...] = PARTS) -> None:
    for part in parts:
        await producer.send(topic, name + b" " + part, partition=PARTS.index(part))


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
def test_a_transaction_ends_in_the_version_in_which_it_began(
    cluster: LocalCluster, before: int, after: int
) -> None:
    topic = fresh_name(f"from-{before}-to-{after}")
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap, "wire": "kafka"}

    async def main() -> list[bytes]:
        await make_topics(topic, **settings)
        await become(cluster, before)
        async with Producer(**settings, transactional_id=topic) as producer:
            await producer.begin_transaction()
            assert producer._session is not None
            assert producer._session.machine.uses_new_protocol is (before == 2)
            await write_some(producer, topic, b"1", PARTS[:2])
            await producer.flush()
            await become(cluster, after)
            await write_some(producer, topic, b"1", PARTS[2:])
            await producer.commit_transaction()
            with pytest.raises(KeyError):
                await abort_one(producer, topic)
        async with Producer(**settings, transactional_id=topic) as producer:
            async with producer.transaction():
                await write_some(producer, topic, b"2")
            assert producer._session is not None
            assert producer._session.machine.uses_new_protocol is (after == 2)
        return await read_values(topic, "read_committed", **settings)

    assert asyncio.run(main()) == [name + b" " + part for name in (b"1", b"2") for part in PARTS]


async def abort_one(producer: Producer, topic: str) -> None:
    async with producer.transaction():
        await write_some(producer, topic, b"aborted")
        raise KeyError


def test_producers_of_all_kinds_stay_atomic_while_the_level_changes(cluster: LocalCluster) -> None:
    """New connections learn the level of the moment, in the middle of transactions too."""
    bootstrap, topic = cluster.bootstrap, fresh_name("mixed")
    done = asyncio.Event()

    async def produce(wire: str, number: int) -> set[bytes]:
        committed: set[bytes] = set()
        generation = 0
        while not done.is_set():
            name = b"%s %d %d" % (wire.encode(), number, generation)
            generation += 1
            async with Producer(
                bootstrap_servers=bootstrap, wire=wire, transactional_id=f"{wire}{number}"
            ) as p:
                for index in range(3):
                    with suppress(TransactionAbortable):
                        async with p.transaction():
                            await write_some(p, topic, b"%s %d" % (name, index))
                        committed.update(b"%s %d %s" % (name, index, part) for part in PARTS)
        return committed

    async def main() -> tuple[set[bytes], list[bytes]]:
        await make_topics(topic, bootstrap_servers=bootstrap)
        async with asyncio.TaskGroup() as tasks:
            producers = [
                tasks.create_task(produce(wire, number)) for wire in ("kafka", "native") for number in (0, 1)
            ]
            for level in (0, 2, 0, 2):
                await become(cluster, level)
            done.set()
        committed = set[bytes]().union(*(task.result() for task in producers))
        return committed, await read_values(topic, "read_committed", bootstrap_servers=bootstrap)

    committed, read = asyncio.run(main())
    assert len(committed) > 3 * len(PARTS)
    assert read == sorted(committed)


def test_clients_of_both_versions_share_one_transactional_id(cluster: LocalCluster) -> None:
    """As when an application is upgraded: each client takes the id over from one of the other version."""
    name = fresh_name("shared")
    ClusterView(cluster).create_topic(name, 1)
    partition = TopicPartition(name, 0)
    expected = []
    for number, version in enumerate((11, 12, 11, None, 11)):
        client = TransactionalClient(cluster, name, version)
        # It aborts what the client before has left open.
        client.init()
        for value in (b"%d committed" % number, b"%d open" % number):
            if version == 11:
                client.add(partition)
            client.write(value, partition, sequence=int(version == 11 and b"open" in value))
            if b"committed" in value:
                client.end(committed=True)
                client.wait_state("CompleteCommit")
                expected.append(value)
    client.end(committed=False)
    assert ClusterView(cluster).read(name, 1, "read_committed") == expected
