"""The hosting of transactional ids: loading, limits, expiry, and changes of the coordinator."""

from collections.abc import Callable

import pytest

from barnabas.broker.coordinators.coordinator_log import CoordinatorLog
from barnabas.broker.coordinators.state_machine import Moment
from barnabas.broker.coordinators.transactions.coordinator import TransactionShard
from barnabas.broker.coordinators.transactions.requests import LOADING_WAIT_MS
from barnabas.broker.coordinators.transactions.transaction import Transaction
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.messages.describe_transactions import DescribeTransactionsRequest
from tests.support.building import NONE
from tests.support.serving import Serving
from tests.support.transaction_requests import (
    HERE,
    PARTITION,
    THERE,
    add,
    answer_markers,
    begin,
    end,
    errors,
    init,
    lead_transactions,
    stored,
    work,
)

E = ErrorCode
Event = Callable[[Serving, pytest.MonkeyPatch], None]
EXPIRATION_MS = 7 * 24 * 3_600_000


def move_away_and_back(serving: Serving, epoch: int = 1) -> None:
    """Another broker coordinates for a while, and changes nothing."""
    lead_transactions(serving, epoch=epoch, leader=2)
    work(serving)
    lead_transactions(serving, epoch=epoch + 1)
    work(serving)


def state_of(serving: Serving, transactional_id: str = "id") -> str:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    state: str = serving.call(request).transaction_states[0].transaction_state
    return state


def append(serving: Serving, key: bytes, value: bytes) -> None:
    """Write any record into the transaction topic."""
    log = CoordinatorLog(
        serving.managed.manager,
        PARTITION,
        serving.managed.manager.partition(PARTITION).leading_since,
        encode=lambda record: (*record, ()),
        timeout_ms=1_000,
        max_batch_bytes=lambda: 1 << 20,
        wall_clock_ms=lambda: 0,
        run_aside=lambda work: work(),
    )
    outcomes: list[ErrorCode] = []
    assert log.enqueue([(key, value)], lambda error, offset: outcomes.append(error))
    log.flush()
    assert outcomes == [NONE]


def load_again(serving: Serving) -> None:
    """Another broker coordinates for a while; what this broker has is not loaded yet."""
    lead_transactions(serving, epoch=1, leader=2)
    work(serving)
    lead_transactions(serving, epoch=2)


def test_requests_wait_until_their_ids_are_loaded(coordinating: Serving) -> None:
    producer = begin(coordinating, HERE)
    load_again(coordinating)
    adding, ending = coordinating.send(add(producer, THERE)), coordinating.send(end(producer))
    coordinating.managed.pass_time(LOADING_WAIT_MS - 1)
    assert not adding.is_answered
    assert not ending.is_answered
    work(coordinating)
    assert errors(adding.response) == {THERE: NONE}
    assert ending.response.error_code == NONE
    answer_markers(coordinating)
    assert state_of(coordinating) == "CompleteCommit"


def test_an_unforeseen_error_of_a_loaded_id_does_not_stop_the_broker(
    coordinating: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(transaction: Transaction, now: Moment) -> None:
        raise InvariantViolation("planted")

    begin(coordinating)
    load_again(coordinating)
    monkeypatch.setattr(Transaction, "resume", broken)
    work(coordinating)
    assert "planted" in coordinating.managed.manager.roles.failed.reasons()[PARTITION]
    assert coordinating.call(init("another")).error_code == NONE


def leave(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    lead_transactions(serving, epoch=3, leader=2)
    work(serving)


def fail(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionShard, "load", lambda shard, loaded: 1 / 0)
    work(serving)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (lambda serving, _: serving.managed.pass_time(LOADING_WAIT_MS), E.COORDINATOR_LOAD_IN_PROGRESS),
        (leave, E.NOT_COORDINATOR),
        (fail, E.COORDINATOR_NOT_AVAILABLE),
        (lambda serving, _: serving.transactions.stop(), E.NOT_COORDINATOR),
    ],
)
def test_a_request_that_waits_for_its_id_is_answered_whatever_comes(
    coordinating: Serving, monkeypatch: pytest.MonkeyPatch, event: Event, code: ErrorCode
) -> None:
    load_again(coordinating)
    waiting = coordinating.send(init())
    assert not waiting.is_answered
    event(coordinating, monkeypatch)
    assert waiting.response.error_code == code
    assert coordinating.transactions._waiting.waiting == 0


def test_markers_of_a_closed_shard_are_sent_by_the_next_one_only(coordinating: Serving) -> None:
    coordinating.call(end(begin(coordinating)))
    late, coordinating.sent.requests = coordinating.sent.requests, []
    move_away_and_back(coordinating)
    now, coordinating.sent.requests = coordinating.sent.requests, late
    # The answers to the former shard come late; they say nothing about the markers of the present one.
    answer_markers(coordinating)
    assert state_of(coordinating) == "PrepareCommit"
    coordinating.sent.requests = now
    answer_markers(coordinating)
    assert state_of(coordinating) == "CompleteCommit"


def test_an_id_whose_record_cannot_be_read_is_refused_and_not_begun_again(
    coordinating: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    key = b"\x00\x00\x00\x06damage"
    append(coordinating, key, b"\x00\x63of a later version")
    append(coordinating, b"\x00\x63a later key", b"value")
    move_away_and_back(coordinating)
    assert coordinating.call(init("damage")).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinating.call(init("id")).error_code == NONE
    assert len([record for record in caplog.records if "is ignored" in record.message]) == 2


def test_a_refused_id_takes_no_room(coordinating: Serving) -> None:
    before = len(coordinating.transactions.all_machines()[0])
    coordinating.call(init("new", transaction_timeout_ms=0))
    assert len(coordinating.transactions.all_machines()[0]) == before


def test_unused_ids_expire_and_leave_tombstones(coordinating: Serving) -> None:
    begin(coordinating)
    idle = coordinating.call(init("idle"))
    coordinating.wall_ms += EXPIRATION_MS - 1
    coordinating.transactions.expire_ids()
    assert state_of(coordinating, "idle") == "Empty"
    coordinating.wall_ms += 1
    coordinating.transactions.expire_ids()
    # A transaction keeps its id.
    assert state_of(coordinating) == "Ongoing"
    with pytest.raises(KeyError):
        stored(coordinating, "idle")
    move_away_and_back(coordinating)
    again = coordinating.call(init("idle"))
    assert again.producer_id != idle.producer_id


def test_a_decision_waits_for_enough_replicas(coordinating: Serving) -> None:
    producer = begin(coordinating)
    lead_transactions(coordinating, epoch=1, isr=(1, 2))
    ending = coordinating.send(end(producer))
    assert not ending.is_answered
    assert not coordinating.sent.requests
    # The follower has not fetched it: the leader may still lose it.
    assert state_of(coordinating) == "Ongoing"
