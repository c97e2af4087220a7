"""A fetch in flight: its partitions, as they were when it was sent, and its request.

Plain data and rules, on the consumer's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.fetched import PartitionState, Reset
from barnabas.protocol.ids import BrokerId, LeaderEpoch, TopicId
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic


class Asked(NamedTuple):
    """A partition in a fetch, as it was when the fetch was sent."""

    state: PartitionState
    generation: int
    fetch_offset: int
    leader_epoch: LeaderEpoch
    is_of_leader: bool
    """False if a follower was asked."""


class Unplaced(NamedTuple):
    """A partition without a position, as it was when the request for one was sent."""

    state: PartitionState
    generation: int
    reset: Reset | None
    leader_epoch: LeaderEpoch


class Flight:
    """A request in flight for some partitions, each of which points to it until it ends."""

    def __init__(self, node_id: BrokerId, reserved_bytes: int) -> None:
        self.node_id = node_id
        self.reserved_bytes = reserved_bytes
        """The largest size of the answer."""
        self.leader_epochs: dict[PartitionState, LeaderEpoch] = {}
        self.task: asyncio.Task[None] | None = None

    def carry(self, state: PartitionState, leader_epoch: LeaderEpoch) -> None:
        self.leader_epochs[state] = leader_epoch
        state.flight = self

    def carries(self, state: PartitionState) -> bool:
        return state.flight is self

    def land(self) -> None:
        """Release the partitions that still point to this flight."""
        for state in self.leader_epochs:
            if state.flight is self:
                state.flight = None


def fetch_request(
    config: ConsumerConfig,
    asked: Iterable[Asked],
    topic_id: Callable[[str], TopicId],
    max_bytes: int,
    wait_ms: int,
) -> FetchRequest:
    """One fetch for these partitions, with the client's rack (KIP-392)."""
    topics: dict[str, list[FetchPartition]] = {}
    for one in asked:
        partition = FetchPartition(
            partition=one.state.tp.partition,
            current_leader_epoch=one.leader_epoch,
            fetch_offset=one.fetch_offset,
            partition_max_bytes=config.max_partition_fetch_bytes,
        )
        topics.setdefault(one.state.tp.topic, []).append(partition)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=max_bytes,
        topics=[
            FetchTopic(topic=topic, topic_id=topic_id(topic), partitions=partitions)
            for topic, partitions in topics.items()
        ],
        rack_id=config.client_rack or "",
    )
