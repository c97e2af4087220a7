"""Our own clients over Kafka's protocol: against our brokers, and Apache Kafka where it can be had."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from barnabas.client.blocking import Producer as BlockingProducer
from barnabas.client.cluster import Cluster
from barnabas.client.config import ClientConfig
from barnabas.client.consumer.range_reader import read_range
from barnabas.client.errors import ApiError, ErrorCode
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.record_batch import iter_batches
from benchmarks.peers.apache_kafka import ApacheKafka, archives
from benchmarks.peers.processes import PeerError
from tests.support.names import fresh_name

from .isolation import Writers, read_decided_and_open_transactions
from .test_producer_transactions import use_transactions

Brokers = LocalCluster | ApacheKafka
APACHE_KAFKA = {
    # By default it makes 50 partitions of each internal topic, which takes longer than the test.
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    # The shortest that its ZooKeeper grants; the test waits for the end of a killed broker's session.
    "zookeeper.session.timeout.ms": "6000",
}
PARTITIONS = 3
DEADLINE_S = 60.0
RECORDS = 2_000


def settings(brokers: Brokers) -> dict[str, Any]:
    return {"bootstrap_servers": brokers.bootstrap, "wire": "kafka"}


async def make_topic(brokers: Brokers, name: str, partitions: int = PARTITIONS) -> None:
    async with Admin(**settings(brokers)) as admin:
        await admin.create_topics(NewTopic(name, partitions, 3, {"min.insync.replicas": "2"}))


async def read_all(brokers: Brokers, name: str) -> list[list[bytes]]:
    """The values of every partition up to its present end."""
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    async with Consumer(**settings(brokers), auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, partition) for partition in range(PARTITIONS)])
        ends = await consumer.end_offsets(consumer.assignment())
        async with asyncio.timeout(DEADLINE_S):
            while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                for record in await consumer.poll():
                    found[record.partition].append(record.value or b"")
    return found


async def use_every_client(brokers: Brokers) -> None:
    topic = fresh_name("t")
    async with Admin(**settings(brokers)) as admin:
        created = await admin.create_topics(NewTopic(topic, PARTITIONS, 3))
        assert created[topic].num_partitions == PARTITIONS
        with pytest.raises(ApiError) as refusal:
            await admin.create_topics(NewTopic(topic, 1, 1))
        assert refusal.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert topic in await admin.list_topics()
        assert {len(info.replicas) for info in (await admin.describe_topics(topic))[topic].partitions} == {3}
        assert [node.node_id for node in (await admin.describe_cluster()).nodes] == list(brokers.broker_ids)
    compressions = ["none", "gzip", "snappy", "lz4", "zstd"]
    for number, compression in enumerate(compressions):
        async with Producer(**settings(brokers), compression_type=compression) as producer:
            metadata = await producer.send_and_wait(
                topic, b"v" * 100, b"k", partition=0, headers=[("h", b"1")], timestamp_ms=1_000 + number
            )
            assert metadata.offset == number
    async with Consumer(**settings(brokers), auto_offset_reset="earliest") as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        for number in range(len(compressions)):
            record = await consumer.getone()
            assert (record.offset, record.key, record.value) == (number, b"k", b"v" * 100)
            assert (record.headers, record.timestamp_ms) == ((("h", b"1"),), 1_000 + number)
        by_time = (await consumer.offsets_for_times({tp: 1_002}))[tp]
        assert by_time is not None
        assert by_time.offset == 2
    client = Cluster(ClientConfig.of(settings(brokers)))
    await client.start()
    try:
        offsets = [
            header.base_offset
            async for piece in read_range(client, tp, 1, len(compressions))
            for _, header in iter_batches(piece)
        ]
        assert offsets == list(range(1, len(compressions)))
    finally:
        client.close()
    async with Admin(**settings(brokers)) as admin:
        await admin.delete_topics(topic)
        with pytest.raises(ApiError) as refusal:
            await admin.delete_topics("never-made")
        assert refusal.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def use_the_blocking_producer(brokers: Brokers) -> None:
    topic = fresh_name("blocking")
    asyncio.run(make_topic(brokers, topic))
    with BlockingProducer(**settings(brokers)) as producer:
        futures = [producer.send(topic, b"%d" % number, partition=0) for number in range(100)]
        assert [future.result(DEADLINE_S).offset for future in futures] == list(range(100))


async def write_through_the_death_of_a_leader(brokers: Brokers) -> None:
    await make_topic(brokers, "killed")
    async with Admin(**settings(brokers)) as admin:
        victim = (await admin.describe_topics("killed"))["killed"].partitions[0].leader
    async with Producer(**settings(brokers), batch_size=500, retry_backoff_ms=20) as producer:
        futures = []
        async with asyncio.timeout(DEADLINE_S):
            for number in range(RECORDS):
                if number == RECORDS // 2:
                    await asyncio.to_thread(brokers.kill, victim)
                futures.append(await producer.send("killed", b"%d" % number, partition=number % PARTITIONS))
                await asyncio.sleep(0.0002)
            await producer.flush()
        metadata = [future.result() for future in futures]
    found = await read_all(brokers, "killed")
    assert sorted(int(value) for values in found for value in values) == list(range(RECORDS))
    for number, where in enumerate(metadata):
        assert found[where.partition][where.offset] == b"%d" % number


def test_every_client_works_over_kafkas_protocol(shared_cluster: LocalCluster) -> None:
    asyncio.run(use_every_client(shared_cluster))
    use_the_blocking_producer(shared_cluster)


def test_through_the_death_of_a_leader_nothing_is_lost_doubled_or_reordered(cluster: LocalCluster) -> None:
    asyncio.run(write_through_the_death_of_a_leader(cluster))


async def read_transactions(kafka: ApacheKafka) -> None:
    async with Writers(kafka.bootstrap, "kafka") as writers:
        await read_decided_and_open_transactions(writers, "kafka")


# Its archives may have to be fetched first.
@pytest.mark.timeout(1_200)
def test_the_same_with_apache_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        archives()
    except PeerError as error:
        pytest.skip(str(error))
    # The compiler for long runs takes more time than it saves here.
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
    # All in one test: its start takes long.
    with ApacheKafka(directory=tmp_path, brokers=3, settings=APACHE_KAFKA) as kafka:
        asyncio.run(use_every_client(kafka))
        use_the_blocking_producer(kafka)
        asyncio.run(read_transactions(kafka))
        asyncio.run(use_transactions("copies", **settings(kafka)))
        asyncio.run(write_through_the_death_of_a_leader(kafka))
