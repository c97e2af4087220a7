"""The errors by which a replica refuses: another leader epoch, the wrong broker (KIP-320), a small ISR."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.replication.replica_views import Role
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition


def other_epoch(partition: TopicPartition, known: LeaderEpoch, given: int) -> ApiError:
    """FENCED_LEADER_EPOCH when the asker is behind, UNKNOWN_LEADER_EPOCH when this replica is."""
    code = ErrorCode.FENCED_LEADER_EPOCH if given < known else ErrorCode.UNKNOWN_LEADER_EPOCH
    return api_error(code, f"{partition} is at leader epoch {known}, not {given}")


def not_leader(partition: TopicPartition, broker_id: BrokerId, leader: BrokerId, code: ErrorCode) -> ApiError:
    """``code`` is KAFKA_STORAGE_ERROR where the replica's disk failed, else NOT_LEADER_OR_FOLLOWER."""
    return api_error(code, f"broker {broker_id} does not lead {partition}; broker {leader} does")


def not_following(partition: TopicPartition, role: Role, known: LeaderEpoch, given: LeaderEpoch) -> ApiError:
    return api_error(
        ErrorCode.FENCED_LEADER_EPOCH,
        f"{partition} is {role.value} at leader epoch {known}, no longer a follower at {given}",
    )


def not_a_replica(partition: TopicPartition, follower: BrokerId, replicas: Sequence[BrokerId]) -> ApiError:
    return api_error(
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"broker {follower} is not among the replicas {list(replicas)} of {partition}",
    )


def not_enough_replicas(partition: TopicPartition, in_sync: int, required: int) -> ApiError:
    return api_error(
        ErrorCode.NOT_ENOUGH_REPLICAS,
        f"{partition} has {in_sync} in-sync replicas, min.insync.replicas is {required}",
    )


def not_available(
    partition: TopicPartition, high_watermark: Offset, epoch: LeaderEpoch, start_offset: Offset
) -> ApiError:
    return api_error(
        ErrorCode.OFFSET_NOT_AVAILABLE,
        f"{partition}: high watermark {high_watermark} has not reached the start {start_offset} "
        f"of leader epoch {epoch} yet",
    )


def out_of_range(
    partition: TopicPartition, offset: Offset, log_start_offset: Offset, log_end_offset: Offset
) -> ApiError:
    return api_error(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"{partition}: offset {offset} is not within {log_start_offset}..{log_end_offset}",
    )


def stale_state(partition: TopicPartition, known: LeaderEpoch, given: int) -> ApiError:
    return api_error(ErrorCode.STALE_CONTROLLER_EPOCH, f"{partition} is at leader epoch {known}, not {given}")
