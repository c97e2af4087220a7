"""The common part of the judges of coordinated worlds: it checks the log of transactional ids, and the end.

The world calls a judge for each request, each marker and each turn of a broker. These calls do nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from barnabas.broker.coordinators.transactions.records import TransactionMetadata, read_key, read_value
from barnabas.broker.coordinators.transactions.rules import present_producer
from barnabas.broker.coordinators.transactions.state import IDLE, NEXT_STATES, TransactionState
from tests.simulation.coordinated_world import STATES, CoordinatedWorld
from tests.simulation.promises import Promise, PromiseKeeper

if TYPE_CHECKING:
    from barnabas.protocol.ids import TopicPartition
    from tests.simulation.broker import SimBroker
    from tests.simulation.timed_world import Token

_COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class CoordinatedJudge(PromiseKeeper):
    def __init__(self, world: CoordinatedWorld) -> None:
        super().__init__()
        self.world: CoordinatedWorld = world
        self.stored: dict[str, TransactionMetadata] = {}
        """Transactional id → its last committed record."""
        self._before: dict[str, TransactionMetadata | None] = {}
        """Transactional id → the record before that."""
        self.completed: Counter[int] = Counter()
        """Producer id → the number of its committed completions."""
        self.reached: set[object] = set()
        """States of groups and transactions, errors and the like that the history has reached."""
        self._read_states = dict.fromkeys(STATES, 0)

    # Calls by the world

    def check(self, broker: SimBroker) -> None:
        """A broker has turned or handled a request."""

    def acknowledged_alone(self, leader: SimBroker, tp: TopicPartition) -> None:
        """A leader has acknowledged without its followers."""

    def before_fault(self) -> None:
        """A broker is about to be disturbed: what is committed must be known before its process ends."""
        self.world.check()
        self.read_states()

    def arrives(self, token: Token) -> None:
        """A request of a client is about to be handled."""

    def sent_markers(self, request: Any) -> Any:
        """A request between brokers is sent; what this gives comes back when it arrives."""

    def late_markers(self, broker: SimBroker, sent: Any) -> Any:
        """It arrives; what this gives comes back once it is handled."""

    def markers_written(self, broker: SimBroker, found: Any) -> None:
        """It was handled."""

    # The log of the coordinators

    def read_states(self) -> None:
        """Read the committed records of transactional ids."""
        for truth in [truth for truth in self.world.truths.values() if truth.tp in STATES]:
            truth.check()
            at = self._read_states[truth.tp]
            for entry in truth.committed[at:]:
                assert entry.key is not None
                assert not isinstance(entry.value, int)
                self._read_state(read_key(entry.key), entry.value)
            self._read_states[truth.tp] = len(truth.committed)

    def _read_state(self, transactional_id: str, data: bytes | None) -> None:
        former = self.stored.get(transactional_id)
        if data is None:
            may_go = former is None or TransactionState.DEAD in NEXT_STATES[former.state]
            self.require(Promise.STATES, may_go, f"{transactional_id} is forgotten as {former}")
            self.stored.pop(transactional_id, None)
            self._before.pop(transactional_id, None)
            self.reached.add(TransactionState.DEAD)
            return
        value = read_value(data)
        # A completion and the beginning of the next transaction are one batch, which may be appended twice.
        is_repeated = value in (former, self._before.get(transactional_id))
        if former is not None and not is_repeated:
            self._check_move(transactional_id, former, value)
        if value.state in _COMPLETE:
            self.completed[value.producer_id] += 1
        self.reached.add(value.state)
        self._before[transactional_id] = former
        self.stored[transactional_id] = value

    def _check_move(self, name: str, former: TransactionMetadata, value: TransactionMetadata) -> None:
        text = f"{name}: {value.state} follows {former.state}"
        self.require(Promise.STATES, value.state in NEXT_STATES[former.state], text)
        before, after = present_producer(former), present_producer(value)
        is_later = before.producer_id != after.producer_id or before.epoch <= after.epoch
        self.require(Promise.STATES, is_later, f"{name}: {after} follows {before}")

    # The end

    def faults_at_rest(self) -> Iterator[str]:
        """Name each transaction that is not complete, each unstable offset, each request that waits."""
        world = self.world
        self.read_states()
        for transactional_id, stored in self.stored.items():
            if stored.state not in IDLE:
                yield f"{transactional_id} is {stored}"
        for broker in world.brokers.values():
            if not broker.is_up:
                continue
            for partition in broker.replicas.partitions():
                if partition.last_stable_offset != partition.high_watermark:
                    yield f"broker {broker.id}: {partition.view()} is not stable"
            current = broker.metadata.current
            for tp in (truth.tp for truth in world.truths.values()):
                if tp.partition not in current.partitions_of(tp.topic):
                    yield f"broker {broker.id} does not know {tp}"
            if not world.parts[broker.id].are_at_rest:
                yield f"broker {broker.id} has markers or questions left"
        world.forget_lost_requests()
        if world.waiting:
            yield f"not answered: {[token.request for token in world.waiting]}"
