"""The batches of a partition in flight, their order and their sequence numbers.

The rules of the idempotent producer (KIP-98, KIP-360), as data and functions without I/O or clock:

- A batch gets its number when it is first sent and keeps it for every further attempt, so that the broker
  recognizes it. At most five numbered batches are unacknowledged: as many as brokers compare.
- A batch is retried only when it is the oldest of them; no new batch overtakes it.
- Until a numbering has been acknowledged once, one batch is sent at a time: a broker that does not know a
  producer accepts any number, so a second batch could overtake a first one that was refused.
- After a batch failed that may have been written, no new batch is numbered until the answer to a
  later batch shows whether it was. If there is no later batch, or a gap is certain, the numbering restarts
  when no request is in flight: with 0 in the next epoch, unacknowledged batches first.
- In a transaction it does not restart: a failed batch or a gap ends the transaction, and the pipeline is
  replaced by one of the next epoch.
- It also restarts if an offset is not above an earlier one. That is another log, as of a recreated topic,
  whose leader did not know the producer and accepted any number.

Without numbers (idempotence off) at most one batch is in flight, so that a retry never reorders.

It belongs to its queue, and is used under the accumulator's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.producer.batch import BatchState, ProducerBatch
from barnabas.protocol.invariants import invariant

MAX_NUMBERED: Final = 5
"""The number of batches of a producer that a broker remembers."""
MAX_EPOCH: Final = 0x7FFF
_SEQUENCES: Final = 1 << 31


class Phase(Enum):
    """The state of a partition's numbering; `_NEXT` has the transitions."""

    UNPROVEN = "no number was acknowledged yet"
    STEADY = "batches are numbered"
    IN_DOUBT = "a batch failed that may have been written"
    RESTARTING = "there is a gap: no batch is sent until all requests have ended"


_NEXT: Final = {
    Phase.UNPROVEN: {Phase.STEADY, Phase.IN_DOUBT, Phase.RESTARTING},
    Phase.STEADY: {Phase.IN_DOUBT, Phase.RESTARTING},
    Phase.IN_DOUBT: {Phase.STEADY, Phase.RESTARTING},
    Phase.RESTARTING: {Phase.UNPROVEN},
}


def sequence_after(base_sequence: int, record_count: int) -> int:
    """The number that follows a batch; after 2^31 - 1 comes 0."""
    return (base_sequence + record_count) % _SEQUENCES


@dataclass(slots=True, eq=False)
class Pipeline:
    """The batches of one partition that were sent and are not done, oldest first."""

    limit: int
    """The most batches in flight; 1 if they are not numbered."""
    is_numbered: bool
    is_transactional: bool = False
    identity: ProducerIdAndEpoch | None = None
    next_sequence: int = 0
    phase: Phase = Phase.UNPROVEN
    batches: list[ProducerBatch] = field(default_factory=list)
    """In flight, or closed and to be sent again; includes the doubtful ones."""
    doubtful: set[ProducerBatch] = field(default_factory=set)
    """Failed batches that may have been written; empty unless IN_DOUBT or RESTARTING."""
    last_offset: int = -1
    """The base offset of the last acknowledged batch."""
    is_other_log: bool = False
    """Whether the numbers belong to a deleted log; RESTARTING until there are new ones."""
    exhausted_id: int | None = None
    """A producer id whose epochs are used up, so that another one is needed."""

    def __post_init__(self) -> None:
        invariant(1 <= self.limit <= MAX_NUMBERED, "a limit of %d batches in flight", self.limit)

    @property
    def is_broken(self) -> bool:
        """True if a batch of the transaction is missing, or may be."""
        return self.is_transactional and self.phase in (Phase.IN_DOUBT, Phase.RESTARTING)

    @property
    def is_idle(self) -> bool:
        """Whether no batch with waiters is in flight."""
        return len(self.batches) == len(self.doubtful)

    @property
    def oldest(self) -> ProducerBatch | None:
        return next((batch for batch in self.batches if batch not in self.doubtful), None)

    @property
    def retry(self) -> ProducerBatch | None:
        """The batch to be sent again now: the oldest, if it is not in flight."""
        oldest = self.oldest
        if oldest is None or oldest.state is BatchState.IN_FLIGHT:
            return None
        if self.phase is Phase.RESTARTING and not oldest.is_written:
            return None
        return oldest

    @property
    def takes_new(self) -> bool:
        """Whether a new batch may be sent after those in flight."""
        if not self.is_numbered:
            return not self.batches
        if self.phase is Phase.UNPROVEN:
            return not self.batches
        # A broker recognizes a producer's last five batches; one without an answer must stay among them.
        return (
            self.phase is Phase.STEADY
            and len(self.batches) < self.limit
            and all(batch.state is BatchState.IN_FLIGHT and not batch.is_written for batch in self.batches)
        )

    def may_leave(self, batch: ProducerBatch) -> bool:
        """Whether all earlier batches are still in flight, now that it is written to the connection."""
        for earlier in self.batches:
            if earlier is batch:
                return True
            if earlier not in self.doubtful and earlier.state is not BatchState.IN_FLIGHT:
                return False
        return False

    def add(self, batch: ProducerBatch) -> None:
        """Add a new batch; the caller has checked `takes_new`, and that there is an identity."""
        invariant(self.takes_new, "%s: no further batch may be sent now", batch.tp)
        if self.is_numbered:
            self._number(batch)
        self.batches.append(batch)

    def launch(self, batch: ProducerBatch, node_id: int) -> None:
        """Put a batch in flight to a broker."""
        batch.is_oldest = batch is self.oldest
        batch.node_id = node_id
        batch.flight += 1
        batch.move(BatchState.IN_FLIGHT)

    def put_back(self, batch: ProducerBatch) -> None:
        """Let a batch that was in flight be sent again."""
        invariant(batch in self.batches, "a batch of %s came back that was not in flight", batch.tp)
        batch.move(BatchState.CLOSED)
        self._restart_if_landed()

    def acknowledged(self, batch: ProducerBatch, base_offset: int) -> None:
        """Remove a batch, doubtful or not, that was written, as the batches before it were.

        ``base_offset`` is -1 if unknown.
        """
        if base_offset >= 0 and not batch.is_written:
            self.is_other_log = self.is_other_log or (base_offset <= self.last_offset and self.is_numbered)
            self.last_offset = base_offset
        if self.is_other_log:
            # This log may lack all earlier batches.
            self._forget(batch)
            self.restart()
            return
        position = self.batches.index(batch)
        decided = [doubted for doubted in self.batches[: position + 1] if doubted in self.doubtful]
        for earlier in self.batches[:position]:
            earlier.is_written = self.is_numbered
        self.batches.remove(batch)
        for doubted in decided:
            self._forget(doubted)
        if self.phase is Phase.UNPROVEN or (self.phase is Phase.IN_DOUBT and not self.doubtful):
            self._move(Phase.STEADY)
        self._restart_if_landed()

    def failed(self, batch: ProducerBatch, *, may_be_written: bool) -> None:
        """A batch has failed, while or before it was in flight."""
        if not self.is_numbered:
            self.batches.remove(batch)
        elif may_be_written:
            self.doubtful.add(batch)
            if self.phase is not Phase.RESTARTING:
                self._move(Phase.IN_DOUBT)
        else:
            self.batches.remove(batch)
            self._move(Phase.RESTARTING)
        self._restart_if_landed()

    def replace(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Replace a split batch by its parts, under its numbers."""
        position = self.batches.index(batch)
        if self.is_numbered and self.identity is not None:
            sequence = batch.base_sequence
            for part in parts:
                part.number(*self.identity, sequence, self.is_transactional)
                sequence = sequence_after(sequence, part.record_count)
        self.batches[position : position + 1] = parts
        self._restart_if_landed()

    def restart(self) -> None:
        """There is a gap, or the broker does not know us: restart when no request is in flight."""
        self._move(Phase.RESTARTING)
        self._restart_if_landed()

    def identify(self, identity: ProducerIdAndEpoch) -> None:
        """Take a producer id for the first time, or another one when its epochs are used up."""
        self.identity = identity
        if self.phase is Phase.RESTARTING:
            self._restart_if_landed()

    def successor(self) -> Pipeline:
        """An empty pipeline in place of this one; a new epoch fences its requests in flight."""
        following = Pipeline(
            self.limit, self.is_numbered, self.is_transactional, self.identity, exhausted_id=self.exhausted_id
        )
        if self.is_numbered:
            following.restart()
        return following

    def _restart_if_landed(self) -> None:
        if self.phase is Phase.IN_DOUBT and self.is_idle:
            self._move(Phase.RESTARTING)
        if self.phase is not Phase.RESTARTING or self.is_transactional:
            return
        live = [batch for batch in self.batches if batch not in self.doubtful]
        if any(batch.state is BatchState.IN_FLIGHT for batch in live) or self.identity is None:
            return
        if any(batch.is_written for batch in live):
            # Under a new number it would be written again, so wait for its answer under the old one.
            return
        self.doubtful.clear()
        self.is_other_log = False
        self.batches = live
        producer_id, epoch = self.identity
        self.next_sequence = 0
        if epoch == MAX_EPOCH:
            # Numbered when another id has come; until then `retry` returns None.
            self.identity, self.exhausted_id = None, producer_id
            return
        self.identity = ProducerIdAndEpoch(producer_id, epoch + 1)
        for batch in live:
            self._number(batch)
        self._move(Phase.UNPROVEN)

    def _number(self, batch: ProducerBatch) -> None:
        invariant(self.identity is not None, "%s: numbered without a producer id", batch.tp)
        if self.identity is not None:
            batch.number(*self.identity, self.next_sequence, self.is_transactional)
            self.next_sequence = sequence_after(self.next_sequence, batch.record_count)

    def _forget(self, batch: ProducerBatch) -> None:
        self.doubtful.discard(batch)
        if batch in self.batches:
            self.batches.remove(batch)

    def _move(self, phase: Phase) -> None:
        """Change the phase, or stay in it. Raises InvariantViolation for a step not in the table."""
        if phase is not self.phase:
            invariant(phase in _NEXT[self.phase], "a numbering cannot go from %s to %s", self.phase, phase)
            self.phase = phase
