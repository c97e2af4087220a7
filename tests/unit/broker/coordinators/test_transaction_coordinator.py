"""The hosting of transactional ids: loading, limits, expiry, and changes of the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.coordinators.coordinator_log import CoordinatorLog, last_records
from barnabas.broker.coordinators.effects import Moment
from barnabas.broker.coordinators.transaction import Transaction
from barnabas.broker.coordinators.transaction_effects import LOADING_WAIT_MS
from barnabas.broker.coordinators.transaction_shard import TransactionShard
from barnabas.broker.coordinators.transaction_state import TransactionState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.zookeeper.errors import ZooKeeperUnavailable
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
S = TransactionState
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
    log = CoordinatorLog[tuple[bytes, bytes]](
        serving.managed.manager,
        PARTITION,
        serving.managed.manager.partition(PARTITION).leading_since,
        encode=lambda record: record,
        timeout_ms=1_000,
        max_batch_bytes=lambda: 1 << 20,
        wall_clock_ms=lambda: 0,
    )
    outcomes: list[ErrorCode] = []
    assert log.enqueue([(key, value)], lambda error, offset: outcomes.append(error))
    log.flush()
    assert outcomes == [NONE]


def test_an_ongoing_transaction_continues_under_the_next_coordinator(coordinating: Serving) -> None:
    producer = begin(coordinating, HERE)
    move_away_and_back(coordinating)
    assert errors(coordinating.call(add(producer, HERE, THERE))) == {HERE: NONE, THERE: NONE}
    assert coordinating.call(end(producer)).error_code == NONE
    answer_markers(coordinating)
    assert state_of(coordinating) == "CompleteCommit"


def test_an_ongoing_transaction_times_out_under_the_next_coordinator(coordinating: Serving) -> None:
    producer = coordinating.call(init(transaction_timeout_ms=1_000))
    coordinating.call(add(producer, THERE))
    coordinating.wall_ms += 600
    move_away_and_back(coordinating)
    coordinating.managed.pass_time(399)
    assert state_of(coordinating) == "Ongoing"
    coordinating.managed.pass_time(1)
    assert state_of(coordinating) == "PrepareAbort"


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


def test_a_loaded_id_is_resumed_once_and_before_the_requests_that_waited(
    coordinating: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = begin(coordinating)
    load_again(coordinating)
    ending = coordinating.send(end(producer))
    events: list[str] = []

    def noted(name: str) -> None:
        event = getattr(Transaction, name)

        def with_note(*arguments: Any) -> Any:
            events.append(name)
            return event(*arguments)

        monkeypatch.setattr(Transaction, name, with_note)

    noted("resume")
    noted("handle")
    work(coordinating)
    assert ending.is_answered
    assert events == ["resume", "handle"]


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


def test_too_many_requests_do_not_wait_for_their_ids(
    coordinating: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinating.transactions._waiting, "_max_operations", 1)
    load_again(coordinating)
    first = coordinating.send(init())
    assert coordinating.call(init()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    work(coordinating)
    assert first.response.error_code == NONE


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


def test_ids_are_bounded(coordinating: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionShard, "MAX_MACHINES", 2)
    assert coordinating.call(init("first")).error_code == NONE
    assert coordinating.call(init("second")).error_code == NONE
    assert coordinating.call(init("third")).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinating.call(init("second")).error_code == NONE


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


def test_no_producer_begins_while_zookeeper_has_no_ids(coordinating: Serving) -> None:
    assert coordinating.call(init()).error_code == NONE
    # Most of the first block is used.
    while coordinating.call(init(None)).producer_id % 1_000 < 899:
        pass
    coordinating.blocks.trouble = ZooKeeperUnavailable("away")
    while (last := coordinating.call(init(None))).error_code == NONE:
        pass
    assert last.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    refused = coordinating.call(init("new"))
    assert refused.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    # An id that has a producer does not need another one.
    assert coordinating.call(init()).error_code == NONE
    coordinating.blocks.trouble = None
    assert coordinating.call(init("new")).error_code == NONE


def test_records_are_written_in_the_version_of_the_feature(coordinating: Serving) -> None:
    def version_of_last_value() -> int:
        read = last_records(coordinating.managed.manager.partition(PARTITION).log, lambda: True)
        assert read is not None
        _, value = read.by_key[b"\x00\x00\x00\x02id"]
        return int.from_bytes(value[:2], "big")

    coordinating.call(init())
    assert version_of_last_value() == 0
    coordinating.transaction_version = 2
    coordinating.call(init())
    assert version_of_last_value() == 1
