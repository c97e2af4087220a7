"""A world for one transactional id: coordinators, their log, data partitions, and time that runs by itself.

The `Transaction` and the records are real. The log of the coordinators, the data partitions and the network
are models: appends fail, time out and only seem to fail; messages are late, lost or sent twice; coordinators
move, and a deposed one goes on until it notices. One seeded random generator decides everything.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from barnabas.broker.coordinators.effects import Moment
from barnabas.broker.coordinators.transaction import Transaction
from barnabas.broker.coordinators.transaction_effects import (
    AddPartitions,
    Append,
    Effects,
    InitProducerId,
    MarkersToWrite,
    Request,
    Response,
    TransactionLimits,
    VerifyPartitions,
    refused,
)
from barnabas.broker.coordinators.transaction_records import (
    TransactionMetadata,
    read_value,
    to_bytes,
)
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_PRODUCER_ID, LeaderEpoch, ProducerId, TopicPartition
from tests.simulation.process import Schedule

ID: Final = "id"
EPOCH_MS: Final = 1_700_000_000_000
PARTITIONS: Final = tuple(TopicPartition("t", partition) for partition in range(3))
APPEND_TIMEOUT_MS: Final = 600
MARKER_RETRY_MS: Final = 150
WAIT_MS: Final = 1_000
LIMITS: Final = TransactionLimits(max_timeout_ms=20_000, expiration_ms=15_000)


class Entry(NamedTuple):
    """A record of a data partition, or a marker: then ``tag`` is None."""

    producer_id: int
    epoch: int
    tag: Any
    is_commit: bool = False


class DataPartition:
    """The rules of a partition's leader for one producer after another (KIP-98, KIP-890)."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.ongoing: dict[int, int] = {}
        """The epoch of the ongoing transaction, by producer id."""
        self.epochs: dict[int, int] = {}
        self.coordinator_epochs: dict[int, int] = {}
        self.markers: dict[int, int] = {}
        """The number of markers by producer id: the guard of a verification."""
        self.tags: set[Any] = set()
        """Of idempotence, only this: no record is appended twice."""

    def error_of(self, producer_id: int, epoch: int) -> ErrorCode:
        """The error of a record before any verification."""
        if epoch < self.epochs.get(producer_id, -1):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.ongoing.get(producer_id, epoch) != epoch:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    def append(self, producer_id: int, epoch: int, tag: Any) -> None:
        self.entries.append(Entry(producer_id, epoch, tag))
        self.tags.add(tag)
        self.ongoing[producer_id] = self.epochs[producer_id] = epoch

    def write_marker(self, markers: MarkersToWrite) -> ErrorCode:
        producer_id, epoch = markers.producer_id, markers.producer_epoch
        if markers.coordinator_epoch < self.coordinator_epochs.get(producer_id, -1):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if epoch < self.epochs.get(producer_id, -1):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if markers.transaction_version >= 2 and epoch <= self.ongoing.get(producer_id, -1):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        self.entries.append(Entry(producer_id, epoch, None, markers.committed))
        self.ongoing.pop(producer_id, None)
        self.epochs[producer_id] = epoch
        self.coordinator_epochs[producer_id] = markers.coordinator_epoch
        self.markers[producer_id] = self.markers.get(producer_id, 0) + 1
        return ErrorCode.NONE


class Coordinator:
    """A broker as the coordinator in one leader epoch."""

    def __init__(self, world: TransactionWorld, epoch: int, stored: TransactionMetadata | None) -> None:
        self.world = world
        self.epoch = LeaderEpoch(epoch)
        self.is_closed = False
        self.machine: Transaction | None = None
        self._timer_ms = math.inf
        if stored is not None:
            self.machine = Transaction.load(ID, stored, self.epoch, LIMITS)
            self.apply(lambda machine: machine.resume(world.moment))

    def handle(self, request: Request, answer: Callable[[Response], None]) -> None:
        if self.is_closed:
            answer(refused(request, ErrorCode.NOT_COORDINATOR))
            return
        if self.machine is None:
            if not isinstance(request, InitProducerId):
                answer(refused(request, ErrorCode.INVALID_PRODUCER_ID_MAPPING))
                return
            self.machine = Transaction(ID, self.epoch, LIMITS)
        world, token = self.world, self.world.expect_answer(request, answer)
        self.apply(lambda machine: machine.handle(request, token, world.moment, WAIT_MS))

    def apply(self, event: Callable[[Transaction], Effects], machine: Transaction | None = None) -> None:
        """Apply an event, to a machine that may have been dropped meanwhile."""
        machine = machine or self.machine
        if machine is None:
            return
        self.carry_out(machine, event(machine))
        self.world.judge.observe(machine.state)
        if machine is self.machine:
            if machine.is_droppable:
                self.machine = None
            else:
                self._set_timer(machine)

    def carry_out(self, machine: Transaction, effects: Effects) -> None:
        for append in effects.appends:
            self.world.append(self, machine, append)
        for token, response in effects.answers:
            token(response)
        for request in effects.requests:
            if isinstance(request, MarkersToWrite):
                for partition in sorted(request.partitions):
                    self.world.send_marker(self, machine, request, partition)
            else:
                self.world.give_id(self, machine)

    def expire(self) -> None:
        if not self.is_closed:
            self.apply(lambda machine: machine.expire(self.world.moment))

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.apply(lambda machine: machine.unload(self.world.moment))

    def _set_timer(self, machine: Transaction) -> None:
        at_ms = machine.next_deadline_ms
        if at_ms < self._timer_ms:
            self._timer_ms = at_ms
            self.world.at(max(0.0, at_ms - self.world.now_ms), lambda: self._tick(at_ms))

    def _tick(self, at_ms: float) -> None:
        if self._timer_ms == at_ms:
            self._timer_ms = math.inf
        if not self.is_closed:
            self.apply(lambda machine: machine.tick(self.world.moment))


class TransactionWorld(Schedule):
    """``judge`` sees every stored record, every answer and every record of a data partition."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(seed))
        self.judge: Any = None
        self.is_faulty = True
        self.transaction_version = self.random.choice((0, 1, 2))
        self.records: list[tuple[bytes | None, ...]] = []
        """The batches; of each one a leader has all records or none."""
        """The log of the leader: the values of the one id."""
        self.high_watermark = 0
        self.leader_epoch = 0
        self.stalled_until_ms = 0.0
        self.too_few_until_ms = 0.0
        self.partitions = {name: DataPartition() for name in PARTITIONS}
        self.producer_ids = itertools.count(1)
        self.unanswered: dict[int, tuple[Request, float]] = {}
        self.coordinator = Coordinator(self, 0, None)

    def __enter__(self) -> TransactionWorld:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    @property
    def moment(self) -> Moment:
        return Moment(self.now_ms, EPOCH_MS + int(self.now_ms))

    def describe(self) -> str:
        machine = self.coordinator.machine
        logs = {str(name): partition.entries[-6:] for name, partition in self.partitions.items()}
        return f"coordinator {self.coordinator.epoch}: {machine and machine.stored}\npartitions: {logs}"

    # ---- time

    def check_event(self) -> None:
        for request, deadline_ms in self.unanswered.values():
            assert self.now_ms <= deadline_ms, f"{request} waits for ever"

    def delay_ms(self) -> float:
        """A message's way: mostly short, at times longer than a transaction."""
        if self.is_faulty and self.random.random() < 0.03:
            return self.random.uniform(100, 4_000)
        return self.random.uniform(1, 10)

    # ---- requests

    def expect_answer(
        self, request: Request, answer: Callable[[Response], None]
    ) -> Callable[[Response], None]:
        """A token; it must be called once, and soon."""
        number = next(self._order)
        self.unanswered[number] = request, self.now_ms + WAIT_MS + 2 * APPEND_TIMEOUT_MS + 100

        def token(response: Response) -> None:
            assert number in self.unanswered, f"{request} is answered twice"
            del self.unanswered[number]
            self.judge.answered(request, response)
            answer(response)

        return token

    def ask(self, request: Request, answer: Callable[[Response], None], *, is_broker: bool = False) -> None:
        """Send a request to the coordinator, possibly twice; the answer may be lost."""
        coordinator = self.coordinator
        may_repeat = self.is_faulty and (is_broker or self.judge.may_come_late(request))
        for is_copy in (False, True) if may_repeat and self.random.random() < 0.05 else (False,):
            if not is_copy and self.is_faulty and self.random.random() < 0.03:
                continue
            delay_ms = self.delay_ms() if may_repeat else self.random.uniform(1, 10)

            def arrive(is_copy: bool = is_copy) -> None:
                self.note(f"{request} arrives")
                coordinator.handle(request, lambda response: self._reply(answer, response, is_copy))

            self.at(delay_ms, arrive)

    def _reply(self, answer: Callable[[Response], None], response: Response, is_copy: bool) -> None:
        if not is_copy and not (self.is_faulty and self.random.random() < 0.03):
            self.at(self.random.uniform(1, 10), lambda: answer(response))

    def produce(
        self,
        partition: TopicPartition,
        producer_id: int,
        epoch: int,
        tag: Any,
        *,
        adds: bool,
        answer: Callable[[ErrorCode], None],
    ) -> None:
        """A record; the coordinator has to confirm it before it begins a transaction here."""
        log = self.partitions[partition]

        def arrive() -> None:
            error = log.error_of(producer_id, epoch)
            if tag in log.tags:
                self.at(self.random.uniform(1, 10), lambda: answer(ErrorCode.NONE))
                return
            if error is not ErrorCode.NONE or producer_id in log.ongoing:
                finish(error)
                return
            guard = log.markers.get(producer_id, 0)
            kind = AddPartitions if adds else VerifyPartitions
            request = kind(producer_id, epoch, frozenset({partition}))
            self.ask(request, lambda response: confirmed(response, guard), is_broker=True)

        def confirmed(response: Any, guard: int) -> None:
            error = response if adds else response[partition]
            if error is ErrorCode.NONE:
                error = log.error_of(producer_id, epoch)
            if error is ErrorCode.NONE and log.markers.get(producer_id, 0) != guard:
                error = ErrorCode.INVALID_TXN_STATE
            finish(error)

        def finish(error: ErrorCode) -> None:
            if error is ErrorCode.NONE and tag not in log.tags:
                self.note(f"{tag} is appended to {partition}")
                self.judge.produced(producer_id, epoch, tag)
                log.append(producer_id, epoch, tag)
            if not (self.is_faulty and self.random.random() < 0.03):
                self.at(self.random.uniform(1, 10), lambda: answer(error))

        self.at(self.delay_ms(), arrive)

    # ---- the coordinators' log

    def append(self, coordinator: Coordinator, machine: Transaction, append: Append) -> None:
        number = append.number
        assert number is not None
        is_settled = False

        def settle(error: ErrorCode) -> None:
            nonlocal is_settled
            if not is_settled:
                is_settled = True
                coordinator.apply(lambda each: each.appended(number, error, 0, self.moment), machine)

        def is_leader() -> bool:
            return coordinator.epoch == self.leader_epoch

        if not is_leader():
            self.at(self.random.uniform(1, 20), lambda: settle(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        if self.now_ms < self.too_few_until_ms:
            self.at(1, lambda: settle(ErrorCode.NOT_ENOUGH_REPLICAS))
            return
        for record in append.records:
            self.judge.appended(record.value)
        self.records.append(tuple(to_bytes(one, self.transaction_version)[1] for one in append.records))
        end = len(self.records)

        def replicate() -> None:
            if not is_leader():
                settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif self.now_ms < self.stalled_until_ms:
                self.at(self.stalled_until_ms - self.now_ms + 1, replicate)
            else:
                self._replicated_to(end)
                settle(ErrorCode.NONE)

        self.at(self.random.uniform(1, 5), replicate)
        late = self.random.choice((ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        self.at(APPEND_TIMEOUT_MS, lambda: settle(late if is_leader() else ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _replicated_to(self, end: int) -> None:
        for batch in self.records[self.high_watermark : end]:
            self.judge.replicated([None if value is None else read_value(value) for value in batch])
        self.high_watermark = max(self.high_watermark, end)

    def move(self) -> None:
        """Elect another leader; it may lack records above the high watermark, which are lost then."""
        former = self.coordinator
        self.leader_epoch += 1
        kept = self.random.randint(self.high_watermark, len(self.records))
        self.note(f"leader epoch {self.leader_epoch}; {len(self.records) - kept} records are lost")
        del self.records[kept:]
        value = self.records[-1][-1] if self.records else None
        self.coordinator = Coordinator(self, self.leader_epoch, None if value is None else read_value(value))
        self.at(self.random.choice((0.0, 20.0, 500.0)), former.close)
        self._replicate_kept(len(self.records), self.leader_epoch)

    def _replicate_kept(self, end: int, epoch: int) -> None:
        def replicate() -> None:
            if epoch == self.leader_epoch:
                if self.now_ms < self.stalled_until_ms:
                    self._replicate_kept(end, epoch)
                else:
                    self._replicated_to(end)

        self.at(self.random.uniform(1, 100), replicate)

    # ---- what coordinators request

    def give_id(self, coordinator: Coordinator, machine: Transaction) -> None:
        is_refused = self.is_faulty and self.random.random() < 0.1
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_refused else ErrorCode.NONE

        def give() -> None:
            given = NO_PRODUCER_ID if is_refused else ProducerId(next(self.producer_ids))
            if not coordinator.is_closed:
                coordinator.apply(lambda each: each.producer_id_given(given, error, self.moment), machine)

        self.at(self.delay_ms(), give)

    def send_marker(
        self, coordinator: Coordinator, machine: Transaction, markers: MarkersToWrite, name: TopicPartition
    ) -> None:
        """Until the coordinator is closed: markers may be late, lost, or written twice."""

        def arrive() -> None:
            error = self.partitions[name].write_marker(markers)
            self.note(f"marker {markers.producer_epoch} commit={markers.committed} at {name}: {error.name}")
            # With a later epoch there, the transaction is over. A later coordinator goes on by itself.
            if error is not ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                self.at(self.delay_ms(), written)

        def written() -> None:
            coordinator.apply(lambda each: each.markers_written(markers.number, [name], self.moment), machine)

        def retry() -> None:
            if not coordinator.is_closed:
                self.send_marker(coordinator, machine, markers, name)

        if self.is_faulty and self.random.random() < 0.1:
            self.at(MARKER_RETRY_MS, retry)
            return
        delay_ms = self.delay_ms()
        self.at(delay_ms, arrive)
        if self.is_faulty and self.random.random() < 0.1:
            # Without an epoch for each transaction, a marker that comes too late ends the next one.
            self.at(self.delay_ms() if markers.transaction_version >= 2 else delay_ms, arrive)
