"""The errors by which requests of another leader epoch, or to the wrong broker, are refused (KIP-320)."""

from __future__ import annotations

from barnabas.broker.replication.replica_views import Role
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, LeaderEpoch, TopicPartition


def other_epoch(partition: TopicPartition, known: LeaderEpoch, given: int) -> ApiError:
    """FENCED_LEADER_EPOCH when the asker is behind, UNKNOWN_LEADER_EPOCH when this replica is."""
    code = ErrorCode.FENCED_LEADER_EPOCH if given < known else ErrorCode.UNKNOWN_LEADER_EPOCH
    return api_error(code, f"{partition} is at leader epoch {known}, not {given}")


def not_leader(partition: TopicPartition, broker_id: BrokerId, leader: BrokerId) -> ApiError:
    return api_error(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"broker {broker_id} does not lead {partition}; broker {leader} does",
    )


def not_following(partition: TopicPartition, role: Role, known: LeaderEpoch, given: LeaderEpoch) -> ApiError:
    return api_error(
        ErrorCode.FENCED_LEADER_EPOCH,
        f"{partition} is {role.value} at leader epoch {known}, no longer a follower at {given}",
    )


def stale_state(partition: TopicPartition, known: LeaderEpoch, given: int) -> ApiError:
    return api_error(ErrorCode.STALE_CONTROLLER_EPOCH, f"{partition} is at leader epoch {known}, not {given}")
