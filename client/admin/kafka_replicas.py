"""The replicas of a broker of other software, such as Apache Kafka, by what Kafka's protocol tells.

Metadata has the leader and the ISR; ListOffsets the log start and the log end of each replica, as for Kafka's
own replica verification tool, and of the leader also the high watermark and the last stable offset;
DescribeLogDirs the sizes. No request tells the followers as their leader knows them, or the high watermark of
a follower: they are -1 or empty. (The ``offset_lag`` of DescribeLogDirs does not help: it is counted from
the replica's own high watermark, and so always 0.)

Belongs to the event loop of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from barnabas.client.cluster import Cluster
from barnabas.client.isolation import IsolationLevel
from barnabas.client.metadata import topic_info
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages import log_offsets
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.replicas import DescribeLogDirsRequest, ReplicaDescription
from barnabas.protocol.partition_entries import entries, in_topics

_CONSUMER: Final = -1
_UNKNOWN: Final = log_offsets.ListOffsetsPartitionResponse(partition_index=-1, error_code=0)


async def describe_kafka_replicas(
    cluster: Cluster, node_id: BrokerId, topics: Collection[str] | None
) -> dict[TopicPartition, ReplicaDescription]:
    """The replicas on one broker, of these topics or of all. Raises if it does not answer."""
    asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    metadata = await cluster.request(node_id, MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    infos = {
        TopicPartition(info.topic, info.partition): info
        for topic in metadata.topics
        for info in topic_info(topic).partitions
        if node_id in info.replicas
    }
    led = [tp for tp, info in infos.items() if info.leader == node_id]
    committed = IsolationLevel.READ_COMMITTED.value
    any_replica = log_offsets.DEBUGGING_REPLICA_ID
    # A broker handles the requests of a connection in their order: the lower offset is asked for first, so
    # that log start ≤ last stable offset ≤ high watermark ≤ log end.
    starts, stable, marks, ends, sizes = await asyncio.gather(
        _offsets(cluster, node_id, infos, log_offsets.EARLIEST_TIMESTAMP, replica_id=any_replica),
        _offsets(cluster, node_id, led, log_offsets.LATEST_TIMESTAMP, isolation_level=committed),
        _offsets(cluster, node_id, led, log_offsets.LATEST_TIMESTAMP),
        _offsets(cluster, node_id, infos, log_offsets.LATEST_TIMESTAMP, replica_id=any_replica),
        _sizes(cluster, node_id),
    )
    return {
        tp: ReplicaDescription(
            partition_index=info.partition,
            leader_id=info.leader,
            leader_epoch=ends.get(tp, _UNKNOWN).leader_epoch,
            is_leader=info.leader == node_id,
            isr=list(info.isr) if info.leader == node_id else [],
            replicas=list(info.replicas),
            log_start_offset=starts.get(tp, _UNKNOWN).offset,
            high_watermark=marks.get(tp, _UNKNOWN).offset,
            log_end_offset=ends.get(tp, _UNKNOWN).offset,
            size_bytes=sizes.get(tp, -1),
            is_offline=node_id in info.offline_replicas,
            last_stable_offset=stable.get(tp, _UNKNOWN).offset,
        )
        for tp, info in infos.items()
    }


async def _offsets(
    cluster: Cluster,
    node_id: BrokerId,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    *,
    replica_id: int = _CONSUMER,
    isolation_level: int = 0,
) -> Mapping[TopicPartition, log_offsets.ListOffsetsPartitionResponse]:
    """The answers without an error: others are of replicas that have just moved, or are offline."""
    asked = [
        (tp, log_offsets.ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp))
        for tp in partitions
    ]
    if not asked:
        return {}
    request = log_offsets.ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=in_topics(log_offsets.ListOffsetsTopic, asked),
    )
    response = await cluster.request(node_id, request)
    return {tp: answer for tp, answer in entries(response.topics) if answer.error_code == 0}


async def _sizes(cluster: Cluster, node_id: BrokerId) -> Mapping[TopicPartition, int]:
    """Empty if the broker does not say: a user may describe topics without the right to describe log dirs."""
    with suppress(BarnabasError):
        response = await cluster.request(node_id, DescribeLogDirsRequest(topics=None))
        return {
            tp: replica.partition_size
            for log_dir in response.results
            for tp, replica in entries(log_dir.topics)
            if not replica.is_future_key
        }
    return {}
