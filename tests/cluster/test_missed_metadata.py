"""Transactions while their coordinator has missed an UpdateMetadata, or the controller cannot read a znode.

A committed transaction becomes visible, and its transactional id can be used again.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from barnabas.client import NewTopic
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.support.waiting import wait_for

from .raw_client import RawClient
from .tools import ClusterView, controller_seen_by, knows_topic
from .transaction_client import TransactionalClient

SETTINGS = {
    "zookeeper.session.timeout.ms": "30000",
    # Each partition of the transaction topic has its own coordinator, which needs no other broker.
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}

pytestmark = pytest.mark.brokers(settings=SETTINGS)


class Roles:
    """Three brokers by what they do: the controller, a coordinator, and the third."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.view = ClusterView(cluster)
        self.controller = self.view.controller()
        others = [broker for broker in cluster.broker_ids if broker != self.controller]
        self.coordinator, self.third = others
        self.client = self._client_of(self.coordinator)
        self.client.init()

    def _client_of(self, coordinator: int) -> TransactionalClient:
        """A producer whose transactional id has this coordinator."""
        for number in itertools.count():
            client = TransactionalClient(self.cluster, f"id-{number}")
            if client.coordinator == coordinator:
                return client
        raise AssertionError

    def create(self, topic: str, *replicas: int) -> None:
        """Create a topic with one partition on these brokers; the answer may take too long."""
        assignment = [CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))]
        wanted = CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, assignments=assignment)
        self._send(CreateTopicsRequest(topics=[wanted], timeout_ms=1))

    def delete(self, topic: str) -> None:
        self._send(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=1))

    def _send(self, request: object) -> None:
        with RawClient(self.cluster.broker(self.controller).endpoint) as client:
            client.ask(request)

    def wait_known(self, broker: int, topic: str) -> None:
        endpoint = self.cluster.broker(broker).endpoint
        wait_for(lambda: knows_topic(endpoint, topic), f"broker {broker} does not know {topic}")

    @contextmanager
    def paused(self, broker: int) -> Iterator[None]:
        self.cluster.pause(broker)
        try:
            yield
        finally:
            if self.cluster.broker(broker).state == "paused":
                self.cluster.resume(broker)

    def produce_to(self, broker: int, partition: TopicPartition, value: bytes) -> ErrorCode:
        with RawClient(self.cluster.broker(broker).endpoint) as client:
            return self.client.result(client.ask(self.client.request(partition, 0, value=value)))

    def leads(self, broker: int, partition: TopicPartition) -> bool:
        asked = [ListOffsetsPartition(partition_index=partition.partition, timestamp=-1)]
        topics = [ListOffsetsTopic(name=partition.topic, partitions=asked)]
        with RawClient(self.cluster.broker(broker).endpoint) as client:
            (found,) = client.ask(ListOffsetsRequest(topics=topics)).topics[0].partitions
        return bool(found.error_code == ErrorCode.NONE)


def test_a_partition_that_only_its_leader_knows_joins_no_transaction(cluster: LocalCluster) -> None:
    """The leader, which is the coordinator too, has its LeaderAndIsr and not yet the UpdateMetadata."""
    roles, fresh = Roles(cluster), TopicPartition("fresh", 0)
    controller, coordinator = roles.controller, roles.coordinator
    with roles.paused(coordinator):
        roles.create("fresh", coordinator, roles.third)
        roles.wait_known(roles.third, "fresh")
        with roles.paused(controller):
            cluster.resume(coordinator)
            wait_for(lambda: roles.leads(coordinator, fresh), "it gets no role")
            assert roles.produce_to(coordinator, fresh, b"v") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    roles.client.produce_at_last(fresh, 0, b"v")
    roles.client.end(committed=True)
    wait_for(lambda: roles.view.read("fresh", 1, "read_committed") == [b"v"], "the record is invisible")


def test_a_lost_deletion_mark_holds_up_no_transaction(cluster: LocalCluster) -> None:
    """The controller dies before the coordinator has the mark, and the next one does not know the topic."""
    roles, gone = Roles(cluster), TopicPartition("gone", 0)
    coordinator, third = roles.coordinator, roles.third
    roles.create("gone", third)
    roles.wait_known(coordinator, "gone")
    roles.client.produce_at_last(gone, 0, b"v")
    with roles.view.zookeeper() as zookeeper, roles.paused(coordinator):
        # The request about this topic is under way to the coordinator, so the mark waits for its answer.
        roles.create("noise", third)
        roles.wait_known(third, "noise")
        roles.delete("gone")
        wait_for(lambda: zookeeper.exists("/brokers/topics/gone") is None, "the topic is not deleted")
        cluster.kill(roles.controller)
        endpoint = cluster.broker(third).endpoint
        wait_for(lambda: controller_seen_by(endpoint) == third, "there is no next controller")
    roles.client.end(committed=True)
    roles.client.wait_state("CompleteCommit")
    roles.client.init()


@pytest.mark.parametrize("node", ["/brokers/topics/t", "/brokers/topics/t/partitions/0/state"])
def test_a_transaction_waits_while_the_controller_cannot_read_its_topic(
    cluster: LocalCluster, node: str
) -> None:
    """The coordinator gets full metadata from a controller that has never read the topic, or one state."""
    roles, first = Roles(cluster), TopicPartition("t", 0)
    with roles.view.admin() as admin:
        admin.create_topics(NewTopic("t", replica_assignment={0: [roles.third], 1: [roles.coordinator]}))
    roles.wait_known(roles.coordinator, "t")
    roles.client.produce_at_last(first, 0, b"v")
    with roles.view.zookeeper() as zookeeper:
        whole, _ = zookeeper.get(node)
        zookeeper.set(node, b"{oops")
        cluster.kill(roles.controller)
        # The next controller sends this after the full metadata.
        roles.view.create_topic("later", replicas=2)
        roles.client.end(committed=True)
        roles.view.create_topic("meanwhile", replicas=2)
        assert roles.client.describe().transaction_state == "PrepareCommit"
        zookeeper.set(node, whole)
        # A state is not watched, but read again when there is something to elect.
        roles.view.create_topic("repaired", replicas=2)
    roles.client.wait_state("CompleteCommit")
    assert roles.view.read("t", 2, "read_committed") == [b"v"]
