"""One transactional id: producers that come, go and are fenced; transactions that begin, end and hang."""

import pytest

from barnabas.broker.coordinators.state_machine import MAX_CLOCK_SKEW_MS
from barnabas.broker.coordinators.transactions.records import TransactionMetadata, read_value, to_bytes
from barnabas.broker.coordinators.transactions.requests import MAX_WAITING, WAIT_MS
from barnabas.broker.coordinators.transactions.rules import LAST_EPOCH
from barnabas.broker.coordinators.transactions.state import IllegalTransition, TransactionState
from barnabas.broker.coordinators.transactions.transaction import APPEND_RETRY_MS
from barnabas.broker.replication.marker_writer import TransactionMarker
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import ProducerId
from barnabas.protocol.messages.produce import InitProducerIdResponse
from barnabas.protocol.messages.transactions import EndTxnResponse
from tests.support.defaults import CONFIG
from tests.support.transacting import (
    FIRST_ID,
    OK,
    P0,
    P1,
    P2,
    TIMEOUT_MS,
    TransactionRig,
    abort,
    add,
    commit,
    ended,
    given,
    init,
    ongoing,
    verify,
)

S = TransactionState


def test_a_transaction_is_committed() -> None:
    rig = TransactionRig()
    rig.do_all(init())
    assert rig.do_all(add(0, P0, P1)) is OK
    assert rig.state is S.ONGOING

    assert rig.send(commit(0)) is None
    assert not rig.markers
    rig.settle()
    assert rig.answer() == ended(0)
    assert rig.state is S.PREPARE_COMMIT
    ((number, marker),) = rig.markers
    assert (number, set(marker.partitions)) == (1, {P0, P1})
    assert marker == TransactionMarker(FIRST_ID, 0, True, 7, marker.partitions)

    rig.write_markers([P0])
    assert not rig.appends
    rig.write_markers([P1])
    rig.settle()
    assert rig.state is S.COMPLETE_COMMIT
    assert not rig.machine.is_droppable


# ---- the epoch of each transaction


def test_torn_transaction_of_version_1() -> None:
    """A delayed EndTxn of transaction 1 ends transaction 2, in Kafka too: nothing tells the two apart.

    The producer gets no answer, asks again, and goes on. Then the first request arrives after all.
    """
    rig = ongoing()
    delayed = commit(0)
    assert rig.do_all(commit(0)) == ended(0)

    rig.do_all(add(0, P0))
    assert rig.send(delayed, "delayed") is None
    rig.settle()
    ((_, first_half),) = rig.markers
    rig.finish()
    # The producer does not notice. It adds the rest of transaction 2, then aborts it.
    assert rig.do_all(add(0, P1)) is OK
    rig.send(abort(0))
    rig.settle()
    assert rig.answer() == ended(0)
    ((_, second_half),) = rig.markers
    assert (first_half.partitions, first_half.committed) == ((P0,), True)
    assert (second_half.partitions, second_half.committed) == ((P1,), False)


def test_a_delayed_end_cannot_tear_a_transaction_with_its_own_epoch() -> None:
    rig = ongoing()
    delayed = commit(0, 2)
    assert rig.do_all(commit(0, 2)) == ended(1)

    rig.do_all(add(1, P0))
    assert rig.send(delayed) == EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
    assert rig.state is S.ONGOING
    assert not rig.appends


def test_a_repeated_end_gets_the_same_answer_until_another_transaction_begins() -> None:
    rig = ongoing()
    rig.send(commit(0, 2))
    rig.settle()
    assert rig.answer() == ended(1)
    assert rig.send(commit(0, 2)) == ended(1)
    rig.finish()
    assert rig.send(commit(0, 2)) == ended(1)
    assert rig.send(abort(0, 2)) == EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE)


def test_an_abort_without_a_beginning_raises_the_epoch() -> None:
    rig = TransactionRig()
    rig.do_all(init())
    assert rig.do_all(abort(0, 2)) == ended(1)
    assert rig.state is S.COMPLETE_ABORT
    assert not rig.markers


def test_the_last_epoch_is_followed_by_a_new_producer_id() -> None:
    last = TransactionMetadata(
        S.ONGOING, ProducerId(7), LAST_EPOCH, TIMEOUT_MS, 0, frozenset({P0}), rig_wall()
    )
    rig = TransactionRig(last, gives_ids=False)
    assert rig.send(commit(LAST_EPOCH, 2, producer_id=7)) is None
    assert rig.ids_wanted == 1
    rig.give_id()
    rig.settle()
    assert rig.answer() == ended(0)
    assert rig.markers[0].marker.producer_id == 7
    assert rig.markers[0].marker.producer_epoch == LAST_EPOCH + 1

    # The next transaction waits for the markers although the stored id is the former one.
    assert rig.send(add(0, P1)) is None
    rig.load(rig.stored)
    rig.finish()
    assert rig.stored.producer_id == FIRST_ID
    assert rig.do_all(commit(LAST_EPOCH, 2, producer_id=7)) == ended(0)
    assert rig.do_all(add(0, P1)) is OK


def test_the_fence_of_the_last_epoch_can_be_stored() -> None:
    last = TransactionMetadata(
        S.ONGOING, ProducerId(7), LAST_EPOCH, TIMEOUT_MS, 0, frozenset({P0}), rig_wall()
    )
    rig = TransactionRig(last)
    assert rig.send(init()) is None
    (record,) = rig.appends[0].records
    _, stored = to_bytes(record, 2)
    assert stored is not None
    assert read_value(stored).producer_epoch == LAST_EPOCH + 1


def test_a_late_report_says_nothing_about_the_present_markers() -> None:
    rig = ongoing()
    assert rig.do_all(commit(0, 2)) == ended(1)
    assert rig.do_all(add(1, P0)) is OK
    rig.send(commit(1, 2))
    rig.settle()
    rig.apply(lambda machine, now: machine.markers_written(rig.markers[-1].number - 1, [P0], now))
    assert not rig.appends
    rig.write_markers()
    assert rig.appends


def rig_wall() -> int:
    return TransactionRig().now.wall_ms


# ---- InitProducerId


def test_a_new_producer_fences_the_former_one_and_aborts_its_transaction() -> None:
    rig = ongoing()
    assert rig.send(init(), "init") is None
    rig.settle()
    assert rig.markers[0].marker.producer_epoch == 1
    assert not rig.markers[0].marker.committed
    assert rig.send(commit(0)) == EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)

    rig.finish()
    assert rig.answer("init") == given(2)
    assert rig.send(add(0)) is ErrorCode.PRODUCER_FENCED
    assert rig.send(verify(0, P0)) == {P0: ErrorCode.PRODUCER_FENCED}
    assert rig.send(add(2, producer_id=9)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_that_recovers_has_its_own_transaction_aborted() -> None:
    rig = ongoing()
    assert rig.do_all(init(FIRST_ID, 0)) == given(1)
    assert rig.do_all(add(1)) is OK


def test_a_zombie_that_recovers_does_not_end_the_transaction_of_the_present_producer() -> None:
    rig = ongoing(epoch=1)
    assert rig.send(init(FIRST_ID, 0)) == InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED)
    assert rig.state is S.ONGOING


@pytest.mark.parametrize("expected", [(-1, -1), (7, LAST_EPOCH)])
def test_an_exhausted_epoch_gets_a_new_producer_id(expected: tuple[int, int]) -> None:
    rig = TransactionRig(TransactionMetadata(S.EMPTY, ProducerId(7), LAST_EPOCH, TIMEOUT_MS, 0))
    assert rig.do_all(init(*expected)) == given(0)
    repeated = rig.do_all(init(7, LAST_EPOCH))
    assert repeated == (
        given(0) if expected[0] == 7 else InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED)
    )


@pytest.mark.parametrize("half", [(7, -1), (-1, 7)])
def test_half_a_producer_is_an_invalid_request(half: tuple[int, int]) -> None:
    assert TransactionRig().send(init(*half)) == InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)


# ---- waiting


def test_partitions_that_are_added_during_an_append_share_the_next_record() -> None:
    rig = TransactionRig()
    rig.do_all(init())
    assert rig.send(add(0, P0), "a") is None
    assert rig.send(add(0, P1), "b") is None
    assert rig.send(add(0, P1, P2), "c") is None
    assert rig.send(add(0, P2), "d") is None
    rig.settle()
    assert rig.answers == {"a": OK}
    (append,) = rig.appends
    assert [record.value.partitions for record in append.records if record.value] == [{P0, P1, P2}]
    rig.settle()
    assert rig.answers == dict.fromkeys("abcd", OK)
    assert not rig.appends


@pytest.mark.parametrize("error", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE])
def test_a_completion_goes_on_without_the_additions_that_the_log_refused(error: ErrorCode) -> None:
    rig = ongoing()
    rig.send(commit(0, version=2))
    rig.settle()
    rig.send(add(1, P1), "a")
    rig.write_markers()
    rig.settle(error)
    assert rig.answer("a") not in (None, OK)
    rig.pass_time(APPEND_RETRY_MS)
    (append,) = rig.appends
    assert [record.value.state for record in append.records if record.value] == [S.COMPLETE_COMMIT]
    rig.settle()
    assert rig.state is S.COMPLETE_COMMIT


def test_a_completion_with_additions_that_may_be_in_the_log_is_appended_again() -> None:
    rig = ongoing()
    rig.send(commit(0, version=2))
    rig.settle()
    rig.send(add(1, P1), "a")
    rig.write_markers()
    (first,) = rig.appends
    rig.settle(ErrorCode.REQUEST_TIMED_OUT)
    assert rig.answer("a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert rig.send(add(1, P1), "again") is None
    rig.pass_time(APPEND_RETRY_MS)
    assert rig.appends[0].records == first.records
    rig.settle()
    assert rig.answer("again") is OK
    assert rig.stored.partitions == {P1}


def test_a_completion_is_followed_by_no_addition_behind_another_request() -> None:
    rig = ongoing()
    rig.send(commit(0))
    rig.settle()
    rig.answers.clear()
    rig.send(init(), "new")
    rig.send(add(0, P1), "old")
    rig.finish()
    assert rig.answer("new") == given(1)
    assert rig.answer("old") is ErrorCode.PRODUCER_FENCED


def test_partitions_are_verified_while_others_are_added() -> None:
    rig = ongoing()
    assert rig.send(add(0, P2), "add") is None
    assert rig.send(verify(0, P0, P1)) == {P0: OK, P1: OK}
    assert rig.send(verify(0, P2)) is None
    rig.settle()
    assert rig.answer("add") is OK
    assert rig.answer() == {P2: OK}


def test_a_request_waits_until_its_deadline() -> None:
    rig = ongoing()
    rig.send(commit(0))
    rig.settle()
    rig.answer()
    assert rig.send(add(0)) is None
    rig.pass_time(WAIT_MS - 1)
    assert rig.answer() is None
    rig.pass_time(1)
    assert rig.answer() is ErrorCode.CONCURRENT_TRANSACTIONS


def test_too_many_requests_do_not_wait() -> None:
    rig = ongoing()
    rig.send(commit(0), "end")
    for number in range(MAX_WAITING):
        assert rig.send(commit(0), str(number)) is None
    assert rig.send(commit(0), "more") == EndTxnResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
    rig.finish()
    assert len(rig.answers) == MAX_WAITING + 1


def test_a_zombie_does_not_wait() -> None:
    rig = ongoing(epoch=1)
    rig.send(commit(1), "end")
    assert rig.send(commit(0)) == EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)


# ---- time


def test_a_transaction_times_out() -> None:
    rig = ongoing()
    rig.pass_time(TIMEOUT_MS - 1)
    assert rig.state is S.ONGOING
    rig.pass_time(1)
    rig.finish()
    assert rig.state is S.COMPLETE_ABORT
    assert rig.stored.producer_epoch == 1
    assert rig.send(commit(0)) == EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
    assert rig.send(add(0)) is ErrorCode.PRODUCER_FENCED


def move_coordinator(rig: TransactionRig, ahead_ms: float = 0) -> None:
    """The next coordinator, whose wall clock is ahead."""
    rig.now_ms += ahead_ms
    rig.load(rig.stored)


@pytest.mark.parametrize("ahead_ms", [-MAX_CLOCK_SKEW_MS, 2 * TIMEOUT_MS, MAX_CLOCK_SKEW_MS])
def test_a_clock_that_differs_aborts_no_fresh_transaction(ahead_ms: int) -> None:
    rig = ongoing()
    move_coordinator(rig, ahead_ms)
    assert rig.do_all(add(0, P2)) is OK
    rig.pass_time(TIMEOUT_MS - 1)
    assert rig.state is S.ONGOING
    rig.pass_time(1)
    rig.finish()
    assert rig.state is S.COMPLETE_ABORT


def test_a_clock_that_is_set_while_a_transaction_begins_aborts_it_no_earlier() -> None:
    rig = TransactionRig()
    rig.do_all(init())
    assert rig.send(add(0, P0)) is None
    rig.wall_ahead_ms = 2 * TIMEOUT_MS
    rig.settle()
    rig.pass_time(TIMEOUT_MS - 1)
    assert rig.state is S.ONGOING
    rig.pass_time(1)
    assert rig.state is S.PREPARE_EPOCH_FENCE


def test_a_transaction_times_out_although_its_coordinator_moves_again_and_again() -> None:
    rig = ongoing()
    while rig.now_ms < TIMEOUT_MS + MAX_CLOCK_SKEW_MS:
        assert rig.state is S.ONGOING
        move_coordinator(rig)
        rig.pass_time(TIMEOUT_MS / 2)
    rig.finish()
    assert rig.state is S.COMPLETE_ABORT


def test_added_partitions_do_not_prolong_a_loaded_transaction() -> None:
    rig = ongoing()
    move_coordinator(rig)
    rig.pass_time(TIMEOUT_MS - 1)
    assert rig.do_all(add(0, P2)) is OK
    rig.pass_time(1)
    assert rig.state is S.PREPARE_EPOCH_FENCE


@pytest.mark.parametrize("ahead_ms", [-MAX_CLOCK_SKEW_MS, MAX_CLOCK_SKEW_MS])
def test_a_clock_that_differs_expires_no_id_early(ahead_ms: int) -> None:
    rig = TransactionRig()
    rig.do_all(init())
    move_coordinator(rig, ahead_ms)
    rig.now_ms += CONFIG.transactional_id_expiration_ms - 1
    rig.apply(lambda machine, now: machine.expire(now))
    assert not rig.appends
    rig.now_ms += 1
    rig.apply(lambda machine, now: machine.expire(now))
    assert rig.appends


def test_a_clock_that_is_set_forward_expires_no_id_early() -> None:
    rig = TransactionRig()
    rig.do_all(init())
    rig.wall_ahead_ms = MAX_CLOCK_SKEW_MS
    rig.now_ms += CONFIG.transactional_id_expiration_ms - 1
    rig.apply(lambda machine, now: machine.expire(now))
    assert not rig.appends


def test_an_unused_id_expires() -> None:
    rig = TransactionRig()
    rig.do_all(init())
    rig.now_ms += CONFIG.transactional_id_expiration_ms - 1
    rig.apply(lambda machine, now: machine.expire(now))
    assert not rig.appends
    rig.now_ms += 1
    rig.apply(lambda machine, now: machine.expire(now))
    assert rig.appends[0].records[0].value is None
    assert rig.send(init()) is None
    rig.settle()
    assert rig.answer() == InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
    assert rig.machine.is_droppable


# ---- views


def test_an_unknown_id_is_not_found_and_can_be_dropped() -> None:
    rig = TransactionRig()
    assert rig.machine.describe() is None
    assert rig.send(add(0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert rig.send(add(-1, producer_id=-1)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert rig.machine.is_droppable


def test_an_ongoing_transaction_is_described_and_listed() -> None:
    rig = ongoing()
    described = rig.machine.describe()
    assert described.transaction_state == "Ongoing"
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("t", [0, 1])]
    assert described.transaction_start_time_ms == rig.now.wall_ms
    assert rig.machine.listed().transaction_state == "Ongoing"


def test_an_illegal_move_changes_nothing() -> None:
    rig = TransactionRig()
    rig.do_all(init())
    before = rig.stored
    with pytest.raises(IllegalTransition):
        rig.machine._fence(before)
    assert rig.stored is before
    assert rig.do_all(add(0)) is OK
