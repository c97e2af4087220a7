"""`Reassignments`: moves partitions to other replicas while clients go on (KIP-455).

A reassignment has these steps, and each may be repeated by the next controller:

1. The topic's znode gets the present and the new replicas, and says which of them are added and removed.
2. The leader epoch is raised, so that the leader accepts fetches of the added replicas; they copy the log.
3. Once all new replicas are in sync, one write of the state leaves only them in the ISR and one of them as
   leader.
4. The removed replicas are deleted, and the znode gets the new replicas alone.

A reassignment to the origin cancels another: the added replicas leave the ISR, then the assignment, and are
deleted. A replica is deleted only when the others of the ISR have all acknowledged records. Runs on the
controller's event thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from barnabas.controller.context import ControllerContext, EpochLogger, PartitionState, Replica, ReplicaState
from barnabas.controller.events import Outcomes
from barnabas.controller.leader_choice import ElectionKind
from barnabas.controller.partition_state import PartitionStateMachine
from barnabas.controller.replica_state import ReplicaStateMachine
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.ids import NO_BROKER, BrokerId, TopicPartition, by_topic
from barnabas.zookeeper.admin_requests import read_reassignments
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.requests import Watch, retry_cas
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import ReplicaAssignment, TopicAssignment

log = logging.getLogger("barnabas.controller")

Target = Sequence[int] | None
"""The new replicas; None cancels."""


def check_target(
    tp: TopicPartition,
    assignment: ReplicaAssignment,
    target: Target,
    live: Collection[BrokerId],
    *,
    may_change_factor: bool = True,
) -> ReplicaAssignment:
    """The assignment with which a reassignment to these replicas begins.

    Raises INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR or NO_REASSIGNMENT_IN_PROGRESS.
    """
    if target is None:
        if not assignment.is_changing:
            raise api_error(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{tp} is not being reassigned")
        return assignment.changed_to(assignment.origin)
    changed = assignment.changed_to([BrokerId(broker) for broker in target])
    dead = sorted(set(changed.adding) - set(live))
    if not target:
        problem = "no replicas are given"
    elif len(set(target)) != len(target):
        problem = f"a broker is named twice: {list(target)}"
    elif dead:
        problem = f"brokers {dead} are not alive; the live brokers are {sorted(live)}"
    elif len(target) != len(assignment.target) and not may_change_factor:
        raise api_error(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{tp}: the number of replicas would change from {len(assignment.target)} to {len(target)}",
        )
    else:
        return changed
    raise api_error(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{tp}: {problem}")


@dataclass(eq=False)
class Reassignments:
    _context: ControllerContext
    _store: ClusterStore
    _writer: ControllerWriter
    _partitions: PartitionStateMachine
    _replicas: ReplicaStateMachine
    _flush: Callable[[], None]
    """Sends the requests that have been collected for the brokers."""
    _watch: Watch
    _under_way: dict[TopicPartition, None] = field(default_factory=dict)
    """Until the end is written to the topic's znode."""
    _requested: set[TopicPartition] = field(default_factory=set)
    """The partitions that ``/admin/reassign_partitions`` named when it was last read."""

    def under_way(self) -> dict[TopicPartition, ReplicaAssignment]:
        """The partitions that are being reassigned, without those of a topic that is being deleted."""
        lasting = (tp for tp in self._under_way if not self._context.is_to_be_deleted(tp.topic))
        found = {tp: self._context.assignment_of(tp) for tp in lasting}
        return {tp: assignment for tp, assignment in found.items() if assignment and assignment.is_changing}

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Continue what had begun before these partitions were loaded."""
        begun = []
        for tp in partitions:
            assignment, state = self._context.assignment_of(tp), self._context.leadership.get(tp)
            is_outside = state is not None and not set(state.isr) <= set(self._context.replicas_of(tp))
            is_begun = assignment is not None and (assignment.is_changing or is_outside)
            if is_begun and not self._context.is_to_be_deleted(tp.topic):
                begun.append(tp)
        if begun:
            log.info("continuing the reassignment of %s", ", ".join(map(str, begun)))
            self._under_way.update(dict.fromkeys(begun))
            self._advance(begun)

    def alter(self, targets: Mapping[TopicPartition, Target], *, may_change_factor: bool = True) -> Outcomes:
        """Begin, replace or cancel reassignments.

        The errors are UNKNOWN_TOPIC_OR_PARTITION, those of `check_target`, and REQUEST_TIMED_OUT if a topic
        is gone or cannot be read.
        """
        outcomes: Outcomes = {}
        texts = ErrorTexts()
        changes: dict[TopicPartition, ReplicaAssignment] = {}
        for tp, target in targets.items():
            try:
                changes[tp] = self._check(tp, target, may_change_factor=may_change_factor)
                outcomes[tp] = None
            except ApiError as error:
                outcomes[tp] = texts.kept(error)
        former = {tp: self._context.assignments[tp.topic][tp.partition] for tp in changes}
        for tp in self._leave_isrs(changes):
            outcomes[tp] = texts.kept(self._loss(tp, changes.pop(tp)))
        written = self._write(changes)
        for tp in changes.keys() - written:
            text = f"the topic {tp.topic!r} is gone or cannot be read"
            outcomes[tp] = texts.kept(api_error(ErrorCode.REQUEST_TIMED_OUT, text))
        begun = [tp for tp in changes if tp in written]
        for tp in begun:
            EpochLogger("barnabas.state_change", self._writer.epoch).info(
                "partition %s: replicas %s -> %s (adding %s, removing %s)",
                tp,
                list(former[tp].replicas),
                list(changes[tp].target),
                list(changes[tp].adding),
                list(changes[tp].removing),
            )
            self._set(tp, changes[tp])
            self._under_way[tp] = None
        self._begin(begun, former)
        self._withdraw({tp: changed for tp, changed in changes.items() if tp not in written})
        return outcomes

    def take_request(self) -> None:
        """Begin what ``/admin/reassign_partitions`` requests, if it exists."""
        try:
            request = read_reassignments(self._store.session, self._watch)
        except MalformedZnode as error:
            log.error("a request to reassign partitions is removed: %s", error)
            self._writer.set_reassignments({}, -1)
            return
        self._requested = set() if request is None else set(request.targets)
        if request is None:
            return
        # Once begun, a partition stays in the node until it is done: do not begin it again.
        new = {tp: target for tp, target in request.targets.items() if self._target_of(tp) != tuple(target)}
        for tp, refusal in self.alter(new).items():
            if refusal is not None:
                log.error("the reassignment of %s to %s is refused: %s", tp, list(new[tp]), refusal.text)
        self._trim_request()

    def check_progress(self) -> None:
        """Finish the reassignments whose targets are in sync; cheap if there is none."""
        finished = [tp for tp in self._under_way if self._is_target_in_sync(tp)]
        if finished:
            self._advance(finished)
        self._trim_request()

    def _is_target_in_sync(self, tp: TopicPartition) -> bool:
        assignment, state = self._context.assignment_of(tp), self._context.leadership.get(tp)
        return assignment is not None and state is not None and assignment.is_target_in(state.isr)

    def _target_of(self, tp: TopicPartition) -> tuple[int, ...]:
        assignment = self._context.assignment_of(tp)
        return () if assignment is None else assignment.target

    def _check(self, tp: TopicPartition, target: Target, *, may_change_factor: bool) -> ReplicaAssignment:
        context, assignment = self._context, self._context.assignment_of(tp)
        if assignment is None:
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {tp}")
        if context.is_to_be_deleted(tp.topic):
            text = f"the topic {tp.topic!r} is being deleted"
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        return check_target(tp, assignment, target, context.live_brokers, may_change_factor=may_change_factor)

    def _leave_isrs(self, changes: Mapping[TopicPartition, ReplicaAssignment]) -> list[TopicPartition]:
        """Remove the replicas that the changes drop from the ISRs, before the znodes forget them.

        A leader may have added any of its replicas without having reported it. So a partition that loses one
        gets a new leader epoch, in which its leader knows only those that remain.

        Returns the partitions for which that is impossible, because no other live replica is in sync.
        """
        affected = {}
        for tp, changed in changes.items():
            if (state := self._context.leadership.get(tp)) is None:
                continue
            former = self._context.assignments[tp.topic][tp.partition]
            may_be_in_sync = {state.leader, *state.isr} - {NO_BROKER}
            if self._context.partition_state(tp) is PartitionState.ONLINE:
                may_be_in_sync.update(former.replicas)
            if not may_be_in_sync <= set(changed.replicas):
                affected[tp] = former
                self._set(tp, changed)
        led = [tp for tp in affected if self._context.partition_state(tp) is PartitionState.ONLINE]
        outcomes = self._partitions.move(led, PartitionState.ONLINE, ElectionKind.REASSIGNMENT)
        for tp, former in affected.items():
            self._set(tp, former)
        return [tp for tp in affected if outcomes.get(tp) != ErrorCode.NONE]

    def _loss(self, tp: TopicPartition, changed: ReplicaAssignment) -> ApiError:
        return api_error(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{tp}: no live replica of {list(changed.replicas)} is in the ISR "
            f"{list(self._context.leadership[tp].isr)}, so acknowledged records would be lost",
        )

    def _set(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        self._context.assignments[tp.topic][tp.partition] = assignment

    def _write(self, changes: Mapping[TopicPartition, ReplicaAssignment]) -> set[TopicPartition]:
        """Write the assignments into the topics' znodes; returns the partitions that were written.

        Clients add partitions to the same znodes, so each is read again and written by compare-and-set.
        """
        pending = by_topic((tp, tp) for tp in changes)
        written: set[TopicPartition] = set()

        def attempt() -> set[TopicPartition] | None:
            nonlocal pending
            wanted: dict[str, TopicAssignment] = {}
            for topic, current in self._store.topic_assignments(pending).items():
                if isinstance(current, MalformedZnode) or current.topic_id != self._context.topic_ids[topic]:
                    continue
                changed = {tp.partition: changes[tp] for tp in pending[topic]}
                if changed.items() <= current.partitions.items():
                    written.update(pending[topic])
                else:
                    wanted[topic] = replace(current, partitions={**current.partitions, **changed})
            pending = {topic: pending[topic] for topic in wanted}
            for topic in self._writer.set_topic_assignments(wanted):
                written.update(pending.pop(topic))
            return None if pending else written

        return retry_cas(attempt, f"the topics {sorted(pending)} are changed by others again and again")

    def _begin(
        self, partitions: Sequence[TopicPartition], former: Mapping[TopicPartition, ReplicaAssignment]
    ) -> None:
        """Create the added replicas, elect within the new replicas, and drop those that were given up."""
        context = self._context
        present = context.replicas_of_partitions(partitions)
        added = [replica for replica in present if replica.broker not in former[replica.tp].replicas]
        self._replicas.move(added, ReplicaState.NEW)
        dropped = self._unassigned({tp: former[tp] for tp in partitions})
        self._advance(partitions)
        self._delete(dropped)
        # `_advance` has sent them their first role.
        self._replicas.begin([each for each in added if each.broker in context.replicas_of(each.tp)])

    def _withdraw(self, unwritten: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        """The brokers may have received a change that was not written, and created the added replicas."""
        if not unwritten:
            return
        self._advance(list(unwritten))
        created = self._unassigned(unwritten)
        self._replicas.move(created, ReplicaState.NEW)
        self._delete(created)

    def _unassigned(self, assignments: Mapping[TopicPartition, ReplicaAssignment]) -> list[Replica]:
        """The replicas of these assignments that the present ones lack."""
        return [
            Replica(tp, broker)
            for tp, assignment in assignments.items()
            for broker in assignment.replicas
            if broker not in self._context.replicas_of(tp)
        ]

    def _advance(self, partitions: Sequence[TopicPartition]) -> None:
        """Raise the leader epochs, and finish those whose targets are in sync."""
        before = {tp: self._context.assignment_of(tp) for tp in partitions}
        led = [tp for tp in partitions if self._context.partition_state(tp) is PartitionState.ONLINE]
        self._partitions.move(led, PartitionState.ONLINE, ElectionKind.REASSIGNMENT)
        removed: list[Replica] = []
        for tp, earlier in before.items():
            if earlier is not None and earlier != self._context.assignment_of(tp):
                removed += [Replica(tp, broker) for broker in earlier.removing]
        self._delete(removed)
        # Send the requests before the znodes are written: if this controller ends in between, the next one
        # sends them again, so no broker keeps a log that no znode names.
        self._flush()
        self.write_ends()

    def write_ends(self) -> None:
        """Write the ends of reassignments; while a topic's znode cannot be read, that waits."""
        ends: dict[TopicPartition, ReplicaAssignment] = {}
        for tp in list(self._under_way):
            assignment = self._context.assignment_of(tp)
            if assignment is None:
                del self._under_way[tp]
            elif not assignment.is_changing:
                ends[tp] = assignment
        for tp in self._write(ends):
            del self._under_way[tp]
        for tp in ends.keys() & self._under_way.keys():
            log.error("the reassignment of %s is done, but its topic's znode cannot be written", tp)

    def _delete(self, replicas: Sequence[Replica]) -> None:
        """Delete replicas that the assignment no longer has; a dead broker sets its log aside on return."""
        if not replicas:
            return
        self._replicas.move(replicas, ReplicaState.OFFLINE)
        for state in (
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_SUCCESSFUL,
            ReplicaState.NON_EXISTENT,
        ):
            self._replicas.move(replicas, state)

    def _trim_request(self) -> None:
        """Remove from ``/admin/reassign_partitions`` what is done or was refused."""
        under_way = self.under_way()
        if self._requested <= under_way.keys():
            return
        try:
            request = read_reassignments(self._store.session)
        except MalformedZnode:
            # Its watch has fired.
            return
        if request is None:
            self._requested.clear()
            return
        left = {tp: target for tp, target in request.targets.items() if tp in under_way}
        self._requested = set(left)
        if left != request.targets:
            self._writer.set_reassignments(left, request.version)
