"""Bugs of a transaction coordinator, planted on purpose: the histories of one id must find each.

See `mutations` for their form.
"""

from __future__ import annotations

import math
from typing import Any

from barnabas.broker.coordinators import transaction, transaction_rules
from barnabas.broker.coordinators.transaction import Transaction
from barnabas.broker.coordinators.transaction_records import NO_EPOCH, TransactionMetadata
from barnabas.broker.coordinators.transaction_state import DECIDED, TransactionState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_PRODUCER_ID
from tests.simulation import transaction_world
from tests.simulation.exactly_once_judge import Promise
from tests.simulation.planted import SetAttr, found_in


@found_in("one transactional id", 32)
def markers_are_sent_before_the_decision_is_replicated(setattr_: SetAttr) -> None:
    append, request = Transaction._append, Transaction._request_markers

    def hasty(self: Transaction, change: Any) -> None:
        append(self, change)
        if change.target is not None and change.target.state in DECIDED:
            request(self, change.target)
            self._markers = None

    setattr_(Transaction, "_append", hasty)


@found_in("one transactional id", 1)
def an_append_that_timed_out_has_failed(setattr_: SetAttr) -> None:
    """Kafka decides again."""
    setattr_(transaction, "_NOT_APPENDED", frozenset(ErrorCode))


@found_in("one transactional id", 222)
def a_loaded_decision_is_taken_for_replicated(setattr_: SetAttr) -> None:
    """Kafka sends the markers at once."""
    resume = Transaction.resume

    def trusting(self: Transaction, now: Any) -> Any:
        if self.state not in DECIDED:
            return resume(self, now)
        self._request_markers(self.stored)
        self._complete_if_all_have_markers(now)
        return self._take(now)

    setattr_(Transaction, "resume", trusting)


@found_in("one transactional id", 14)
def a_loaded_state_is_taken_for_replicated(setattr_: SetAttr) -> None:
    resume = Transaction.resume

    def trusting(self: Transaction, now: Any) -> Any:
        self._is_confirmed = True
        return resume(self, now)

    setattr_(Transaction, "resume", trusting)


@found_in("one transactional id", 0)
@found_in("exactly once", 32, alone=Promise.G0)
def a_transaction_is_complete_with_the_first_marker(setattr_: SetAttr) -> None:
    written = Transaction.markers_written

    def hasty(self: Transaction, number: int, partitions: Any, now: Any) -> Any:
        if self._markers is not None and self._markers.number == number:
            partitions = self.stored.partitions
        return written(self, number, partitions, now)

    setattr_(Transaction, "markers_written", hasty)


@found_in("one transactional id", 1045)
def late_reports_count_for_the_present_markers(setattr_: SetAttr) -> None:
    written = Transaction.markers_written

    def careless(self: Transaction, number: int, partitions: Any, now: Any) -> Any:
        return written(self, self._markers_number, partitions, now)

    setattr_(Transaction, "markers_written", careless)


@found_in("one transactional id", 0)
@found_in("exactly once", 11, alone=Promise.FENCING)
def epochs_are_not_checked(setattr_: SetAttr) -> None:
    def trusting(stored: TransactionMetadata, request: Any) -> ErrorCode:
        is_known = stored.producer_id not in (NO_PRODUCER_ID, request.producer_id)
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING if is_known else ErrorCode.NONE

    setattr_(transaction_rules, "_identity_error", trusting)


@found_in("one transactional id", 0)
def a_new_producer_keeps_the_epoch(setattr_: SetAttr) -> None:
    make = transaction_rules._next_incarnation

    def same(stored: TransactionMetadata, request: Any, new_id: Any) -> Any:
        if stored.producer_id == NO_PRODUCER_ID:
            return make(stored, request, new_id)
        return transaction_rules.present_producer(stored), NO_PRODUCER_ID, NO_EPOCH

    setattr_(transaction_rules, "_next_incarnation", same)


@found_in("one transactional id", 0)
def partitions_are_added_before_they_are_stored(setattr_: SetAttr) -> None:
    append = Transaction._append

    def hasty(self: Transaction, change: Any) -> None:
        append(self, change)
        if change.askers and change.target.state is TransactionState.ONGOING:
            for asker in change.askers:
                self._outbox.answer(asker.token, asker.response)
            change.askers = []

    setattr_(Transaction, "_append", hasty)


@found_in("one transactional id", 4)
def ends_are_answered_before_they_are_stored(setattr_: SetAttr) -> None:
    append = Transaction._append

    def hasty(self: Transaction, change: Any) -> None:
        append(self, change)
        if change.askers and change.target.state in DECIDED:
            for asker in change.askers:
                self._outbox.answer(asker.token, asker.response)
            change.askers = []

    setattr_(Transaction, "_append", hasty)


@found_in("one transactional id", 51)
def a_completion_leaves_out_additions_that_may_be_in_the_log(setattr_: SetAttr) -> None:
    settled = Transaction._settled

    def forgetful(self: Transaction, change: Any, error: ErrorCode, now: Any) -> None:
        settled(self, change, error, now)
        if change.completion is not None:
            change.target, change.completion = change.completion, None

    setattr_(Transaction, "_settled", forgetful)


@found_in("one transactional id", 131)
def an_end_does_not_raise_the_epoch(setattr_: SetAttr) -> None:
    """Version 1 of transactions: a delayed EndTxn ends the next one."""
    end = transaction_rules._decide_end

    def former(stored: Any, request: Any, now: Any, new_id: Any) -> Any:
        return end(stored, request.__class__(*_fields(request)[:3], 0), now, new_id)

    setattr_(transaction_rules, "_decide_end", former)


def _fields(request: Any) -> list[Any]:
    return [getattr(request, name) for name in request.__slots__]


@found_in("one transactional id", 2)
def a_repeated_end_ends_the_next_transaction(setattr_: SetAttr) -> None:
    def credulous(stored: TransactionMetadata, request: Any) -> bool:
        return bool(request.producer_id == stored.producer_id)

    setattr_(transaction_rules, "_is_end_of_prepared", credulous)


@found_in("one transactional id", 16)
def prepared_transactions_time_out(setattr_: SetAttr) -> None:
    def impatient(stored: TransactionMetadata) -> int | None:
        timeout_ms = stored.prepared_timeout_ms if stored.is_prepared else stored.timeout_ms
        return stored.start_timestamp_ms + timeout_ms if stored.state is TransactionState.ONGOING else None

    setattr_(transaction, "timeout_at_ms", impatient)


@found_in("one transactional id", 2)
def transactions_never_time_out(setattr_: SetAttr) -> None:
    setattr_(transaction, "timeout_at_ms", lambda stored: None)


@found_in("one transactional id", 0)
def requests_wait_for_ever(setattr_: SetAttr) -> None:
    wait = Transaction._wait

    def patient(self: Transaction, waiting: Any) -> None:
        wait(self, waiting._replace(deadline_ms=math.inf))

    setattr_(Transaction, "_wait", patient)


@found_in("one transactional id", 0)
def unloaded_requests_are_forgotten(setattr_: SetAttr) -> None:
    unload = Transaction.unload

    def silent(self: Transaction, now: Any) -> Any:
        self._waiting = None
        return unload(self, now)

    setattr_(Transaction, "unload", silent)


@found_in("one transactional id", 4)
def any_id_expires(setattr_: SetAttr) -> None:
    setattr_(transaction, "has_expired", lambda stored, limits, now: True)


@found_in("one transactional id", 46)
def a_record_has_no_next_producer_id(setattr_: SetAttr) -> None:
    """Kafka until KAFKA-20310: the next coordinator keeps the exhausted id."""
    _forget_on_loading(setattr_, next_producer_id=NO_PRODUCER_ID, next_producer_epoch=NO_EPOCH)


@found_in("one transactional id", 16)
def a_record_does_not_tell_that_it_is_prepared(setattr_: SetAttr) -> None:
    _forget_on_loading(setattr_, prepared_timeout_ms=-1)


def _forget_on_loading(setattr_: SetAttr, **fields: Any) -> None:
    read = transaction_world.read_value
    setattr_(transaction_world, "read_value", lambda data: read(data)._replace(**fields))


@found_in("one transactional id", 9)
def a_kept_transaction_leaves_its_producer(setattr_: SetAttr) -> None:
    """A new producer that keeps a prepared transaction gets that one's epoch."""
    make = transaction_rules._next_incarnation

    def same(stored: TransactionMetadata, request: Any, new_id: Any) -> Any:
        if not stored.is_prepared:
            return make(stored, request, new_id)
        return transaction_rules.present_producer(stored), NO_PRODUCER_ID, NO_EPOCH

    setattr_(transaction_rules, "_next_incarnation", same)


@found_in("one transactional id", 9)
def a_fence_does_not_raise_the_epoch(setattr_: SetAttr) -> None:
    fenced = transaction_rules.fenced

    def same(stored: TransactionMetadata, now: Any, by_epoch: int = NO_EPOCH) -> TransactionMetadata:
        raised = fenced(stored, now, by_epoch)
        return raised._replace(
            producer_epoch=stored.producer_epoch, last_producer_epoch=NO_EPOCH, client_transaction_version=0
        )

    setattr_(transaction_rules, "fenced", same)
    setattr_(transaction, "fenced", same)


@found_in("one transactional id", 3)
def an_id_in_doubt_decides_again(setattr_: SetAttr) -> None:
    handle = Transaction._handle

    def hasty(self: Transaction, waiting: Any, now: Any) -> None:
        if self._change is not None and self._change.retry_at_ms < math.inf:
            self._change = None
        handle(self, waiting, now)

    setattr_(Transaction, "_handle", hasty)


@found_in("one transactional id", 0)
def producers_get_the_epoch_of_the_last_fence(setattr_: SetAttr) -> None:
    setattr_(transaction_rules, "LAST_EPOCH", transaction_rules.LAST_EPOCH + 1)


@found_in("one transactional id", 716)
def any_end_of_a_prepared_transaction_gives_the_next_epoch(setattr_: SetAttr) -> None:
    """The first version of the rules."""
    setattr_(transaction_rules, "_follows", lambda after, by: True)
