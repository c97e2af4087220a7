"""Every request in every state of a transactional id: an error, the state that is stored next, or a wait."""

import pytest

from barnabas.broker.coordinators.transactions.records import NO_PARTITIONS, TransactionMetadata
from barnabas.broker.coordinators.transactions.requests import Request
from barnabas.broker.coordinators.transactions.rules import LAST_EPOCH, NO_TIMEOUT_MS
from barnabas.broker.coordinators.transactions.state import (
    TransactionState,
)
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId
from tests.support.grouping import WALL_MS
from tests.support.transacting import (
    FIRST_ID,
    P0,
    P1,
    TIMEOUT_MS,
    TransactionRig,
    abort,
    add,
    commit,
    ended,
    given,
    init,
    keep,
    prepare,
    verify,
)

S = TransactionState
EPOCH = 5
ONGOING = TransactionMetadata(
    S.ONGOING, ProducerId(FIRST_ID), ProducerEpoch(EPOCH), TIMEOUT_MS, WALL_MS, frozenset({P0}), WALL_MS
)
V2_ENDED = {"client_transaction_version": 2, "last_producer_epoch": ProducerEpoch(EPOCH - 1)}
STATES = {
    "Empty": ONGOING._replace(state=S.EMPTY, partitions=NO_PARTITIONS, start_timestamp_ms=-1),
    "Ongoing": ONGOING,
    "Prepared": ONGOING._replace(prepared_timeout_ms=TIMEOUT_MS, timeout_ms=NO_TIMEOUT_MS),
    "PrepareCommit": ONGOING._replace(state=S.PREPARE_COMMIT),
    "PrepareAbort": ONGOING._replace(state=S.PREPARE_ABORT),
    "CompleteCommit": ONGOING._replace(state=S.COMPLETE_COMMIT, partitions=NO_PARTITIONS),
    "CompleteAbort": ONGOING._replace(state=S.COMPLETE_ABORT, partitions=NO_PARTITIONS),
    "PrepareCommit v2": ONGOING._replace(state=S.PREPARE_COMMIT, **V2_ENDED),
    "PrepareAbort v2": ONGOING._replace(state=S.PREPARE_ABORT, **V2_ENDED),
    "CompleteCommit v2": ONGOING._replace(state=S.COMPLETE_COMMIT, partitions=NO_PARTITIONS, **V2_ENDED),
    "CompleteAbort v2": ONGOING._replace(state=S.COMPLETE_ABORT, partitions=NO_PARTITIONS, **V2_ENDED),
}
REQUESTS: dict[str, Request] = {
    "init": init(),
    "init present": init(FIRST_ID, EPOCH),
    "init last": init(FIRST_ID, EPOCH - 1),
    "init zombie": init(FIRST_ID, EPOCH - 2),
    "init keep": keep(),
    "add old": add(EPOCH, P0),
    "add new": add(EPOCH, P1),
    "add zombie": add(EPOCH - 1, P0),
    "add other id": add(EPOCH, P0, producer_id=9),
    "verify": verify(EPOCH, P0),
    "verify zombie": verify(EPOCH - 1, P0),
    "commit v1": commit(EPOCH),
    "abort v1": abort(EPOCH),
    "commit v2": commit(EPOCH, 2),
    "abort v2": abort(EPOCH, 2),
    "last commit v2": commit(EPOCH - 1, 2),
    "last abort v2": abort(EPOCH - 1, 2),
    "last commit v1": commit(EPOCH - 1),
    "prepare": prepare(EPOCH),
    "prepare zombie": prepare(EPOCH - 1),
}
FENCED, STATE, OK, GONE = "PRODUCER_FENCED", "INVALID_TXN_STATE", "NONE", "TRANSACTION_ABORTABLE"
DECIDED = ("PrepareCommit", "PrepareAbort", "PrepareCommit v2", "PrepareAbort v2")
V2 = tuple(name for name in STATES if name.endswith("v2"))

OUTCOMES: dict[str, dict[str, str]] = {
    # A new producer waits for a decided transaction and has an ongoing one aborted.
    "init": {
        **dict.fromkeys(STATES, "-> Empty"),
        **dict.fromkeys(DECIDED, "waits"),
        "Ongoing": "fences",
        "Prepared": "fences",
    },
    "init present": {
        **dict.fromkeys(STATES, "-> Empty"),
        **dict.fromkeys(DECIDED, "waits"),
        "Ongoing": "fences",
        "Prepared": "fences",
    },
    "init last": {
        **dict.fromkeys(STATES, FENCED),
        **dict.fromkeys(V2, "-> Empty"),
        "PrepareCommit v2": "waits",
        "PrepareAbort v2": "waits",
    },
    "init zombie": dict.fromkeys(STATES, FENCED),
    "init keep": {
        **dict.fromkeys(STATES, "-> Empty"),
        **dict.fromkeys(DECIDED, "waits"),
        "Ongoing": "fences",
        "Prepared": "-> Ongoing",
    },
    "add old": {
        **dict.fromkeys(STATES, "-> Ongoing"),
        **dict.fromkeys(DECIDED, "waits"),
        "Ongoing": OK,
        "Prepared": STATE,
    },
    "add new": {**dict.fromkeys(STATES, "-> Ongoing"), **dict.fromkeys(DECIDED, "waits"), "Prepared": STATE},
    "add zombie": dict.fromkeys(STATES, FENCED),
    "add other id": dict.fromkeys(STATES, "INVALID_PRODUCER_ID_MAPPING"),
    "verify": {
        **dict.fromkeys(STATES, GONE),
        **dict.fromkeys(DECIDED, "waits"),
        "Ongoing": OK,
        "Prepared": STATE,
    },
    "verify zombie": dict.fromkeys(STATES, FENCED),
    # The first version cannot tell whether a transaction has begun since.
    "commit v1": {
        **dict.fromkeys(STATES, STATE),
        "Ongoing": "-> PrepareCommit",
        "Prepared": "-> PrepareCommit",
        "PrepareCommit": OK,
        "CompleteCommit": OK,
    },
    "abort v1": {
        **dict.fromkeys(STATES, STATE),
        "Ongoing": "-> PrepareAbort",
        "Prepared": "-> PrepareAbort",
        "PrepareAbort": OK,
        "CompleteAbort": OK,
    },
    "commit v2": {
        **dict.fromkeys(STATES, STATE),
        "Ongoing": "-> PrepareCommit",
        "Prepared": "-> PrepareCommit",
        "PrepareCommit": OK,
        "CompleteCommit": OK,
    },
    # A producer that does not know whether it has begun aborts, and gets another epoch.
    "abort v2": {
        **dict.fromkeys(STATES, "-> PrepareAbort"),
        "PrepareCommit": STATE,
        "CompleteCommit": STATE,
        "PrepareAbort": OK,
        "CompleteAbort": OK,
        "PrepareCommit v2": "waits",
        "PrepareAbort v2": "waits",
    },
    "last commit v2": {
        **dict.fromkeys(STATES, FENCED),
        "PrepareCommit v2": OK,
        "CompleteCommit v2": OK,
        "PrepareAbort v2": STATE,
        "CompleteAbort v2": STATE,
    },
    "last abort v2": {
        **dict.fromkeys(STATES, FENCED),
        "PrepareCommit v2": STATE,
        "CompleteCommit v2": STATE,
        "PrepareAbort v2": OK,
        "CompleteAbort v2": OK,
    },
    "last commit v1": dict.fromkeys(STATES, FENCED),
    "prepare": {
        **dict.fromkeys(STATES, STATE),
        **dict.fromkeys(DECIDED, "waits"),
        "Ongoing": "-> Ongoing",
        "Prepared": OK,
    },
    "prepare zombie": dict.fromkeys(STATES, FENCED),
}


def outcome(stored: TransactionMetadata, request: Request) -> str:
    rig = TransactionRig(stored)
    rig.machine._is_confirmed = True
    while rig.appends:
        rig.settle()
    answer = rig.send(request)
    if answer is not None:
        code = (
            next(iter(answer.values())) if isinstance(answer, dict) else getattr(answer, "error_code", answer)
        )
        return ErrorCode(code).name
    if not rig.appends:
        rig.finish()
        assert rig.answer() is not None, "it waits for ever"
        return "waits"
    if rig.state is S.PREPARE_EPOCH_FENCE:
        return "fences"
    (record,) = rig.appends[0].records
    assert record.value is not None
    return f"-> {record.value.state.value}"


@pytest.mark.parametrize("request_name", REQUESTS)
def test_every_state_has_an_outcome_for(request_name: str) -> None:
    found = {name: outcome(stored, REQUESTS[request_name]) for name, stored in STATES.items()}
    assert found == OUTCOMES[request_name]


AT_LAST = ONGOING._replace(
    producer_epoch=LAST_EPOCH, last_producer_epoch=ProducerEpoch(LAST_EPOCH - 1), partitions=NO_PARTITIONS
)


def test_requests_that_led_to_the_last_epoch_may_be_repeated() -> None:
    rig = TransactionRig(AT_LAST._replace(state=S.COMPLETE_COMMIT, client_transaction_version=2))
    assert rig.do_all(commit(LAST_EPOCH - 1, 2)) == ended(LAST_EPOCH)
    rig = TransactionRig(AT_LAST._replace(state=S.EMPTY))
    assert rig.do_all(init(FIRST_ID, LAST_EPOCH - 1)) == given(LAST_EPOCH)
    assert not rig.ids_wanted


def test_a_producer_that_keeps_what_is_not_prepared_gets_the_next_epoch() -> None:
    assert TransactionRig(STATES["Empty"]).do_all(keep()) == given(EPOCH + 1)


def test_a_producer_that_raises_its_epoch_has_no_previous_id() -> None:
    rig = TransactionRig(STATES["Empty"])
    assert rig.do_all(init(FIRST_ID, EPOCH)) == given(EPOCH + 1)
    assert rig.stored.previous_producer_id == NO_PRODUCER_ID


@pytest.mark.parametrize(
    ("timeout_ms", "is_accepted"), [(0, False), (1, True), (900_000, True), (900_001, False)]
)
def test_the_bounds_of_the_timeout(timeout_ms: int, is_accepted: bool) -> None:
    error = TransactionRig().do_all(init(timeout_ms=timeout_ms)).error_code
    assert error is (ErrorCode.NONE if is_accepted else ErrorCode.INVALID_TRANSACTION_TIMEOUT)


@pytest.mark.parametrize(
    ("state", "request_"), [("CompleteCommit v2", commit(EPOCH - 1, 2)), ("Prepared", prepare(EPOCH))]
)
def test_a_repeated_request_waits_until_a_loaded_state_is_replicated(state: str, request_: Request) -> None:
    rig = TransactionRig(STATES[state])
    assert rig.send(request_) is None
    rig.settle()
    assert rig.answer() is not None
