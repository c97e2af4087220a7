"""The rule by which consumers read from the replica on their rack (KIP-392).

With `replica.selector.class` a leader sends a consumer to the nearest in-sync replica that has its offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.replication.rules import FollowerState
from barnabas.protocol.ids import BrokerId, Offset


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
