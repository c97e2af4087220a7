"""The replica state machine: which replicas are online, and the steps of their deletion.

The moves are a table; an illegal one raises before anything is changed. A replica that goes offline leaves
the ISR of its partition, so that the high watermark no longer waits for it; an ISR that would become empty
stays. Runs on the controller's event thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.controller.context import ControllerContext, IllegalTransition, Replica, ReplicaState
from barnabas.controller.leader_choice import without_replicas
from barnabas.controller.request_batch import RequestBatch
from barnabas.controller.state_znodes import Leadership
from barnabas.protocol.ids import NO_BROKER, BrokerId, TopicPartition
from barnabas.zookeeper.znodes import LeadershipState

_S = ReplicaState
REPLICA_MOVES: Final[Mapping[ReplicaState, frozenset[ReplicaState]]] = {
    _S.NON_EXISTENT: frozenset({_S.NEW}),
    _S.NEW: frozenset({_S.ONLINE, _S.OFFLINE}),
    _S.ONLINE: frozenset({_S.ONLINE, _S.OFFLINE}),
    _S.OFFLINE: frozenset({_S.ONLINE, _S.OFFLINE, _S.DELETION_STARTED, _S.DELETION_INELIGIBLE}),
    _S.DELETION_STARTED: frozenset({_S.DELETION_SUCCESSFUL, _S.DELETION_INELIGIBLE}),
    _S.DELETION_SUCCESSFUL: frozenset({_S.NON_EXISTENT}),
    _S.DELETION_INELIGIBLE: frozenset({_S.ONLINE, _S.OFFLINE}),
}
"""The legal moves from each state. Source: Kafka 3.9's replica state machine."""


@dataclass(eq=False)
class ReplicaStateMachine:
    _context: ControllerContext
    _leadership: Leadership
    _batch: RequestBatch

    def startup(self) -> None:
        """Set the state of every replica of a newly loaded context.

        Writes and sends nothing: the failover does, leaders first.
        """
        live = self._context.live_brokers
        for replica in self._context.replicas():
            is_online = replica.broker in live
            self._context.replica_states[replica] = (
                ReplicaState.ONLINE if is_online else ReplicaState.DELETION_INELIGIBLE
            )

    def move(self, replicas: Collection[Replica], target: ReplicaState) -> None:
        """Move the replicas to a state. Raises IllegalTransition (nothing changed) or ControllerMoved."""
        before = {replica: self._context.replica_state(replica) for replica in replicas}
        for replica, state in before.items():
            if target not in REPLICA_MOVES[state]:
                raise IllegalTransition(f"replica {replica} cannot go from {state.value} to {target.value}")
        for replica, state in before.items():
            if target in (ReplicaState.NEW, ReplicaState.NON_EXISTENT):
                # The next replica there is another one.
                self._context.failed_replicas.discard(replica)
            if target is ReplicaState.NEW:
                present_id = self._context.topic_ids[replica.tp.topic]
                self._context.refused_deletions.pop((replica, present_id), None)
            if target is ReplicaState.NON_EXISTENT:
                self._context.replica_states.pop(replica, None)
            else:
                self._context.replica_states[replica] = target
            if state is not target:
                self._leadership.state_change_log.debug(
                    "replica %s: %s -> %s",
                    replica,
                    state.value,
                    target.value,
                )
        if target is ReplicaState.ONLINE:
            for replica, state in before.items():
                # The election of a new partition has added its LeaderAndIsr.
                is_due = state is not ReplicaState.NEW and replica.tp in self._context.leadership
                if is_due and not self._context.is_deposed(replica):
                    self._batch.add_leader_and_isr([replica.broker], replica.tp)
        elif target is ReplicaState.OFFLINE:
            self._batch.add_stop_replica(before, delete=False)
            self.leave_isr(before)
        elif target is ReplicaState.DELETION_STARTED:
            self._batch.add_stop_replica(before, delete=True)

    def begin(self, replicas: Collection[Replica]) -> None:
        """Give new replicas their first state: online on live brokers, else offline."""
        live = self._context.live_or_shutting_down
        self.move([replica for replica in replicas if replica.broker in live], ReplicaState.ONLINE)
        self.move([replica for replica in replicas if replica.broker not in live], ReplicaState.OFFLINE)

    def leave_isr(self, replicas: Collection[Replica]) -> None:
        """Remove the replicas from their ISRs; their own states stay."""
        leaving: dict[TopicPartition, set[BrokerId]] = {}
        for replica in replicas:
            # A topic that is being deleted needs no ISR.
            if not self._context.is_to_be_deleted(replica.tp.topic):
                leaving.setdefault(replica.tp, set()).add(replica.broker)
        # Leaders change ISRs too: a remembered ISR may lack a member.
        former = self._leadership.read(leaving)

        def leave(tp: TopicPartition, state: LeadershipState) -> LeadershipState | None:
            leader, isr = without_replicas(leaving[tp], state.leader, state.isr, NO_BROKER)
            if (leader, isr) == (state.leader, state.isr):
                return None
            epochs = {broker: epoch for broker, epoch in state.broker_epochs.items() if broker in isr}
            return state.with_leader(leader, isr, self._leadership.epoch, epochs)

        for tp, state in self._leadership.update(list(former), leave).items():
            self._leadership.state_change_log.info(
                "partition %s: isr %s -> %s, leader %d -> %d, epoch %d (offline: %s)",
                tp,
                list(former[tp].isr),
                list(state.isr),
                former[tp].leader,
                state.leader,
                state.leader_epoch,
                sorted(leaving[tp]),
            )
            receivers = self._context.live_or_shutting_down - leaving[tp]
            self._batch.add_leader_and_isr(
                [broker for broker in self._context.replicas_of(tp) if broker in receivers], tp
            )
        self._batch.add_metadata_for_all(leaving)
