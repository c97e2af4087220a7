"""Views of clusters, as the brokers would describe them."""

from barnabas.client.admin.log_dirs import BrokerReplicas
from barnabas.client.metadata import Node, PartitionInfo
from barnabas.deploy.cluster_view import ClusterView, PartitionView
from barnabas.deploy.local_broker import LocalBroker
from barnabas.deploy.state import BrokerRecord
from barnabas.protocol.errors import LocalError
from barnabas.protocol.ids import BrokerId, Endpoint, LeaderEpoch
from barnabas.protocol.messages.replicas import ReplicaDescription


def make_view(
    *, isr: tuple[int, ...] = (1, 2), leader: int = 1, controller: int = 2, error: str | None = None
) -> ClusterView:
    replica = ReplicaDescription(
        partition_index=0,
        leader_id=leader,
        leader_epoch=4,
        is_leader=True,
        isr=list(isr),
        replicas=[1, 2],
        log_start_offset=0,
        high_watermark=9,
        log_end_offset=10,
        size_bytes=100,
    )
    ids = tuple(map(BrokerId, (1, 2)))
    info = PartitionInfo("t", 0, BrokerId(leader), LeaderEpoch(4), ids, tuple(map(BrokerId, isr)), ())
    return ClusterView(
        cluster_id="abc",
        controller_id=controller,
        brokers=[
            BrokerReplicas(Node(BrokerId(1), Endpoint("h", 1)), {}, LocalError(error) if error else None),
            BrokerReplicas(Node(BrokerId(2), Endpoint("h", 2)), {}),
        ],
        partitions=[PartitionView(info=info, replicas={1: replica})],
    )


def make_partition(
    name: str, *, isr: tuple[int, ...] = (1, 2, 3), leader: int = 1, min_isr: int | None = None
) -> PartitionView:
    topic, _, number = name.rpartition("-")
    replicas, in_sync = (tuple(map(BrokerId, ids)) for ids in ((1, 2, 3), isr))
    info = PartitionInfo(topic, int(number), BrokerId(leader), LeaderEpoch(0), replicas, in_sync, ())
    return PartitionView(info=info, is_internal=topic.startswith("__"), min_isr=min_isr)


def make_large_view(partitions: list[PartitionView], *brokers: int) -> ClusterView:
    return ClusterView(
        cluster_id="abc",
        controller_id=1,
        brokers=[BrokerReplicas(Node(BrokerId(id), Endpoint("127.0.0.1", 9000 + id)), {}) for id in brokers],
        partitions=partitions,
    )


def make_process(id: int) -> LocalBroker:
    return LocalBroker(BrokerRecord(id=id, port=1, directory="/b", log_dirs=["/b/data"]), host="h")
