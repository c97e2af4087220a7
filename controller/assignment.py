"""Assigns the replicas of new topics and of added partitions to brokers: pure functions.

Replicas are assigned round robin, so that leaders and followers are spread evenly; racks are ignored. Source:
the rack-unaware assignment of Apache Kafka (AdminUtils), with the same results for the same start and shift;
for added partitions KIP-195.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper.znodes import ReplicaAssignment

MAX_PARTITIONS: Final = 10_000
"""The largest number of partitions of a topic; the limit of one request in Kafka's KRaft mode.

A topic's assignment is one znode, which ZooKeeper limits to a megabyte, and a mistyped number must not
exhaust the controller's memory.
"""


def assign_replicas(
    brokers: Sequence[BrokerId],
    num_partitions: int,
    replication_factor: int,
    *,
    start_index: int,
    start_shift: int,
    first_partition: int = 0,
) -> dict[int, ReplicaAssignment]:
    """The replicas by partition, numbered from `first_partition` on.

    The leaders go round the brokers, from `start_index` on. The followers come `start_shift` places after the
    leader, and one more place after each round, so that no two brokers share all their partitions. Raises
    INVALID_PARTITIONS or INVALID_REPLICATION_FACTOR.
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
        assignment[partition] = ReplicaAssignment(tuple(replicas))
    return assignment


def check_assignment(
    assignment: Mapping[int, Sequence[int]], live: Collection[BrokerId]
) -> dict[int, ReplicaAssignment]:
    """The assignment that a client chose. Raises INVALID_REPLICA_ASSIGNMENT or INVALID_PARTITIONS.

    Partitions are numbered from 0 without a gap. Each has as many replicas as the first, all different and on
    live brokers.
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
) -> ReplicaAssignment:
    """The replicas that a client chose for a partition. Raises INVALID_REPLICA_ASSIGNMENT."""
    replicas = tuple(BrokerId(broker) for broker in brokers)
    if len(replicas) != expected:
        problem = f"has {len(replicas)} replicas; expected {expected} as for partition 0"
    elif len(set(replicas)) != len(replicas):
        problem = f"names a broker twice: {list(replicas)}"
    elif set(replicas) - set(live):
        missing = sorted(set(replicas) - set(live))
        problem = f"names brokers that are not alive: {missing}; the live brokers are {sorted(live)}"
    else:
        return ReplicaAssignment(replicas)
    raise api_error(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {partition} {problem}")


def added_partitions(
    topic: str,
    current: Mapping[int, ReplicaAssignment],
    count: int,
    assignments: Sequence[Sequence[int]] | None,
    live: Sequence[BrokerId],
) -> dict[int, ReplicaAssignment]:
    """The new partitions of a topic that shall have ``count``.

    ``assignments`` are their replicas in order; with None they are assigned as if the topic had been created
    with ``count`` partitions. Raises INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT or
    INVALID_REPLICATION_FACTOR.
    """
    if count < len(current):
        raise api_error(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic!r} has {len(current)} partitions already, more than the {count} asked for; "
            "partitions cannot be removed",
        )
    if count == len(current):
        raise api_error(ErrorCode.INVALID_PARTITIONS, f"topic {topic!r} has {count} partitions already")
    if count > MAX_PARTITIONS:
        raise api_error(
            ErrorCode.INVALID_PARTITIONS, f"{count} partitions; at most {MAX_PARTITIONS} are allowed"
        )
    first = len(current)
    replication_factor = len(current[0].replicas)
    if assignments is None:
        return _spread(current, first, count - first, replication_factor, live)
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


def _spread(
    current: Mapping[int, ReplicaAssignment],
    first: int,
    count: int,
    replication_factor: int,
    live: Sequence[BrokerId],
) -> dict[int, ReplicaAssignment]:
    ordered = sorted(live)
    preferred = current[0].replicas[0]
    start = next((index for index, broker in enumerate(ordered) if broker >= preferred), 0)
    return assign_replicas(
        ordered, count, replication_factor, start_index=start, start_shift=start, first_partition=first
    )
