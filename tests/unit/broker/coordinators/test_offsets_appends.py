"""What gathers becomes one batch, in order; each append hears its outcome once, whatever becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from barnabas.broker.coordinators.group_log import GroupRecord, OffsetAndMetadata, OffsetRecord, Record
from barnabas.broker.coordinators.group_records import from_bytes
from barnabas.broker.coordinators.offsets_appends import MAX_WAITING, OffsetsAppends, Settled, in_batches
from barnabas.broker.log.appending import ProducedBatches
from barnabas.broker.replication.appending import AppendOutcome
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import LeaderEpoch, TopicPartition
from barnabas.protocol.records import decode_records

PARTITION = TopicPartition("__consumer_offsets", 3)
Outcome = tuple[str, ErrorCode, int]


def committed(group: str, offset: int = 1, metadata: str = "") -> OffsetRecord:
    value = OffsetAndMetadata(offset, 1_000, metadata=metadata)
    return OffsetRecord(group, TopicPartition("topic", 0), value)


class Log:
    """Stands for the replica manager; answers when the test says so, or at once."""

    def __init__(self) -> None:
        self.batches: list[list[Record]] = []
        self.open: list[Callable[[list[AppendOutcome]], None]] = []
        self.at_once = False
        self.error = ErrorCode.NONE
        self.asked: list[tuple[int, int, LeaderEpoch | None]] = []
        self.below_min_isr: list[bool] = []
        self.woken = 0
        self.end = 100

    def append(
        self,
        acks: int,
        timeout_ms: int,
        batches: Sequence[tuple[TopicPartition, ProducedBatches]],
        answer: Callable[[list[AppendOutcome]], None],
        *,
        since: LeaderEpoch | None = None,
        below_min_isr: bool = False,
    ) -> None:
        ((name, produced),) = batches
        assert name == PARTITION
        self.below_min_isr.append(below_min_isr)
        self.asked.append((acks, timeout_ms, since))
        records = decode_records(produced.view)
        self.batches.append([from_bytes(record.key or b"", record.value) for record in records])
        self.open.append(answer)
        if self.at_once:
            self.settle()

    def settle(self) -> None:
        answer = self.open.pop(0)
        offset = -1 if self.error else self.end
        self.end += len(self.batches[-1])
        answer([AppendOutcome(PARTITION, self.error, base_offset=offset)])

    def wake_followers(self) -> None:
        self.woken += 1


class Desk:
    def __init__(self, max_batch_bytes: int = 1 << 20) -> None:
        self.log = Log()
        self.outcomes: list[Outcome] = []
        self.appends = OffsetsAppends(
            self.log,
            PARTITION,
            LeaderEpoch(7),
            timeout_ms=5_000,
            max_batch_bytes=lambda: max_batch_bytes,
            wall_clock_ms=lambda: 1_234,
        )

    def settled(self, name: str) -> Settled:
        return lambda error, offset: self.outcomes.append((name, error, offset))

    def put(self, name: str, *records: Record) -> None:
        assert self.appends.put(records or (committed(name),), self.settled(name))


def test_it_is_written_with_all_acks_and_fenced_by_the_epoch_since_which_it_leads() -> None:
    desk = Desk()
    desk.put("a")
    desk.appends.flush()
    assert desk.log.asked == [(-1, 5_000, 7)]
    assert desk.log.woken == 1
    assert desk.outcomes == []
    desk.log.settle()
    assert desk.outcomes == [("a", ErrorCode.NONE, 100)]


def test_what_gathers_while_a_batch_is_under_way_becomes_the_next_one() -> None:
    desk = Desk()
    desk.put("a")
    desk.appends.flush()
    desk.put("b", committed("b", 1), committed("b", 2))
    desk.put("c")
    desk.appends.flush()
    assert len(desk.log.batches) == 1
    desk.log.settle()
    assert desk.log.batches[1] == [committed("b", 1), committed("b", 2), committed("c")]
    desk.log.settle()
    # Each is told where its own first record stands.
    assert desk.outcomes == [
        ("a", ErrorCode.NONE, 100),
        ("b", ErrorCode.NONE, 101),
        ("c", ErrorCode.NONE, 103),
    ]


def test_an_error_is_told_to_all_of_the_batch_and_the_next_goes_on() -> None:
    desk = Desk()
    desk.put("a")
    desk.put("b")
    desk.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    desk.appends.flush()
    desk.put("c")
    desk.log.settle()
    refused = ErrorCode.NOT_ENOUGH_REPLICAS
    assert desk.outcomes == [("a", refused, -1), ("b", refused, -1)]
    desk.log.error = ErrorCode.NONE
    desk.log.settle()
    assert desk.outcomes[2][:2] == ("c", ErrorCode.NONE)


def test_a_batch_is_no_larger_than_the_topic_takes_unless_one_append_alone_is() -> None:
    desk = Desk(max_batch_bytes=400)
    desk.log.at_once = True
    for name in ("a", "b"):
        desk.put(name, committed(name, metadata="x" * 150))
    desk.put("c", committed("c", metadata="x" * 500))
    desk.put("d")
    desk.appends.flush()
    assert [[record.group_id for record in batch] for batch in desk.log.batches] == [
        ["a"],
        ["b"],
        ["c"],
        ["d"],
    ]
    assert [name for name, _, _ in desk.outcomes] == ["a", "b", "c", "d"]


def test_appends_that_are_answered_at_once_and_bring_forth_others_do_not_grow_the_stack() -> None:
    desk = Desk()
    desk.log.at_once = True
    left = 5_000

    def again(error: ErrorCode, offset: int) -> None:
        nonlocal left
        if left:
            left -= 1
            desk.appends.put((committed("a"),), again)
            desk.appends.flush()

    desk.appends.put((committed("a"),), again)
    desk.appends.flush()
    assert len(desk.log.batches) == 5_001


def test_one_too_many_is_refused() -> None:
    desk = Desk()
    for _ in range(MAX_WAITING):
        desk.put("a")
    assert not desk.appends.put((committed("b"),), desk.settled("b"))
    desk.log.at_once = True
    desk.appends.flush()
    assert len(desk.outcomes) == MAX_WAITING
    assert desk.appends.put((committed("b"),), desk.settled("b"))


def test_removals_are_written_whatever_the_isr_and_however_many_wait() -> None:
    desk = Desk()
    for _ in range(MAX_WAITING):
        desk.put("a")
    gone = OffsetRecord("a", TopicPartition("topic", 0), None)
    assert desk.appends.put((gone,), desk.settled("gone"), is_removal=True)
    assert not desk.appends.put((committed("b"),), desk.settled("b"))
    desk.log.at_once = True
    desk.appends.flush()
    # In a batch of their own, so that commits are still refused.
    assert desk.log.batches[-1] == [gone]
    assert desk.log.below_min_isr == [False] * (len(desk.log.batches) - 1) + [True]
    assert [name for name, _, _ in desk.outcomes[-2:]] == ["a", "gone"]


def test_a_name_that_the_format_cannot_say_is_told_and_hinders_nobody() -> None:
    desk = Desk()
    desk.log.at_once = True
    desk.put("a")
    desk.put("long", committed("g" * 40_000))
    desk.put("b")
    desk.appends.flush()
    assert [[record.group_id for record in batch] for batch in desk.log.batches] == [["a", "b"]]
    assert sorted(desk.outcomes) == [
        ("a", ErrorCode.NONE, 100),
        ("b", ErrorCode.NONE, 101),
        ("long", ErrorCode.MESSAGE_TOO_LARGE, -1),
    ]
    desk.put("long", committed("g" * 40_000))
    desk.appends.flush()
    assert desk.outcomes[-1] == ("long", ErrorCode.MESSAGE_TOO_LARGE, -1)
    desk.put("c")
    desk.appends.flush()
    assert desk.outcomes[-1] == ("c", ErrorCode.NONE, 102)


def test_many_threads_have_all_their_records_written_once_and_each_in_its_own_order() -> None:
    desk = Desk()
    desk.log.at_once = True

    def work(name: str) -> None:
        for offset in range(500):
            desk.put(name, committed(name, offset))
            desk.appends.flush()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    desk.appends.flush()
    written = [record for batch in desk.log.batches for record in batch]
    assert len(written) == len(desk.outcomes) == 2_000
    for name in "abcd":
        own = [record for record in written if record.group_id == name]
        assert own == [committed(name, offset) for offset in range(500)]


def test_tombstones_are_divided_where_the_limit_asks_for_it() -> None:
    records = [OffsetRecord("g", TopicPartition("topic", index), None) for index in range(100)]
    parts = in_batches([*records, GroupRecord("g", None)], 500)
    assert len(parts) > 5
    assert [record for part in parts for record in part] == [*records, GroupRecord("g", None)]
    assert in_batches(records, 1 << 20) == [tuple(records)]


def fail(*_: object) -> None:
    raise ZeroDivisionError("a bug")


def test_an_outcome_that_cannot_be_handled_keeps_no_other_from_being_told() -> None:
    desk = Desk()
    desk.log.at_once = True
    for records in ((committed("g" * 40_000),), (committed("a"),)):
        desk.appends.put(records, fail)
    desk.put("b")
    desk.appends.flush()
    assert desk.outcomes == [("b", ErrorCode.NONE, 101)]
    desk.put("c")
    desk.appends.flush()
    assert desk.outcomes[1:] == [("c", ErrorCode.NONE, 102)]


@pytest.mark.parametrize("is_answered_later", [False, True])
def test_an_append_that_fails_is_told_once_and_the_next_is_written(
    monkeypatch: pytest.MonkeyPatch, is_answered_later: bool
) -> None:
    desk = Desk()
    append = desk.log.append

    def buggy(*arguments: Any, **options: Any) -> None:
        if is_answered_later:
            append(*arguments, **options)
        fail()

    with monkeypatch.context() as patch:
        patch.setattr(desk.log, "append", buggy)
        desk.put("a")
        desk.appends.flush()
    assert desk.outcomes == [("a", ErrorCode.UNKNOWN_SERVER_ERROR, -1)]
    for _ in range(is_answered_later):
        desk.log.settle()
    desk.put("b")
    desk.appends.flush()
    desk.log.settle()
    assert [name for name, _, _ in desk.outcomes] == ["a", "b"]
