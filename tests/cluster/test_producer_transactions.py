"""Transactions of our producer against real brokers: both protocols, lost coordinators, zombies."""

import asyncio
from typing import Any

import pytest

from barnabas.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from barnabas.client.errors import ApiError, ErrorCode, ProducerFenced, TransactionAbortable
from barnabas.deploy.local import LocalCluster
from benchmarks.peers.apache_kafka import ApacheKafka
from tests.support.names import fresh_name
from tests.support.waiting import until

from .isolation import wait_for_markers
from .transaction_level import finalised

PARTITIONS = 3
DEADLINE_S = 60.0
Brokers = LocalCluster | ApacheKafka


async def read_values(topic: str, isolation_level: str, **settings: Any) -> list[bytes]:
    """The values of a topic up to its present end, sorted."""
    async with Admin(**settings) as admin:
        await wait_for_markers(admin)
    values: list[bytes] = []
    async with Consumer(
        **settings, auto_offset_reset="earliest", isolation_level=isolation_level
    ) as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        ends = await consumer.end_offsets(consumer.assignment())
        async with asyncio.timeout(DEADLINE_S):
            while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                values += [record.value or b"" for record in await consumer.poll()]
    return sorted(values)


async def make_topics(topic: str, **settings: Any) -> None:
    async with Admin(**settings) as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 3), NewTopic(f"{topic}-input", 1, 3)])


async def send_values(producer: Producer, topic: str, *values: bytes) -> None:
    for number, value in enumerate(values):
        await producer.send(topic, value, partition=number % PARTITIONS)


async def abort_a_block(producer: Producer, topic: str) -> None:
    async with producer.transaction():
        await send_values(producer, topic, b"aborted", b"aborted", b"aborted")
        await producer.flush()
        raise KeyError


async def use_transactions(topic: str, **settings: Any) -> None:
    """Commit, abort, offsets, a stale generation and a zombie; for any brokers and protocol."""
    await make_topics(topic, **settings)
    source = TopicPartition(f"{topic}-input", 0)
    async with Producer(**settings) as plain:
        for number in range(4):
            await plain.send_and_wait(source.topic, b"%d" % number)
    async with (
        Producer(**settings, transactional_id=topic) as producer,
        Consumer(
            **settings, group_id=topic, enable_auto_commit=False, auto_offset_reset="earliest"
        ) as reader,
    ):
        async with producer.transaction():
            await send_values(producer, topic, b"1", b"2", b"3")
        with pytest.raises(KeyError):
            await abort_a_block(producer, topic)
        reader.subscribe([source.topic])
        records = [await reader.getone() for _ in range(4)]
        member = reader.group_metadata()
        async with producer.transaction():
            await send_values(producer, topic, *(b"copy " + (record.value or b"") for record in records[:2]))
            await producer.send_offsets_to_transaction({source: records[2].offset}, member)
        assert await committed(reader, source) == 2
        await producer.begin_transaction()
        with pytest.raises(TransactionAbortable) as stale:
            await producer.send_offsets_to_transaction(
                {source: records[3].offset}, member._replace(generation_id=99)
            )
        await producer.abort_transaction()
        assert isinstance(stale.value.__cause__, ApiError)
        assert stale.value.__cause__.code == ErrorCode.ILLEGAL_GENERATION
        await producer.begin_transaction()
        await send_values(producer, topic, b"zombie")
        await producer.flush()
        async with Producer(**settings, transactional_id=topic) as successor:
            async with successor.transaction():
                await send_values(successor, topic, b"4")
            with pytest.raises(ProducerFenced):
                await producer.commit_transaction()
        assert await committed(reader, source) == 2
    assert await read_values(topic, "read_committed", **settings) == [
        b"1",
        b"2",
        b"3",
        b"4",
        b"copy 0",
        b"copy 1",
    ]
    everything = await read_values(topic, "read_uncommitted", **settings)
    assert everything.count(b"aborted") == 3
    assert b"zombie" in everything


async def committed(reader: Consumer, tp: TopicPartition) -> int | None:
    offset = (await reader.committed([tp]))[tp]
    return None if offset is None else offset.offset


@pytest.mark.parametrize(("wire", "level"), [("native", 2), ("kafka", 0), ("kafka", 2)])
def test_transactions_are_committed_aborted_and_fenced(
    shared_cluster: LocalCluster, wire: str, level: int
) -> None:
    """Kafka's protocol has an epoch for every transaction from level 2 on, ours always."""
    settings = {"bootstrap_servers": shared_cluster.bootstrap, "wire": wire}
    with finalised(shared_cluster, level):
        asyncio.run(use_transactions(fresh_name("t"), **settings))


def test_the_death_of_brokers_ends_no_transaction(cluster: LocalCluster) -> None:
    """Every transaction goes on while its coordinator, and leaders of its partitions, are killed."""

    async def main() -> None:
        settings = {"bootstrap_servers": cluster.bootstrap, "retry_backoff_ms": 20}
        await make_topics("t", **settings)
        async with Producer(**settings, transactional_id="x") as producer, asyncio.timeout(DEADLINE_S):
            for number in range(60):
                if number in (20, 40):
                    async with Admin(**settings) as admin:
                        described = await admin.describe_transactions("x")
                    coordinator = described["x"].coordinator
                    await producer.begin_transaction()
                    await send_values(producer, "t", b"%03d a" % number)
                    await producer.flush()
                    await asyncio.to_thread(cluster.kill, coordinator)
                    await send_values(producer, "t", b"%03d b" % number, b"%03d c" % number)
                    await producer.commit_transaction()
                    await asyncio.to_thread(cluster.start_broker, coordinator)
                    continue
                async with producer.transaction():
                    await send_values(producer, "t", *(b"%03d %c" % (number, letter) for letter in b"abc"))
        expected = [b"%03d %c" % (number, letter) for number in range(60) for letter in b"abc"]
        assert await read_values("t", "read_committed", **settings) == expected
        assert await read_values("t", "read_uncommitted", **settings) == expected

    asyncio.run(main())


def test_a_prepared_transaction_is_completed_after_its_producer_is_gone(shared_cluster: LocalCluster) -> None:
    topic = fresh_name("prepared")

    async def main() -> None:
        settings = {"bootstrap_servers": shared_cluster.bootstrap}
        await make_topics(topic, **settings)
        async with Producer(**settings, transactional_id=topic) as producer:
            await producer.begin_transaction()
            await send_values(producer, topic, b"1", b"2")
            prepared = await producer.prepare_transaction()
        assert await read_values(topic, "read_committed", **settings) == []
        async with Producer(**settings, transactional_id=topic, keep_prepared=True) as producer:
            assert producer.prepared_transaction == prepared
            await producer.complete_transaction(prepared)
            async with producer.transaction():
                await send_values(producer, topic, b"3")
            await producer.begin_transaction()
            await send_values(producer, topic, b"4")
            prepared = await producer.prepare_transaction()
        async with Admin(**settings) as admin:
            await admin.complete_transaction(prepared, commit=False)
            # A repetition has no effect, and the other outcome is refused.
            await admin.complete_transaction(prepared, commit=False)
            with pytest.raises(ApiError) as refusal:
                await admin.complete_transaction(prepared, commit=True)
            assert refusal.value.code == ErrorCode.INVALID_TXN_STATE
        assert await read_values(topic, "read_committed", **settings) == [b"1", b"2", b"3"]

    asyncio.run(main())


def test_a_producer_goes_on_after_its_transaction_timed_out(shared_cluster: LocalCluster) -> None:
    topic = fresh_name("late")

    async def main() -> None:
        settings = {"bootstrap_servers": shared_cluster.bootstrap}
        await make_topics(topic, **settings)
        async with (
            Admin(**settings) as admin,
            Producer(**settings, transactional_id=topic, transaction_timeout_ms=1_500) as producer,
        ):
            await producer.begin_transaction()
            await send_values(producer, topic, b"1", b"2")
            await producer.flush()

            async def is_aborted() -> bool:
                return (await admin.describe_transactions(topic))[topic].state == "CompleteAbort"

            await until(is_aborted, "the transaction times out")
            with pytest.raises(TransactionAbortable):
                await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, topic)
            with pytest.raises(TransactionAbortable):
                await producer.commit_transaction()
            await producer.abort_transaction()
            async with producer.transaction():
                await send_values(producer, topic, b"3")
        assert await read_values(topic, "read_committed", **settings) == [b"3"]

    asyncio.run(main())
