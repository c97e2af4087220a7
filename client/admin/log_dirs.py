"""The log dirs and the replicas of brokers, which only the broker itself can describe.

Belongs to the event loop of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from barnabas.client.admin.base import AdminBase, error_of
from barnabas.client.admin.kafka_replicas import describe_kafka_replicas
from barnabas.client.arguments import check_mapping, several
from barnabas.client.ask import check_alive
from barnabas.client.cluster import Cluster
from barnabas.client.metadata import Node
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages import replicas as wire
from barnabas.protocol.partition_entries import entries, numbers_in_topics
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")


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


class BrokerReplicas(NamedTuple):
    """The replicas of a broker, by partition, or the error of the request.

    ``strays`` are the folders of logs that belong to no known topic and are kept; ``fault_rules`` is how many
    rules of faults it has.
    """

    node: Node
    replicas: dict[TopicPartition, wire.ReplicaDescription]
    error: BarnabasError | None = None
    strays: tuple[str, ...] = ()
    cleaner: wire.CleanerDescription = wire.CleanerDescription()
    fault_rules: int = 0


class LogDirAdmin(AdminBase):
    """The methods of `Admin` for log dirs and replicas."""

    async def describe_log_dirs(self, brokers: Collection[int] | int | None = None) -> list[BrokerLogDirs]:
        """The log dirs of these brokers, or of all live ones, with their logs and volumes.

        Raises BROKER_NOT_AVAILABLE for an id that no live broker has.
        """
        chosen = None if brokers is None else several("brokers", brokers, int)
        return [
            BrokerLogDirs(node, [], answer)
            if isinstance(answer, BarnabasError)
            else BrokerLogDirs(node, [_description(result) for result in answer.results])
            for node, answer in await self._ask_live(wire.DescribeLogDirsRequest(topics=None), chosen)
        ]

    async def alter_replica_log_dirs(
        self, assignment: Mapping[TopicPartitionReplica, str]
    ) -> dict[TopicPartitionReplica, BarnabasError | None]:
        """Begin to move replicas to other log dirs (absolute paths) of their brokers; they serve meanwhile.

        Returns the error of each replica, or None. `describe_log_dirs` shows the progress. A move to the
        dir where the replica is ends one to another dir. REPLICA_NOT_AVAILABLE, or for an unknown partition
        UNKNOWN_TOPIC_OR_PARTITION: there is no such replica; if the broker gets it later, it is created in
        that dir.
        """
        check_mapping("assignment", assignment, "replicas to log dirs")
        cluster = self._open()
        by_broker: dict[BrokerId, dict[str, list[TopicPartition]]] = {}
        for replica, path in assignment.items():
            topic, partition, broker_id = _checked(replica)
            by_path = by_broker.setdefault(BrokerId(broker_id), {})
            by_path.setdefault(path, []).append(TopicPartition(topic, partition))

        async def alter(
            broker_id: BrokerId, by_path: Mapping[str, Collection[TopicPartition]]
        ) -> dict[TopicPartitionReplica, BarnabasError | None]:
            request = wire.AlterReplicaLogDirsRequest(
                dirs=[
                    wire.AlterReplicaLogDir(
                        path=path, topics=numbers_in_topics(wire.AlterReplicaLogDirTopic, names)
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
                TopicPartitionReplica(*tp, broker_id): error_of(result, f"{tp} on broker {broker_id}")
                for tp, result in entries(response.results)
            }

        await cluster.refresh()
        answers = await asyncio.gather(*(alter(broker, by_path) for broker, by_path in by_broker.items()))
        results = {replica: error for answer in answers for replica, error in answer.items()}
        unanswered = api_error(
            ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's answer does not name the replica"
        )
        return {replica: results.get(TopicPartitionReplica(*replica), unanswered) for replica in assignment}

    async def describe_replicas(
        self,
        topics: Iterable[str] | str | None = None,
        brokers: Collection[int] | int | None = None,
    ) -> list[BrokerReplicas]:
        """The replicas of these brokers, or of all live ones: leader, ISR, high watermark, log end, size.

        All brokers are asked at once, so that one that does not answer costs one request time-out. Raises
        BROKER_NOT_AVAILABLE for an id that no live broker has. In Kafka's protocol there is no more than
        `kafka_replicas` finds out: no followers, no failures.
        """
        chosen = None if topics is None else several("topics", topics, str)
        ids = None if brokers is None else several("brokers", brokers, int)
        if self.is_kafka:
            return await self._describe_kafka_replicas(chosen, ids)
        described = []
        for node, answer in await self._ask_live(wire.DescribeReplicasRequest(topics=chosen), ids):
            if isinstance(answer, BarnabasError):
                described.append(BrokerReplicas(node, {}, answer))
                continue
            replicas = dict(entries(answer.topics))
            described.append(
                BrokerReplicas(
                    node,
                    replicas,
                    strays=tuple(answer.strays),
                    cleaner=answer.cleaner,
                    fault_rules=answer.fault_rules,
                )
            )
        return described

    async def _describe_kafka_replicas(
        self, topics: Collection[str] | None, chosen: Collection[int] | None
    ) -> list[BrokerReplicas]:
        cluster, nodes = await self._live(chosen)

        async def describe(node: Node) -> BrokerReplicas:
            try:
                return BrokerReplicas(node, await describe_kafka_replicas(cluster, node.node_id, topics))
            except BarnabasError as error:
                return BrokerReplicas(node, {}, error)

        return await asyncio.gather(*map(describe, nodes))

    async def _live(self, chosen: Collection[int] | None) -> tuple[Cluster, list[Node]]:
        """The live brokers, or these. Known ones are asked at once: a request that fails refreshes them."""
        cluster = self._open()
        if chosen is None or not cluster.cache.nodes.keys() >= set(chosen):
            await cluster.refresh()
            check_alive(cluster, chosen or ())
        live = sorted(cluster.cache.nodes.values())
        return cluster, [node for node in live if chosen is None or node.node_id in chosen]

    async def _ask_live(
        self, request: RequestOf[R], chosen: Collection[int] | None = None
    ) -> list[tuple[Node, R | BarnabasError]]:
        """The answer or the error of each live broker, or of each of these."""
        _, nodes = await self._live(chosen)
        return await self._ask_each(nodes, request)

    async def _ask_each(
        self, nodes: Iterable[Node], request: RequestOf[R]
    ) -> list[tuple[Node, R | BarnabasError]]:
        cluster = self._open()

        async def ask(node: Node) -> tuple[Node, R | BarnabasError]:
            try:
                response: Any = await cluster.request(node.node_id, request)
            except BarnabasError as error:
                return node, error
            return node, error_of(response, f"broker {node.node_id}") or response

        return await asyncio.gather(*map(ask, nodes))


def _description(result: wire.DescribeLogDirsResult) -> LogDirDescription:
    replicas = [
        LogDirReplica(tp, partition.partition_size, partition.offset_lag, partition.is_future_key)
        for tp, partition in entries(result.topics)
    ]
    total_bytes, usable_bytes = (
        None if size == wire.UNKNOWN_VOLUME_BYTES else size
        for size in (result.total_bytes, result.usable_bytes)
    )
    error = None if not result.error_code else api_error(result.error_code, f"log dir {result.log_dir}")
    return LogDirDescription(result.log_dir, sorted(replicas), total_bytes, usable_bytes, error)


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
