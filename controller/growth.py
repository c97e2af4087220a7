"""Assigns the replicas of partitions that are added to a topic: a pure function.

Source: KIP-195, and what Apache Kafka 3.9 answers to requests that cannot be fulfilled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from barnabas.controller.assignment import MAX_PARTITIONS, assign_replicas, check_replicas
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import BrokerId


def added_partitions(
    topic: str,
    current: Mapping[int, tuple[BrokerId, ...]],
    count: int,
    assignments: Sequence[Sequence[int]] | None,
    live: Sequence[BrokerId],
) -> dict[int, tuple[BrokerId, ...]]:
    """The new partitions alone, so that there are ``count`` in all.

    ``assignments`` are their replicas in order; None lets them be dealt out as if the topic had been made
    with so many. Raises INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT or INVALID_REPLICATION_FACTOR.
    """
    if count < len(current):
        raise api_error(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic!r} has {len(current)} partitions already, more than the {count} asked for; "
            "partitions cannot be taken away",
        )
    if count == len(current):
        raise api_error(ErrorCode.INVALID_PARTITIONS, f"topic {topic!r} has {count} partitions already")
    if count > MAX_PARTITIONS:
        raise api_error(
            ErrorCode.INVALID_PARTITIONS, f"{count} partitions; at most {MAX_PARTITIONS} are allowed"
        )
    first = len(current)
    replication_factor = len(current[0])
    if assignments is None:
        return _dealt_out(current, first, count - first, replication_factor, live)
    if len(assignments) != count - first:
        raise api_error(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{count - first} partitions are to be added, but replicas are given for {len(assignments)}",
        )
    return {
        first + index: check_replicas(first + index, brokers, replication_factor, live)
        for index, brokers in enumerate(assignments)
    }


def _dealt_out(
    current: Mapping[int, tuple[BrokerId, ...]],
    first: int,
    count: int,
    replication_factor: int,
    live: Sequence[BrokerId],
) -> dict[int, tuple[BrokerId, ...]]:
    ordered = sorted(live)
    preferred = current[0][0]
    start = next((index for index, broker in enumerate(ordered) if broker >= preferred), 0)
    return assign_replicas(
        ordered, count, replication_factor, start_index=start, start_shift=start, first_partition=first
    )
