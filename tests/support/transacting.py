"""One transactional id under test: manual time, answers by token, appends that the test settles."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from barnabas.broker.coordinators.state_machine import Append, Clock, Moment
from barnabas.broker.coordinators.transactions.records import TransactionMetadata
from barnabas.broker.coordinators.transactions.requests import (
    WAIT_MS,
    AddPartitions,
    EndTransaction,
    MarkersToWrite,
    ProducerIdWanted,
    Request,
)
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.coordinators.transactions.transaction import Transaction
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import LeaderEpoch, ProducerId, TopicPartition
from barnabas.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from barnabas.protocol.messages.transactions import EndTxnResponse, PrepareTxnRequest
from tests.support.defaults import CONFIG
from tests.support.grouping import WALL_MS

TIMEOUT_MS = 60_000
FIRST_ID = 1_000
P0, P1, P2 = (TopicPartition("t", partition) for partition in range(3))


OK = ErrorCode.NONE


class TransactionRig:
    """``gives_ids`` False leaves it to the test to answer for new producer ids."""

    def __init__(self, stored: TransactionMetadata | None = None, *, gives_ids: bool = True) -> None:
        self.now_ms = 0.0
        self.wall_ahead_ms = 0
        self._clock = self._make_clock()
        """How far the wall clock was set ahead."""
        self.answers: dict[str, Any] = {}
        """Answers that the test has not looked at, by token."""
        self.appends: list[Append] = []
        """The appends that are not settled."""
        self.markers: list[MarkersToWrite] = []
        self.ids_wanted = 0
        self._gives_ids = gives_ids
        self._ids = itertools.count(FIRST_ID)
        self.machine = Transaction("id", LeaderEpoch(7), CONFIG)
        if stored is not None:
            self.load(stored)

    def load(self, stored: TransactionMetadata) -> None:
        self._clock = self._make_clock()
        self.machine = Transaction("id", LeaderEpoch(7), CONFIG, stored)
        self.apply(lambda machine, now: machine.resume(now))

    def _make_clock(self) -> Clock:
        return Clock(lambda: self.now_ms, lambda: WALL_MS + int(self.now_ms) + self.wall_ahead_ms)

    @property
    def now(self) -> Moment:
        return self._clock()

    @property
    def state(self) -> TransactionState:
        return self.machine.state

    @property
    def stored(self) -> TransactionMetadata:
        return self.machine.stored

    def apply(self, event: Callable[[Transaction, Moment], None]) -> None:
        """Apply an event as a shard does."""
        event(self.machine, self.now)
        effects = self.machine.outbox.take()
        self.appends += effects.appends
        for token, response in effects.answers:
            assert token not in self.answers, f"{token} is answered twice"
            self.answers[token] = response
        for request in effects.requests:
            if isinstance(request, MarkersToWrite):
                self.markers.append(request)
                continue
            assert isinstance(request, ProducerIdWanted)
            self.ids_wanted += 1
            if self._gives_ids:
                self.give_id()

    def give_id(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.ids_wanted -= 1
        self.apply(lambda machine, now: machine.producer_id_given(ProducerId(next(self._ids)), error, now))

    def send(self, request: Request, token: str = "r", wait_ms: float = WAIT_MS) -> Any:
        """The answer, or None while the request waits."""
        self.apply(lambda machine, now: machine.handle(request, token, now, wait_ms))
        return self.answer(token)

    def answer(self, token: str = "r") -> Any:
        return self.answers.pop(token, None)

    def settle(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Report the outcome of the oldest append."""
        number = self.appends.pop(0).number
        assert number is not None
        self.apply(lambda machine, now: machine.outbox.settle(number, error, 1, now))

    def write_markers(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Report markers of the last request as written; all, unless some are named."""
        markers = self.markers[-1]
        written = markers.marker.partitions if partitions is None else partitions
        self.apply(lambda machine, now: machine.markers_written(markers.number, written, now))

    def do_all(self, request: Request) -> Any:
        """Send a request, settle all appends and write all markers; returns the answer."""
        self.apply(lambda machine, now: machine.handle(request, "r", now, WAIT_MS))
        self.finish()
        return self.answer()

    def finish(self) -> None:
        while self.appends or self.markers:
            while self.appends:
                self.settle()
            if self.markers:
                self.write_markers()
                self.markers.pop()

    def pass_time(self, ms: float) -> None:
        """Tick at each deadline, as a broker does."""
        end_ms = self.now_ms + ms
        while self.machine.next_deadline_ms <= end_ms:
            self.now_ms = max(self.machine.next_deadline_ms, self.now_ms)
            self.apply(lambda machine, now: machine.tick(now))
        self.now_ms = end_ms


def init(producer_id: int = -1, epoch: int = -1, timeout_ms: int = TIMEOUT_MS) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transaction_timeout_ms=timeout_ms, producer_id=producer_id, producer_epoch=epoch
    )


def keep(producer_id: int = -1, epoch: int = -1) -> InitProducerIdRequest:
    request = init(producer_id, epoch)
    request.keep_prepared_txn = True
    return request


def add(epoch: int, *partitions: TopicPartition, producer_id: int = FIRST_ID) -> AddPartitions:
    return AddPartitions(producer_id, epoch, frozenset(partitions or (P0,)))


def verify(epoch: int, *partitions: TopicPartition, producer_id: int = FIRST_ID) -> AddPartitions:
    return AddPartitions(producer_id, epoch, frozenset(partitions or (P0,)), verify_only=True)


def commit(epoch: int, version: int = 0, *, producer_id: int = FIRST_ID) -> EndTransaction:
    return EndTransaction(producer_id, epoch, True, version)


def abort(epoch: int, version: int = 0, *, producer_id: int = FIRST_ID) -> EndTransaction:
    return EndTransaction(producer_id, epoch, False, version)


def prepare(epoch: int, *, producer_id: int = FIRST_ID) -> PrepareTxnRequest:
    return PrepareTxnRequest(transactional_id="id", producer_id=producer_id, producer_epoch=epoch)


def given(
    epoch: int, producer_id: int = FIRST_ID, ongoing: tuple[int, int] = (-1, -1)
) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=OK,
        producer_id=producer_id,
        producer_epoch=epoch,
        ongoing_txn_producer_id=ongoing[0],
        ongoing_txn_producer_epoch=ongoing[1],
    )


def ended(epoch: int, producer_id: int = FIRST_ID) -> EndTxnResponse:
    return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)


def ongoing(epoch: int = 0, *, version: int = 2) -> TransactionRig:
    """The first producer, in a transaction over P0 and P1."""
    rig = TransactionRig()
    rig.do_all(init())
    for _ in range(epoch):
        rig.do_all(add(rig.stored.producer_epoch))
        rig.do_all(commit(rig.stored.producer_epoch, version))
    assert rig.do_all(add(epoch, P0, P1)) is OK
    return rig
