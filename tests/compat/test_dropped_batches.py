"""A record that librdkafka numbers like one that it has dropped is not taken for a copy of that one.

At an abort librdkafka drops the batches that wait to be sent again, and gives their sequence numbers to the
next ones. A deposed leader refuses a batch that it has written but not replicated; its successor may have it.
"""

import json
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import BrokerId, TopicPartition
from tests.support.waiting import wait_for

from ..cluster.tools import UNHARMED, ClusterView

TOPIC = "dropped"
RETRY_MS = 10_000
"""A refused batch waits for so long; meanwhile its transaction is aborted."""
PATIENCE_S = 20.0


class Writer:
    """A transactional producer of librdkafka."""

    def __init__(self, bootstrap: str) -> None:
        self._partition: dict[str, Any] = {}
        settings = {"retry.backoff.ms": RETRY_MS, "retry.backoff.max.ms": RETRY_MS, "linger.ms": 0}
        watched = {"statistics.interval.ms": 50, "stats_cb": self._note}
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": "dropping", **settings, **watched}
        )
        self.producer.init_transactions(PATIENCE_S)

    def send(self, value: bytes) -> None:
        self.producer.produce(TOPIC, value, partition=0)

    def commit(self, value: bytes) -> None:
        self.producer.begin_transaction()
        self.send(value)
        self.producer.commit_transaction(PATIENCE_S)

    def waits_to_send_again(self) -> bool:
        self.producer.poll(0.05)
        return len(self.producer) == 1 and self._partition.get("msgs_inflight") == 0

    def _note(self, text: str) -> None:
        self._partition = json.loads(text)["topics"].get(TOPIC, {}).get("partitions", {}).get("0", {})


def moved_before_replicated(cluster: LocalCluster, view: ClusterView, writer: Writer, value: bytes) -> None:
    """Write a value that the leader and its successor have, and one more replica in the ISR does not."""
    (partition,) = view.partitions(TOPIC)
    leader, *others = partition.replicas
    away = next(each for each in others if each != view.controller())
    successor = next(each for each in others if each != away)
    log = cluster.broker(successor).log_dirs[0] / f"{TOPIC}-0" / f"{0:020}.log"
    cluster.pause(away)
    try:
        writer.send(value)
        wait_for(lambda: value in log.read_bytes(), "the successor does not get the record")
        tp = TopicPartition(TOPIC, 0)
        with view.admin() as admin:
            replicas = [BrokerId(each) for each in (successor, leader, away)]
            assert admin.alter_partition_reassignments({tp: replicas}) == {tp: None}
            assert admin.elect_leaders([tp]) == {tp: None}
        wait_for(lambda: view.leader(TOPIC) == successor, f"broker {successor} does not lead")
        wait_for(writer.waits_to_send_again, "the record is not refused")
    finally:
        cluster.resume(away)


@pytest.mark.brokers(settings=UNHARMED | {"auto.leader.rebalance.enable": "false"})
def test_a_record_with_the_number_of_a_dropped_one_is_refused_and_not_lost(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    view.create_topic(TOPIC)
    view.wait_isr(TOPIC, 3)
    writer = Writer(cluster.bootstrap)
    writer.commit(b"first")
    writer.producer.begin_transaction()
    # The partition is in the transaction before a broker is away.
    writer.send(b"written")
    writer.producer.flush(PATIENCE_S)
    moved_before_replicated(cluster, view, writer, b"dropped")
    writer.producer.abort_transaction(PATIENCE_S)
    with pytest.raises(KafkaException, match="INVALID_TXN_STATE") as refused:
        writer.commit(b"second")
    assert refused.value.args[0].txn_requires_abort()
    writer.producer.abort_transaction(PATIENCE_S)
    writer.commit(b"second")

    def committed() -> list[bytes | None]:
        return view.read(TOPIC, 1, isolation_level="read_committed")

    # A commit is answered before its marker is in every partition.
    wait_for(lambda: committed()[-1:] == [b"second"], "the commit does not become visible")
    assert committed() == [b"first", b"second"]
