"""A consumer and a range reader when a leader is killed; offsets and replicas as the admin client sees them.

Producers under every fault: test_failover.py.
"""

import asyncio

from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.range_reader import read_range
from barnabas.client.producer.producer import Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import decode_records

TOPIC = "t"
PARTITIONS = 6
DEADLINE_S = 60.0


async def make_topic(bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(NewTopic(TOPIC, PARTITIONS, 3, {"min.insync.replicas": "2"}))


async def test_a_consumer_and_a_range_reader_follow_the_leaders(cluster: LocalCluster) -> None:
    bootstrap = cluster.bootstrap
    await make_topic(bootstrap)
    tp = TopicPartition(TOPIC, 0)
    async with (
        Producer(bootstrap_servers=bootstrap, batch_size=1_000) as producer,
        Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([tp])
        for number in range(1_000):
            await producer.send(TOPIC, b"%d" % number, partition=0)
        await producer.flush()
        assert (await consumer.getone()).offset == 0
        leader = producer._cluster.cache.leader_for(tp)
        assert leader is not None
        pieces = read_range(consumer._cluster, tp, 0, 2_000, fetch_max_bytes=2_000)
        offsets = [header.base_offset for _, header in iter_batches(await anext(pieces))]
        await asyncio.to_thread(cluster.kill, leader.node_id)
        for number in range(1_000, 2_000):
            await producer.send(TOPIC, b"%d" % number, partition=0)
        async with asyncio.timeout(DEADLINE_S):
            await producer.flush()
            values = []
            async for piece in pieces:
                for position, header in iter_batches(piece):
                    offsets.append(header.base_offset)
                    values += [int(record.value or b"") for record in decode_records(piece[position:])]
            while await consumer.position(tp) < 2_000:
                records = await consumer.poll()
                assert [record.offset for record in records] == sorted(record.offset for record in records)
        assert offsets == sorted(set(offsets))
        assert values == sorted(values)
        assert set(range(1_000, 2_000)) <= set(values)


async def test_offsets_and_replicas_are_described(cluster: LocalCluster) -> None:
    bootstrap = cluster.bootstrap
    await make_topic(bootstrap)
    async with Producer(bootstrap_servers=bootstrap) as producer, Admin(bootstrap_servers=bootstrap) as admin:
        for number in range(10):
            await producer.send_and_wait(TOPIC, b"x", partition=2, timestamp_ms=1_000 + number)
        tp = TopicPartition(TOPIC, 2)
        assert (await admin.list_offsets({tp: "earliest"}))[tp].offset == 0
        assert (await admin.list_offsets({tp: "latest"}))[tp].offset == 10
        assert (await admin.list_offsets({tp: 1_004}))[tp][:2] == (4, 1_004)
        assert (await admin.list_offsets({tp: 9_999}))[tp].offset == -1
        described = await admin.describe_replicas([TOPIC])
        assert [broker.error for broker in described] == [None] * 3
        leaders = [broker for broker in described if broker.replicas[tp].is_leader]
        assert len(leaders) == 1
        assert sorted(leaders[0].replicas[tp].isr) == [1, 2, 3]
        assert leaders[0].replicas[tp].log_end_offset == 10
