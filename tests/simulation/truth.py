"""What must hold in every history, checked after every step.

The truth is the list of records that some replica's high watermark has ever passed: they are committed, and
nobody may ever say otherwise. From that one list all promises follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.broker.replication.replica_views import Role
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import BrokerId, Offset
from tests.simulation.memory_log import Entry, MemoryLog

if TYPE_CHECKING:
    from tests.simulation.world import SimBroker, World


class Violation(AssertionError):
    """A promise is broken."""


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise Violation(message)


class Truth:
    """The committed records of a world's one partition, and the checks."""

    def __init__(self, world: World) -> None:
        self.committed: list[Entry] = []
        self.acknowledged_end = 0
        self._world = world
        self._leaders: dict[int, BrokerId] = {}
        self._new_acknowledged: list[tuple[int, list[int]]] = []
        self._new_consumed: list[tuple[int, Entry]] = []
        self.sequences: dict[int, int] = {}
        """By producer, how many of its batches are committed: 0, 1, 2 and so on, each once, in order."""
        self._sequenced = 0

    def acknowledged(self, base_offset: Offset, values: list[int]) -> None:
        """A producer was told that its records are safe."""
        self._new_acknowledged.append((base_offset, values))

    def consumed(self, records: list[tuple[int, Entry]]) -> None:
        """A consumer has seen these."""
        self._new_consumed += records

    def check(self) -> None:
        for broker in self._world.brokers.values():
            if broker.is_up and broker.log is not None:
                self._check_replica(broker, broker.log)
        self._check_in_sync()
        self._check_clients()
        self._check_sequences()
        self._check_latest()

    def _check_replica(self, broker: SimBroker, log: MemoryLog) -> None:
        partition = broker.partition
        if partition is None:
            return
        mark, start = partition.high_watermark, log.log_start_offset
        known = len(self.committed)
        _require(
            start <= mark <= log.log_end_offset,
            f"broker {broker.id}: log start {start}, high watermark {mark}, end {log.log_end_offset}",
        )
        if mark > known:
            _require(start <= known, f"broker {broker.id} starts at {start}, but only {known} are committed")
            self.committed += log.between(known, mark)
        _require(
            log.between(start, mark) == self.committed[start:mark],
            f"broker {broker.id} has other records below its high watermark {mark} than were committed",
        )
        if partition.role is Role.LEADER:
            other = self._leaders.setdefault(partition.leader_epoch, broker.id)
            _require(other == broker.id, f"{other} and {broker.id} lead in epoch {partition.leader_epoch}")

    def _check_in_sync(self) -> None:
        """Whoever may be elected without loss has everything that was ever committed."""
        end = len(self.committed)
        for member in self._world.state.isr:
            log = self._world.brokers[member].log
            start = 0 if log is None else log.log_start_offset
            held = [] if log is None else log.between(start, end)
            _require(
                start <= end and held == self.committed[start:end],
                f"broker {member} is in the ISR and lacks committed records: it has {start}.."
                f"{log.log_end_offset if log else 0}, committed are {end}",
            )

    def _check_clients(self) -> None:
        for base, values in self._new_acknowledged:
            end = base + len(values)
            found = [entry.value for entry in self.committed[base:end]]
            _require(found == values, f"{values} were acknowledged at {base}, committed there are {found}")
            held = sum(self._holds(broker.log, base, end) for broker in self._world.brokers.values())
            _require(
                held >= self._world.min_insync_replicas,
                f"offsets {base}..{end} were acknowledged while {held} replicas hold them",
            )
            self.acknowledged_end = max(self.acknowledged_end, end)
        self._new_acknowledged.clear()
        for offset, entry in self._new_consumed:
            known = self.committed[offset] if offset < len(self.committed) else None
            _require(known == entry, f"a consumer saw {entry} at {offset}, committed is {known}")
        self._new_consumed.clear()

    def _check_sequences(self) -> None:
        for offset, entry in enumerate(self.committed[self._sequenced :], self._sequenced):
            header = entry.header(offset)
            if header.producer_id > 0:
                due = self.sequences.get(header.producer_id, 0)
                _require(
                    header.base_sequence == due,
                    f"producer {header.producer_id}: at offset {offset} sequence {header.base_sequence} is "
                    f"committed, due is {due}",
                )
                self.sequences[header.producer_id] = due + 1
        self._sequenced = len(self.committed)

    def _holds(self, log: MemoryLog | None, base: int, end: int) -> bool:
        if log is None or log.log_start_offset > end:
            return False
        start = max(base, log.log_start_offset)
        return log.between(start, end) == self.committed[start:end]

    def _check_latest(self) -> None:
        """The leader never says that the log ends before something acknowledged."""
        state = self._world.state
        broker = self._world.brokers.get(state.leader)
        partition = broker.partition if broker is not None else None
        if partition is None or partition.role is not Role.LEADER:
            return
        if partition.leader_epoch != state.leader_epoch:
            return
        try:
            latest = partition.latest_offset(-1)
        except ApiError:
            # It does not know yet, and says so.
            return
        _require(
            latest >= self.acknowledged_end,
            f"the leader says that the log ends at {latest}, acknowledged are {self.acknowledged_end}",
        )
