"""The log dirs and the replicas of brokers, which only the broker itself can describe.

The work of `Admin.describe_log_dirs`, `alter_replica_log_dirs` and `describe_replicas`, and their results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import NamedTuple

from barnabas.client.brokers import check_alive
from barnabas.client.cluster import Cluster
from barnabas.client.metadata import Node
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error, raise_for
from barnabas.protocol.ids import BrokerId, TopicPartition, by_topic
from barnabas.protocol.messages.replicas import (
    UNKNOWN_VOLUME_BYTES,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    CleanerDescription,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
    DescribeReplicasRequest,
    ReplicaDescription,
)


class TopicPartitionReplica(NamedTuple):
    """The replica of a partition on one broker."""

    topic: str
    partition: int
    broker_id: BrokerId


class LogDirReplica(NamedTuple):
    """A log in a log dir.

    A future one (``is_future``) is the copy of a replica that moves there. ``offset_lag`` is its distance
    from the end of the replica; of others, the distance from the high watermark; -1 if it is unknown.
    """

    partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDirDescription(NamedTuple):
    """One log dir; with an error, such as that of a failed disk, its logs are unknown.

    ``total_bytes`` and ``usable_bytes`` are of its volume, None if they are unknown.
    """

    path: str
    replicas: list[LogDirReplica]
    total_bytes: int | None
    usable_bytes: int | None
    error: BarnabasError | None


class BrokerLogDirs(NamedTuple):
    """The log dirs of a broker, or the error of the request."""

    node: Node
    log_dirs: list[LogDirDescription]
    error: BarnabasError | None = None


async def describe_log_dirs(cluster: Cluster, brokers: Collection[int] | None) -> list[BrokerLogDirs]:
    await cluster.refresh()
    check_alive(cluster, brokers or ())
    nodes = [node for node in sorted(cluster.nodes.values()) if brokers is None or node.node_id in brokers]

    async def describe(node: Node) -> BrokerLogDirs:
        try:
            response = await cluster.request(node.node_id, DescribeLogDirsRequest(topics=None))
            raise_for(response.error_code, f"broker {node.node_id}")
        except BarnabasError as error:
            return BrokerLogDirs(node, [], error)
        return BrokerLogDirs(node, [_description(result) for result in response.results])

    return await asyncio.gather(*map(describe, nodes))


def _description(result: DescribeLogDirsResult) -> LogDirDescription:
    replicas = [
        LogDirReplica(
            TopicPartition(topic.name, partition.partition_index),
            partition.partition_size,
            partition.offset_lag,
            partition.is_future_key,
        )
        for topic in result.topics
        for partition in topic.partitions
    ]
    total_bytes, usable_bytes = (
        None if size == UNKNOWN_VOLUME_BYTES else size for size in (result.total_bytes, result.usable_bytes)
    )
    error = None if not result.error_code else api_error(result.error_code, f"log dir {result.log_dir}")
    return LogDirDescription(result.log_dir, sorted(replicas), total_bytes, usable_bytes, error)


async def alter_replica_log_dirs(
    cluster: Cluster, assignment: Mapping[TopicPartitionReplica, str]
) -> dict[TopicPartitionReplica, BarnabasError | None]:
    by_broker: dict[BrokerId, dict[str, list[TopicPartition]]] = {}
    for replica, path in assignment.items():
        topic, partition, broker_id = _checked(replica)
        by_path = by_broker.setdefault(BrokerId(broker_id), {})
        by_path.setdefault(path, []).append(TopicPartition(topic, partition))

    async def alter(
        broker_id: BrokerId, by_path: Mapping[str, Collection[TopicPartition]]
    ) -> dict[TopicPartitionReplica, BarnabasError | None]:
        request = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path,
                    topics=[
                        AlterReplicaLogDirTopic(name=topic, partitions=indexes)
                        for topic, indexes in by_topic((name, name.partition) for name in names).items()
                    ],
                )
                for path, names in by_path.items()
            ]
        )
        try:
            response = await cluster.request(broker_id, request)
        except BarnabasError as error:
            names = [name for named in by_path.values() for name in named]
            return {TopicPartitionReplica(*name, broker_id): error for name in names}
        return {
            TopicPartitionReplica(topic.topic_name, result.partition_index, broker_id): (
                None
                if not result.error_code
                else api_error(
                    result.error_code, f"{topic.topic_name}-{result.partition_index} on broker {broker_id}"
                )
            )
            for topic in response.results
            for result in topic.partitions
        }

    await cluster.refresh()
    answers = await asyncio.gather(*(alter(broker, by_path) for broker, by_path in by_broker.items()))
    results = {replica: error for answer in answers for replica, error in answer.items()}
    unanswered = api_error(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's answer does not name the replica")
    return {replica: results.get(TopicPartitionReplica(*replica), unanswered) for replica in assignment}


def _checked(replica: TopicPartitionReplica | tuple[str, int, int]) -> TopicPartitionReplica:
    try:
        topic, partition, broker_id = replica
        if isinstance(topic, str) and type(partition) is int and isinstance(broker_id, int):
            return TopicPartitionReplica(topic, partition, BrokerId(broker_id))
    except (TypeError, ValueError):
        pass
    raise TypeError(
        f"replica {replica!r}: expected a topic, a partition and a broker, such as ('orders', 0, 1)"
    )


class BrokerReplicas(NamedTuple):
    """The replicas of a broker, by partition, or the error of the request.

    ``strays`` are the folders of logs that belong to no known topic and are kept.
    """

    node: Node
    replicas: dict[TopicPartition, ReplicaDescription]
    error: BarnabasError | None = None
    strays: tuple[str, ...] = ()
    cleaner: CleanerDescription = CleanerDescription()


async def describe_replicas(cluster: Cluster, topics: list[str] | None) -> list[BrokerReplicas]:
    await cluster.refresh()

    async def ask(node: Node) -> BrokerReplicas:
        try:
            response = await cluster.request(node.node_id, DescribeReplicasRequest(topics=topics))
            raise_for(response.error_code, f"broker {node.node_id}")
        except BarnabasError as error:
            return BrokerReplicas(node, {}, error)
        replicas = {
            TopicPartition(topic.topic_name, replica.partition_index): replica
            for topic in response.topics
            for replica in topic.replicas
        }
        return BrokerReplicas(node, replicas, strays=tuple(response.strays), cleaner=response.cleaner)

    return await asyncio.gather(*map(ask, sorted(cluster.nodes.values())))
