"""Prepared transactions (KIP-939): their producer is killed, all brokers are killed, others end them."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from barnabas.cli import exit_codes
from barnabas.client import Admin, Consumer, PreparedTransaction, Producer, TopicPartition
from barnabas.client.errors import ApiError, ErrorCode, IllegalTransactionState
from barnabas.deploy.local import LocalCluster
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from .test_producer_transactions import make_topics, read_values
from .tools import ClusterView, call_command, clean_environment, start_all
from .transaction_client import TransactionalClient

SETTINGS = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "3"}
TOPIC = "prepared"
TIMEOUT_MS = 3_000
IDS = ("first", "second", "kept", "left", "stuck")
PREPARE = """
import asyncio, sys
from barnabas.client import Producer, TopicPartition
from barnabas.client.offsets import GroupMetadata

async def main(bootstrap, topic, timeout_ms, *ids):
    for number, name in enumerate(ids):
        producer = Producer(
            bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=int(timeout_ms)
        )
        await producer.start()
        await producer.begin_transaction()
        for partition in range(3):
            await producer.send(topic, f"{name} {partition}".encode(), partition=partition)
        offsets = {TopicPartition(topic + "-input", 0): number + 1}
        await producer.send_offsets_to_transaction(offsets, GroupMetadata(name))
        print(await producer.prepare_transaction(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def prepare_and_kill(bootstrap: str) -> dict[str, str]:
    """One process prepares a transaction of each id, and is killed; returns the texts that it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", PREPARE, bootstrap, TOPIC, str(TIMEOUT_MS), *IDS],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    assert process.stdout is not None
    try:
        texts = {name: process.stdout.readline().strip() for name in IDS}
        assert all(texts.values()), f"the producer ended with {process.wait()}; it prepared {texts}"
        return texts
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def run(cluster: LocalCluster, *words: str) -> Any:
    done = call_command("transactions", *words, "--json", BARNABAS_BOOTSTRAP=cluster.bootstrap)
    assert done.returncode == exit_codes.OK, done.stderr
    return json.loads(done.stdout)


def listed(cluster: LocalCluster) -> list[tuple[str, str]]:
    """The prepared transactions, the oldest first."""
    return [(row["transactional_id"], row["state"]) for row in run(cluster, "list", "--prepared")]


async def end_them(cluster: LocalCluster, texts: dict[str, str]) -> None:
    settings = {"bootstrap_servers": cluster.bootstrap}
    async with Admin(**settings) as admin:
        await admin.complete_transaction(PreparedTransaction.parse(texts["first"]), commit=True)
        await admin.complete_transaction(PreparedTransaction.parse(texts["second"]), commit=False)
    async with Producer(**settings, transactional_id="kept", keep_prepared=True) as producer:
        found = producer.prepared_transaction
        assert found is not None
        assert str(found) == texts["kept"]
        # A producer has one transaction at a time, and the prepared one is the first.
        with pytest.raises(IllegalTransactionState, match="in a prepared transaction"):
            await producer.begin_transaction()
        await producer.complete_transaction(found)
        async with producer.transaction():
            await producer.send(TOPIC, b"after kept", partition=0)
    async with Producer(**settings, transactional_id="left") as producer:
        assert producer.prepared_transaction is None
    async with Admin(**settings) as admin:
        # It was aborted, and the next epoch was given.
        with pytest.raises(ApiError) as refusal:
            await admin.complete_transaction(PreparedTransaction.parse(texts["left"]), commit=True)
        assert refusal.value.code == ErrorCode.PRODUCER_FENCED


async def committed_offsets(cluster: LocalCluster) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    tp = TopicPartition(f"{TOPIC}-input", 0)
    for name in IDS:
        async with Consumer(bootstrap_servers=cluster.bootstrap, group_id=name) as consumer:
            offset = (await consumer.committed([tp]))[tp]
            found[name] = None if offset is None else offset.offset
    return found


@pytest.mark.brokers(settings=SETTINGS)
def test_prepared_transactions_outlive_their_producer_and_all_brokers(cluster: LocalCluster) -> None:
    settings = {"bootstrap_servers": cluster.bootstrap}
    asyncio.run(make_topics(TOPIC, **settings))
    # The first look creates the offsets topic, before a transaction that could time out meanwhile.
    assert set(asyncio.run(committed_offsets(cluster)).values()) == {None}
    texts = prepare_and_kill(cluster.bootstrap)
    cluster.kill_all()
    start_all(cluster)
    view = ClusterView(cluster)
    wait_for(lambda: view.live_brokers() == {1, 2, 3})
    view.wait_isr(TOPIC, 3)

    # All are open for longer than their time-out.
    wait_for(lambda: min(row["age_ms"] for row in run(cluster, "list", "--prepared")) > TIMEOUT_MS)
    assert listed(cluster) == [(name, "Ongoing") for name in IDS]
    assert asyncio.run(read_values(TOPIC, "read_committed", **settings)) == []
    assert len(asyncio.run(read_values(TOPIC, "read_uncommitted", **settings))) == 3 * len(IDS)

    asyncio.run(end_them(cluster, texts))
    assert listed(cluster) == [("stuck", "Ongoing")]
    # This transaction stays prepared, so readers do not get the transactions committed after it.
    assert b"after kept" not in asyncio.run(read_values(TOPIC, "read_committed", **settings))
    run(cluster, "force-terminate", "stuck")
    assert listed(cluster) == []
    values = sorted(b"%s %d" % (name, index) for name in (b"first", b"kept") for index in range(3))
    assert asyncio.run(read_values(TOPIC, "read_committed", **settings)) == sorted([*values, b"after kept"])
    offsets = {"first": 1, "second": None, "kept": 3, "left": None, "stuck": None}
    assert asyncio.run(committed_offsets(cluster)) == offsets


def test_a_prepared_transaction_takes_no_partition_and_no_record_twice(shared_cluster: LocalCluster) -> None:
    """The guarantee of PrepareTxn, as docs/decisions/prepared-transactions.md has it."""
    topic = fresh_name("closed")
    ClusterView(shared_cluster).create_topic(topic, 2)
    inside, outside = TopicPartition(topic, 0), TopicPartition(topic, 1)
    producer = TransactionalClient(shared_cluster, topic)
    producer.init()
    producer.write(b"first", inside)
    producer.prepare()
    # A repeated request of before is answered as the first, and writes nothing.
    assert producer.produce(inside, 0) is ErrorCode.NONE
    assert producer.produce(outside, 0) is ErrorCode.INVALID_TXN_STATE
    values = ClusterView(shared_cluster).read(topic, 2, "read_uncommitted")
    assert values == [b"first"]
    # A process that breaks the protocol reaches only the partitions of the transaction, and its outcome.
    assert producer.produce(inside, 1) is ErrorCode.NONE
    producer.end(committed=False)
    producer.wait_state("CompleteAbort")
    assert ClusterView(shared_cluster).read(topic, 2, "read_committed") == []
