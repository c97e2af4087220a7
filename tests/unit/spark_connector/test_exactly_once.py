"""The rules of the exactly-once protocol one by one; `test_exactly_once_schedules` has them interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import TransactionOutcomeUnknown
from barnabas.client.producer.transactions import PreparedTransaction
from barnabas.protocol.errors import ApiError
from barnabas.spark_connector.sink.exactly_once import (
    MAX_SLOTS,
    Coordination,
    DecidedBatchAborted,
    SinkFenced,
    TaskResult,
    attempt_id,
    is_attempt_id,
    open_attempt,
)
from barnabas.spark_connector.sink.sink_register import (
    MAX_QUERIES,
    CheckpointTooOld,
    Claim,
    Decision,
    SinkRecord,
    UnreadableRegister,
    partition_of,
)
from tests.support.sink_cluster import AttemptProducer, Clients, SinkCluster
from tests.support.transacting import keep

T = TypeVar("T")
NAME = "sink"
HOLDER = ProducerIdAndEpoch(1, 0)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Sink:
    """A driver and its tasks."""

    def __init__(self) -> None:
        self.cluster = SinkCluster()
        self.clients = Clients(self.cluster)
        self.driver = Coordination(self.clients, self.clients)

    def claim(self, name: str = NAME) -> Claim:
        return run(self.driver.claim(name))

    def open(self, claim: Claim, partition: int = 0, attempt: int = 0) -> AttemptProducer:
        clients = self.clients
        return run(
            open_attempt(
                clients.open_producer, clients.close_producer, clients.describe, claim, partition, attempt
            )
        )

    def write(self, claim: Claim, batch: int, partition: int = 0, attempt: int = 0) -> TaskResult:
        producer = self.open(claim, partition, attempt)
        run(producer.write([(batch, partition, attempt)]))
        return TaskResult(claim, "q", batch, partition, run(producer.prepare()))

    def commit(self, results: Sequence[TaskResult]) -> None:
        run(self.driver.commit(results))

    @property
    def visible(self) -> list[tuple[int, int, int]]:
        return sorted(self.cluster.visible.elements())

    def state(self, partition: int, slot: int) -> TransactionState:
        return self.cluster.rigs[attempt_id(NAME, partition, slot)].state


@pytest.fixture
def sink() -> Sink:
    return Sink()


def test_a_batch_is_visible_when_it_is_committed(sink: Sink) -> None:
    claim = sink.claim()
    results = [sink.write(claim, 0, partition) for partition in range(2)]
    assert sink.visible == []
    sink.commit(results)
    assert sink.visible == [(0, 0, 0), (0, 1, 0)]
    assert sink.cluster.open_ids() == []
    assert sink.claim().decided == (Decision("q", 0),)


def test_only_the_accepted_attempts_are_committed(sink: Sink) -> None:
    claim = sink.claim()
    accepted = sink.write(claim, 0, attempt=0)
    sink.write(claim, 0, attempt=1)
    unused = sink.open(claim, attempt=2)
    sink.commit([accepted])
    assert sink.visible == [(0, 0, 0)]
    assert sink.cluster.open_ids() == []
    with pytest.raises(ApiError, match="PRODUCER_FENCED"):
        run(unused.write([(0, 0, 2)]))


def test_an_attempt_that_a_partial_list_lacks_is_found_by_its_slot(sink: Sink) -> None:
    claim = sink.claim()
    sink.write(claim, 0, attempt=0)
    accepted = sink.write(claim, 0, attempt=1)
    sink.write(claim, 0, attempt=2)
    sink.clients.unlisted = set(sink.cluster.rigs)
    sink.commit([accepted])
    assert sink.visible == [(0, 0, 1)]
    assert sink.cluster.open_ids() == []


def test_an_attempt_leaves_a_prepared_transaction_alone(sink: Sink) -> None:
    claim = sink.claim()
    accepted = sink.write(claim, 0)
    again = sink.write(claim, 0)
    assert (accepted.transaction, again.transaction) == (
        PreparedTransaction("sink-0-0", 1000, 0),
        PreparedTransaction("sink-0-1", 1000, 0),
    )
    sink.commit([accepted])
    assert sink.visible == [(0, 0, 0)]


def test_an_attempt_gives_up_when_all_slots_are_taken(sink: Sink) -> None:
    claim = sink.claim()
    for _ in range(MAX_SLOTS):
        sink.write(claim, 0)
    with pytest.raises(SinkFenced, match="prepared transactions of earlier attempts"):
        sink.write(claim, 0)


@pytest.mark.parametrize("cause", ["claimed", "decided"])
def test_an_attempt_that_starts_late_writes_nothing(sink: Sink, cause: str) -> None:
    claim = sink.claim()
    accepted = sink.write(claim, 0)
    if cause == "claimed":
        sink.claim()
    else:
        sink.commit([accepted])
    with pytest.raises(SinkFenced, match="was taken over"):
        sink.write(claim, 0, attempt=1)
    assert sink.cluster.open_ids() == []


def test_a_claim_aborts_what_an_earlier_run_left_in_any_partition(sink: Sink) -> None:
    claim = sink.claim()
    sink.write(claim, 0, partition=7)
    run(sink.open(claim, partition=8, attempt=3).write([(0, 8, 3)]))
    sink.claim()
    assert sink.cluster.open_ids() == []
    assert sink.visible == []
    assert sink.state(7, 0) is sink.state(8, 3) is TransactionState.COMPLETE_ABORT


def test_a_claim_leaves_the_transactions_of_other_names_alone(sink: Sink) -> None:
    other = sink.claim("sink-1")
    run(sink.open(other).write([(0, 0, 0)]))
    sink.clients.cluster.init("sink-user", keep())
    sink.claim("sink")
    assert sink.cluster.open_ids() == ["sink-1-0-0"]
    assert not is_attempt_id("sink", "sink-1-0-0")
    assert not is_attempt_id("sink", "sink-register")
    assert is_attempt_id("sink-1", "sink-1-0-0")


def test_a_decision_is_finished_by_the_next_claim(sink: Sink) -> None:
    claim = sink.claim()
    result = sink.write(claim, 0)
    assert result.transaction is not None
    record = claim.record_with(Decision("q", 0, (result.transaction,)))
    run(sink.clients.write(NAME, claim.holder, record.encode()))
    assert sink.visible == []
    later = sink.claim()
    assert sink.visible == [(0, 0, 0)]
    assert later.has_decided("q", 0)
    # A replay commits nothing, and aborts nothing.
    sink.commit([TaskResult(later, "q", 0, 0, was_decided=True)])
    assert sink.visible == [(0, 0, 0)]
    # Its tasks use the id again; then the decision's transaction is known only as one that has ended.
    sink.cluster.init(result.transaction.transactional_id, keep())
    assert sink.claim().has_decided("q", 0)


def test_a_driver_that_was_overtaken_decides_nothing(sink: Sink) -> None:
    claim = sink.claim()
    result = sink.write(claim, 0)
    later = sink.claim()
    accepted = sink.write(later, 0)
    with pytest.raises(SinkFenced, match=r"the sink 'sink' \(kafka.transactional.id\) was taken over"):
        sink.commit([result])
    sink.commit([accepted])
    assert sink.visible == [(0, 0, 0)]


def test_a_failed_batch_is_abandoned(sink: Sink) -> None:
    for known in (True, False):
        claim = sink.claim()
        sink.write(claim, 0)
        run(sink.driver.abandon(NAME, claim if known else None))
        assert sink.cluster.open_ids() == []
        with pytest.raises(SinkFenced):
            sink.write(claim, 0, attempt=1)


def test_a_batch_that_was_overtaken_leaves_its_successor_alone(sink: Sink) -> None:
    claim = sink.claim()
    later = sink.claim()
    run(sink.driver.abandon(NAME, None))
    accepted = sink.write(later, 0)
    run(sink.driver.abandon(NAME, claim))
    result = TaskResult(claim, "q", 0, 0, PreparedTransaction("sink-0-7", 1, 1))
    with pytest.raises(SinkFenced):
        sink.commit([result])
    run(sink.driver.abandon(NAME, claim))
    sink.commit([accepted])
    assert sink.visible == [(0, 0, 0)]


def test_a_decision_without_an_answer_is_finished_when_the_batch_is_abandoned(sink: Sink) -> None:
    class Silent(Clients):
        async def write(self, name: str, holder: ProducerIdAndEpoch, value: bytes) -> ProducerIdAndEpoch:
            await super().write(name, holder, value)
            raise TransactionOutcomeUnknown("no answer")

    driver = Coordination(sink.clients, Silent(sink.cluster))
    claim = sink.claim()
    result = sink.write(claim, 0)
    with pytest.raises(TransactionOutcomeUnknown):
        run(driver.commit([result]))
    assert sink.visible == []
    run(driver.abandon(NAME, claim))
    assert sink.visible == [(0, 0, 0)]


def test_a_batch_write_is_not_remembered(sink: Sink) -> None:
    claim = sink.claim()
    result = sink.write(claim, 0)
    sink.commit([TaskResult(claim, "write-1", None, 0, result.transaction)])
    assert sink.visible == [(0, 0, 0)]
    assert sink.claim().decided == ()


def test_a_batch_without_rows_needs_no_decision(sink: Sink) -> None:
    claim = sink.claim()
    sink.commit([TaskResult(claim, "q", 0, 0)])
    sink.commit([])
    assert sink.claim().decided == ()


def test_a_decided_transaction_that_an_operator_aborted_is_reported(sink: Sink) -> None:
    claim = sink.claim()
    result = sink.write(claim, 4)
    assert result.transaction is not None
    record = claim.record_with(Decision("q", 4, (result.transaction,)))
    run(sink.clients.write(NAME, claim.holder, record.encode()))
    run(sink.clients.complete_transaction(result.transaction, commit=False))
    with pytest.raises(DecidedBatchAborted, match="batch 4 of query q was to be committed"):
        sink.claim()


def test_results_of_two_batches_are_a_bug(sink: Sink) -> None:
    claim = sink.claim()
    results = [sink.write(claim, batch, partition=batch) for batch in range(2)]
    with pytest.raises(ValueError, match="tasks of different batches"):
        sink.commit(results)
    assert sink.visible == []


def test_a_query_repeats_its_last_batch_and_none_before() -> None:
    claim = Claim(NAME, HOLDER, (Decision("q", 3),))
    assert [claim.has_decided("q", batch) for batch in (3, 4)] == [True, False]
    with pytest.raises(CheckpointTooOld, match=r"has written batch 3 .* checkpoint is at batch 2"):
        claim.has_decided("q", 2)
    assert not claim.has_decided("other", 3)
    assert not claim.has_decided("q", None)


def test_a_record_keeps_one_decision_a_query_and_the_newest_queries() -> None:
    decided = tuple(Decision(f"q{number}", 0) for number in range(MAX_QUERIES))
    record = Claim(NAME, HOLDER, decided).record_with(Decision("q0", 1))
    assert record.decisions == (*decided[1:], Decision("q0", 1))
    record = Claim(NAME, HOLDER, decided).record_with(Decision("new", 0))
    assert record.decisions == (*decided[1:], Decision("new", 0))


def test_a_record_is_read_as_it_was_written() -> None:
    transaction = PreparedTransaction("a:b-0-1", 5, 6)
    record = SinkRecord((Decision("q", 7, (transaction,)), Decision("write-1", None)))
    assert SinkRecord.decode(record.encode()) == record
    assert record.decided == (Decision("q", 7),)
    assert SinkRecord.decode(None) == SinkRecord()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"\xff", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"version":2}', "has version 2, this connector reads version 1"),
        (b'{"version":1}', "is damaged"),
        (b'{"version":1,"decisions":[{"query":"q","batch":1,"transactions":["x"]}]}', "is damaged"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused(value: bytes, message: str) -> None:
    with pytest.raises(UnreadableRegister, match=message):
        SinkRecord.decode(value)


def test_the_partition_of_a_name_never_changes() -> None:
    # Records of earlier versions have to be found.
    assert [partition_of(name).partition for name in ("flights", "a", "é")] == [2, 3, 2]
