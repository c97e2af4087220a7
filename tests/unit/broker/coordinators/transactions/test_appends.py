"""Appends of a transactional id fail, have an unknown outcome, or end with the coordinator."""

import math

import pytest

from barnabas.broker.coordinators.transactions.records import TransactionMetadata
from barnabas.broker.coordinators.transactions.rules import LAST_EPOCH
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.coordinators.transactions.transaction import APPEND_RETRY_MS, MAX_APPEND_RETRY_MS
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_PRODUCER_ID, ProducerId, TopicPartition
from barnabas.protocol.messages.produce import InitProducerIdResponse
from barnabas.protocol.messages.transactions import EndTxnResponse
from tests.support.defaults import CONFIG
from tests.support.transacting import (
    FIRST_ID,
    OK,
    P0,
    P2,
    TIMEOUT_MS,
    TransactionRig,
    abort,
    add,
    commit,
    given,
    init,
    ongoing,
    verify,
)

S = TransactionState


# ---- appends that fail

UNCERTAIN = [
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]


@pytest.mark.parametrize("error", UNCERTAIN)
def test_a_decision_that_may_be_in_the_log_is_not_reversed(error: ErrorCode) -> None:
    rig = ongoing()
    rig.send(commit(0))
    decision = rig.appends[0].records
    rig.settle(error)
    assert rig.answer().error_code != OK
    # Neither a contrary end nor the time-out nor a new producer decides otherwise.
    assert rig.send(abort(0), "abort") is None
    assert rig.send(init(), "init") is None
    assert not rig.appends
    rig.pass_time(APPEND_RETRY_MS)
    assert [append.records for append in rig.appends] == [decision]
    rig.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    rig.pass_time(TIMEOUT_MS)
    assert [append.records for append in rig.appends] == [decision]
    rig.settle()
    assert rig.markers[0].marker.committed
    assert rig.answer("abort") == EndTxnResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)


def test_a_fence_is_appended_until_the_log_has_it() -> None:
    rig = ongoing()
    rig.send(init())
    assert rig.state is S.PREPARE_EPOCH_FENCE
    rig.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert rig.send(commit(0), "end") is None
    rig.pass_time(APPEND_RETRY_MS)
    rig.finish()
    assert rig.answer() == given(2)
    assert rig.answer("end") == EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)


def test_the_time_between_appends_grows() -> None:
    rig = ongoing()
    rig.send(commit(0))
    waits = []
    for _ in range(8):
        rig.settle(ErrorCode.REQUEST_TIMED_OUT)
        waits.append(rig.machine.next_deadline_ms - rig.now_ms)
        rig.pass_time(waits[-1])
    assert waits == [100, 200, 400, 800, *[MAX_APPEND_RETRY_MS] * 4]


def test_a_machine_says_whether_it_appends_a_record_again() -> None:
    rig = ongoing()
    assert not rig.machine.is_retrying_append
    rig.send(commit(0))
    assert not rig.machine.is_retrying_append
    rig.settle(ErrorCode.REQUEST_TIMED_OUT)
    assert rig.machine.is_retrying_append
    rig.pass_time(APPEND_RETRY_MS)
    rig.finish()
    assert not rig.machine.is_retrying_append


def test_a_request_that_waits_for_an_append_is_decided_when_it_fails() -> None:
    rig = ongoing()
    rig.send(commit(0), "end")
    assert rig.send(verify(0, P0), "verify") is None
    rig.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert rig.answer("verify") == {P0: OK}


def test_partitions_that_waited_are_added_once() -> None:
    rig = ongoing()
    rig.send(add(0, P2), "first")
    assert rig.send(add(0, TopicPartition("u", 0)), "second") is None
    rig.settle()
    rig.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert (rig.answer("first"), rig.answer("second")) == (OK, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    rig.pass_time(APPEND_RETRY_MS)
    assert not rig.appends


# ---- new producer ids

LAST = TransactionMetadata(S.EMPTY, ProducerId(7), LAST_EPOCH, TIMEOUT_MS, 0)


def test_an_id_is_asked_for_once_and_again_after_a_refusal() -> None:
    rig = TransactionRig(gives_ids=False)
    assert rig.machine.next_deadline_ms == math.inf
    for token in ("a", "b"):
        assert rig.send(init(), token) is None
    assert rig.ids_wanted == 1
    rig.give_id(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert [rig.answer(token).error_code for token in ("a", "b")] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    assert rig.send(init()) is None
    assert rig.ids_wanted == 1


def test_an_id_is_given_to_one_producer() -> None:
    rig = TransactionRig(LAST)
    assert rig.do_all(init()) == given(0)
    rig.machine.stored = rig.stored._replace(producer_epoch=LAST_EPOCH)
    assert rig.do_all(init()) == given(0, FIRST_ID + 1)


def test_a_request_survives_the_refusal_of_an_id_that_it_does_not_need_yet() -> None:
    rig = TransactionRig(LAST, gives_ids=False)
    assert rig.send(init(), "init") is None
    rig.send(add(LAST_EPOCH, producer_id=7))
    rig.apply(
        lambda machine, now: machine.producer_id_given(
            NO_PRODUCER_ID, ErrorCode.COORDINATOR_NOT_AVAILABLE, now
        )
    )
    assert rig.answer("init") is None, "while the addition is appended"
    rig.settle()
    rig.settle()
    assert rig.state is S.PREPARE_ABORT
    rig.apply(
        lambda machine, now: machine.producer_id_given(
            NO_PRODUCER_ID, ErrorCode.COORDINATOR_NOT_AVAILABLE, now
        )
    )
    assert rig.answer("init") is None, "while the former transaction ends"
    rig.finish()
    rig.give_id()
    rig.finish()
    assert rig.answer("init").error_code == OK


def test_an_id_in_use_does_not_expire_and_a_failed_expiry_is_not_repeated() -> None:
    rig = TransactionRig(LAST, gives_ids=False)
    rig.now_ms = CONFIG.transactional_id_expiration_ms
    rig.send(init())
    rig.apply(lambda machine, now: machine.expire(now))
    assert not rig.appends
    rig.give_id(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    rig.apply(lambda machine, now: machine.expire(now))
    rig.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert (rig.machine.next_deadline_ms, rig.state) == (math.inf, S.EMPTY)


# ---- moves


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_EPOCH_FENCE])
def test_a_loaded_decision_is_appended_until_the_log_has_it(state: TransactionState) -> None:
    rig = TransactionRig(ongoing().stored._replace(state=state))
    rig.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    rig.pass_time(APPEND_RETRY_MS)
    rig.settle()
    assert rig.markers[0].marker.committed is (state is S.PREPARE_COMMIT)
    assert rig.state in (S.PREPARE_COMMIT, S.PREPARE_ABORT)


def test_a_loaded_transaction_that_is_over_time_ends_at_once() -> None:
    rig = TransactionRig(ongoing().stored._replace(start_timestamp_ms=0))
    assert rig.machine.next_deadline_ms == 0


def test_a_loaded_decision_is_replicated_before_its_markers_are_sent() -> None:
    rig = ongoing()
    rig.send(commit(0, 2))
    rig.settle()
    stored = rig.stored
    rig = TransactionRig(stored)
    assert not rig.markers
    assert rig.appends[0].records[0].value == stored
    rig.settle()
    assert rig.markers[0].marker.committed
    assert rig.markers[0].marker.transaction_version == 2
    rig.finish()
    assert rig.state is S.COMPLETE_COMMIT


def test_a_loaded_state_is_replicated_before_an_answer_rests_on_it() -> None:
    rig = TransactionRig(ongoing().stored)
    assert rig.send(verify(0, P0, P2)) is None
    rig.settle()
    assert rig.answer() == {P0: OK, P2: ErrorCode.TRANSACTION_ABORTABLE}
    assert rig.send(add(0, P0)) is OK


def test_a_confirmation_that_fails_is_the_answer() -> None:
    rig = TransactionRig(ongoing().stored)
    rig.send(add(0, P0))
    rig.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert rig.answer() is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_unloading_answers_all_that_wait() -> None:
    rig = ongoing()
    rig.send(commit(0), "end")
    rig.send(init(), "init")
    rig.apply(lambda machine, now: machine.unload(now))
    assert rig.answer("end") == EndTxnResponse(error_code=ErrorCode.NOT_COORDINATOR)
    assert rig.answer("init") == InitProducerIdResponse(error_code=ErrorCode.NOT_COORDINATOR)
    assert rig.machine.next_deadline_ms == math.inf
    assert rig.send(add(0)) is ErrorCode.NOT_COORDINATOR
    rig.settle()
    assert not rig.markers
