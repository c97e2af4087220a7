"""Leader elections as pure functions over the assignment, the ISR and the live brokers.

Each takes the replicas in the order of the assignment and returns an `Election`, or None if no replica may
lead. Source: the leader election rules of Apache Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import NamedTuple

from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper.znodes import ReplicaAssignment


class ElectionKind(Enum):
    """The reason of an election."""

    OFFLINE = "its leader is gone"
    CONTROLLED_SHUTDOWN = "its leader is stopping"
    PREFERRED = "its preferred replica shall lead"
    UNCLEAN = "an operator allows a loss of records"
    REASSIGNMENT = "its replicas are being reassigned"


class Election(NamedTuple):
    """The outcome: leader and ISR; `is_unclean`: acknowledged records may be lost."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]
    is_unclean: bool = False


def elect_initial(replicas: Sequence[BrokerId], live: Collection[BrokerId]) -> Election | None:
    """For a partition that never had a leader: the first live replica leads, all live ones are in sync."""
    isr = tuple(replica for replica in replicas if replica in live)
    return Election(isr[0], isr) if isr else None


def elect_offline(
    replicas: Sequence[BrokerId],
    isr: Sequence[BrokerId],
    live: Collection[BrokerId],
    *,
    bounced: Collection[BrokerId] = (),
    allow_unclean: bool,
) -> Election | None:
    """For a partition whose leader is gone: the first live replica of the ISR.

    The `bounced` replicas have registered again since they joined the ISR, so a disk may have been lost. One
    of them leads only if no other member of the ISR is alive, and then as the only member; the others rejoin
    after they have fetched. If no member is alive, `allow_unclean` lets any live replica lead.
    """
    trusted = [member for member in isr if member in live and member in replicas and member not in bounced]
    for replica in replicas:
        if replica in trusted:
            return Election(replica, tuple(trusted))
    for replica in replicas:
        if replica in live and replica in isr:
            return Election(replica, (replica,))
    if allow_unclean:
        for replica in replicas:
            if replica in live:
                return Election(replica, (replica,), is_unclean=True)
    return None


def elect_for_controlled_shutdown(
    replicas: Sequence[BrokerId],
    isr: Sequence[BrokerId],
    live_or_shutting_down: Collection[BrokerId],
    shutting_down: Collection[BrokerId],
) -> Election | None:
    """For a partition whose leader is stopping: the first live ISR member that is not stopping too."""
    for replica in replicas:
        if replica in live_or_shutting_down and replica in isr and replica not in shutting_down:
            return Election(replica, tuple(member for member in isr if member not in shutting_down))
    return None


def elect_preferred(
    replicas: Sequence[BrokerId], isr: Sequence[BrokerId], live: Collection[BrokerId]
) -> Election | None:
    """For a partition that another replica leads: the first replica, if it is alive and in sync."""
    preferred = replicas[0]
    return Election(preferred, tuple(isr)) if preferred in live and preferred in isr else None


def elect_for_reassignment(
    assignment: ReplicaAssignment, leader: BrokerId, isr: Sequence[BrokerId], live: Collection[BrokerId]
) -> Election | None:
    """For a partition whose assignment has changed: the leader and the ISR within its replicas.

    Once the whole target is in sync, only the target remains. The present leader leads on if it may.
    """
    remaining = assignment.target if assignment.is_target_in(isr) else assignment.replicas
    for replica in (leader, *remaining):
        if replica in remaining and replica in isr and replica in live:
            return Election(replica, tuple(member for member in isr if member in remaining))
    return None


def without_replicas(
    replicas: Collection[BrokerId], leader: BrokerId, isr: Sequence[BrokerId], no_leader: BrokerId
) -> tuple[BrokerId, tuple[BrokerId, ...]]:
    """Leader and ISR after `replicas` go offline, all at the same time.

    If no member would remain, the whole ISR stays. Each member has every acknowledged record, so any of them
    may lead when it returns; other replicas may not. Kafka keeps an arbitrary one of them.
    """
    new_isr = tuple(member for member in isr if member not in replicas)
    return (no_leader if leader in replicas else leader), (new_isr or tuple(isr))
