"""Transactions in random histories: batches and markers in the log of one partition, and their promises.

Each producer has one transaction at a time. Its writes go to any broker that believes it leads; then it
decides once, and its marker is sent until a leader acknowledges it, perhaps more often. Between them leaders
change, logs are truncated and processes end, so a marker may be lost, repeated or written twice.

The truth follows from the committed records: which transactions they begin, and which markers end them. From
it follow, for every replica after every step, the last stable offset and the aborted transactions, and for
every consumer the records that it sees.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barnabas.broker.log.log import Log
from barnabas.broker.log.producer_state import AppendOrigin
from barnabas.broker.replication.marker_writer import MarkerOutcome, TransactionMarker
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId, Offset, TopicPartition
from barnabas.protocol.messages.produce import PartitionProduceResponse
from tests.simulation.disk import Entry, encode_in_transaction

if TYPE_CHECKING:
    from barnabas.broker.replication.partition import Partition
    from tests.simulation.world import World

TRANSACTION_WORK = {
    "write_in_transaction": 20.0,
    "end_transaction": 14.0,
    "send_marker": 20.0,
    "consume_committed": 16.0,
}
_PRODUCERS = 4
_COORDINATOR = BrokerId(-3)
_TIMEOUT_MS = 3_000
_ROUNDS = 20
_NO_MARKER = 1 << 62
"""Above all offsets."""


@dataclass(slots=True)
class Transaction:
    """A transaction of the committed records; without a marker it is undecided."""

    producer_id: int
    offsets: list[int] = field(default_factory=list)
    """Of its records."""
    marker_offset: int = _NO_MARKER
    is_aborted: bool = False

    @property
    def is_open(self) -> bool:
        return self.marker_offset == _NO_MARKER


class TrueTransactions:
    """The transactions among committed records, and the checks of replicas and consumers."""

    def __init__(self) -> None:
        self.all: list[Transaction] = []
        self._ongoing: dict[int, Transaction] = {}
        self._by_offset: dict[int, Transaction] = {}

    def add(self, offset: int, entry: Entry) -> None:
        """The next committed record."""
        if entry.writer is None:
            return
        commits = entry.commits
        if commits is not None:
            ongoing = self._ongoing.pop(entry.writer, None)
            if ongoing is not None:
                ongoing.marker_offset, ongoing.is_aborted = offset, not commits
            return
        ongoing = self._ongoing.get(entry.writer)
        if ongoing is None:
            ongoing = self._ongoing[entry.writer] = Transaction(entry.writer)
            self.all.append(ongoing)
        ongoing.offsets.append(offset)
        self._by_offset[offset] = ongoing

    def outcome(self, offset: int) -> bool | None:
        """Whether a record counts: True without a transaction, None while its transaction is open."""
        one = self._by_offset.get(offset)
        if one is None:
            return True
        return None if one.is_open else not one.is_aborted

    def faults_of(self, partition: Partition, is_missing: Callable[[int], bool]) -> Iterator[str]:
        """The broken promises of a replica whose records below its high watermark are true."""
        log, stable, mark = partition.log, partition.last_stable_offset, partition.high_watermark
        start = log.log_start_offset
        if not start <= stable <= mark:
            yield f"log start {start}, last stable offset {stable}, high watermark {mark}"
        undecided = [one for one in self.all if one.offsets[0] < mark <= one.marker_offset]
        least = max(start, min([mark, *(one.offsets[0] for one in undecided)]))
        # A replica that began within a transaction, or got its log after a cleaning, does not know its first
        # records.
        known = (at for one in undecided for at in one.offsets if start <= at < mark and not is_missing(at))
        most = min([mark, *known])
        if stable < least and any(one.producer_id in self._strangers(log, start) for one in undecided):
            # The replica cannot know that the transaction did not begin with them.
            least = start
        if not least <= stable <= most:
            yield f"the last stable offset is {stable}, expected {least} to {most}"
        elif start < stable:
            yield from self._aborted_faults(log, start, stable, is_missing)

    def _strangers(self, log: Log, start: Offset) -> set[int]:
        """The producers of batches below a replica's log start that are of another history.

        The epochs of a leader begin at its log start. A follower that ends there with records of another
        history learns of no divergence, and keeps them where nobody reads.
        """
        return {
            header.producer_id
            for header, _ in log.log_segments.produced_from(Offset(0))
            if header.base_offset < start
            and (
                (one := self._by_offset.get(header.base_offset)) is None
                or one.producer_id != header.producer_id
            )
        }

    def _aborted_faults(
        self, log: Log, start: Offset, stable: Offset, is_missing: Callable[[int], bool]
    ) -> Iterator[str]:
        named = [
            (aborted.producer_id, aborted.first_offset) for aborted in log.aborted_transactions(start, stable)
        ]
        for one in self.all:
            offsets = [at for at in one.offsets if start <= at < stable]
            is_named = any(
                producer_id == one.producer_id and one.offsets[0] <= first <= one.offsets[-1]
                for producer_id, first in named
            )
            if is_named != one.is_aborted and not all(map(is_missing, offsets)):
                yield f"{one} is {'' if is_named else 'not '}among the aborted transactions {named}"

    def visible(self, records: Sequence[tuple[int, Entry]]) -> list[tuple[int, Entry]]:
        """The records of these that a consumer with read_committed must see; all are below the LSO."""
        return [
            (offset, entry)
            for offset, entry in records
            if entry.commits is None
            and not ((one := self._by_offset.get(offset)) is not None and one.is_aborted)
        ]


def seen_by_a_client(
    records: Sequence[tuple[int, Entry]], aborted: Sequence[tuple[int, int]]
) -> list[tuple[int, Entry]]:
    """The records that a client shows, by the producer id and first offset of the aborted transactions."""
    waiting = sorted((first, producer_id) for producer_id, first in aborted)
    hidden: set[int | None] = set()
    seen = []
    for offset, entry in records:
        while waiting and waiting[0][0] <= offset:
            hidden.add(waiting.pop(0)[1])
        commits = entry.commits
        if commits is False:
            hidden.discard(entry.writer)
        if commits is None and (entry.writer is None or entry.writer not in hidden):
            seen.append((offset, entry))
    return seen


class TransactionalProducer:
    """One producer with its coordinator. With ``is_raised`` every transaction has an epoch of its own, and
    markers may arrive late; without it they arrive at once, or a late one would end the next transaction.
    """

    def __init__(self, world: World, producer_id: int, *, is_raised: bool) -> None:
        self.marker: TransactionMarker | None = None
        self.is_open = False
        self._world = world
        self._id = producer_id
        self._epoch = 0
        self._is_raised = is_raised

    def write(self, broker: BrokerId) -> None:
        target, tp = self._world.brokers[broker], self._world.tp
        partition = target.partition
        if self.marker is not None or not target.can_act or partition is None:
            return
        value = self._world.next_value
        self._world.next_value += 1

        def answer(outcomes: list[PartitionProduceResponse]) -> None:
            if outcomes[0].error_code == ErrorCode.NONE:
                self._world.truth.acknowledged(
                    Offset(outcomes[0].base_offset), [value], self._world.min_insync_replicas
                )

        try:
            guard = partition.log.begin_verification(self._id, self._epoch)
        except ApiError:
            # The replica's state is that of a later transaction.
            return
        self.is_open = True
        guards = {} if guard is None else {tp: {self._id: guard}}
        batches = [(tp, encode_in_transaction(value, self._id, self._epoch))]
        target.replicas.append(
            -1, _TIMEOUT_MS, batches, answer, origin=AppendOrigin.COORDINATOR, guards=guards
        )
        target.replicas.wake_followers()

    def end(self, *, committed: bool) -> None:
        if self.is_open and self.marker is None:
            self.is_open = False
            self._epoch += self._is_raised
            version = 2 if self._is_raised else 0
            tp = self._world.tp
            self.marker = TransactionMarker(self._id, self._epoch, committed, 0, [tp], version)

    def send_marker(self, broker: BrokerId, *, is_answer_lost: bool = False) -> None:
        world, marker = self._world, self.marker
        if marker is None:
            return

        def answer(outcomes: list[MarkerOutcome]) -> None:
            if outcomes[0][world.tp] == ErrorCode.NONE and self.marker is marker and not is_answer_lost:
                self.marker = None

        def arrive() -> None:
            world.brokers[broker].replicas.markers.write([marker], _TIMEOUT_MS, answer)

        if self._is_raised:
            world.send(_COORDINATOR, broker, arrive)
        elif world.brokers[broker].can_act:
            arrive()


class TransactionChaos:
    """The steps; mixed into a history."""

    random: random.Random
    world: World

    @abstractmethod
    def _leader(self, tp: TopicPartition) -> BrokerId: ...

    def begin_transactions(self) -> None:
        self.world.has_transactions = True
        self._producers = [
            TransactionalProducer(self.world, number, is_raised=number % 2 == 0)
            for number in range(1, _PRODUCERS + 1)
        ]

    def end_transactions(self) -> None:
        """Without faults every marker is acknowledged, and then everything committed is stable."""
        world = self.world
        for _ in range(_ROUNDS):
            for producer in self._producers:
                producer.end(committed=self.random.random() < 0.5)
                producer.send_marker(world.state.leader)
            world.settle()
            if not any(producer.marker for producer in self._producers):
                break
        for broker in world.brokers.values():
            partition = broker.partition
            assert partition is not None
            assert partition.last_stable_offset == partition.high_watermark, (
                f"{partition.view()} is not stable"
            )

    def write_in_transaction(self) -> None:
        self.random.choice(self._producers).write(self._leader(self.world.tp))

    def end_transaction(self) -> None:
        self.random.choice(self._producers).end(committed=self.random.random() < 0.5)

    def send_marker(self) -> None:
        producer = self.random.choice(self._producers)
        producer.send_marker(self._leader(self.world.tp), is_answer_lost=self.random.random() < 0.2)

    def consume_committed(self) -> None:
        broker, end = self._leader(self.world.tp), len(self.world.truth.committed)
        self.world.consume(broker, self.random.randint(0, end), is_read_committed=True)
