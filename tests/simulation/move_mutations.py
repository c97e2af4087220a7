"""Known mistakes of elections on request and of reassignments; see `tests.simulation.mutations`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from barnabas.controller import partition_state
from barnabas.controller.election import Election
from barnabas.controller.reassignment import Reassignments
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.zookeeper.znodes import ReplicaAssignment
from tests.simulation.planted import SetAttr, found_in


@found_in("moves", 0)
def a_preferred_replica_leads_out_of_sync(setattr_: SetAttr) -> None:
    """It is elected because it is alive."""

    def elect(
        replicas: Sequence[BrokerId], isr: Sequence[BrokerId], live: Collection[BrokerId]
    ) -> Election | None:
        return Election(replicas[0], tuple({*isr, replicas[0]})) if replicas[0] in live else None

    setattr_(partition_state, "elect_preferred", elect)


@found_in("moves", 0)
def a_target_counts_as_in_sync(setattr_: SetAttr) -> None:
    """The ISR becomes the target, also of replicas that have not caught up."""
    elect = partition_state.elect_for_reassignment

    def trusting(assignment: ReplicaAssignment, leader: BrokerId, isr: Any, live: Any) -> Election | None:
        election = elect(assignment, leader, isr, live)
        if election is None or not assignment.is_changing:
            return election
        return Election(election.leader, tuple(dict.fromkeys((*election.isr, *assignment.target))))

    setattr_(partition_state, "elect_for_reassignment", trusting)


@found_in("moves", 4)
def a_reassignment_ends_with_its_controller(setattr_: SetAttr) -> None:
    """The next controller does not go on."""
    setattr_(Reassignments, "resume", lambda self, partitions: None)


@found_in("moves", 35)
def a_reassignment_hinders_a_deletion(setattr_: SetAttr) -> None:
    """Found in this code: it ended while the deletion waited for the replica that it removed."""
    check = Reassignments._is_target_in_sync

    def hindering(self: Reassignments, tp: TopicPartition) -> bool:
        marked, self._context.topics_to_delete = self._context.topics_to_delete, set()
        try:
            return check(self, tp)
        finally:
            self._context.topics_to_delete = marked

    setattr_(Reassignments, "_is_target_in_sync", hindering)
