"""The replica state machine: which replicas are up, and the steps of their deletion.

The moves are a table; an illegal one raises before anything is changed. A replica that goes offline leaves
the ISR of its partition, so that the high watermark no longer waits for it; an ISR that would become empty
stays as it was. Runs on the controller's event thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from barnabas.controller.context import ControllerContext, IllegalTransition, Replica, ReplicaState
from barnabas.controller.election import without_replicas
from barnabas.controller.partition_state import StateReader, StateWriter
from barnabas.controller.request_batch import RequestBatch
from barnabas.protocol.ids import NO_BROKER, BrokerId, TopicPartition
from barnabas.zookeeper.errors import ControllerMoved
from barnabas.zookeeper.znodes import LeadershipState

log = logging.getLogger("barnabas.controller")
state_change_log = logging.getLogger("barnabas.state_change")

_MAX_ROUNDS: Final = 10

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
"""From each state, where a replica may go. Source: Kafka 3.9's replica state machine."""


class ReplicaStateMachine:
    """See the module."""

    def __init__(
        self, context: ControllerContext, reader: StateReader, writer: StateWriter, batch: RequestBatch
    ) -> None:
        self._context = context
        self._reader = reader
        self._writer = writer
        self._batch = batch

    def startup(self) -> None:
        """Set the state of every replica of a newly loaded context to up or down.

        It writes and sends nothing; the failover does that, leaders first.
        """
        live = self._context.live_brokers
        for replica in self._context.replicas():
            is_up = replica.broker in live
            self._context.replica_states[replica] = (
                ReplicaState.ONLINE if is_up else ReplicaState.DELETION_INELIGIBLE
            )

    def move(self, replicas: Collection[Replica], target: ReplicaState) -> None:
        """Take the replicas to a state. Raises IllegalTransition (nothing changed) or ControllerMoved."""
        before = {replica: self._context.replica_state(replica) for replica in replicas}
        for replica, state in before.items():
            if target not in REPLICA_MOVES[state]:
                raise IllegalTransition(f"replica {replica} cannot go from {state.value} to {target.value}")
        for replica, state in before.items():
            if target is ReplicaState.NON_EXISTENT:
                self._context.replica_states.pop(replica, None)
            else:
                self._context.replica_states[replica] = target
            if state is not target:
                state_change_log.debug(
                    "[controller epoch %d] replica %s: %s -> %s",
                    self._writer.epoch,
                    replica,
                    state.value,
                    target.value,
                )
        if target is ReplicaState.ONLINE:
            self._tell_leadership([r for r, state in before.items() if state is not ReplicaState.NEW])
        elif target is ReplicaState.OFFLINE:
            self._batch.add_stop_replica(before, delete=False)
            self.leave_isr(before)
        elif target is ReplicaState.DELETION_STARTED:
            self._batch.add_stop_replica(before, delete=True)

    def _tell_leadership(self, replicas: Collection[Replica]) -> None:
        for replica in replicas:
            if replica.tp in self._context.leadership:
                self._batch.add_leader_and_isr([replica.broker], replica.tp)

    def leave_isr(self, replicas: Collection[Replica]) -> None:
        """Remove the replicas from their ISRs; their own states stay."""
        leaving: dict[TopicPartition, set[BrokerId]] = {}
        for replica in replicas:
            # A topic that is being deleted needs no ISR.
            if not self._context.is_to_be_deleted(replica.tp.topic):
                leaving.setdefault(replica.tp, set()).add(replica.broker)
        # Read again: leaders change ISRs by themselves, and an ISR may hold a replica that the context lacks.
        current = self._reader.partition_states(leaving)
        self._check_epochs(current)
        self._context.leadership.update(current)
        left = list(current)
        for _ in range(_MAX_ROUNDS):
            shrunk = {}
            for tp in left:
                state = self._without(self._context.leadership[tp], leaving[tp])
                if state is not None:
                    shrunk[tp] = state
            if not shrunk:
                break
            updates = self._writer.update_partition_states(shrunk)
            for tp, state in updates.written.items():
                self._left_isr(tp, state, leaving[tp])
            self._check_epochs(updates.conflicts)
            self._context.leadership.update(updates.conflicts)
            left = list(updates.conflicts)
        else:
            log.error("gave up shrinking after %d rounds of changing ISRs: %s", _MAX_ROUNDS, left)
        self._batch.add_metadata_for_all(leaving)

    def _check_epochs(self, states: Mapping[TopicPartition, LeadershipState]) -> None:
        for tp, state in states.items():
            if state.controller_epoch > self._writer.epoch:
                raise ControllerMoved(f"{tp} was written by controller epoch {state.controller_epoch}")

    def _without(self, state: LeadershipState, brokers: set[BrokerId]) -> LeadershipState | None:
        leader, isr = without_replicas(brokers, state.leader, state.isr, NO_BROKER)
        if (leader, isr) == (state.leader, state.isr):
            return None
        epochs = {broker: epoch for broker, epoch in state.broker_epochs.items() if broker in isr}
        return state.with_leader(leader, isr, self._writer.epoch, epochs)

    def _left_isr(self, tp: TopicPartition, state: LeadershipState, gone: set[BrokerId]) -> None:
        former = self._context.leadership[tp]
        self._context.leadership[tp] = state
        live = self._context.live_or_shutting_down
        told = [broker for broker in self._context.replicas_of(tp) if broker in live - gone]
        self._batch.add_leader_and_isr(told, tp)
        state_change_log.info(
            "[controller epoch %d] partition %s: isr %s -> %s, leader %d -> %d, epoch %d (offline: %s)",
            self._writer.epoch,
            tp,
            list(former.isr),
            list(state.isr),
            former.leader,
            state.leader,
            state.leader_epoch,
            sorted(gone),
        )
