"""Queued appends become few batches, in order; each append gets its outcome once."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from barnabas.broker.coordinators.coordinator_log import (
    MAX_BATCHES_IN_FLIGHT,
    MAX_WAITING,
    CoordinatorLog,
    Settled,
)
from barnabas.broker.coordinators.groups.records import (
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    Record,
    from_bytes,
    to_bytes,
)
from barnabas.broker.coordinators.state_machine import TransactionalProducer
from barnabas.broker.log.appending import ProducedBatches
from barnabas.broker.log.log_transactions import VerificationGuard
from barnabas.broker.log.producer_state import AppendOrigin, VerificationGuards
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import LeaderEpoch, TopicPartition
from barnabas.protocol.messages.produce import PartitionProduceResponse
from barnabas.protocol.record_batch import BatchHeader
from barnabas.protocol.records import decode_records

PARTITION = TopicPartition("__consumer_offsets", 3)
Outcome = tuple[str, ErrorCode, int]


def committed(group: str, offset: int = 1, metadata: str = "") -> OffsetRecord:
    value = OffsetAndMetadata(offset, 1_000, metadata=metadata)
    return OffsetRecord(group, TopicPartition("topic", 0), value)


class FakeReplicas:
    """Answers an append when the test says so, or at once."""

    def __init__(self) -> None:
        self.batches: list[list[Record]] = []
        self.headers: list[BatchHeader] = []
        self.open: list[tuple[int, Callable[[list[PartitionProduceResponse]], None]]] = []
        self.at_once = False
        self.error = ErrorCode.NONE
        self.arguments: list[tuple[int, int, LeaderEpoch | None]] = []
        self.below_min_isr: list[bool] = []
        self.guards: list[Mapping[TopicPartition, VerificationGuards]] = []
        self.woken = 0
        self.end = 100
        self.is_on_slow_disk = False

    def waits_for_disk(self, batches: Sequence[tuple[TopicPartition, object]]) -> bool:
        return self.is_on_slow_disk

    def append(
        self,
        acks: int,
        timeout_ms: int,
        batches: Sequence[tuple[TopicPartition, ProducedBatches]],
        answer: Callable[[list[PartitionProduceResponse]], None],
        *,
        since: LeaderEpoch,
        origin: AppendOrigin,
        guards: Mapping[TopicPartition, VerificationGuards],
        below_min_isr: bool = False,
    ) -> None:
        ((name, produced),) = batches
        assert name == PARTITION
        self.below_min_isr.append(below_min_isr)
        self.guards.append(guards)
        self.arguments.append((acks, timeout_ms, since))
        records = decode_records(produced.view)
        self.batches.append([from_bytes(record.key or b"", record.value) for record in records])
        self.headers += [header for _, header in produced.batches]
        self.open.append((self.end, answer))
        self.end += len(records)
        if self.at_once:
            self.settle()

    def settle(self, place: int = 0) -> None:
        end, answer = self.open.pop(place)
        offset = -1 if self.error else end
        answer(
            [PartitionProduceResponse(index=PARTITION.partition, error_code=self.error, base_offset=offset)]
        )

    def wake_followers(self) -> None:
        self.woken += 1


class LogRig:
    def __init__(self, max_batch_bytes: int = 1 << 20) -> None:
        self.replicas = FakeReplicas()
        self.outcomes: list[Outcome] = []
        self.aside: list[Callable[[], None]] = []
        self.log = CoordinatorLog(
            cast("ReplicaManager", self.replicas),
            PARTITION,
            LeaderEpoch(7),
            encode=lambda record: (*to_bytes(record), ()),
            timeout_ms=5_000,
            max_batch_bytes=lambda: max_batch_bytes,
            wall_clock_ms=lambda: 1_234,
            run_aside=self.aside.append,
        )

    def settled(self, name: str) -> Settled:
        return lambda error, offset: self.outcomes.append((name, error, offset))

    def enqueue(self, name: str, *records: Record, producer: TransactionalProducer | None = None) -> None:
        assert self.log.enqueue(records or (committed(name),), self.settled(name), producer)

    def write(self, name: str, *records: Record) -> None:
        self.enqueue(name, *records)
        self.log.flush()


@pytest.fixture
def rig() -> LogRig:
    return LogRig()


def test_appends_have_acks_all_and_the_leader_epoch_of_the_shard(rig: LogRig) -> None:
    rig.write("a")
    assert rig.replicas.arguments == [(-1, 5_000, 7)]
    assert rig.replicas.woken == 1
    assert rig.outcomes == []
    rig.replicas.settle()
    assert rig.outcomes == [("a", ErrorCode.NONE, 100)]


def test_a_batch_is_within_the_limit_unless_a_single_append_exceeds_it() -> None:
    rig = LogRig(max_batch_bytes=400)
    rig.replicas.at_once = True
    for name in ("a", "b"):
        rig.enqueue(name, committed(name, metadata="x" * 150))
    rig.enqueue("c", committed("c", metadata="x" * 500))
    rig.write("d")
    assert [[record.group_id for record in batch] for batch in rig.replicas.batches] == [
        ["a"],
        ["b"],
        ["c"],
        ["d"],
    ]
    assert [name for name, _, _ in rig.outcomes] == ["a", "b", "c", "d"]


def test_appends_caused_by_immediate_outcomes_do_not_grow_the_stack(rig: LogRig) -> None:
    rig.replicas.at_once = True
    left = 5_000

    def again(error: ErrorCode, offset: int) -> None:
        nonlocal left
        if left:
            left -= 1
            rig.log.enqueue((committed("a"),), again)
            rig.log.flush()

    rig.log.enqueue((committed("a"),), again)
    rig.log.flush()
    assert len(rig.replicas.batches) == 5_001


def test_too_many_waiting_appends_are_refused(rig: LogRig) -> None:
    for _ in range(MAX_WAITING):
        rig.enqueue("a")
    assert not rig.log.enqueue((committed("b"),), rig.settled("b"))
    rig.replicas.at_once = True
    rig.log.flush()
    assert len(rig.outcomes) == MAX_WAITING
    assert rig.log.enqueue((committed("b"),), rig.settled("b"))


def test_tombstones_are_written_whatever_the_isr_and_however_many_appends_wait(rig: LogRig) -> None:
    for _ in range(MAX_WAITING):
        rig.enqueue("a")
    tombstone = OffsetRecord("a", TopicPartition("topic", 0), None)
    errors: list[ErrorCode] = []
    rig.log.enqueue_removal([tombstone], lambda error, _: errors.append(error))
    assert not rig.log.enqueue((committed("b"),), rig.settled("b"))
    rig.replicas.at_once = True
    rig.log.flush()
    # In a batch of their own, so that commits are still refused.
    assert rig.replicas.batches[-1] == [tombstone]
    assert rig.replicas.below_min_isr == [False] * (len(rig.replicas.batches) - 1) + [True]
    assert errors == [ErrorCode.NONE]


def test_tombstones_are_divided_as_the_limit_requires_and_reported_once() -> None:
    rig = LogRig(max_batch_bytes=500)
    offsets = [OffsetRecord("g", TopicPartition("topic", index), None) for index in range(100)]
    tombstones = [*offsets, GroupRecord("g", None)]
    errors: list[ErrorCode] = []
    rig.log.enqueue_removal(tombstones, lambda error, _: errors.append(error))
    rig.log.flush()
    rig.replicas.error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    rig.replicas.settle()
    rig.replicas.error = ErrorCode.NONE
    while rig.replicas.open:
        assert errors == []
        rig.replicas.settle()
    assert errors == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    assert len(rig.replicas.batches) > 5
    assert max(header.size_bytes for header in rig.replicas.headers) <= 500
    assert [record for batch in rig.replicas.batches for record in batch] == tombstones


def test_records_in_transactions_are_written_in_batches_of_their_producer(rig: LogRig) -> None:
    first, second = TransactionalProducer(5, 2), TransactionalProducer(6, 0)
    for name, producer in (("a", None), ("b", first), ("c", first), ("d", second), ("e", None)):
        rig.enqueue(name, producer=producer)
    rig.log.flush()
    # All at once: none waits until another producer's batch is replicated.
    assert [[record.group_id for record in batch] for batch in rig.replicas.batches] == [
        ["a"],
        ["b", "c"],
        ["d"],
        ["e"],
    ]
    assert [
        (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional)
        for header in rig.replicas.headers
    ] == [(-1, -1, -1, False), (5, 2, -1, True), (6, 0, -1, True), (-1, -1, -1, False)]
    rig.write("f")
    for place in (3, 1, 1, 0):
        assert len(rig.replicas.batches) == 4
        rig.replicas.settle(place)
    assert len(rig.replicas.batches) == 5
    expected = {"e": 104, "b": 101, "c": 102, "d": 103, "a": 100}
    assert [(name, offset) for name, _, offset in rig.outcomes] == list(expected.items())


def test_the_guard_of_a_transaction_reaches_the_log(rig: LogRig) -> None:
    guard = VerificationGuard(5, 2, -1, adds=False)
    rig.enqueue("a", producer=TransactionalProducer(5, 2, guard))
    rig.enqueue("b", producer=TransactionalProducer(5, 2))
    rig.write("c")
    assert rig.replicas.guards == [{PARTITION: {5: guard}}, {}, {}]


def test_the_batches_in_flight_are_within_the_limits() -> None:
    rig = LogRig(max_batch_bytes=10_000)
    for number in range(2 * MAX_BATCHES_IN_FLIGHT):
        rig.enqueue(str(number), producer=TransactionalProducer(number, 0))
    rig.log.flush()
    assert 10_000 / 200 < len(rig.replicas.open) < MAX_BATCHES_IN_FLIGHT
    rig = LogRig()
    for number in range(2 * MAX_BATCHES_IN_FLIGHT):
        rig.enqueue(str(number), producer=TransactionalProducer(number, 0))
    rig.log.flush()
    assert len(rig.replicas.open) == MAX_BATCHES_IN_FLIGHT
    while rig.replicas.open:
        rig.replicas.settle()
    assert [name for name, _, _ in rig.outcomes] == [str(n) for n in range(2 * MAX_BATCHES_IN_FLIGHT)]


def test_a_record_that_cannot_be_encoded_fails_alone(rig: LogRig) -> None:
    rig.replicas.at_once = True
    rig.enqueue("a")
    rig.enqueue("long", committed("g" * 40_000))
    rig.write("b")
    assert [[record.group_id for record in batch] for batch in rig.replicas.batches] == [["a", "b"]]
    assert sorted(rig.outcomes) == [
        ("a", ErrorCode.NONE, 100),
        ("b", ErrorCode.NONE, 101),
        ("long", ErrorCode.MESSAGE_TOO_LARGE, -1),
    ]
    rig.write("long", committed("g" * 40_000))
    assert rig.outcomes[-1] == ("long", ErrorCode.MESSAGE_TOO_LARGE, -1)
    rig.write("c")
    assert rig.outcomes[-1] == ("c", ErrorCode.NONE, 102)


def test_records_of_many_threads_are_written_once_and_in_order(rig: LogRig) -> None:
    rig.replicas.at_once = True

    def work(name: str) -> None:
        for offset in range(500):
            rig.enqueue(name, committed(name, offset))
            rig.log.flush()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.log.flush()
    written = [record for batch in rig.replicas.batches for record in batch]
    assert len(written) == len(rig.outcomes) == 2_000
    for name in "abcd":
        own = [record for record in written if record.group_id == name]
        assert own == [committed(name, offset) for offset in range(500)]


def fail(*_: object) -> None:
    raise ZeroDivisionError("a bug")


def test_a_bug_in_handling_an_outcome_affects_no_other(rig: LogRig) -> None:
    rig.replicas.at_once = True
    for records in ((committed("g" * 40_000),), (committed("a"),)):
        rig.log.enqueue(records, fail)
    rig.write("b")
    assert rig.outcomes == [("b", ErrorCode.NONE, 101)]
    rig.write("c")
    assert rig.outcomes[1:] == [("c", ErrorCode.NONE, 102)]


@pytest.mark.parametrize("is_answered_later", [False, True])
def test_an_append_with_a_bug_is_reported_once_and_the_next_is_written(
    monkeypatch: pytest.MonkeyPatch, is_answered_later: bool, rig: LogRig
) -> None:
    append = rig.replicas.append

    def buggy(*arguments: Any, **options: Any) -> None:
        if is_answered_later:
            append(*arguments, **options)
        fail()

    with monkeypatch.context() as patch:
        patch.setattr(rig.replicas, "append", buggy)
        rig.enqueue("a")
        rig.log.flush()
    assert rig.outcomes == [("a", ErrorCode.UNKNOWN_SERVER_ERROR, -1)]
    for _ in range(is_answered_later):
        rig.replicas.settle()
    rig.write("b")
    rig.replicas.settle()
    assert [name for name, _, _ in rig.outcomes] == ["a", "b"]


def test_records_are_written_aside_once_and_in_order(rig: LogRig) -> None:
    rig.log.flush_aside()
    assert rig.aside == [], "nothing waits"
    for name in "ab":
        rig.enqueue(name)
        rig.log.flush_aside()
    assert (len(rig.aside), rig.replicas.batches) == (1, [])
    rig.enqueue("c")
    rig.aside.pop()()
    assert rig.replicas.batches == [[committed(name) for name in "abc"]]
    rig.enqueue("d")
    rig.log.flush_aside()
    assert rig.aside == [], "the outcome of the batch in flight writes the next"
    rig.replicas.settle()
    rig.replicas.settle()
    rig.enqueue("e")
    rig.log.flush_aside()
    rig.aside.pop()()
    assert rig.replicas.batches[1:] == [[committed("d")], [committed("e")]]


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT])
def test_the_batches_after_an_outcome_are_written_where_they_hold_up_nothing(
    rig: LogRig, error: ErrorCode, is_slow: bool
) -> None:
    """The outcome comes on the thread of all deadlines, or while a follower's fetch is handled."""
    rig.write("a")
    rig.enqueue("b")
    rig.replicas.error, rig.replicas.is_on_slow_disk = error, is_slow
    rig.replicas.settle()
    assert len(rig.aside) == (is_slow or error != ErrorCode.NONE)
    for write in rig.aside:
        write()
    assert rig.replicas.batches == [[committed("a")], [committed("b")]]
