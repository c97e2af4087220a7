"""The partition state machine: elects the leader of each partition and writes the result.

The moves are a table; an illegal one raises before anything is changed. Going online elects a leader: the
result is written by compare-and-set, taken into the context and put into the batch for the brokers. A
partition without an eligible leader stays in its state. Runs on the controller's event thread; the elections
themselves are the pure functions of `barnabas.controller.election`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Final, Protocol

from barnabas.controller.context import ControllerContext, IllegalTransition, PartitionState
from barnabas.controller.election import (
    Election,
    elect_for_controlled_shutdown,
    elect_initial,
    elect_offline,
)
from barnabas.controller.request_batch import RequestBatch
from barnabas.protocol.ids import ControllerEpoch, LeaderEpoch, TopicPartition
from barnabas.zookeeper.controller_writer import StateUpdates
from barnabas.zookeeper.errors import ControllerMoved
from barnabas.zookeeper.znodes import LeadershipState

log = logging.getLogger("barnabas.controller")
state_change_log = logging.getLogger("barnabas.state_change")

_MAX_ROUNDS: Final = 10

_S = PartitionState
PARTITION_MOVES: Final[Mapping[PartitionState, frozenset[PartitionState]]] = {
    _S.NON_EXISTENT: frozenset({_S.NEW}),
    _S.NEW: frozenset({_S.ONLINE, _S.OFFLINE}),
    _S.ONLINE: frozenset({_S.ONLINE, _S.OFFLINE}),
    _S.OFFLINE: frozenset({_S.ONLINE, _S.OFFLINE, _S.NON_EXISTENT}),
}
"""From each state, where a partition may go. Source: Kafka 3.9's partition state machine."""


class ElectionKind(Enum):
    """Why a leader is sought; reassignment and preferred election will be two more."""

    OFFLINE = "its leader is gone"
    CONTROLLED_SHUTDOWN = "its leader is stopping"


class StateReader(Protocol):
    """What the machines read; `ClusterStore` is one."""

    def partition_states(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, LeadershipState]: ...


class StateWriter(Protocol):
    """What the machines write; `ControllerWriter` is one."""

    @property
    def epoch(self) -> ControllerEpoch: ...

    def create_partition_states(self, states: Mapping[TopicPartition, LeadershipState]) -> StateUpdates: ...

    def update_partition_states(self, states: Mapping[TopicPartition, LeadershipState]) -> StateUpdates: ...


class PartitionStateMachine:
    """See the module. `allow_unclean` says for a topic whether a replica out of sync may lead."""

    def __init__(
        self,
        context: ControllerContext,
        reader: StateReader,
        writer: StateWriter,
        batch: RequestBatch,
        allow_unclean: Callable[[str], bool],
    ) -> None:
        self._context = context
        self._reader = reader
        self._writer = writer
        self._batch = batch
        self._allow_unclean = allow_unclean

    def startup(self) -> None:
        """Give every partition of a freshly loaded context the state that its leadership says."""
        live = self._context.live_or_shutting_down
        for tp in self._context.partitions():
            state = self._context.leadership.get(tp)
            if state is None:
                found = PartitionState.NEW
            else:
                # A leader that has registered again since its election may have lost its log.
                leads = state.leader in live and state.leader not in self._context.bounced(state)
                found = PartitionState.ONLINE if leads else PartitionState.OFFLINE
            self._context.partition_states[tp] = found

    def trigger_online(self) -> None:
        """Try to give every partition without a leader one, those being deleted aside."""
        waiting = [
            tp
            for tp, state in self._context.partition_states.items()
            if state in (PartitionState.NEW, PartitionState.OFFLINE)
            and not self._context.is_to_be_deleted(tp.topic)
        ]
        self.move(waiting, PartitionState.ONLINE)

    def move(
        self,
        partitions: Collection[TopicPartition],
        target: PartitionState,
        kind: ElectionKind = ElectionKind.OFFLINE,
    ) -> None:
        """Take the partitions to a state. Raises IllegalTransition (nothing changed) or ControllerMoved."""
        before = {tp: self._context.partition_state(tp) for tp in partitions}
        for tp, state in before.items():
            if target not in PARTITION_MOVES[state]:
                raise IllegalTransition(f"partition {tp} cannot go from {state.value} to {target.value}")
        if target is PartitionState.ONLINE:
            self._initialise([tp for tp, state in before.items() if state is PartitionState.NEW])
            self._elect([tp for tp, state in before.items() if state is not PartitionState.NEW], kind)
            return
        for tp, state in before.items():
            if target is PartitionState.NON_EXISTENT:
                self._context.partition_states.pop(tp, None)
            else:
                self._context.partition_states[tp] = target
            if state is not target:
                self._log_move(tp, state, target, "")

    def _initialise(self, partitions: list[TopicPartition]) -> None:
        live = self._context.live_brokers
        first: dict[TopicPartition, LeadershipState] = {}
        for tp in partitions:
            election = elect_initial(self._context.replicas_of(tp), live)
            if election is None:
                self._log_failure(tp, f"none of its replicas {self._context.replicas_of(tp)} is alive")
                continue
            first[tp] = LeadershipState(
                leader=election.leader,
                leader_epoch=LeaderEpoch(0),
                isr=election.isr,
                controller_epoch=self._writer.epoch,
                partition_epoch=0,
                broker_epochs={broker: self._context.broker_epoch(broker) for broker in election.isr},
            )
        if not first:
            return
        updates = self._writer.create_partition_states(first)
        for tp, state in updates.written.items():
            self._now_online(tp, state, "first leader", is_new=True)
        for tp, state in updates.conflicts.items():
            # Its state was written by an earlier controller that got no further.
            self._check_epoch(tp, state)
            self._context.leadership[tp] = state
            self._context.partition_states[tp] = PartitionState.OFFLINE
        self._elect(list(updates.conflicts), ElectionKind.OFFLINE)

    def _elect(self, partitions: list[TopicPartition], kind: ElectionKind) -> None:
        """Elect from the states we remember: the compare-and-set finds out if one has changed meanwhile.

        Only where they show no clean candidate are they read again first, for the former leader may have
        let others into the ISR without our knowing.
        """
        left = [tp for tp in partitions if tp in self._context.leadership]
        fresh: set[TopicPartition] = set()
        for _ in range(_MAX_ROUNDS):
            if not left:
                return
            elections = {tp: self._choose(tp, self._context.leadership[tp], kind) for tp in left}
            doubtful = [
                tp
                for tp, election in elections.items()
                if (election is None or election.is_unclean) and tp not in fresh
            ]
            clear = {tp: election for tp, election in elections.items() if tp not in set(doubtful)}
            changed = {**self._reader.partition_states(doubtful), **self._write_elected(clear, kind)}
            for tp, state in changed.items():
                self._check_epoch(tp, state)
                self._context.leadership[tp] = state
            fresh.update(changed)
            left = list(changed)
        log.error("gave up electing after %d rounds of changing ISRs: %s", _MAX_ROUNDS, left)

    def _write_elected(
        self, elections: Mapping[TopicPartition, Election | None], kind: ElectionKind
    ) -> dict[TopicPartition, LeadershipState]:
        """Write the outcomes; returned is what stands where the compare-and-set failed."""
        elected: dict[TopicPartition, LeadershipState] = {}
        for tp, election in elections.items():
            state = self._context.leadership[tp]
            if election is None:
                self._log_failure(tp, f"no live replica in its ISR {list(state.isr)}, {kind.value}")
            else:
                epochs = self._context.broker_epochs(state, election.leader, election.isr)
                elected[tp] = state.with_leader(election.leader, election.isr, self._writer.epoch, epochs)
        if not elected:
            return {}
        updates = self._writer.update_partition_states(elected)
        for tp, state in updates.written.items():
            election = elections[tp]
            is_unclean = election is not None and election.is_unclean
            self._now_online(tp, state, f"UNCLEAN, {kind.value}" if is_unclean else kind.value, is_new=False)
        return updates.conflicts

    def _choose(self, tp: TopicPartition, state: LeadershipState, kind: ElectionKind) -> Election | None:
        replicas = self._context.replicas_of(tp)
        bounced = self._context.bounced(state)
        if kind is ElectionKind.CONTROLLED_SHUTDOWN:
            able = self._context.eligible(tp, self._context.live_or_shutting_down) - bounced
            return elect_for_controlled_shutdown(replicas, state.isr, able, self._context.shutting_down)
        live = self._context.eligible(tp, self._context.live_brokers)
        return elect_offline(
            replicas, state.isr, live, bounced=bounced, allow_unclean=self._allow_unclean(tp.topic)
        )

    def _check_epoch(self, tp: TopicPartition, state: LeadershipState) -> None:
        if state.controller_epoch > self._writer.epoch:
            raise ControllerMoved(
                f"{tp} was written by controller epoch {state.controller_epoch}, ours is {self._writer.epoch}"
            )

    def _now_online(self, tp: TopicPartition, state: LeadershipState, why: str, *, is_new: bool) -> None:
        before = self._context.partition_state(tp)
        former = self._context.leadership.get(tp)
        self._context.leadership[tp] = state
        self._context.partition_states[tp] = PartitionState.ONLINE
        live = self._context.live_or_shutting_down
        told = [broker for broker in self._context.replicas_of(tp) if broker in live]
        self._batch.add_leader_and_isr(told, tp, is_new=is_new)
        leaders = f"leader {former.leader if former else None} -> {state.leader}, "
        epochs = f"leader epoch {state.leader_epoch}, isr {list(state.isr)}; {why}"
        self._log_move(tp, before, PartitionState.ONLINE, leaders + epochs)

    def _log_move(
        self, tp: TopicPartition, before: PartitionState, after: PartitionState, detail: str
    ) -> None:
        state_change_log.info(
            "[controller epoch %d] partition %s: %s -> %s%s",
            self._writer.epoch,
            tp,
            before.value,
            after.value,
            f" ({detail})" if detail else "",
        )

    def _log_failure(self, tp: TopicPartition, why: str) -> None:
        state_change_log.error(
            "[controller epoch %d] partition %s stays %s without a leader: %s",
            self._writer.epoch,
            tp,
            self._context.partition_state(tp).value,
            why,
        )
