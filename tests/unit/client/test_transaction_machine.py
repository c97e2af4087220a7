"""The states of a transactional producer: which call is legal when, and what errors do to it."""

from typing import Any

import pytest

from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import (
    BarnabasError,
    ConnectionClosed,
    DeliveryTimedOut,
    ErrorCode,
    IllegalTransactionState,
    ProducerFenced,
    RequestTimedOutLocally,
    TransactionAbortable,
    Unencodable,
)
from barnabas.client.producer.transactions import State, Step, TransactionMachine
from barnabas.client.reactions import Api, Reaction, reaction_to
from barnabas.protocol.errors import api_error
from barnabas.protocol.ids import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST, SECOND = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(7, 1)
OF_TRANSACTIONS = list(Api)[list(Api).index(Api.INIT_PRODUCER_ID) : list(Api).index(Api.DESCRIBE_TXN)]
REFUSED = api_error(ErrorCode.INVALID_RECORD, "no")

CALLS = [Step.BEGIN, Step.SEND_OFFSETS, Step.PREPARE, Step.COMMIT, Step.ABORT]
S = State
NEXT: dict[State, list[Any]] = {
    # From: after begin, send_offsets, prepare, commit, abort; None if the call is refused
    S.UNINITIALIZED: [None, None, None, None, None],
    S.INITIALIZING: [None, None, None, None, None],
    S.READY: [S.IN_TRANSACTION, None, None, None, None],
    S.IN_TRANSACTION: [None, S.IN_TRANSACTION, S.PREPARED, S.COMMITTING, S.ABORTING],
    S.PREPARED: [None, None, S.PREPARED, S.COMMITTING, S.ABORTING],
    S.COMMITTING: [None, None, None, S.COMMITTING, None],
    S.ABORTING: [None, None, None, None, S.ABORTING],
    S.ABORTABLE_ERROR: [None, None, None, None, S.ABORTING],
    S.FATAL_ERROR: [None, None, None, None, None],
}


def machine_in(state: State, *, is_new: bool = True) -> TransactionMachine:
    """A machine that came into a state by legal steps, with a transaction that was sent if it has one."""
    machine = TransactionMachine("x")
    if state is S.UNINITIALIZED:
        return machine
    machine.step(Step.INITIALIZE)
    if state is S.INITIALIZING:
        return machine
    machine.initialized(FIRST)
    if state is S.READY:
        return machine
    machine.step(Step.BEGIN)
    machine.uses_new_protocol = is_new
    machine.is_started = machine.is_confirmed = True
    if state in (S.PREPARED, S.COMMITTING, S.ABORTING):
        machine.step({S.PREPARED: Step.PREPARE, S.COMMITTING: Step.COMMIT, S.ABORTING: Step.ABORT}[state])
    elif state is S.ABORTABLE_ERROR:
        machine.failed(Reaction.ABORT, REFUSED)
    elif state is S.FATAL_ERROR:
        machine.failed(Reaction.FENCED, api_error(ErrorCode.PRODUCER_FENCED))
    assert machine.state is state
    return machine


@pytest.mark.parametrize(
    ("state", "call", "expected"),
    [
        (state, call, expected)
        for state, row in NEXT.items()
        for call, expected in zip(CALLS, row, strict=True)
    ],
)
def test_a_call_is_taken_or_refused_without_a_change(
    state: State, call: Step, expected: State | None
) -> None:
    machine = machine_in(state)
    if expected is not None:
        machine.step(call)
        assert machine.state is expected
        return
    before = {name: str(value) for name, value in vars(machine).items()}
    error = {S.ABORTABLE_ERROR: TransactionAbortable, S.FATAL_ERROR: ProducerFenced}.get(
        state, IllegalTransactionState
    )
    for refuse in (machine.check, machine.step):
        with pytest.raises(error) as refusal:
            refuse(call)
        if error is IllegalTransactionState:
            assert str(refusal.value).startswith(call.value)
    assert {name: str(value) for name, value in vars(machine).items()} == before


@pytest.mark.parametrize("state", list(State))
def test_records_are_taken_in_a_transaction_only(state: State) -> None:
    machine = machine_in(state)
    assert (machine.refusal() is None) is (state is S.IN_TRANSACTION)
    assert (machine.identity_for(T0) is not None) is (state in (S.IN_TRANSACTION, S.COMMITTING))
    assert (machine.dropped() is not None) is (state in (S.ABORTING, S.ABORTABLE_ERROR, S.FATAL_ERROR))


@pytest.mark.parametrize("state", list(State))
def test_a_fatal_error_ends_the_producer_in_every_state(state: State) -> None:
    machine = machine_in(state)
    machine.failed(Reaction.FAIL, REFUSED)
    assert machine.state is S.FATAL_ERROR
    machine.failed(Reaction.ABORT, api_error(ErrorCode.UNKNOWN_PRODUCER_ID))
    assert machine.state is S.FATAL_ERROR


@pytest.mark.parametrize("state", list(State))
def test_an_abortable_error_concerns_an_open_transaction_only(state: State) -> None:
    machine = machine_in(state)
    machine.failed(Reaction.ABORT, REFUSED)
    is_open = state in (S.IN_TRANSACTION, S.PREPARED, S.COMMITTING, S.ABORTABLE_ERROR)
    assert machine.state is (S.ABORTABLE_ERROR if is_open else state)


def test_the_first_error_of_a_transaction_is_kept() -> None:
    machine = machine_in(S.IN_TRANSACTION)
    machine.failed(Reaction.ABORT, REFUSED)
    machine.failed(Reaction.ABORT, api_error(ErrorCode.UNKNOWN_PRODUCER_ID))
    assert machine.failure().__cause__ is REFUSED


def test_after_an_error_the_next_transaction_has_another_epoch() -> None:
    machine = machine_in(S.ABORTABLE_ERROR)
    machine.step(Step.ABORT)
    machine.ended(None)
    assert machine.needs_new_epoch
    machine.step(Step.INITIALIZE)
    machine.not_initialized()
    assert (machine.state, machine.needs_new_epoch) == (S.READY, True)
    machine.step(Step.INITIALIZE)
    machine.initialized(SECOND)
    assert (machine.state, machine.needs_new_epoch, machine.identity) == (S.READY, False, SECOND)


def test_the_answer_of_the_end_has_the_next_identity() -> None:
    machine = machine_in(S.ABORTABLE_ERROR)
    machine.step(Step.ABORT)
    machine.ended(SECOND)
    assert (machine.identity, machine.needs_new_epoch, machine.error) == (SECOND, False, None)


@pytest.mark.parametrize("is_new", [True, False])
def test_an_end_without_an_answer_costs_the_old_protocol_its_epoch(is_new: bool) -> None:
    machine = machine_in(S.COMMITTING, is_new=is_new)
    machine.outdate_epoch()
    machine.ended(None)
    assert machine.needs_new_epoch is not is_new


def test_with_the_old_protocol_a_partition_waits_until_it_is_added() -> None:
    machine = machine_in(S.IN_TRANSACTION, is_new=False)
    assert machine.identity_for(T0) is None
    assert machine.identity_for(T1) is None
    assert machine.wanted == {T0, T1}
    machine.added([T0])
    assert machine.identity_for(T0) == FIRST
    assert machine.wanted == {T1}
    machine.step(Step.COMMIT)
    machine.ended(None)
    machine.step(Step.BEGIN)
    assert machine.identity_for(T0) is None


@pytest.mark.parametrize(
    ("code", "is_confirmed", "reaction"),
    [
        (ErrorCode.INVALID_TXN_STATE, False, None),
        (ErrorCode.INVALID_TXN_STATE, True, Reaction.FAIL),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, True, None),
        (ErrorCode.PRODUCER_FENCED, False, Reaction.FENCED),
    ],
)
def test_an_abort_of_what_never_began_is_over(
    code: ErrorCode, is_confirmed: bool, reaction: Reaction | None
) -> None:
    machine = machine_in(S.ABORTING)
    machine.is_confirmed = is_confirmed
    assert machine.reaction_to_refused_end(api_error(code), committed=False) is reaction
    assert machine.needs_new_epoch is (reaction is None)


@pytest.mark.parametrize("is_new", [True, False])
def test_only_with_an_epoch_of_its_own_can_a_transaction_that_timed_out_be_told(is_new: bool) -> None:
    machine = machine_in(S.COMMITTING, is_new=is_new)
    not_ongoing = api_error(ErrorCode.INVALID_TXN_STATE)
    expected = Reaction.ABORT if is_new else Reaction.FAIL
    assert machine.reaction_to_refused_end(not_ongoing, committed=True) is expected
    fenced = api_error(ErrorCode.PRODUCER_FENCED)
    assert machine.reaction_to_refused_end(fenced, committed=True) is Reaction.FENCED


@pytest.mark.parametrize("api", OF_TRANSACTIONS)
@pytest.mark.parametrize(
    ("error", "reaction"),
    [
        (ConnectionClosed("lost"), Reaction.FIND_COORDINATOR),
        (RequestTimedOutLocally("late"), Reaction.FIND_COORDINATOR),
        (api_error(ErrorCode.NOT_COORDINATOR), Reaction.FIND_COORDINATOR),
        (api_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), Reaction.RETRY),
        (api_error(ErrorCode.CONCURRENT_TRANSACTIONS), Reaction.RETRY),
        (api_error(ErrorCode.PRODUCER_FENCED), Reaction.FENCED),
        (api_error(ErrorCode.TRANSACTION_ABORTABLE), Reaction.ABORT),
        (api_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), Reaction.FAIL),
    ],
    ids=str,
)
def test_these_errors_are_of_one_kind_in_every_answer(
    api: Api, error: BarnabasError, reaction: Reaction
) -> None:
    assert reaction_to(api, error) is reaction


@pytest.mark.parametrize("api", OF_TRANSACTIONS)
@pytest.mark.parametrize(
    "code", [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION]
)
def test_a_producer_without_permission_ends_unless_it_only_may_not_prepare(api: Api, code: ErrorCode) -> None:
    expected = Reaction.REFUSED if api is Api.PREPARE_TXN else Reaction.FAIL
    assert reaction_to(api, api_error(code)) is expected


@pytest.mark.parametrize(
    ("api", "error", "reaction"),
    [
        (Api.PRODUCE, DeliveryTimedOut("late"), Reaction.ABORT),
        (Api.PRODUCE, api_error(ErrorCode.INVALID_PRODUCER_EPOCH), Reaction.ABORT),
        (Api.END_TXN, api_error(ErrorCode.INVALID_PRODUCER_EPOCH), Reaction.FENCED),
        (Api.PRODUCE, api_error(ErrorCode.INVALID_TXN_STATE), Reaction.ABORT),
        (Api.COMMIT_OFFSETS, api_error(ErrorCode.INVALID_PRODUCER_EPOCH), Reaction.ABORT),
        (Api.COMMIT_OFFSETS, api_error(ErrorCode.INVALID_TXN_STATE), Reaction.ABORT),
        (Api.END_TXN, api_error(ErrorCode.INVALID_TXN_STATE), Reaction.FAIL),
        (Api.COMMIT_OFFSETS, api_error(ErrorCode.ILLEGAL_GENERATION), Reaction.ABORT),
        (Api.COMMIT_OFFSETS, api_error(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT), Reaction.FAIL),
        (Api.ADD_PARTITIONS, api_error(ErrorCode.OPERATION_NOT_ATTEMPTED), Reaction.ABORT),
        (Api.INIT_PRODUCER_ID, api_error(ErrorCode.INVALID_TRANSACTION_TIMEOUT), Reaction.FAIL),
        (Api.END_TXN, Unencodable("too long"), Reaction.FAIL),
    ],
    ids=str,
)
def test_these_errors_depend_on_the_request(api: Api, error: BarnabasError, reaction: Reaction) -> None:
    assert reaction_to(api, error) is reaction


@pytest.mark.parametrize(("end", "outcome"), [(Step.COMMIT, "committed"), (Step.ABORT, "aborted")])
def test_a_call_after_the_end_names_the_outcome(end: Step, outcome: str) -> None:
    """The call that ended it may have been cancelled: its caller asks again."""
    machine = machine_in(S.IN_TRANSACTION)
    machine.step(end)
    machine.ended(SECOND)
    with pytest.raises(IllegalTransactionState, match=f"since the last one was {outcome}; call begin"):
        machine.check(end)
