"""Assigns the replicas of new topics, and of partitions added to one, to brokers: pure functions.

Replicas are assigned round robin, so that leaders and followers are spread evenly; racks are ignored. Source:
the rack-unaware assignment of Apache Kafka (AdminUtils), whose results these match for the same start and
shift; for added partitions KIP-195.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import BrokerId

MAX_PARTITIONS: Final = 10_000
"""The most partitions that one topic may be made with; the limit of one request in Kafka's KRaft mode.

A topic's assignment is one znode, of which ZooKeeper takes a megabyte, and one mistyped number must not keep
the controller busy until its memory is gone.
"""


def assign_replicas(
    brokers: Sequence[BrokerId],
    num_partitions: int,
    replication_factor: int,
    *,
    start_index: int,
    start_shift: int,
    first_partition: int = 0,
) -> dict[int, tuple[BrokerId, ...]]:
    """Replicas by partition, numbered from `first_partition` on, the preferred leader first.

    Partition p is led by the (start_index + p)-th broker in turn. Its followers stand `start_shift` further,
    and one further again each time the leaders have gone round: no two brokers always back each other.
    Raises INVALID_PARTITIONS or INVALID_REPLICATION_FACTOR.
    """
    _check_count(num_partitions)
    if replication_factor < 1:
        raise api_error(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor}; expected 1 or more",
        )
    count = len(brokers)
    if replication_factor > count:
        raise api_error(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} is larger than the number of live brokers, {count}",
        )
    ordered = sorted(brokers)
    assignment = {}
    for partition in range(first_partition, first_partition + num_partitions):
        first = (start_index + partition) % count
        shift = start_shift + partition // count
        replicas = [ordered[first]]
        for nth in range(replication_factor - 1):
            replicas.append(ordered[(first + 1 + (shift + nth) % (count - 1)) % count])
        assignment[partition] = tuple(replicas)
    return assignment


def check_assignment(
    assignment: Mapping[int, Sequence[int]], live: Collection[BrokerId]
) -> dict[int, tuple[BrokerId, ...]]:
    """An assignment made by hand, if it is sound. Raises INVALID_REPLICA_ASSIGNMENT or INVALID_PARTITIONS.

    Partitions are numbered from 0 without a gap, each has as many replicas as the first, none twice, and all
    on live brokers.
    """
    _check_count(len(assignment))
    if sorted(assignment) != list(range(len(assignment))):
        raise api_error(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partitions {sorted(assignment)}; expected 0, 1, 2… without a gap",
        )
    expected = max(1, len(assignment[0]))
    return {
        partition: check_replicas(partition, brokers, expected, live)
        for partition, brokers in sorted(assignment.items())
    }


def check_replicas(
    partition: int, brokers: Sequence[int], expected: int, live: Collection[BrokerId]
) -> tuple[BrokerId, ...]:
    """The replicas of one partition, if they are sound. Raises INVALID_REPLICA_ASSIGNMENT."""
    replicas = tuple(BrokerId(broker) for broker in brokers)
    if len(replicas) != expected:
        problem = f"has {len(replicas)} replicas; expected {expected} as for partition 0"
    elif len(set(replicas)) != len(replicas):
        problem = f"names a broker twice: {list(replicas)}"
    elif set(replicas) - set(live):
        missing = sorted(set(replicas) - set(live))
        problem = f"names brokers that do not live: {missing}; those that do are {sorted(live)}"
    else:
        return replicas
    raise api_error(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {partition} {problem}")


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


def _check_count(partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise api_error(
            ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions; expected 1 to {MAX_PARTITIONS}"
        )


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
