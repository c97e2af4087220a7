"""Assigns the replicas of new topics and of added partitions to brokers: pure functions.

Replicas are assigned round robin, so that leaders and followers are spread evenly. If the brokers have racks,
a partition has replicas on as many racks as possible (KIP-36). Source: AdminUtils of Apache Kafka, with the
same results for the same start and shift; for added partitions KIP-195.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle, zip_longest
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
    racks: Mapping[BrokerId, str | None],
    num_partitions: int,
    replication_factor: int,
    *,
    start_index: int,
    start_shift: int,
    first_partition: int = 0,
) -> dict[int, ReplicaAssignment]:
    """The replicas by partition, numbered from `first_partition` on.

    ``racks`` has the rack of each live broker, None for no rack. The leaders go round the brokers, from
    `start_index` on. The followers come `start_shift` places after the leader, and one more place after each
    round, so that no two brokers share all their partitions. Brokers on racks without a replica come first.

    Raises INVALID_PARTITIONS or INVALID_REPLICATION_FACTOR. The latter also if only some brokers have a rack:
    Kafka then refuses to create topics too, as an unknown server error.
    """
    _check_count(num_partitions)
    if replication_factor < 1:
        raise api_error(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor}; expected 1 or more",
        )
    if replication_factor > len(racks):
        raise api_error(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} is larger than the number of live brokers, "
            f"{len(racks)}",
        )
    ordered = _alternated(racks)
    count, rack_count = len(ordered), len(set(racks.values()))
    shift = start_shift
    assignment = {}
    for partition in range(first_partition, first_partition + num_partitions):
        if partition and partition % count == 0:
            shift += 1
        first = (start_index + partition) % count
        # So many places that the followers of a partition still come from one rack after the other.
        places = shift * rack_count
        followers = [ordered[(first + 1 + (places + nth) % (count - 1)) % count] for nth in range(count - 1)]
        assignment[partition] = _spread_over_racks(racks, ordered[first], followers, replication_factor)
    return assignment


def _alternated(racks: Mapping[BrokerId, str | None]) -> list[BrokerId]:
    """The brokers by id; if they have racks, one of each rack, then the next one of each rack, and so on."""
    by_rack: dict[str | None, list[BrokerId]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    if None not in by_rack:
        rows = zip_longest(*(by_rack[rack] for rack in sorted(by_rack, key=str)))
        return [broker for row in rows for broker in row if broker is not None]
    if len(by_rack) > 1:
        raise api_error(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"not all brokers have a rack: brokers {by_rack[None]} have no broker.rack; give all brokers one "
            "or none, or choose the replicas of each partition",
        )
    return by_rack[None]


def _spread_over_racks(
    racks: Mapping[BrokerId, str | None],
    leader: BrokerId,
    followers: Sequence[BrokerId],
    replication_factor: int,
) -> ReplicaAssignment:
    """The leader and followers; brokers of a rack with a replica are passed over while a rack has none."""
    replicas, covered = [leader], {racks[leader]}
    rack_count = len(set(racks.values()))
    # Brokers that were passed over are asked again after the last follower.
    for broker in cycle(followers):
        if len(replicas) == replication_factor:
            break
        if broker not in replicas and (racks[broker] not in covered or len(covered) == rack_count):
            replicas.append(broker)
            covered.add(racks[broker])
    return ReplicaAssignment(tuple(replicas))


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
    racks: Mapping[BrokerId, str | None],
) -> dict[int, ReplicaAssignment]:
    """The new partitions of a topic that shall have ``count``; ``racks`` has the rack of each live broker.

    ``assignments`` are their replicas in order; with None their leaders continue the round of the existing
    ones. Raises INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT or
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
    # While the topic is reassigned, it has more replicas for a time.
    replication_factor = len(current[0].target)
    if assignments is None:
        ordered = sorted(racks)
        preferred = current[0].replicas[0]
        start = next((index for index, broker in enumerate(ordered) if broker >= preferred), 0)
        return assign_replicas(
            racks,
            count - first,
            replication_factor,
            start_index=start,
            start_shift=start,
            first_partition=first,
        )
    if len(assignments) != count - first:
        raise api_error(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{count - first} partitions are to be added, but replicas are given for {len(assignments)}",
        )
    return {
        first + index: check_replicas(first + index, brokers, replication_factor, racks)
        for index, brokers in enumerate(assignments)
    }


def _check_count(partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise api_error(
            ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions; expected 1 to {MAX_PARTITIONS}"
        )
