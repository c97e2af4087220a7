"""The ends of partitions for a consumer: from this broker's own replicas, else from their leaders.

It uses the high watermark of a local leader, or of a local follower in sync, which lags by one fetch at most.
For other partitions it sends each leader one request for all of them, to all leaders at the same time. Ends
that have not arrived after `TIMEOUT_MS` are unknown.

Called on the threads that serve metrics; blocks at most that long, or as long as the system's resolver if
brokers are known by name. Takes only a partition's lock, and briefly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.replication.partition import Isolation, Partition, Role
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.common.channel import Channel
from barnabas.protocol.errors import ApiError, ErrorCode, LocalError
from barnabas.protocol.ids import BrokerId, Endpoint, LeaderEpoch, Offset, TopicPartition, by_topic
from barnabas.protocol.messages.inter_broker import UpdateMetadataPartition
from barnabas.protocol.messages.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

logger = logging.getLogger(__name__)

TIMEOUT_MS: Final = 2_000
MAX_PARTITIONS_PER_REQUEST: Final = 1_000
"""A larger request would keep a thread of the leader busy for long."""


class Led(NamedTuple):
    """A partition that another broker leads, with the known leader epoch: older leaders refuse it."""

    name: TopicPartition
    leader_epoch: LeaderEpoch


class PartitionEnds:
    """``listener`` is the inter-broker listener."""

    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        *,
        listener: str,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._listener = listener
        self._timeout_ms = timeout_ms

    def find(self, names: Collection[TopicPartition]) -> dict[TopicPartition, Offset | None]:
        """The high watermarks: None if unknown at present, no entry if the partition does not exist."""
        ends, led_by = self._find_here(names)
        led_at = {
            endpoint: led
            for leader, led in led_by.items()
            if (endpoint := self._metadata.current.endpoint(leader, self._listener)) is not None
        }
        if led_at:
            ends.update(asyncio.run(self._ask_all(led_at)))
        return ends

    def _find_here(
        self, names: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, Offset | None], dict[BrokerId, list[Led]]]:
        """The ends that this broker knows, and the other partitions by their leader."""
        me, current = self._replicas.broker_id, self._metadata.current
        replicas = {partition.partition: partition for partition in self._replicas.partitions()}
        ends: dict[TopicPartition, Offset | None] = {}
        led_by: dict[BrokerId, list[Led]] = {}
        for name in names:
            state = current.partitions_of(name.topic).get(name.partition)
            replica = replicas.get(name)
            if state is None and replica is None:
                continue
            ends[name] = None if replica is None else _end_of(replica, state, me)
            if state is None or ends[name] is not None:
                continue
            leader, leader_epoch = self._metadata.leader_of(state)
            if leader >= 0 and leader != me:
                led_by.setdefault(leader, []).append(Led(name, leader_epoch))
        return ends, led_by

    async def _ask_all(self, led_at: dict[Endpoint, list[Led]]) -> dict[TopicPartition, Offset]:
        ends: dict[TopicPartition, Offset] = {}
        await asyncio.gather(*(self._ask(endpoint, led, ends) for endpoint, led in led_at.items()))
        return ends

    async def _ask(self, endpoint: Endpoint, led: Sequence[Led], ends: dict[TopicPartition, Offset]) -> None:
        """Ask one leader, and add its answer to ``ends``."""
        client_id = f"broker-{self._replicas.broker_id}-metrics"
        channel = Channel(endpoint, client_id=client_id, request_timeout_ms=self._timeout_ms)
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                for start in range(0, len(led), MAX_PARTITIONS_PER_REQUEST):
                    part = led[start : start + MAX_PARTITIONS_PER_REQUEST]
                    names = {name for name, _ in part}
                    answer = await channel.request(_request(part))
                    ends.update((name, end) for name, end in _ends_in(answer) if name in names)
        except (LocalError, ApiError, TimeoutError) as error:
            missing = sum(name not in ends for name, _ in led)
            logger.warning("the ends of %d partitions are unknown to metrics: %s", missing, error)
        finally:
            channel.close()


def _end_of(replica: Partition, state: UpdateMetadataPartition | None, me: BrokerId) -> Offset | None:
    """The high watermark of our own replica, or None if it is uncertain."""
    role = replica.role
    if role is Role.LEADER:
        try:
            return replica.latest_offset(-1, Isolation.READ_UNCOMMITTED)
        except ApiError as error:
            logger.debug("the end of %s is unknown: %s", replica.partition, error)
            return None
    if role is Role.FOLLOWER and state is not None and me in state.isr:
        return replica.high_watermark
    return None


def _request(led: Sequence[Led]) -> ListOffsetsRequest:
    topics = by_topic(
        (
            name,
            ListOffsetsPartition(
                partition_index=name.partition,
                current_leader_epoch=leader_epoch,
                timestamp=LATEST_TIMESTAMP,
            ),
        )
        for name, leader_epoch in led
    )
    return ListOffsetsRequest(
        topics=[ListOffsetsTopic(name=topic, partitions=partitions) for topic, partitions in topics.items()]
    )


def _ends_in(answer: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, Offset]]:
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code == ErrorCode.NONE and partition.offset >= 0:
                yield TopicPartition(topic.name, partition.partition_index), Offset(partition.offset)
