"""The places and sizes of replicas, and the moves that leave a broker without replicas.

Belongs to the event loop of the client.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from barnabas.client.admin.admin import Admin
from barnabas.client.admin.placement_plan import Move, Placement, plan
from barnabas.client.metadata import TopicInfo
from barnabas.common.texts import count
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, LocalError
from barnabas.protocol.ids import BrokerId, TopicPartition


class CannotDrain(LocalError):
    """Too few other brokers could have the replicas of a partition."""

    def __init__(self, broker: BrokerId, tp: TopicPartition, replicas: int, others: int) -> None:
        super().__init__(
            f"broker {broker} cannot be drained: {tp} has {replicas} replicas, and "
            f"{count(others, 'other broker')} can have them; start another broker first"
        )
        self.topic = tp.topic
        self.others = others


class NoSuchBroker(LocalError):
    """Neither is it in the cluster, nor has it replicas."""


async def racks(admin: Admin) -> dict[BrokerId, str | None]:
    cluster = await admin.describe_cluster()
    return {BrokerId(node.node_id): node.rack for node in cluster.nodes}


async def replica_sizes(admin: Admin, topics: Collection[str]) -> dict[tuple[TopicPartition, BrokerId], int]:
    return {
        (tp, BrokerId(broker.node.node_id)): replica.size_bytes
        for broker in await admin.describe_replicas(list(topics))
        for tp, replica in broker.replicas.items()
    }


async def placements(admin: Admin, topics: Mapping[str, TopicInfo]) -> dict[TopicPartition, Placement]:
    """The replicas and sizes of all partitions; of partitions that move, the coming replicas."""
    under_way = await admin.list_partition_reassignments()
    sizes = await replica_sizes(admin, topics)
    found = {}
    for name, topic in topics.items():
        for partition in topic.partitions:
            tp = TopicPartition(name, partition.partition)
            replicas = tuple(map(BrokerId, partition.replicas))
            moving = under_way.get(tp)
            size_bytes = max((sizes.get((tp, broker), 0) for broker in replicas), default=0)
            found[tp] = Placement(replicas if moving is None else moving.target, size_bytes)
    return found


async def plan_drain(admin: Admin, drained: BrokerId) -> dict[TopicPartition, Move]:
    """The moves that leave a broker without replicas. Raises CannotDrain and NoSuchBroker."""
    present = await racks(admin)
    topics = dict(sorted((await admin.describe_topics()).items()))
    affected = {
        tp: placement
        for tp, placement in (await placements(admin, topics)).items()
        if drained in placement.replicas
    }
    if drained not in present and not affected:
        raise NoSuchBroker(f"there is no broker {drained}; there are {sorted(present)}")
    others = {broker: rack for broker, rack in present.items() if broker != drained}
    for tp, placement in affected.items():
        if len(placement.replicas) > len(others):
            raise CannotDrain(drained, tp, len(placement.replicas), len(others))
    return plan(affected, others, is_balanced=False) if affected else {}


def is_unknown(error: BarnabasError | None) -> bool:
    """Whether the topic does not exist (any more)."""
    return isinstance(error, ApiError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
