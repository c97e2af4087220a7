"""The partition state machine: elects the leader of each partition and writes the result.

The moves are a table; an illegal one raises before anything is changed. A partition goes online by an
election: its result is written by compare-and-set, taken into the context and added to the brokers' batches.
A partition without an eligible leader stays in its state. Runs on the controller's event thread; the
elections are the pure functions of `barnabas.controller.leader_choice`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.common.time_histogram import TimeHistogram
from barnabas.controller.context import (
    ControllerContext,
    IllegalTransition,
    PartitionState,
    Replica,
    ReplicaState,
)
from barnabas.controller.leader_choice import (
    Election,
    ElectionKind,
    elect_for_controlled_shutdown,
    elect_for_reassignment,
    elect_initial,
    elect_offline,
    elect_preferred,
)
from barnabas.controller.request_batch import RequestBatch
from barnabas.controller.state_znodes import Leadership
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.zookeeper.znodes import LeadershipState

_S = PartitionState
PARTITION_MOVES: Final[Mapping[PartitionState, frozenset[PartitionState]]] = {
    _S.NON_EXISTENT: frozenset({_S.NEW}),
    _S.NEW: frozenset({_S.ONLINE, _S.OFFLINE}),
    _S.ONLINE: frozenset({_S.ONLINE, _S.OFFLINE}),
    _S.OFFLINE: frozenset({_S.ONLINE, _S.OFFLINE, _S.NON_EXISTENT}),
}
"""The legal moves from each state. Source: Kafka 3.9's partition state machine."""

ElectionOutcomes = dict[TopicPartition, ErrorCode]
"""By partition: NONE if a leader was elected, else ELIGIBLE_LEADERS_NOT_AVAILABLE."""


class ElectionFigures:
    """The elections of a broker while it was the controller. The event thread writes, any thread reads.

    An election of many partitions at once counts as one, if any leader changed.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self.times = TimeHistogram()
        self.unclean_partitions = 0

    def note(self, began_s: float, unclean_partitions: int) -> None:
        """An election has changed leaders; it began at that time."""
        self.times.observe_s(self.now_s() - began_s)
        self.unclean_partitions += unclean_partitions


@dataclass(eq=False)
class PartitionStateMachine:
    _context: ControllerContext
    _leadership: Leadership
    _batch: RequestBatch
    _allow_unclean: Callable[[str], bool]
    """Whether a replica out of sync may lead a topic's partitions."""
    _figures: ElectionFigures

    def startup(self) -> None:
        """Set the state of every partition of a newly loaded context."""
        live = self._context.live_or_shutting_down
        for tp in self._context.partitions():
            leadership = self._context.leadership.get(tp)
            if leadership is None:
                state = PartitionState.NEW
            else:
                # A leader that has registered again since its election may have lost its log. A leader that
                # is no replica lost its place in a reassignment that the former controller did not finish.
                able = live.intersection(self._context.replicas_of(tp)) - self._context.bounced(leadership)
                leads = leadership.leader in able
                state = PartitionState.ONLINE if leads else PartitionState.OFFLINE
            self._context.partition_states[tp] = state

    def trigger_online(self) -> ElectionOutcomes:
        """Try to elect leaders for all partitions without one, unless their topic is being deleted."""
        leaderless = [
            tp
            for tp, state in self._context.partition_states.items()
            if state in (PartitionState.NEW, PartitionState.OFFLINE)
            and not self._context.is_to_be_deleted(tp.topic)
        ]
        return self.move(leaderless, PartitionState.ONLINE)

    def move(
        self,
        partitions: Collection[TopicPartition],
        target: PartitionState,
        kind: ElectionKind = ElectionKind.OFFLINE,
    ) -> ElectionOutcomes:
        """Move the partitions to a state; returns the outcome of each election that this needs.

        Raises IllegalTransition (nothing changed) or ControllerMoved.
        """
        before = {tp: self._context.partition_state(tp) for tp in partitions}
        for tp, state in before.items():
            if target not in PARTITION_MOVES[state]:
                raise IllegalTransition(f"partition {tp} cannot go from {state.value} to {target.value}")
        if target is PartitionState.ONLINE:
            outcomes = self._initialise([tp for tp, state in before.items() if state is PartitionState.NEW])
            return outcomes | self._elect(
                [tp for tp, state in before.items() if state is not PartitionState.NEW], kind
            )
        for tp, state in before.items():
            if target is PartitionState.NON_EXISTENT:
                self._context.partition_states.pop(tp, None)
            else:
                self._context.partition_states[tp] = target
            if state is not target:
                self._log_move(tp, state, target, "")
        return {}

    def _initialise(self, partitions: list[TopicPartition]) -> ElectionOutcomes:
        live = self._context.live_brokers
        first: dict[TopicPartition, LeadershipState] = {}
        for tp in partitions:
            election = elect_initial(self._context.replicas_of(tp), live)
            if election is None:
                reason = f"none of its replicas {self._context.replicas_of(tp)} is alive"
                self._log_failure(tp, reason)
                continue
            first[tp] = LeadershipState(
                leader=election.leader,
                leader_epoch=LeaderEpoch(0),
                isr=election.isr,
                controller_epoch=self._leadership.epoch,
                partition_epoch=0,
                broker_epochs={broker: self._context.broker_epoch(broker) for broker in election.isr},
            )
        outcomes = dict.fromkeys(partitions, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
        if not first:
            return outcomes
        created, existing = self._leadership.create(first)
        for tp, state in created.items():
            self._now_online(tp, None, state, "first leader", new=self._context.replicas_of(tp))
        # An earlier controller wrote these states and got no further.
        self._context.partition_states.update(dict.fromkeys(existing, PartitionState.OFFLINE))
        return (
            outcomes
            | dict.fromkeys(created, ErrorCode.NONE)
            | self._elect(list(existing), ElectionKind.OFFLINE)
        )

    def _elect(self, partitions: list[TopicPartition], kind: ElectionKind) -> ElectionOutcomes:
        """Elect from the remembered states; the compare-and-set detects a change.

        A state without a clean candidate is read again first, because the former leader may have added
        members to the ISR.
        """
        began_s = self._figures.now_s()
        former = {tp: self._context.leadership[tp] for tp in partitions if tp in self._context.leadership}
        elections = {tp: self._choose(tp, state, kind) for tp, state in former.items()}
        self._leadership.read(
            [tp for tp, election in elections.items() if election is None or election.is_unclean]
        )

        def elect(tp: TopicPartition, state: LeadershipState) -> LeadershipState | None:
            election = elections[tp] = self._choose(tp, state, kind)
            if election is None:
                reason = f"no eligible replica in its ISR {list(state.isr)}, {kind.value}"
                self._log_failure(tp, reason)
                return None
            epochs = self._context.broker_epochs(state, election.leader, election.isr)
            return state.with_leader(election.leader, election.isr, self._leadership.epoch, epochs)

        elected = self._leadership.update(list(former), elect)
        for tp, state in elected.items():
            election = elections[tp]
            reason = kind.value
            if election is not None and election.is_unclean:
                lost = f"records that only {list(former[tp].isr)} had are lost"
                reason = f"UNCLEAN: broker {state.leader} was not in sync, {lost}; {kind.value}"
            if kind is ElectionKind.REASSIGNMENT:
                self._context.end_reassignment(tp, state.isr)
            new = self._added_replicas(tp) if kind is ElectionKind.REASSIGNMENT else ()
            self._now_online(tp, former[tp], state, reason, new=new)
        if any(state.leader != former[tp].leader for tp, state in elected.items()):
            chosen = [elections[tp] for tp in elected]
            self._figures.note(began_s, sum(one is not None and one.is_unclean for one in chosen))
        return {
            tp: ErrorCode.NONE if tp in elected else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            for tp in partitions
        }

    def _choose(self, tp: TopicPartition, state: LeadershipState, kind: ElectionKind) -> Election | None:
        replicas = self._context.replicas_of(tp)
        bounced = self._context.bounced(state)
        reachable = self._context.eligible(tp, self._context.live_or_shutting_down) - bounced
        if kind is ElectionKind.CONTROLLED_SHUTDOWN:
            return elect_for_controlled_shutdown(replicas, state.isr, reachable, self._context.shutting_down)
        live = self._context.eligible(tp, self._context.live_brokers)
        if kind is ElectionKind.PREFERRED:
            return elect_preferred(replicas, state.isr, live - bounced)
        if kind is ElectionKind.REASSIGNMENT:
            assignment = self._context.assignments[tp.topic][tp.partition]
            # A stopping leader may lead on, but no stopping replica becomes the leader.
            able = (live - bounced) | reachable.intersection({state.leader})
            return elect_for_reassignment(assignment, state.leader, state.isr, able)
        allow_unclean = kind is ElectionKind.UNCLEAN or (
            self._allow_unclean(tp.topic) and not self._context.may_still_lead(tp, state.isr)
        )
        return elect_offline(replicas, state.isr, live, bounced=bounced, allow_unclean=allow_unclean)

    def _now_online(
        self,
        tp: TopicPartition,
        former: LeadershipState | None,
        state: LeadershipState,
        reason: str,
        *,
        new: Collection[BrokerId],
    ) -> None:
        """``new`` are the replicas to create."""
        before = self._context.partition_state(tp)
        self._context.partition_states[tp] = PartitionState.ONLINE
        live = self._context.live_or_shutting_down
        receivers = [broker for broker in self._context.replicas_of(tp) if broker in live]
        self._batch.add_leader_and_isr([broker for broker in receivers if broker in new], tp, is_new=True)
        self._batch.add_leader_and_isr([broker for broker in receivers if broker not in new], tp)
        leaders = f"leader {former.leader if former else None} -> {state.leader}, "
        epochs = f"leader epoch {state.leader_epoch}, isr {list(state.isr)}; {reason}"
        self._log_move(tp, before, PartitionState.ONLINE, leaders + epochs)

    def _added_replicas(self, tp: TopicPartition) -> list[BrokerId]:
        return [
            broker
            for broker in self._context.replicas_of(tp)
            if self._context.replica_state(Replica(tp, broker)) is ReplicaState.NEW
        ]

    def _log_move(
        self, tp: TopicPartition, before: PartitionState, after: PartitionState, detail: str
    ) -> None:
        self._leadership.state_change_log.info(
            "partition %s: %s -> %s%s",
            tp,
            before.value,
            after.value,
            f" ({detail})" if detail else "",
        )

    def _log_failure(self, tp: TopicPartition, reason: str) -> None:
        is_led = self._context.partition_state(tp) is PartitionState.ONLINE
        self._leadership.state_change_log.log(
            logging.WARNING if is_led else logging.ERROR,
            "partition %s stays %s %s: %s",
            tp,
            self._context.partition_state(tp).value,
            "with its leader" if is_led else "without a leader",
            reason,
        )
