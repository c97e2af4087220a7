"""Assigns the replicas of a new topic to brokers: pure functions.

Replicas are assigned round robin, so that leaders and followers are spread evenly; racks are ignored. Source:
the rack-unaware assignment of Apache Kafka (AdminUtils), whose results these match for the same start and
shift.
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


def _check_count(partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise api_error(
            ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions; expected 1 to {MAX_PARTITIONS}"
        )
