"""Consumers read from the replica on their rack (KIP-392): the rule, and where a leader has sent consumers.

With `replica.selector.class` a leader sends a consumer to the nearest in-sync replica that has its offset. A
follower that consumers read is sent each high watermark at once: they would wait for a whole fetch of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.replication.rules import FollowerState
from barnabas.protocol.ids import NO_BROKER, BrokerId, Offset

_READS_ON_MS: Final = 900_000
"""How long a consumer may read from the replica that it was sent to: ``metadata.max.age.ms`` of librdkafka,
the longest of the usual clients."""


class NearConsumer(NamedTuple):
    """A consumer that wants to read on its rack; ``racks`` has the rack of each broker that it can reach."""

    rack: str
    racks: Mapping[BrokerId, str]
    now_ms: float

    @classmethod
    def on(cls, rack: str, listener_name: str, metadata: MetadataCache, now_ms: float) -> NearConsumer:
        """A consumer on that rack that is connected to that listener."""
        current, suspects = metadata.current, metadata.suspects
        racks = {
            broker: listed.rack
            for broker, listed in current.brokers.items()
            if listed.rack is not None
            and broker not in suspects
            and current.endpoint(broker, listener_name) is not None
        }
        return cls(rack, racks, now_ms)


def nearest_replica(
    followers: Mapping[BrokerId, FollowerState],
    in_sync_replicas: frozenset[BrokerId],
    leader: BrokerId,
    fetch_offset: Offset,
    rack: str,
    racks: Mapping[BrokerId, str],
) -> BrokerId:
    """The replica from which a consumer on that rack should read.

    That is the leader if it is on the rack, else the most caught-up in-sync follower there that has the
    offset, else the leader. Source: RackAwareReplicaSelector of Apache Kafka.
    """
    if racks.get(leader) == rack:
        return leader
    near = [
        (state.log_end_offset, state.last_caught_up_ms, follower)
        for follower, state in followers.items()
        if racks.get(follower) == rack
        and follower in in_sync_replicas
        and state.log_start_offset <= fetch_offset <= state.log_end_offset
    ]
    return max(near)[2] if near else leader


class SentConsumers:
    """When a consumer was last sent to each follower of one partition, in the present leader epoch.

    Guarded by the lock of the `Partition`; ``followers``, from which consumers may be reading, may be read
    without it.
    """

    def __init__(self) -> None:
        self.followers: dict[BrokerId, float] = {}

    def send(
        self,
        consumer: NearConsumer,
        followers: Mapping[BrokerId, FollowerState],
        in_sync_replicas: frozenset[BrokerId],
        leader: BrokerId,
        fetch_offset: Offset,
    ) -> BrokerId:
        """The follower from which a consumer should read; `NO_BROKER` means the leader."""
        replica = nearest_replica(
            followers, in_sync_replicas, leader, fetch_offset, consumer.rack, consumer.racks
        )
        if replica == leader:
            return NO_BROKER
        self.followers[replica] = consumer.now_ms
        return replica

    def forget(self, now_ms: float) -> None:
        """Forget the followers to which no consumer was sent for a long time."""
        if self.followers:
            self.followers = {
                follower: sent_ms
                for follower, sent_ms in self.followers.items()
                if now_ms - sent_ms < _READS_ON_MS
            }
