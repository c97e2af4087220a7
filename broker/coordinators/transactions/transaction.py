"""One transactional id: a pure state machine, see `Machine`. A request waits in it for `WAIT_MS` at most."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.state_machine import TOO_LARGE, Moment, Outbox, Token, append_error
from barnabas.broker.coordinators.transactions import rules
from barnabas.broker.coordinators.transactions.records import TransactionMetadata, TransactionRecord
from barnabas.broker.coordinators.transactions.requests import (
    MAX_WAITING,
    WAIT_MS,
    AddPartitions,
    MarkersToWrite,
    ProducerIdWanted,
    Request,
    Response,
    refused,
)
from barnabas.broker.coordinators.transactions.state import DECIDED, TransactionState, check_move
from barnabas.broker.replication.marker_writer import TransactionMarker
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_PRODUCER_ID, LeaderEpoch, ProducerId, TopicPartition
from barnabas.protocol.messages import describe_transactions as wire
from barnabas.protocol.messages.partitions import TopicPartitions

logger = logging.getLogger(__name__)

APPEND_RETRY_MS: Final = 100
"""The time before the second append of a record that has to be written; it doubles with each one."""
MAX_APPEND_RETRY_MS: Final = 1_600
"""Without enough replicas, all ids of a partition retry."""
_NOT_APPENDED: Final = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, *TOO_LARGE})
"""The errors that say for certain that the log does not have the records."""
_ADDED_BEFORE: Final = rules.Reply(ErrorCode.NONE, is_promise=True)


class _Waiting(NamedTuple):
    request: Request
    token: Token
    deadline_ms: float


class _Asker(NamedTuple):
    """The request that a change answers."""

    request: Request
    token: Token
    response: Response


@dataclass(slots=True, eq=False)
class _Change:
    """A record that is being appended; ``target`` None is a tombstone."""

    target: TransactionMetadata | None
    askers: list[_Asker] = field(default_factory=list)
    must_succeed: bool = False
    completion: TransactionMetadata | None = None
    """The end of the transaction before, if the target begins the next one: first in the same batch."""
    is_in_doubt: bool = False
    """The log may have the record."""
    retry_at_ms: float = math.inf
    """Infinite while an append is in flight."""
    retry_ms: int = APPEND_RETRY_MS


@dataclass(slots=True, eq=False)
class Transaction:
    """`resume` is the first event of an id from the log. It guarantees:

    - At most one append is in flight. A change is answered after its record is replicated, and so is a
      request whose answer rests on a loaded record, because the log may still lose that record.
    - Partitions that several requests add while an append is in flight go into one record; and if that
      append completes a transaction, they begin the next one in the same batch.
    - A record that may be in the log is not followed by another one: the same record is appended until the
      log acknowledges it or the leadership ends. So a decision is never reversed.
    - Markers are requested only for a replicated decision, and the completion is written after all of them.
    - The states move as `state` allows; any other move raises and changes nothing.
    """

    transactional_id: str
    _coordinator_epoch: LeaderEpoch
    """The leader epoch of the partition of the transaction topic."""
    _config: BrokerConfig
    stored: TransactionMetadata = rules.BLANK
    """The state that the log has acknowledged."""
    outbox: Outbox = field(init=False)
    _is_confirmed: bool = field(init=False)
    """False after loading: the record may be above the high watermark."""
    # Invariant: at most one of these two is set.
    _change: _Change | None = field(init=False, default=None)
    _missing_markers: set[TopicPartition] | None = field(init=False, default=None)
    """The partitions that do not have the markers of the decision yet."""
    _markers_number: int = field(init=False, default=0)
    _waiting: list[_Waiting] | None = field(init=False, default=None)
    _wants_producer_id: bool = field(init=False, default=False)
    _new_producer_id: ProducerId | None = field(init=False, default=None)
    _timeout_ms: float = field(init=False, default=math.inf)
    """The end of the ongoing transaction, by the monotonic clock."""
    _used_ms: int = field(init=False)
    """The last change, by the wall clock of this broker."""

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.transactional_id)
        self._is_confirmed = self.stored is rules.BLANK
        self._used_ms = self.stored.last_update_timestamp_ms

    def resume(self, now: Moment) -> None:
        """Restart the time-out of an ongoing transaction, and complete a decided transaction.

        The record of the decision is appended again first: without the high watermark above it, the next
        coordinator might not have it, and decide otherwise after some markers.
        """
        stored = self.stored
        if stored.state in DECIDED:
            self._append(_Change(stored, must_succeed=True))
        elif stored.state is TransactionState.PREPARE_EPOCH_FENCE:
            ongoing = stored._replace(state=TransactionState.ONGOING)
            self._append(_Change(rules.fenced(ongoing, now), must_succeed=True))
        self._used_ms = now.latest(stored.last_update_timestamp_ms)
        self._set_timeout(now, now.latest(stored.start_timestamp_ms))

    # ---- views

    @property
    def next_deadline_ms(self) -> float:
        deadline_ms = self._timeout_ms if self._change is None else self._change.retry_at_ms
        for waiting in self._waiting or ():
            deadline_ms = min(deadline_ms, waiting.deadline_ms)
        return deadline_ms

    @property
    def state(self) -> TransactionState:
        return self.stored.state

    @property
    def is_retrying_append(self) -> bool:
        """True if a record that must be in the log waits to be appended again; without the lock."""
        change = self._change
        return change is not None and change.retry_ms > APPEND_RETRY_MS

    @property
    def is_droppable(self) -> bool:
        """The log has no record of this id, and no request waits."""
        if self.state is TransactionState.DEAD:
            return True
        return self.stored is rules.BLANK and self._change is None and not self._waiting

    def describe(self) -> wire.DescribedTransaction | None:
        """The answer of DescribeTransactions; None if the log does not have the id."""
        stored = self.stored
        if stored.producer_id == NO_PRODUCER_ID or stored.state is TransactionState.DEAD:
            return None
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(stored.partitions):
            topics.setdefault(topic, []).append(partition)
        return wire.DescribedTransaction(
            transactional_id=self.transactional_id,
            transaction_state=stored.state.value,
            transaction_timeout_ms=stored.timeout_ms,
            transaction_start_time_ms=stored.start_timestamp_ms,
            producer_id=stored.producer_id,
            producer_epoch=stored.producer_epoch,
            topics=[TopicPartitions(topic=name, partitions=ids) for name, ids in topics.items()],
            is_prepared=stored.is_prepared,
        )

    def listed(self) -> wire.ListedTransaction:
        return wire.ListedTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.stored.producer_id,
            transaction_state=self.stored.state.value,
        )

    # ---- events

    def handle(self, request: Request, token: Token, now: Moment, wait_ms: float = WAIT_MS) -> None:
        """A request of a producer or a broker; answered with the type that the request documents."""
        self._handle(_Waiting(request, token, now.monotonic_ms + wait_ms), now)

    def producer_id_given(self, producer_id: ProducerId, error: ErrorCode, now: Moment) -> None:
        self._wants_producer_id = False
        if error is ErrorCode.NONE:
            self._new_producer_id = producer_id
            self._handle_waiting(now)
        elif self._change is None and self._waiting is not None:
            for waiting in self._take_waiting():
                decision = rules.decide(self.stored, waiting.request, self._config, now, None)
                if isinstance(decision, rules.WantProducerId):
                    self._refuse(waiting, error)
                else:
                    self._handle(waiting, now)

    def markers_written(self, number: int, partitions: Iterable[TopicPartition], now: Moment) -> None:
        """These partitions have the markers. A late or repeated report does no harm."""
        if self._missing_markers is not None and self._markers_number == number:
            self._missing_markers.difference_update(partitions)
            self._complete_if_all_have_markers(now)

    def tick(self, now: Moment) -> None:
        change = self._change
        if change is not None and change.retry_at_ms <= now.monotonic_ms:
            self._append(change)
        if self._waiting is not None:
            for waiting in self._take_waiting():
                if waiting.deadline_ms <= now.monotonic_ms:
                    self._refuse(waiting, ErrorCode.CONCURRENT_TRANSACTIONS)
                else:
                    self._wait(waiting)
        if self._change is None and self._timeout_ms <= now.monotonic_ms:
            logger.info(
                "transactional id %r: the transaction of producer %d, epoch %d, has exceeded its %d ms",
                self.transactional_id,
                self.stored.producer_id,
                self.stored.producer_epoch,
                self.stored.timeout_ms,
            )
            self._fence(rules.fenced(self.stored, now, self.stored.producer_epoch))

    def expire(self, now: Moment) -> None:
        """Remove the id from the log if it has not been used for transactional.id.expiration.ms."""
        is_busy = self._change is not None or self._missing_markers is not None or self._waiting is not None
        if is_busy or self.stored is rules.BLANK:
            return
        if rules.has_expired(self.stored, self._config, self._used_ms, now):
            self._append(_Change(None))

    def unload(self, now: Moment) -> None:
        """This broker is no longer the coordinator: all that wait get NOT_COORDINATOR."""
        change, self._change, self._missing_markers = self._change, None, None
        if change is not None:
            self._refuse_askers(change, ErrorCode.NOT_COORDINATOR)
        self.stored = self.stored._replace(state=TransactionState.DEAD)
        for waiting in self._take_waiting():
            self._refuse(waiting, ErrorCode.NOT_COORDINATOR)
        self._timeout_ms = math.inf

    # ---- requests

    def _handle(self, waiting: _Waiting, now: Moment) -> None:
        request, token, _ = waiting
        if self.state is TransactionState.DEAD:
            self._refuse(waiting, ErrorCode.NOT_COORDINATOR)
            return
        if self._change is not None:
            error = rules.refusal(self.stored, request, self._config)
            if error is not ErrorCode.NONE:
                self._refuse(waiting, error)
            elif self._is_verified(request, self._change):
                self.outbox.answer(token, refused(request, ErrorCode.NONE))
            else:
                self._wait(waiting)
            return
        match rules.decide(self.stored, request, self._config, now, self._new_producer_id):
            case rules.Reply(response, is_promise):
                if is_promise and not self._is_confirmed:
                    self._wait(waiting)
                    self._append(_Change(self.stored))
                else:
                    self.outbox.answer(token, response)
            case rules.Move(target, response):
                self._append(_Change(target, [_Asker(request, token, response)]))
            case rules.Fence(target):
                self._wait(waiting)
                self._fence(target)
            case rules.Wait():
                self._wait(waiting)
            case rules.WantProducerId():
                self._wait(waiting)
                if not self._wants_producer_id:
                    self._wants_producer_id = True
                    self.outbox.request(ProducerIdWanted())

    def _wait(self, waiting: _Waiting) -> None:
        if self._waiting is None:
            self._waiting = []
        if len(self._waiting) >= MAX_WAITING:
            self._refuse(waiting, ErrorCode.CONCURRENT_TRANSACTIONS)
        else:
            self._waiting.append(waiting)

    def _refuse(self, waiting: _Waiting, error: ErrorCode) -> None:
        self.outbox.answer(waiting.token, refused(waiting.request, error))

    def _refuse_askers(self, change: _Change, error: ErrorCode) -> None:
        askers, change.askers = change.askers, []
        for asker in askers:
            self.outbox.answer(asker.token, refused(asker.request, error))

    def _take_waiting(self) -> list[_Waiting]:
        waiting, self._waiting = self._waiting, None
        return waiting or []

    def _handle_waiting(self, now: Moment) -> None:
        if self._change is None and self.state is not TransactionState.DEAD:
            target, askers = self._with_additions(self.stored, now)
            if askers:
                self._append(_Change(target, askers))
        for waiting in self._take_waiting():
            self._handle(waiting, now)

    def _with_additions(
        self, stored: TransactionMetadata, now: Moment
    ) -> tuple[TransactionMetadata, list[_Asker]]:
        """Let the requests that wait first add their partitions to a state; they wait no longer."""
        target = stored
        askers: list[_Asker] = []
        waiting = self._take_waiting()
        for each in waiting:
            if not isinstance(each.request, AddPartitions) or each.request.verify_only:
                break
            decision = rules.decide(target, each.request, self._config, now, None)
            if isinstance(decision, rules.Move):
                target = decision.target
            elif not askers or decision != _ADDED_BEFORE:
                break
            askers.append(_Asker(each.request, each.token, decision.response))
        self._waiting = waiting[len(askers) :] or None
        return target, askers

    def _is_verified(self, request: Request, change: _Change) -> bool:
        """True if partitions are in the transaction that a change only adds others to."""
        return (
            isinstance(request, AddPartitions)
            and request.verify_only
            and self._is_confirmed
            and self.state is TransactionState.ONGOING
            and change.target is not None
            and change.target.state is TransactionState.ONGOING
            and not change.target.is_prepared
            and request.partitions <= self.stored.partitions
        )

    # ---- changes

    def _fence(self, target: TransactionMetadata) -> None:
        """Abort the ongoing transaction. From now on it cannot be committed or prepared."""
        check_move(self.transactional_id, self.state, TransactionState.PREPARE_EPOCH_FENCE)
        self.stored = self.stored._replace(state=TransactionState.PREPARE_EPOCH_FENCE)
        self._append(_Change(target, must_succeed=True))

    def _append(self, change: _Change) -> None:
        stored = [change.target] if change.completion is None else [change.completion, change.target]
        state = self.state
        for target in stored:
            next_state = TransactionState.DEAD if target is None else target.state
            if target is not self.stored:
                check_move(self.transactional_id, state, next_state)
            state = next_state
        self._change = change
        change.retry_at_ms = math.inf

        def settled(error: ErrorCode, base_offset: int, now: Moment) -> None:
            # An outcome after `unload` changes nothing: its request is answered already.
            if self._change is change:
                self._settled(change, error, now)

        self.outbox.append([TransactionRecord(self.transactional_id, each) for each in stored], settled)

    def _settled(self, change: _Change, error: ErrorCode, now: Moment) -> None:
        if error is ErrorCode.NONE:
            self._change = None
            self._is_confirmed = True
            self._changed(change, now)
            return
        change.is_in_doubt = change.is_in_doubt or error not in _NOT_APPENDED
        self._refuse_askers(change, append_error(error))
        if change.completion is not None and not change.is_in_doubt:
            # The end alone may be small enough for the log.
            change.target, change.completion = change.completion, None
        if change.is_in_doubt or change.must_succeed:
            if change.retry_ms == APPEND_RETRY_MS:
                logger.info(
                    "transactional id %r: a record is not acknowledged (%s) and will be appended again",
                    self.transactional_id,
                    error.name,
                )
            change.retry_at_ms = now.monotonic_ms + change.retry_ms
            change.retry_ms = min(2 * change.retry_ms, MAX_APPEND_RETRY_MS)
            return
        self._change = None
        if change.target is self.stored:
            # The requests wait for a confirmation that failed; deciding again would only try again.
            for waiting in self._take_waiting():
                self._refuse(waiting, append_error(error))
        self._handle_waiting(now)

    def _changed(self, change: _Change, now: Moment) -> None:
        """The log has the record."""
        target = change.target
        if target is None:
            self.stored = self.stored._replace(state=TransactionState.DEAD)
            for waiting in self._take_waiting():
                # A repetition finds a new machine.
                self._refuse(waiting, ErrorCode.CONCURRENT_TRANSACTIONS)
            return
        if self._new_producer_id in (target.producer_id, target.next_producer_id):
            self._new_producer_id = None
        former, self.stored = self.stored, target
        for asker in change.askers:
            self.outbox.answer(asker.token, asker.response)
        if target.last_update_timestamp_ms != former.last_update_timestamp_ms:
            self._used_ms = target.last_update_timestamp_ms
        timeout_at = rules.timeout_at_ms(target)
        if timeout_at is None or timeout_at != rules.timeout_at_ms(former):
            # The wall clock may have been set since the append.
            self._set_timeout(now, now.wall_ms)
        if target.state in DECIDED:
            self._request_markers(target)
            self._complete_if_all_have_markers(now)
        self._handle_waiting(now)

    def _request_markers(self, decision: TransactionMetadata) -> None:
        self._markers_number += 1
        self._missing_markers = set(decision.partitions)
        if not decision.partitions:
            return
        marker = TransactionMarker(
            decision.producer_id,
            decision.producer_epoch,
            decision.state is TransactionState.PREPARE_COMMIT,
            self._coordinator_epoch,
            tuple(decision.partitions),
            decision.client_transaction_version,
        )
        self.outbox.request(MarkersToWrite(self._markers_number, marker))

    def _complete_if_all_have_markers(self, now: Moment) -> None:
        if self._missing_markers is None or self._missing_markers:
            return
        self._missing_markers = None
        completion = rules.completed(self.stored, now)
        target, askers = self._with_additions(completion, now)
        is_followed = target is not completion
        self._append(_Change(target, askers, True, completion if is_followed else None))

    # ---- time

    def _set_timeout(self, now: Moment, start_ms: int) -> None:
        """Convert the end of the ongoing transaction to the monotonic clock, which no operator sets."""
        if rules.timeout_at_ms(self.stored) is None:
            self._timeout_ms = math.inf
            return
        # Another broker's clock may have been ahead when the transaction began.
        passed_ms = max(0, now.wall_ms - start_ms)
        self._timeout_ms = now.monotonic_ms + max(0, self.stored.timeout_ms - passed_ms)
