"""Known mistakes of producers and transactions: rules, coordinators, markers, logs; see `planted`."""

import math
from collections.abc import Callable
from typing import Any

from barnabas.broker.coordinators.groups.offsets import GroupOffsets
from barnabas.broker.coordinators.state_machine import Moment
from barnabas.broker.coordinators.transactions import coordinator, marker_queue, rules, transaction
from barnabas.broker.coordinators.transactions.records import NO_EPOCH, TransactionMetadata
from barnabas.broker.coordinators.transactions.state import DECIDED, TransactionState
from barnabas.broker.coordinators.transactions.transaction import Transaction
from barnabas.broker.coordinators.transactions.verification import TransactionVerification
from barnabas.broker.log import recovery
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_transactions import LogTransactions
from barnabas.broker.log.producer_state import AppendOrigin, ProducerState, ProducerStates
from barnabas.broker.replication import marker_writer as markers
from barnabas.broker.replication.marker_writer import TransactionMarker
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_PRODUCER_ID, Offset
from tests.simulation.exactly_once_clients import DATA
from tests.simulation.planted import SetAttr, found_in, of_compiled_code
from tests.simulation.promises import Promise


@found_in("exactly once", 135)
def markers_are_sent_before_the_decision_is_replicated(setattr_: SetAttr) -> None:
    append, request = Transaction._append, Transaction._request_markers

    def hasty(self: Transaction, change: Any) -> None:
        append(self, change)
        if change.target is not None and change.target.state in DECIDED:
            request(self, change.target)
            self._missing_markers = None

    setattr_(Transaction, "_append", hasty)


@found_in("exactly once", 73, alone=Promise.STATES)
def an_append_that_timed_out_has_failed(setattr_: SetAttr) -> None:
    """Kafka decides again."""
    setattr_(transaction, "_NOT_APPENDED", frozenset(ErrorCode))


@found_in("exactly once", 38, alone=Promise.TIMEOUTS)
def stamps_of_other_clocks_are_believed(setattr_: SetAttr) -> None:
    """As in Kafka: a coordinator whose clock is ahead aborts transactions that have just begun."""
    setattr_(Moment, "latest", lambda self, stamp_ms: min(stamp_ms, self.wall_ms))


@found_in("exactly once", 374)
def a_loaded_decision_is_taken_for_replicated(setattr_: SetAttr) -> None:
    """Kafka sends the markers at once."""
    resume = Transaction.resume

    def trusting(self: Transaction, now: Any) -> Any:
        if self.state not in DECIDED:
            return resume(self, now)
        self._request_markers(self.stored)
        self._complete_if_all_have_markers(now)
        return None

    setattr_(Transaction, "resume", trusting)


@found_in("exactly once", 185)
def a_loaded_state_is_taken_for_replicated(setattr_: SetAttr) -> None:
    resume = Transaction.resume

    def trusting(self: Transaction, now: Any) -> Any:
        self._is_confirmed = True
        return resume(self, now)

    setattr_(Transaction, "resume", trusting)


@found_in("exactly once", 12, alone=Promise.MARKERS)
def a_transaction_is_complete_with_the_first_marker(setattr_: SetAttr) -> None:
    written = Transaction.markers_written

    def hasty(self: Transaction, number: int, partitions: Any, now: Any) -> Any:
        if self._missing_markers is not None and self._markers_number == number:
            partitions = self.stored.partitions
        return written(self, number, partitions, now)

    setattr_(Transaction, "markers_written", hasty)


@found_in("exactly once", 20, alone=Promise.FENCING)
def epochs_are_not_checked(setattr_: SetAttr) -> None:
    def trusting(stored: TransactionMetadata, request: Any) -> ErrorCode:
        is_known = stored.producer_id not in (NO_PRODUCER_ID, request.producer_id)
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING if is_known else ErrorCode.NONE

    setattr_(rules, "_identity_error", trusting)


@found_in("exactly once", 3, alone=Promise.PRODUCERS)
def a_new_producer_keeps_the_epoch(setattr_: SetAttr) -> None:
    make = rules._next_incarnation

    def same(stored: TransactionMetadata, request: Any, new_id: Any) -> Any:
        if stored.producer_id == NO_PRODUCER_ID:
            return make(stored, request, new_id)
        return rules.present_producer(stored), NO_PRODUCER_ID, NO_EPOCH

    setattr_(rules, "_next_incarnation", same)


@found_in("exactly once", 10)
def partitions_are_added_before_they_are_stored(setattr_: SetAttr) -> None:
    append = Transaction._append

    def hasty(self: Transaction, change: Any) -> None:
        append(self, change)
        if change.askers and change.target.state is TransactionState.ONGOING:
            for asker in change.askers:
                self.outbox.answer(asker.token, asker.response)
            change.askers = []

    setattr_(Transaction, "_append", hasty)


@found_in("exactly once", 737)
def ends_are_answered_before_they_are_stored(setattr_: SetAttr) -> None:
    append = Transaction._append

    def hasty(self: Transaction, change: Any) -> None:
        append(self, change)
        if change.askers and change.target.state in DECIDED:
            for asker in change.askers:
                self.outbox.answer(asker.token, asker.response)
            change.askers = []

    setattr_(Transaction, "_append", hasty)


@found_in("exactly once", 30)
def an_end_does_not_raise_the_epoch(setattr_: SetAttr) -> None:
    """Version 1 of transactions: a delayed EndTxn ends the next one."""
    end = rules._decide_end

    def former(stored: Any, request: Any, now: Any, new_id: Any) -> Any:
        return end(stored, request.__class__(*_fields(request)[:3], 0), now, new_id)

    setattr_(rules, "_decide_end", former)


def _fields(request: Any) -> list[Any]:
    return [getattr(request, name) for name in request.__slots__]


@found_in("exactly once", 0)
def a_repeated_end_ends_the_next_transaction(setattr_: SetAttr) -> None:
    def credulous(stored: TransactionMetadata, request: Any) -> bool:
        return bool(request.producer_id == stored.producer_id)

    setattr_(rules, "_is_end_of_prepared", credulous)


@found_in("exactly once", 37, alone=Promise.ENDS)
def prepared_transactions_time_out(setattr_: SetAttr) -> None:
    def impatient(stored: TransactionMetadata) -> int | None:
        timeout_ms = stored.prepared_timeout_ms if stored.is_prepared else stored.timeout_ms
        return stored.start_timestamp_ms + timeout_ms if stored.state is TransactionState.ONGOING else None

    setattr_(rules, "timeout_at_ms", impatient)


@found_in("exactly once", 3, alone=Promise.REST)
def transactions_never_time_out(setattr_: SetAttr) -> None:
    setattr_(rules, "timeout_at_ms", lambda stored: None)


@found_in("exactly once", 7)
def unloaded_requests_are_forgotten(setattr_: SetAttr) -> None:
    unload = Transaction.unload

    def silent(self: Transaction, now: Any) -> Any:
        self._waiting = None
        return unload(self, now)

    setattr_(Transaction, "unload", silent)


@found_in("exactly once", 15)
def any_id_expires(setattr_: SetAttr) -> None:
    setattr_(rules, "has_expired", lambda stored, limits, used_ms, now: True)


@found_in("exactly once", 12)
def a_record_does_not_tell_that_it_is_prepared(setattr_: SetAttr) -> None:
    _forget_on_loading(setattr_, prepared_timeout_ms=-1)


def _forget_on_loading(setattr_: SetAttr, **fields: Any) -> None:
    read = coordinator.read_value
    setattr_(coordinator, "read_value", lambda data: read(data)._replace(**fields))


@found_in("exactly once", 7)
def a_kept_transaction_leaves_its_producer(setattr_: SetAttr) -> None:
    """A new producer that keeps a prepared transaction gets that one's epoch."""
    make = rules._next_incarnation

    def same(stored: TransactionMetadata, request: Any, new_id: Any) -> Any:
        if not stored.is_prepared:
            return make(stored, request, new_id)
        return rules.present_producer(stored), NO_PRODUCER_ID, NO_EPOCH

    setattr_(rules, "_next_incarnation", same)


@found_in("exactly once", 5)
def a_fence_does_not_raise_the_epoch(setattr_: SetAttr) -> None:
    fenced = rules.fenced

    def same(stored: TransactionMetadata, now: Any, by_epoch: int = NO_EPOCH) -> TransactionMetadata:
        raised = fenced(stored, now, by_epoch)
        return raised._replace(
            producer_epoch=stored.producer_epoch, last_producer_epoch=NO_EPOCH, client_transaction_version=0
        )

    setattr_(rules, "fenced", same)


@found_in("exactly once", 20)
def an_id_in_doubt_decides_again(setattr_: SetAttr) -> None:
    handle = Transaction._handle

    def hasty(self: Transaction, waiting: Any, now: Any) -> None:
        if self._change is not None and self._change.retry_at_ms < math.inf:
            self._change = None
        handle(self, waiting, now)

    setattr_(Transaction, "_handle", hasty)


@found_in("exactly once", 24)
def producers_get_the_epoch_of_the_last_fence(setattr_: SetAttr) -> None:
    setattr_(rules, "LAST_EPOCH", rules.LAST_EPOCH + 1)


@found_in("exactly once", 2)
def markers_have_an_earlier_epoch(setattr_: SetAttr) -> None:
    """The logs have a later one, and refuse them."""
    marker = marker_queue._Part.marker

    def stale(self: Any) -> Any:
        built = marker(self)
        return built._replace(producer_epoch=max(0, built.producer_epoch - 1))

    setattr_(marker_queue._Part, "marker", stale)


@found_in("exactly once", 0)
def coordinators_are_not_asked(setattr_: SetAttr) -> None:
    """A leader begins a transaction that its coordinator does not know of."""
    setattr_(TransactionVerification, "asks", lambda self, adds: False)


@found_in("exactly once", 0)
def readers_get_no_aborted_transactions(setattr_: SetAttr) -> None:
    setattr_(Log, "aborted_transactions", lambda self, start, end, **_: [])


@found_in("exactly once", 6)
def an_ongoing_transaction_is_loaded_without_its_partitions(setattr_: SetAttr) -> None:
    read = coordinator.read_value

    def forgetful(data: bytes) -> TransactionMetadata:
        value = read(data)
        is_ongoing = value.state is TransactionState.ONGOING
        return value._replace(partitions=frozenset()) if is_ongoing else value

    setattr_(coordinator, "read_value", forgetful)


@found_in("exactly once", 12)
def a_refused_marker_counts_as_written(setattr_: SetAttr) -> None:
    """By a broker that does not lead the partition any more."""
    written = frozenset({*marker_queue._WRITTEN, ErrorCode.NOT_LEADER_OR_FOLLOWER})
    setattr_(marker_queue, "_WRITTEN", written)


@found_in("exactly once", 14)
def a_lost_marker_is_not_sent_again(setattr_: SetAttr) -> None:
    setattr_(marker_queue.MarkerQueue, "_retry", lambda self, part, leaders, pause_ms: None)


@found_in("exactly once", 1, alone=Promise.G1A)
def every_transaction_is_committed(setattr_: SetAttr) -> None:
    _mark(setattr_, lambda marker: marker._replace(committed=True))


@found_in("exactly once", 0, alone=Promise.COMPLETENESS)
def every_transaction_is_aborted(setattr_: SetAttr) -> None:
    _mark(setattr_, lambda marker: marker._replace(committed=False))


@found_in("exactly once", 1, alone=Promise.ATOMICITY)
def one_partition_gets_an_abort(setattr_: SetAttr) -> None:
    """If its leader gets no other markers."""

    def but_one(marker: TransactionMarker) -> TransactionMarker:
        return marker._replace(committed=marker.committed and set(marker.partitions) != {DATA[2]})

    _mark(setattr_, but_one)


def _mark(setattr_: SetAttr, change: Callable[[TransactionMarker], TransactionMarker]) -> None:
    marker = marker_queue._Part.marker
    setattr_(marker_queue._Part, "marker", lambda self: change(marker(self)))


@found_in("exactly once", 10, alone=Promise.G1B)
def pending_offsets_are_shown(setattr_: SetAttr) -> None:
    fetch = GroupOffsets.fetch

    def hasty(self: GroupOffsets, partition: Any, require_stable: bool) -> Any:
        committed, producers = dict(self._committed), self._producers(partition)
        if producers:
            self._committed[partition] = self._open[producers[-1]].pending[partition]
        answer = fetch(self, partition, require_stable)
        self._committed = committed
        return answer

    setattr_(GroupOffsets, "fetch", hasty)


@found_in("exactly once", 0)
def pending_offsets_count_at_once(setattr_: SetAttr) -> None:
    load_pending = GroupOffsets.load_pending

    def hasty(self: GroupOffsets, producer_id: int, partition: Any, committed: Any) -> None:
        load_pending(self, producer_id, partition, committed)
        self.load(partition, committed)

    setattr_(GroupOffsets, "load_pending", hasty)


@found_in("exactly once", 1, alone=Promise.OFFSETS)
def pending_offsets_count_after_an_abort(setattr_: SetAttr) -> None:
    _end_offsets(setattr_, is_commit=True)


@found_in("exactly once", 2)
def pending_offsets_are_dropped_by_a_commit(setattr_: SetAttr) -> None:
    _end_offsets(setattr_, is_commit=False)


def _end_offsets(setattr_: SetAttr, *, is_commit: bool) -> None:
    ended = GroupOffsets.transaction_ended
    setattr_(
        GroupOffsets,
        "transaction_ended",
        lambda self, end: ended(self, end._replace(is_commit=is_commit)),
    )


@found_in("exactly once", 0, alone=Promise.OFFSETS)
def pending_offsets_are_stable(setattr_: SetAttr) -> None:
    setattr_(GroupOffsets, "_is_unstable", lambda self, partition: False)


@found_in("markers", 0)
@found_in("exactly once", 0)
def everything_committed_is_stable(setattr_: SetAttr) -> None:
    setattr_(Log, "first_unstable_offset", lambda self, high_watermark: None)


@found_in("markers", 0)
def an_uncommitted_marker_ends_its_transaction(setattr_: SetAttr) -> None:
    """The marker is in the leader's log, and may still be truncated."""

    def hasty(self: LogTransactions, high_watermark: int) -> int | None:
        return next(iter(self._ongoing.values()), None)

    setattr_(LogTransactions, "first_unstable_offset", hasty)


@found_in("markers", 4)
def the_log_start_passes_the_last_stable_offset(setattr_: SetAttr) -> None:
    setattr_(Partition, "log_start_moved", lambda self: None)


@found_in("markers", 180)
def only_transactions_that_begin_in_the_range_are_aborted(setattr_: SetAttr) -> None:
    """A reader that begins within an aborted transaction sees the rest of its records."""
    aborted_transactions = Log.aborted_transactions

    def narrow(self: Log, start: int, end: int, **named: bool) -> Any:
        found = aborted_transactions(self, start, end, **named)
        return [one for one in found if one.first_offset >= start]

    setattr_(Log, "aborted_transactions", narrow)


@found_in("markers", 0)
@found_in("exactly once", 20)
def a_marker_is_answered_before_it_is_replicated(setattr_: SetAttr) -> None:
    """Its transaction stays open if the next leader does not have it."""
    setattr_(markers, "_ACKS_ALL", 1)


def markers_of_the_present_epoch_are_taken(setattr_: SetAttr) -> None:
    """Kafka before KIP-1228: a late marker of one transaction ends the next one of the same producer."""
    setattr_(markers, "_origin", lambda marker: AppendOrigin.MARKERS)


@found_in("idempotence", 0)
@of_compiled_code
def duplicates_are_not_recognized(setattr_: SetAttr) -> None:
    setattr_(ProducerState, "find", lambda self, header: None)


@found_in("idempotence", 0)
def any_sequence_is_accepted(setattr_: SetAttr) -> None:
    setattr_(ProducerStates, "check", lambda *_, **options: [])


@found_in("idempotence", 0)
def followers_learn_nothing(setattr_: SetAttr) -> None:
    follow = Log.append_as_follower

    def forgetful(self: Log, *arguments: Any) -> Any:
        states = self.producers
        self.producers = ProducerStates()
        try:
            return follow(self, *arguments)
        finally:
            self.producers = states

    setattr_(Log, "append_as_follower", forgetful)


@found_in("idempotence", 13)
def a_restart_loses_the_producers(setattr_: SetAttr) -> None:
    setattr_(recovery, "load_producers", lambda *_: ProducerStates())


@found_in("idempotence", 1008)
def truncated_batches_are_still_known(setattr_: SetAttr) -> None:
    setattr_(ProducerStates, "cut", lambda self, end: True)


@found_in("idempotence", 0)
@of_compiled_code
def a_duplicate_is_acknowledged_at_once(setattr_: SetAttr) -> None:
    """The original batch may not be on all replicas yet."""
    append = Partition.append_as_leader

    def hasty(self: Partition, *arguments: Any, **named: Any) -> Any:
        done = append(self, *arguments, **named)
        return done if done.record_count else done._replace(last_offset=Offset(-1))

    setattr_(Partition, "append_as_leader", hasty)
