"""Idempotent producers against real brokers: unique ids, and batches that are written once."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.cluster.producer_ids import RETRY
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceResponse,
)
from barnabas.protocol.record_batch import iter_batches
from barnabas.zookeeper import paths
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.store import PRODUCER_ID_BLOCK_SIZE, ClusterStore
from tests.support.logs import produced
from tests.support.waiting import wait_for

from .raw_client import RawClient, encoded, produce_request
from .tools import KILLED, ClusterView, start_all

RETRIABLE = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
}


@pytest.fixture
def stores(zookeeper_connect: str) -> Iterator[list[ClusterStore]]:
    """Three brokers' sessions."""
    fatal: list[BaseException] = []
    opened = [
        ClusterStore(
            zookeeper_connect, session_timeout_ms=6_000, connection_timeout_ms=20_000, on_fatal=fatal.append
        )
        for _ in range(3)
    ]
    for store in opened:
        store.start()
    yield opened
    for store in opened:
        store.session.close()
    assert fatal == []


def test_brokers_that_race_for_blocks_get_different_ones(stores: list[ClusterStore]) -> None:
    claimed: list[range] = []

    def claim(store: ClusterStore, broker: int) -> None:
        for _ in range(15):
            claimed.append(store.claim_producer_ids(BrokerId(broker)))

    threads = [threading.Thread(target=claim, args=(store, index)) for index, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(block.start for block in claimed) == [
        number * PRODUCER_ID_BLOCK_SIZE for number in range(45)
    ]
    assert {len(block) for block in claimed} == {PRODUCER_ID_BLOCK_SIZE}


def test_the_znode_is_kafkas_and_its_block_is_the_one_before(stores: list[ClusterStore]) -> None:
    session, path = stores[0].session, paths.PRODUCER_ID_BLOCK
    assert stores[0].claim_producer_ids(BrokerId(4)) == range(PRODUCER_ID_BLOCK_SIZE)
    data, _ = session.run(lambda zk: zk.get_async(path))
    assert json.loads(data) == {"version": 1, "broker": 4, "block_start": "0", "block_end": "999"}
    theirs = b'{"version":1,"broker":0,"block_start":"5000","block_end":"5999"}'
    session.run(lambda zk: zk.set_async(path, theirs))
    assert stores[0].claim_producer_ids(BrokerId(4)) == range(6_000, 7_000)
    session.run(lambda zk: zk.set_async(path, b""))
    assert stores[0].claim_producer_ids(BrokerId(4)) == range(PRODUCER_ID_BLOCK_SIZE)


@pytest.mark.parametrize("data", [b"nonsense", b"[]", b'{"version":1}', b'{"block_end":"x"}'])
def test_a_znode_that_is_not_kafkas_is_named_and_left_alone(stores: list[ClusterStore], data: bytes) -> None:
    session, path = stores[0].session, paths.PRODUCER_ID_BLOCK
    session.run(lambda zk: zk.create_async(path, data))
    with pytest.raises(MalformedZnode, match=path):
        stores[0].claim_producer_ids(BrokerId(4))
    assert session.run(lambda zk: zk.get_async(path))[0] == data


def fresh_id(client: RawClient) -> InitProducerIdResponse:
    """A producer id; retries while the broker cannot claim a block from ZooKeeper, as clients do."""
    answers: list[InitProducerIdResponse] = []

    def is_given() -> bool:
        answers.append(client.ask(InitProducerIdRequest()))
        return answers[-1].error_code != RETRY

    wait_for(is_given, "no producer id is given")
    return answers[-1]


def test_producers_at_all_brokers_get_different_ids(shared_cluster: LocalCluster) -> None:
    found: list[int] = []
    for broker in shared_cluster.brokers:
        with RawClient(broker.endpoint) as client:
            answers = [fresh_id(client) for _ in range(5)]
        assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
        found += [answer.producer_id for answer in answers]
    assert len(set(found)) == 15


class Producer:
    """Writes one record a batch to partition 0 of "t", and retries until it is acknowledged."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._view = ClusterView(cluster)
        self._cluster = cluster
        leader = cluster.broker(self._view.leader("t"))
        with RawClient(leader.endpoint) as client:
            self.producer_id = fresh_id(client).producer_id

    def batch(self, sequence: int) -> bytes:
        now_ms = time.time_ns() // 1_000_000
        return bytes(produced(sequence, producer_id=self.producer_id, timestamp_ms=now_ms))

    def send_and_never_hear(self, leader: int, *sequences: int) -> None:
        """Pipeline batches to the leader; the connection ends before any answer is read."""
        with RawClient(self._cluster.broker(leader).endpoint) as client:
            for sequence in sequences:
                client.send(encoded(produce_request([(0, self.batch(sequence))]), sequence))

    def send(self, sequence: int) -> int:
        """The offset at which the batch is written, by this request or an earlier one."""
        answer: list[PartitionProduceResponse] = []

        def is_written() -> bool:
            try:
                with RawClient(self._cluster.broker(self._view.leader("t")).endpoint) as client:
                    answer[:] = [client.produce(0, self.batch(sequence))]
            except OSError:
                return False
            return answer[0].error_code not in RETRIABLE

        wait_for(is_written, f"sequence {sequence} is not written")
        assert answer[0].error_code == ErrorCode.NONE, answer[0]
        return answer[0].base_offset


def sequences_on_disk(folder: Path) -> list[tuple[int, int]]:
    """(offset, sequence) of every batch of a replica that has stopped."""
    return [
        (header.base_offset, header.base_sequence)
        for segment in sorted(folder.glob("*.log"))
        for _, header in iter_batches(segment.read_bytes())
    ]


@pytest.mark.brokers(settings=KILLED)
def test_retried_batches_are_written_once_and_in_order_through_every_kill(
    cluster: LocalCluster,
) -> None:
    view = ClusterView(cluster)
    view.create_topic("t", 1, 3, min_insync_replicas="2", segment_bytes="1024")
    producer = Producer(cluster)
    for sequence in range(20):
        assert producer.send(sequence) == sequence
    for first in (20, 25, 30):
        flying = range(first, first + 5)
        leader = view.leader("t")
        producer.send_and_never_hear(leader, *flying)
        cluster.kill(leader)
        assert [producer.send(sequence) for sequence in flying] == list(flying)
        cluster.start_broker(leader)
        view.wait_isr("t", 3)
    # All are killed at once, within a segment: the state is only on the disks.
    cluster.kill_all()
    start_all(cluster)
    view.wait_isr("t", 3)
    assert [producer.send(sequence) for sequence in range(30, 36)] == list(range(30, 36))
    # All stop cleanly: they read only the snapshots.
    for broker in cluster.broker_ids:
        cluster.stop_broker(broker)
    start_all(cluster)
    view.wait_isr("t", 3)
    assert [producer.send(sequence) for sequence in range(31, 37)] == list(range(31, 37))
    # A broker that had to be killed would leave unwritten pages.
    cluster.stop(timeout_s=60)
    for broker in cluster.brokers:
        assert sequences_on_disk(broker.log_dirs[0] / "t-0") == [(number, number) for number in range(37)]
