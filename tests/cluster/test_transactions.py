"""Transactions over real brokers: their whole life, and the death of the brokers that take part."""

import pytest

from barnabas.broker.coordinators.internal_topic import partition_of
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.topic_names import TRANSACTIONS_TOPIC
from tests.support.waiting import wait_for

from .tools import ClusterView, knows_topic, start_all
from .transaction_client import TransactionalClient

PARTITIONS = 6
SETTINGS = {
    "transaction.state.log.num.partitions": str(PARTITIONS),
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "zookeeper.session.timeout.ms": "6000",
}
TOPIC = "t"
EVERYWHERE = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]


pytestmark = pytest.mark.brokers(settings=SETTINGS)


@pytest.fixture
def cluster(cluster: LocalCluster) -> LocalCluster:
    ClusterView(cluster).create_topic(TOPIC, PARTITIONS, 2)
    return cluster


def committed(cluster: LocalCluster, topic: str = TOPIC, partitions: int = PARTITIONS) -> list[bytes | None]:
    return sorted(ClusterView(cluster).read(topic, partitions, "read_committed"), key=str)


def test_transactions_over_six_partitions_are_committed_and_aborted_as_a_whole(cluster: LocalCluster) -> None:
    producer = TransactionalClient(cluster, "id")
    producer.init()
    for value, is_committed in ((b"first", True), (b"second", False), (b"third", True)):
        producer.write(value, *EVERYWHERE)
        producer.end(committed=is_committed)
    producer.wait_state("CompleteCommit")
    assert committed(cluster) == [b"first"] * PARTITIONS + [b"third"] * PARTITIONS

    # A second producer of the id fences the first and aborts its transaction.
    producer.write(b"of a zombie", *EVERYWHERE)
    successor = TransactionalClient(cluster, "id")
    successor.init(timeout_ms=1_000)
    assert producer.add_error(EVERYWHERE[0]) is ErrorCode.PRODUCER_FENCED
    assert producer.end_error(committed=True) is ErrorCode.PRODUCER_FENCED

    # This transaction stays open.
    successor.write(b"late", EVERYWHERE[0], EVERYWHERE[5])
    successor.wait_state("CompleteAbort")
    assert successor.end_error(committed=True) is not ErrorCode.NONE
    assert committed(cluster) == [b"first"] * PARTITIONS + [b"third"] * PARTITIONS


def test_a_transaction_ends_although_one_of_its_topics_was_deleted(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    view.create_topic("gone", 1, 2)
    producer = TransactionalClient(cluster, "id")
    producer.init()
    producer.write(b"kept", EVERYWHERE[0])
    producer.write(b"lost", TopicPartition("gone", 0))
    with view.admin() as admin:
        admin.delete_topics("gone")
    wait_for(lambda: not any(knows_topic(broker.endpoint, "gone") for broker in cluster.brokers))
    producer.end(committed=True)
    producer.wait_state("CompleteCommit")
    assert committed(cluster) == [b"kept"]


class Roles:
    """A transactional id, its coordinator, and a broker that keeps no record of it and is no controller."""

    def __init__(self, cluster: LocalCluster) -> None:
        view = ClusterView(cluster)
        TransactionalClient(cluster, "first").init()
        view.wait_isr(TRANSACTIONS_TOPIC, 2)
        controller = view.controller()
        for info in view.partitions(TRANSACTIONS_TOPIC):
            (outside,) = {1, 2, 3} - set(info.replicas)
            if outside != controller:
                break
        else:
            raise AssertionError("every partition of the transaction topic has the controller outside")
        self.coordinator, self.outside = info.leader, outside
        numbers = (f"id-{number}" for number in range(1_000))
        self.transactional_id = next(
            name for name in numbers if partition_of(name, PARTITIONS) == info.partition
        )

    def partition_outside(self, cluster: LocalCluster, topic: str) -> TopicPartition:
        """A partition that the outside broker leads."""
        infos = ClusterView(cluster).partitions(topic)
        return next(TopicPartition(topic, info.partition) for info in infos if info.leader == self.outside)


def test_a_decision_is_completed_after_the_deaths_of_the_coordinator_and_of_a_leader(
    cluster: LocalCluster,
) -> None:
    view = ClusterView(cluster)
    view.create_topic("single", 3, 1)
    roles = Roles(cluster)
    single = roles.partition_outside(cluster, "single")
    led = roles.partition_outside(cluster, TOPIC)
    producer = TransactionalClient(cluster, roles.transactional_id)
    producer.init()
    producer.write(b"decided", single)
    # The markers cannot be written while this broker is stopped.
    cluster.pause(roles.outside)
    producer.end(committed=True)
    assert producer.describe().transaction_state == "PrepareCommit"
    cluster.kill(roles.coordinator)
    assert producer.describe().transaction_state == "PrepareCommit"
    cluster.resume(roles.outside)
    producer.wait_state("CompleteCommit")
    cluster.start_broker(roles.coordinator)
    assert committed(cluster, "single", 3) == [b"decided"]

    # The markers follow a partition whose leader is killed.
    view.wait_isr(TOPIC, 2)
    producer.write(b"moved", led)
    cluster.pause(roles.outside)
    producer.end(committed=True)
    cluster.kill(roles.outside)
    producer.wait_state("CompleteCommit")
    assert committed(cluster) == [b"moved"]


def test_ongoing_and_prepared_transactions_survive_a_restart_of_all_brokers(cluster: LocalCluster) -> None:
    ongoing, prepared = producers = [TransactionalClient(cluster, name) for name in ("ongoing", "prepared")]
    for producer in producers:
        producer.init()
        producer.write(producer.transactional_id.encode(), *EVERYWHERE)
    prepared.prepare()
    cluster.kill_all()
    start_all(cluster)
    wait_for(lambda: ClusterView(cluster).live_brokers() == {1, 2, 3})
    assert [producer.describe().transaction_state for producer in producers] == ["Ongoing", "Ongoing"]
    assert [producer.describe().is_prepared for producer in producers] == [False, True]

    # Another process with the prepared state ends it, after a new producer of the id has begun.
    successor = TransactionalClient(cluster, "prepared")
    given = successor.init(keep_prepared=True)
    kept = given.ongoing_txn_producer_id, given.ongoing_txn_producer_epoch
    assert kept == (prepared.producer_id, prepared.epoch)
    assert committed(cluster) == []
    ongoing.end(committed=True)
    prepared.end(committed=True)
    ongoing.wait_state("CompleteCommit")
    prepared.wait_state("CompleteCommit")
    assert committed(cluster) == [b"ongoing"] * PARTITIONS + [b"prepared"] * PARTITIONS
    successor.write(b"of the successor", EVERYWHERE[0])
    successor.end(committed=False)
