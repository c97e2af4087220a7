"""Producers that commit a group's offsets in transactions, and their coordinator, which decides and marks.

A `Copier` commits the offsets that its consumer owns, as in consume-transform-produce, and ends each
transaction once: by a commit only if all its offsets were acknowledged. Markers go to the leader of the
offsets topic until one is acknowledged. The coordinator's own log is not simulated: a decision stands.
A request of an earlier transaction may arrive late, and finds no confirmation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.coordinators.effects import TransactionalProducer
from barnabas.broker.coordinators.group_records import OffsetRecord, Record
from barnabas.broker.replication.markers import MarkerOutcome, TransactionMarker
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.simulation.broker import SimBroker
from tests.simulation.disk import Entry

if TYPE_CHECKING:
    from tests.simulation.group_world import GroupWorld

Commit = tuple[TopicPartition, int, str]
"""A partition with its committed offset and metadata, which no other commit of the partition has."""

_MARKER_TIMEOUT_MS: Final = 5_000
_PATIENCE_MS: Final = 15_000
_COORDINATOR_EPOCH: Final = 1


class Copier:
    """One transactional id. Its transaction is idle, ongoing, or ending by a decision that stands.

    In version 2 each transaction has an epoch of its own, and its marker has the next one.
    """

    def __init__(self, world: GroupWorld, producer_id: int) -> None:
        self.world = world
        self.producer_id = producer_id
        self.epoch = 0
        self.state = "idle"
        self.version = world.random.choice((1, 2))
        self.acknowledged: list[Commit] = []
        """The commits of the transaction that were acknowledged."""
        self.committed: list[Commit] = []
        """The acknowledged commits of transactions whose commit marker was acknowledged."""
        self.ended: set[bool] = set()
        """The decisions so far."""
        self._number = 0

    @property
    def transactional_id(self) -> str:
        return str(self.producer_id)

    def confirms(self, producer: TransactionalProducer) -> ErrorCode:
        if producer.epoch != self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return {
            "idle": ErrorCode.INVALID_TXN_STATE,
            "ongoing": ErrorCode.NONE,
            "ending": ErrorCode.CONCURRENT_TRANSACTIONS,
        }[self.state]

    def commit(self, offsets: Sequence[Commit], member: dict[str, Any]) -> None:
        """Commit offsets in a new transaction, and decide by the answer, or after some time without one."""
        if self.state != "idle":
            return
        self.state = "ongoing"
        self._number += 1
        number = self._number
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for name, offset, metadata in offsets:
            topics.setdefault(name.topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=name.partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id="g",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(name=topic, partitions=each) for topic, each in topics.items()
            ],
            **member,
        )

        def answered(response: TxnOffsetCommitResponse) -> None:
            codes = {p.error_code for topic in response.topics for p in topic.partitions}
            if number == self._number and self.state == "ongoing":
                if codes == {ErrorCode.NONE}:
                    self.acknowledged = list(offsets)
                self._decide(is_commit=codes == {ErrorCode.NONE} and not self.world.chance(0.3))

        self.world.call(request, answered)
        self.world.at(_PATIENCE_MS, lambda: self.time_out(number))

    def time_out(self, number: int | None = None) -> None:
        """Abort the transaction, also while its commit is under way."""
        if self.state == "ongoing" and number in (None, self._number):
            self._decide(is_commit=False)

    def _decide(self, *, is_commit: bool) -> None:
        self.state = "ending"
        self.ended.add(is_commit)
        self._send_marker(self._number, is_commit)

    def _send_marker(self, number: int, is_commit: bool) -> None:
        """To the current leader; sent again until it is acknowledged, and at times once more."""
        if number != self._number or self.state != "ending":
            return
        world = self.world
        world.at(world.random.uniform(500, 6_000), lambda: self._send_marker(number, is_commit))
        broker = world.brokers.get(world.state.leader)
        if broker is None:
            return
        life = broker.life
        epoch = self.epoch + (self.version == 2)
        marker = TransactionMarker(
            self.producer_id, epoch, is_commit, _COORDINATOR_EPOCH, [world.tp], self.version
        )

        def answered(outcomes: list[MarkerOutcome]) -> None:
            if broker.is_up and broker.life == life and outcomes[0][world.tp] is ErrorCode.NONE:
                world.at(world.delay(), lambda: self._marked(number, is_commit))

        def arrive() -> None:
            if broker.is_paused:
                world.at(100, arrive)
            elif broker.is_up and broker.life == life:
                broker.replicas.markers.write([marker], _MARKER_TIMEOUT_MS, answered)
                world.judge.check(broker)
                world.turn_soon(broker)

        world.at(world.delay(), arrive)

    def _marked(self, number: int, is_commit: bool) -> None:
        if number != self._number or self.state != "ending":
            return
        if is_commit:
            self.committed += self.acknowledged
        self.acknowledged = []
        self.state = "idle"
        self.epoch += self.version == 2


def effective(records: Sequence[Record | None], entries: Sequence[Entry | None]) -> list[bool | None]:
    """Whether each offset record counts: True or False by its marker, None without one and for others."""
    decided: dict[int, bool] = {}
    outcomes: list[bool | None] = []
    for record, entry in zip(reversed(records), reversed(entries[: len(records)]), strict=True):
        commits = None if entry is None else entry.commits
        if entry is not None and entry.writer is not None and commits is not None:
            decided[entry.writer] = commits
        if not isinstance(record, OffsetRecord) or entry is None:
            outcomes.append(None)
        else:
            outcomes.append(True if entry.writer is None else decided.get(entry.writer))
    return outcomes[::-1]


def confirm(world: GroupWorld, broker: SimBroker) -> Any:
    """The hook of the handler: the coordinator of transactions is asked by messages."""
    life = broker.life

    def confirm_offsets(
        partition: TopicPartition,
        transactional_id: str,
        producer: TransactionalProducer,
        adds: bool,
        answer: Any,
    ) -> None:
        log = broker.replicas.partition(partition).log
        guard = log.begin_verification(producer.producer_id, producer.epoch)
        confirmed = producer._replace(guard=guard)
        if guard is None:
            answer(ErrorCode.NONE, confirmed)
            return

        def asked() -> None:
            error = world.copiers[transactional_id].confirms(producer)
            world.at(world.delay(), lambda: answered(error))

        def answered(error: ErrorCode) -> None:
            if broker.is_paused:
                world.at(100, lambda: answered(error))
            elif broker.is_up and broker.life == life:
                answer(error, confirmed)
                world.judge.check(broker)
                world.turn_soon(broker)

        world.at(world.delay(), asked)

    return confirm_offsets
