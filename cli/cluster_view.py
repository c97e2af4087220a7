"""The present state of a cluster: asks every broker for its own replicas and joins the answers.

Reads only; each broker has two seconds to answer, else it is shown as unreachable with the reason. Runs on
the caller's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from barnabas.cli.bootstrap import unknown_topic
from barnabas.cli.exit_codes import NOT_REACHABLE, CommandError
from barnabas.deploy.probe import probe_channel
from barnabas.protocol.errors import BarnabasError, ErrorCode, raise_for
from barnabas.protocol.ids import NO_TOPIC_ID, Endpoint
from barnabas.protocol.messages.describe_replicas import DescribeReplicasRequest, ReplicaDescription
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


@dataclass(kw_only=True)
class BrokerView:
    """A broker in the metadata; `error` is the reason if it did not answer."""

    id: int
    endpoint: Endpoint
    is_controller: bool
    error: str | None = None
    strays: list[str] = field(default_factory=list)
    """Folders of logs that belong to no known topic and are kept."""


@dataclass(kw_only=True)
class PartitionView:
    """A partition by metadata, and its replicas as their brokers report them (absent: no answer)."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offsets: dict[int, ReplicaDescription] = field(default_factory=dict)


@dataclass(kw_only=True)
class ClusterView:
    cluster_id: str | None
    controller_id: int
    brokers: list[BrokerView]
    partitions: list[PartitionView]

    def as_json(self) -> dict[str, Any]:
        """The view as plain data."""
        return {
            "cluster_id": self.cluster_id,
            "controller": self.controller_id if self.controller_id >= 0 else None,
            "brokers": [
                {
                    "id": broker.id,
                    "host": broker.endpoint.host,
                    "port": broker.endpoint.port,
                    "is_controller": broker.is_controller,
                    "error": broker.error,
                    "strays": broker.strays,
                }
                for broker in self.brokers
            ],
            "partitions": [_partition_json(partition) for partition in self.partitions],
        }


def _partition_json(view: PartitionView) -> dict[str, Any]:
    return {
        "topic": view.topic,
        "partition": view.partition,
        "leader": view.leader if view.leader >= 0 else None,
        "leader_epoch": view.leader_epoch,
        "isr": view.isr,
        "replicas": [
            {"broker": broker_id}
            | (
                {
                    "log_start_offset": found.log_start_offset,
                    "high_watermark": found.high_watermark,
                    "log_end_offset": found.log_end_offset,
                    "size_bytes": found.size_bytes,
                    "is_offline": found.is_offline,
                    "failure": found.failure or None,
                }
                if (found := view.offsets.get(broker_id))
                else {"log_start_offset": None, "high_watermark": None, "log_end_offset": None}
            )
            for broker_id in view.replicas
        ],
    }


async def fetch_metadata(bootstrap: Sequence[Endpoint], topics: Sequence[str] | None) -> MetadataResponse:
    """Metadata from the first of these brokers that answers; raises CommandError naming all if none does."""
    wanted = (
        None if topics is None else [MetadataRequestTopic(topic_id=NO_TOPIC_ID, name=name) for name in topics]
    )
    reasons = []
    for endpoint in bootstrap:
        channel = probe_channel(endpoint)
        try:
            return await channel.request(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        except BarnabasError as error:
            reasons.append(f"{endpoint}: {error}")
        finally:
            channel.close()
    raise CommandError(f"no broker could be reached ({'; '.join(reasons)})", NOT_REACHABLE)


async def fetch_view(bootstrap: Sequence[Endpoint], topics: Sequence[str] | None = None) -> ClusterView:
    """The view of all topics, or of some. Raises CommandError when no broker can be reached."""
    metadata = await fetch_metadata(bootstrap, topics)
    for topic in metadata.topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            everything = await fetch_metadata(bootstrap, None)
            raise unknown_topic(topic.name or "", [known.name or "" for known in everything.topics])
    brokers = [
        BrokerView(
            id=broker.node_id,
            endpoint=Endpoint(broker.host, broker.port),
            is_controller=broker.node_id == metadata.controller_id,
        )
        for broker in sorted(metadata.brokers, key=lambda broker: broker.node_id)
    ]
    partitions = [
        PartitionView(
            topic=topic.name or "",
            partition=partition.partition_index,
            leader=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            replicas=list(partition.replica_nodes),
            isr=list(partition.isr_nodes),
        )
        for topic in sorted(metadata.topics, key=lambda topic: topic.name or "")
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
    ]
    by_name = {(view.topic, view.partition): view for view in partitions}
    answers = await asyncio.gather(*(_ask_replicas(broker, topics) for broker in brokers))
    for broker, replicas in zip(brokers, answers, strict=True):
        for topic_name, replica in replicas:
            view = by_name.get((topic_name, replica.partition_index))
            if view is not None:
                view.offsets[broker.id] = replica
    return ClusterView(
        cluster_id=metadata.cluster_id,
        controller_id=metadata.controller_id,
        brokers=brokers,
        partitions=partitions,
    )


async def _ask_replicas(
    broker: BrokerView, topics: Sequence[str] | None
) -> list[tuple[str, ReplicaDescription]]:
    channel = probe_channel(broker.endpoint)
    try:
        answer = await channel.request(
            DescribeReplicasRequest(topics=None if topics is None else list(topics))
        )
        raise_for(answer.error_code)
    except BarnabasError as error:
        broker.error = str(error)
        return []
    finally:
        channel.close()
    broker.strays = answer.strays
    return [(topic.topic_name, replica) for topic in answer.topics for replica in topic.replicas]
