"""The checker finds each broken promise, and no fault in a good history."""

from collections.abc import Sequence
from typing import Any

import pytest

from barnabas.chaos.checker import COMPACTED, COPIES, GROUPS, RECORDS, Promise, check, name_of
from barnabas.chaos.history import (
    FOREIGN,
    Acknowledged,
    Attempted,
    Committed,
    Copy,
    Ended,
    Event,
    History,
    Log,
    Outcome,
    Owned,
    Read,
    Sent,
    WasAway,
    number_of,
    value_of,
)
from barnabas.protocol.ids import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
Found = list[tuple[int, int]]


def faults_of(events: Sequence[Event], promises: Sequence[Promise]) -> set[str]:
    return set(check(History(*events), promises).faults)


def replaced(events: list[Event], changes: dict[Event, Event | None]) -> list[Event]:
    """With these events instead of others, or without them."""
    assert all(event in events for event in changes)
    changed = [changes.get(event, event) for event in events]
    return [event for event in changed if event is not None]


# ---- records

LOG0, LOG1 = [(0, 1), (1, 2), (2, 3), (3, 8)], [(0, 4), (1, 5), (2, 9)]
READS = [(P1, 0, 4), (P1, 1, 5)]


def records(
    log0: Found = LOG0,
    log1: Found = LOG1,
    *,
    reads: Sequence[tuple[TopicPartition, int, int]] = (),
    acknowledged: dict[int, int] | None = None,
    replicas: dict[int, Found] | None = None,
) -> list[Event]:
    """Two partitions; records 8, 9 and 10 were not acknowledged, and 10 was not written.

    With these logs read in the end, reads, other offsets acknowledged by record, and replicas of P0.
    """
    places = {1: (P0, 0), 2: (P0, 1), 3: (P0, 2), 4: (P1, 0), 5: (P1, 1)}
    offsets = {number: offset for number, (_, offset) in places.items()} | (acknowledged or {})
    return [
        *(Sent(number, partition) for number, (partition, _) in places.items()),
        *(Acknowledged(partition, offsets[number], number) for number, (partition, _) in places.items()),
        *(Sent(8, P0), Sent(9, P1), Sent(10, P1)),
        *(Read("reader", *read) for read in reads),
        *(Log("client", P0, log0), Log("client", P1, log1)),
        *(Log(f"broker {id}", P0, log, broker=id) for id, log in (replicas or {}).items()),
    ]


GOOD_RECORDS = records(reads=[(P0, 0, 1), *READS], replicas={1: LOG0, 2: LOG0, 3: LOG0})

# ---- a compacted topic

A, B, C = b"a", b"b", b"c"
CLEANED = [(1, 2), (4, 5), (5, 6), (6, 7)]
"""A correctly cleaned log: record 2 of b, the tombstone 5 of a, record 6 of c, and record 7 of b."""


def compacted(
    log: Found = CLEANED,
    *more: Event,
    reads: Sequence[tuple[int, int]] = (),
    ends: dict[int, int] | None = None,
) -> list[Event]:
    """Three keys; record 7 was written but not acknowledged; 8 was not written."""
    keys = {1: A, 2: B, 3: A, 4: C, 5: A, 6: C, 7: B, 8: A}
    return [
        *(Sent(number, P0, key, number == 5) for number, key in keys.items()),
        *more,
        *(Acknowledged(P0, number - 1, number) for number in range(1, 7)),
        *(Read("reader", P0, *read) for read in [(0, 1), (3, 4), (5, 6), (0, 1), *reads]),
        Log("client", P0, log),
        *(Log(f"broker {id}", P0, log, end, id) for id, end in (ends or {}).items()),
    ]


# ---- a group

GROUP: list[Event] = [
    *(Acknowledged(P0, offset, 10 + offset) for offset in range(4)),
    Acknowledged(P1, 0, 20),
    Owned("a", frozenset({P0})),
    Owned("b", frozenset({P1})),
    *(Read("a", P0, offset, 10 + offset) for offset in range(2)),
    Read("b", P1, 0, 20),
    Committed(P0, 2),
    Read("a", P0, 2, 12),
    Owned("b", frozenset({P0, P1})),
    *(Read("b", P0, offset, 10 + offset) for offset in (2, 3)),
    Committed(P0, 4),
    Committed(P1, 1),
]
"""Two members; the first dies with record 12 seen and not committed, and the other sees it again."""

# ---- copies

IN, OUT, OTHER = TopicPartition("in", 0), TopicPartition("out", 0), TopicPartition("out", 1)


def copy_of(offset: int, attempt: str) -> Copy:
    return Copy((0, offset), b"k", b"%d" % offset, attempt)


def places(*offsets: int) -> frozenset[tuple[int, int]]:
    return frozenset((0, offset) for offset in offsets)


INPUT = [(offset, (b"k", b"%d" % offset)) for offset in range(4)]
OUTPUT = [(3, copy_of(0, "b")), (4, copy_of(1, "b")), (6, copy_of(2, "c"))]


def copies(
    *events: Event,
    output: list[tuple[int, Copy]] = OUTPUT,
    other: Sequence[tuple[int, Copy]] = ((0, copy_of(3, "c")),),
    input: list[tuple[int, Any]] = INPUT,
    committed: Sequence[Event] = (Committed(IN, 4),),
    reads: int = 2,
    outcomes: Sequence[Event] = (Ended("a", Outcome.ABORTED), Ended("b", Outcome.COMMITTED)),
) -> list[Event]:
    """Attempt a is aborted, b copies the same records; c dies without an outcome and was committed."""
    attempts = {"a": places(0, 1), "b": places(0, 1), "c": places(2, 3), "d": places(2, 3), "e": places(3)}
    return [
        *(Acknowledged(IN, offset, (b"k", b"%d" % offset)) for offset in range(4)),
        *(Attempted(*attempt) for attempt in attempts.items()),
        *outcomes,
        *(Read("reader", OUT, *found) for found in OUTPUT[:reads]),
        *events,
        *(*committed, Log("input", IN, input, 4)),
        *(Log("output", OUT, output), Log("output", OTHER, list(other))),
    ]


ALONE: list[tuple[Sequence[Promise], str, list[Event]]] = [
    (RECORDS, "lost", records(log1=[(0, 4)])),
    (RECORDS, "doubly acknowledged", records([(0, 1), (1, 2), (2, 8)], acknowledged={3: 1})),
    (RECORDS, "changed", records(reads=[*READS, (P1, 2, 10)])),
    (RECORDS, "vanished", records(reads=[*READS, (P1, 2, 9), (P1, 3, 10)])),
    (RECORDS, "twice", records([*LOG0, (4, 3)])),
    (RECORDS, "gap", records([*LOG0[:3], (4, 8)])),
    (RECORDS, "gap", [Sent(10, P0), Log("client", P0, [(1, 10)])]),
    (RECORDS, "backwards", records([*LOG0, (3, 8)])),
    (RECORDS, "skipped", records(reads=READS[1:])),
    (RECORDS, "read again", records(reads=[*READS, READS[0]])),
    (RECORDS, "order", records([(0, 2), (1, 1), (2, 3)], acknowledged={1: 1, 2: 0})),
    (
        RECORDS,
        "order",
        records([(0, 8), (1, 2), (2, 1), (3, 3)], acknowledged={1: 2, 2: 1, 3: 3}),
    ),
    (RECORDS, "foreign", records([*LOG0[:3], (3, FOREIGN)])),
    *(
        (RECORDS, "disagreement", records(replicas={1: LOG0, 2: LOG0, 3: LOG0} | {id: LOG0[:3]}))
        for id in (1, 2, 3)
    ),
    (RECORDS, "disagreement", records(replicas={id: [*LOG0, (4, 10)] for id in (1, 2, 3)})),
    (COMPACTED, "last value lost", compacted([(1, 2), (4, 5), (6, 7)])),
    (COMPACTED, "last value lost", compacted([(1, 2), (3, 4), (4, 5), (6, 7)])),
    (COMPACTED, "last value lost", compacted([])),
    (COMPACTED, "last value lost", compacted([(1, 2), (4, 5), (5, 6)], reads=[(6, 7)])),
    (COMPACTED, "last value lost", compacted(CLEANED[:2] + CLEANED[3:], Sent(9, P0, B, True))),
    (COMPACTED, "last value lost", compacted(CLEANED[:1], WasAway(P0))),
    (COMPACTED, "resurrected", compacted([(0, 1), *CLEANED[:1], *CLEANED[2:]])),
    (COMPACTED, "doubly acknowledged", compacted(CLEANED, Sent(9, P0, A), Acknowledged(P0, 2, 9))),
    (COMPACTED, "changed", compacted([*CLEANED, (7, 9)], Sent(9, P0, A), reads=[(7, 8)])),
    (COMPACTED, "twice", compacted([*CLEANED, (7, 7)])),
    (COMPACTED, "backwards", compacted([(1, 2), (5, 6), (4, 5)])),
    (COMPACTED, "order", compacted([*CLEANED, (7, 9), (8, 8)], Sent(9, P0, A))),
    (COMPACTED, "foreign", compacted([*CLEANED, (7, FOREIGN)])),
    (COMPACTED, "disagreement", compacted(ends={1: 7, 2: 8})),
    (GROUPS, "unseen", [*GROUP, Acknowledged(P1, 1, 21)]),
    (GROUPS, "covers", replaced(GROUP, {Committed(P0, 2): Committed(P0, 3)})),
    (
        GROUPS,
        "covers",
        [Owned("a", frozenset()), Read("a", P0, 1, 11), Committed(P0, 2), Read("b", P0, 0, 10)],
    ),
    (GROUPS, "covers", [Committed(P0, 1)]),
    (GROUPS, "rewound", [*GROUP, Committed(P0, 3)]),
    (
        GROUPS,
        "skipped",
        [Owned("c", frozenset()), Read("c", P0, 1, 11), *replaced(GROUP, {Read("a", P0, 1, 11): None})],
    ),
    (GROUPS, "read again", [*GROUP, Read("b", P1, 0, 20)]),
    (GROUPS, "changed", replaced(GROUP, {Read("b", P1, 0, 20): Read("b", P1, 0, 99)})),
    (GROUPS, "changed", replaced(GROUP, {Read("b", P0, 2, 12): Read("b", P0, 2, 13)})),
    (GROUPS, "doubly acknowledged", [*GROUP, Acknowledged(P1, 0, 21)]),
    (COPIES, "lost", copies(Acknowledged(IN, 4, (b"k", b"4")))),
    (COPIES, "missing", copies(input=[*INPUT, (4, (b"k", b"4"))])),
    (COPIES, "twice", copies(other=[(0, copy_of(3, "c")), (9, copy_of(3, "e"))])),
    (COPIES, "foreign", copies(other=[(0, Copy((0, 3), b"k", b"other", "c"))])),
    (COPIES, "foreign", copies(other=[(0, copy_of(3, "c")), (1, copy_of(7, "x"))])),
    (COPIES, "order", copies(output=[OUTPUT[0], (4, copy_of(2, "c")), (6, copy_of(1, "b"))], reads=0)),
    (COPIES, "aborted", copies(outcomes=[Ended("b", Outcome.ABORTED)])),
    (COPIES, "attempt lost", copies(outcomes=[Ended("d", Outcome.COMMITTED)])),
    (COPIES, "torn", copies(other=[(0, copy_of(3, "e"))])),
    (COPIES, "changed", copies(Read("reader", OUT, 6, copy_of(2, "d")))),
    (COPIES, "offsets", copies(committed=[Committed(IN, 3)])),
    (COPIES, "offsets", copies(committed=[])),
]
"""Promises, and a history that breaks one of them."""


@pytest.mark.parametrize(
    ("promises", "fault", "events"),
    [pytest.param(*row, id=f"{number} {row[1]}") for number, row in enumerate(ALONE)],
)
def test_a_planted_fault_is_found_by_one_promise(
    promises: Sequence[Promise], fault: str, events: list[Event]
) -> None:
    assert faults_of(events, promises) == {fault}


def test_each_promise_of_each_list_has_a_planted_fault() -> None:
    """But `vanished` of copies: a copy that was read and is gone is a missing one too, or it is elsewhere."""
    planted = {(id(promises), fault) for promises, fault, _ in ALONE}
    for promises in (RECORDS, COMPACTED, GROUPS, COPIES):
        without = [
            name_of(promise) for promise in promises if (id(promises), name_of(promise)) not in planted
        ]
        assert without == (["vanished"] if promises is COPIES else [])
    assert all(promise.__doc__ for promise in (*RECORDS, *COMPACTED, *GROUPS, *COPIES))


@pytest.mark.parametrize(
    ("promises", "events", "faults"),
    [
        (RECORDS, records(acknowledged={2: 3}), {"lost", "changed", "twice"}),
        (RECORDS, records([]), {"lost"}),
        (RECORDS, records(reads=[(P1, 0, 9)]), {"changed", "twice"}),
        (RECORDS, records([*LOG0[:3], (1, 2)]), {"backwards"}),
        (
            RECORDS,
            records(replicas={1: LOG0, 2: [(0, 1), (1, 10), *LOG0[2:]]}),
            {"changed", "lost", "disagreement"},
        ),
        (COMPACTED, compacted([(1, 2), (4, 5), (5, 7)]), {"changed", "last value lost"}),
        (COMPACTED, compacted([(1, 2), (3, 5), (5, 6)]), {"changed", "twice", "resurrected"}),
        (COMPACTED, compacted(reads=[(2, 1)]), {"changed", "twice"}),
        (COPIES, copies(Read("reader", OUT, 7, copy_of(3, "c"))), {"vanished", "twice"}),
        (COPIES, copies(Read("reader", OUT, 7, copy_of(3, "c")), other=[]), {"vanished", "missing", "torn"}),
    ],
)
def test_faults_that_break_several_promises(
    promises: Sequence[Promise], events: list[Event], faults: set[str]
) -> None:
    assert faults_of(events, promises) == faults


@pytest.mark.parametrize(
    ("promises", "events"),
    [
        (RECORDS, GOOD_RECORDS),
        pytest.param(COMPACTED, compacted(ends={1: 7, 2: 7}), id="cleaned"),
        pytest.param(COMPACTED, compacted([(0, 1), (1, 2), (2, 3), (3, 4), *CLEANED[1:]]), id="not cleaned"),
        pytest.param(COMPACTED, compacted([(5, 6), (6, 7)]), id="the tombstone is gone with all before it"),
        pytest.param(COMPACTED, compacted([(1, 2), (4, 5), (5, 6)]), id="no acknowledgement, not written"),
        pytest.param(
            COMPACTED, compacted([*CLEANED, (8, 8)]), id="a deleted key came back by a later record"
        ),
        pytest.param(
            COMPACTED,
            compacted(CLEANED[:2] + CLEANED[3:], Sent(9, P0, C, True)),
            id="a tombstone without an acknowledgement deletes its key",
        ),
        pytest.param(
            COMPACTED,
            compacted([(0, 1), *CLEANED[:1], *CLEANED[2:]], WasAway(P0)),
            id="a replica that was away keeps what a removed tombstone deleted",
        ),
        (GROUPS, GROUP),
        pytest.param(GROUPS, [*GROUP, Committed(P1, 1)], id="an offset that is committed again"),
        pytest.param(GROUPS, [*GROUP, Read("b", P1, 1, 21)], id="a record that was not acknowledged"),
        pytest.param(
            GROUPS,
            [*GROUP, Owned("b", frozenset()), Owned("b", frozenset({P1})), Read("b", P1, 0, 20)],
            id="a partition that is assigned again",
        ),
        (COPIES, copies()),
    ],
)
def test_a_good_history_has_no_faults(promises: Sequence[Promise], events: list[Event]) -> None:
    verdict = check(History(*events), promises)
    assert verdict.is_good, str(verdict)


def test_oddities_are_counted() -> None:
    verdict = check(History(*GOOD_RECORDS), RECORDS)
    assert (verdict.acknowledged, verdict.unacknowledged_but_written) == (5, 2)
    verdict = check(History(*compacted()), COMPACTED)
    assert (verdict.acknowledged, verdict.unacknowledged_but_written) == (6, 1)
    verdict = check(History(*GROUP), GROUPS)
    assert (verdict.acknowledged, verdict.delivered_again) == (5, 1)


def test_replicas_that_differ_are_named_by_their_first_different_record() -> None:
    history = History(*records(replicas={1: LOG0, 2: LOG0[:3], 3: [*LOG0[:3], (3, 10)]}))
    assert check(history, RECORDS).faults["disagreement"] == [
        "t-0 has no further record in broker 2, and record 8 at offset 3 in client",
        "t-0 has record 10 at offset 3 in broker 3, and record 8 at offset 3 in client",
    ]


def test_many_faults_of_a_kind_are_counted_and_shown_by_a_few() -> None:
    history = History(Log("client", P0, []), *(Acknowledged(P0, number, number) for number in range(100)))
    verdict = check(history, RECORDS)
    assert verdict.counts["lost"] == 100
    assert "lost (100): client: record 0, acknowledged at offset 0 of" in str(verdict)
    assert len(verdict.faults["lost"]) == 5


@pytest.mark.parametrize("size", [1, 20, 100, 1000])
def test_a_value_gives_its_number_back(size: int) -> None:
    assert number_of(value_of(123456, size)) == 123456
    assert number_of(b"not a number") == FOREIGN
    assert number_of(None) == FOREIGN
