"""`LeaderElections`: moves leadership on request, and back to the preferred replicas.

A request comes from a client (KIP-183, KIP-460) or from ``/admin/preferred_replica_election``. Without a
request, `rebalance` moves leadership back to brokers that lead too few of the partitions that prefer them, as
after a restart. A preferred replica must be alive and in the ISR, and the former leader stays in the ISR, so
nothing is lost. Runs on the controller's event thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from barnabas.controller.context import ControllerContext, PartitionState
from barnabas.controller.events import Outcomes
from barnabas.controller.leader_choice import ElectionKind, elect_preferred
from barnabas.controller.partition_state import PartitionStateMachine
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.zookeeper.admin_requests import read_preferred_elections
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.requests import Watch
from barnabas.zookeeper.store import ClusterStore

log = logging.getLogger("barnabas.controller")


@dataclass(eq=False)
class LeaderElections:
    _context: ControllerContext
    _store: ClusterStore
    _writer: ControllerWriter
    _partitions: PartitionStateMachine
    _watch: Watch
    """Called when there is a new request in ZooKeeper."""

    def elect(self, kind: ElectionKind, partitions: Collection[TopicPartition] | None) -> Outcomes:
        """Elect the leaders of these partitions, or with None of all that need it.

        A partition that is named gets UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION (it is being
        deleted), ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE or ELIGIBLE_LEADERS_NOT_AVAILABLE.
        """
        outcomes: Outcomes = {}
        texts = ErrorTexts()
        needed = []
        for tp in self._context.partitions() if partitions is None else dict.fromkeys(partitions):
            refusal = self._refusal(kind, tp)
            if refusal is None:
                needed.append(tp)
            elif partitions is not None:
                outcomes[tp] = texts.kept(refusal)
        elected = self._partitions.move(needed, PartitionState.ONLINE, kind)
        failure = (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if kind is ElectionKind.PREFERRED
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
        for tp, code in elected.items():
            error = None if code == ErrorCode.NONE else api_error(failure, self._describe(tp))
            outcomes[tp] = error and texts.kept(error)
        return outcomes

    def take_request(self) -> None:
        """Carry out the request in ZooKeeper, if there is one, and remove it."""
        try:
            requested = read_preferred_elections(self._store.session, self._watch)
        except MalformedZnode as error:
            log.error("a request to elect preferred leaders is removed: %s", error)
            requested = []
        if requested is None:
            return
        outcomes = self.elect(ElectionKind.PREFERRED, requested)
        for tp, outcome in outcomes.items():
            if outcome is not None and outcome.code != ErrorCode.ELECTION_NOT_NEEDED:
                log.warning("the preferred replica of %s was not elected: %s", tp, outcome.text)
        self._writer.end_preferred_elections()

    def rebalance(self, max_imbalance_percentage: int) -> None:
        """Elect the preferred replicas on brokers that lack more than this share of their leaderships."""
        context = self._context
        by_preferred: dict[BrokerId, list[TopicPartition]] = {}
        for tp in context.partitions():
            if not context.is_to_be_deleted(tp.topic):
                by_preferred.setdefault(context.replicas_of(tp)[0], []).append(tp)
        movable: list[TopicPartition] = []
        for broker in sorted(context.live_brokers & by_preferred.keys()):
            preferring = by_preferred[broker]
            lacking = [tp for tp in preferring if self._is_led_by_another(tp, broker)]
            if 100 * len(lacking) > max_imbalance_percentage * len(preferring):
                movable += [tp for tp in lacking if self._may_move(tp)]
        if movable:
            log.info("moving %d leaderships to the preferred replicas", len(movable))
            self._partitions.move(movable, PartitionState.ONLINE, ElectionKind.PREFERRED)

    def _is_led_by_another(self, tp: TopicPartition, broker: BrokerId) -> bool:
        state = self._context.leadership.get(tp)
        return state is not None and state.leader != broker

    def _may_move(self, tp: TopicPartition) -> bool:
        """Whether the preferred replica can lead, and no reassignment is about to change it."""
        context, assignment = self._context, self._context.assignment_of(tp)
        if assignment is None or assignment.is_changing:
            return False
        state = context.leadership[tp]
        able = context.eligible(tp, context.live_brokers) - context.bounced(state)
        return elect_preferred(assignment.replicas, state.isr, able) is not None

    def _refusal(self, kind: ElectionKind, tp: TopicPartition) -> ApiError | None:
        context, replicas = self._context, self._context.replicas_of(tp)
        if not replicas:
            return api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {tp}")
        if context.is_to_be_deleted(tp.topic):
            return api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"the topic {tp.topic!r} is being deleted")
        state = context.leadership.get(tp)
        if state is None:
            return None
        if kind is ElectionKind.PREFERRED:
            is_needed = state.leader != replicas[0]
        else:
            is_needed = state.leader not in context.eligible(tp, context.live_or_shutting_down)
        if is_needed:
            return None
        return api_error(ErrorCode.ELECTION_NOT_NEEDED, f"{tp} is led by broker {state.leader}")

    def _describe(self, tp: TopicPartition) -> str:
        state = self._context.leadership.get(tp)
        isr = [] if state is None else list(state.isr)
        alive = sorted(self._context.eligible(tp, self._context.live_brokers))
        replicas = list(self._context.replicas_of(tp))
        return f"{tp} has the replicas {replicas} and the ISR {isr}; alive are {alive}"
