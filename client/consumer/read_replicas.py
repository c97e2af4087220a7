"""Chooses the replica that a partition is read from: its leader, or the one that the leader named (KIP-392).

A leader that places readers by rack answers the fetch of a consumer in another rack with no records and the
name of a replica nearby. It does so with every fetch, so a consumer with a rack must fetch from that replica.
The choice is valid for `metadata_max_age_ms`, while the leader is the same and the replica's broker is alive.
After an error of the replica the consumer fetches from the leader again. A replica's answer never resets
offsets, and never refutes a leader. Rules over plain data, time passed in.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple

from barnabas.client.metadata import Leader
from barnabas.protocol.ids import BrokerId

NO_REPLICA: Final = -1


class ReadReplica(NamedTuple):
    """The replica that a leader named, and the time until which the choice is valid."""

    node_id: BrokerId
    advised_by: Leader
    until: float


def advice(named: int, leader: Leader, now: float, lease_s: float) -> ReadReplica | None:
    """The replica named by a leader's answer; None means the leader itself."""
    if named in (NO_REPLICA, leader.node_id):
        return None
    return ReadReplica(BrokerId(named), leader, now + lease_s)


def source_of(replica: ReadReplica | None, leader: Leader, live: Container[BrokerId], now: float) -> BrokerId:
    """The broker to fetch from."""
    if replica is None or replica.advised_by != leader or now >= replica.until or replica.node_id not in live:
        return leader.node_id
    return replica.node_id
