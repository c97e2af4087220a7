"""The checker finds each kind of fault, and no fault in a good history."""

from __future__ import annotations

import pytest

from barnabas.protocol.ids import TopicPartition

from .checker import check
from .history import FOREIGN, History, SentRecord, number_of, value_of

P0 = TopicPartition("t", 0)
P1 = TopicPartition("t", 1)


def good_history() -> History:
    """Two partitions, three replicas; records 8 and 9 were written and never acknowledged."""
    places = {1: (P0, 0), 2: (P0, 1), 3: (P0, 2), 4: (P1, 0), 5: (P1, 1)}
    sent = [SentRecord(number, partition, offset) for number, (partition, offset) in places.items()]
    sent += [SentRecord(8, P0, None, "timed out"), SentRecord(9, P1, None, "timed out")]
    logs = {P0: [(0, 1), (1, 2), (2, 3), (3, 8)], P1: [(0, 4), (1, 5), (2, 9)]}
    return History(
        sent=sent,
        reads=[(P0, 0, 1), (P1, 0, 4), (P1, 1, 5)],
        finally_read={partition: list(log) for partition, log in logs.items()},
        replicas={partition: {broker: list(log) for broker in (1, 2, 3)} for partition, log in logs.items()},
    )


def test_a_good_history_has_no_faults_and_its_oddities_are_counted() -> None:
    verdict = check(good_history())
    assert verdict.is_good, str(verdict)
    assert (verdict.acknowledged, verdict.unacknowledged_but_written) == (5, 2)


def faults_of(history: History) -> set[str]:
    return set(check(history).faults)


def spoilt_history(
    *,
    read: dict[TopicPartition, list[tuple[int, int]]] | None = None,
    acknowledged: dict[int, int] | None = None,
    read_meanwhile: list[tuple[TopicPartition, int, int]] | None = None,
) -> History:
    """A good history, but with these logs read in the end, these offsets acknowledged by record, these reads.

    It has no replicas, which would disagree.
    """
    history = good_history()
    history.replicas, history.reads = {}, read_meanwhile or []
    history.finally_read |= read or {}
    for record, offset in (acknowledged or {}).items():
        history.sent[record - 1].offset = offset
    return history


@pytest.mark.parametrize(
    ("history", "faults"),
    [
        pytest.param(history, faults, id=name)
        for name, history, faults in (
            ("a record is nowhere", spoilt_history(read={P1: [(0, 4)]}), {"lost"}),
            ("a record is at another offset", spoilt_history(acknowledged={2: 3}), {"lost"}),
            ("a partition has no records", spoilt_history(read={P0: []}), {"lost"}),
            (
                "a record was written again",
                spoilt_history(read={P0: [(0, 1), (1, 2), (2, 3), (3, 8), (4, 3)]}),
                {"twice"},
            ),
            (
                "two records were acknowledged at one offset",
                spoilt_history(acknowledged={3: 1}),
                {"doubly acknowledged", "lost"},
            ),
            ("a record that was read is gone", spoilt_history(read_meanwhile=[(P1, 0, 9)]), {"changed"}),
            (
                "a read was beyond the end",
                spoilt_history(read_meanwhile=[(P1, 0, 4), (P1, 1, 5), (P1, 2, 9), (P1, 3, 9)]),
                {"changed"},
            ),
            ("a reader skipped a record", spoilt_history(read_meanwhile=[(P1, 1, 5)]), {"skipped"}),
            (
                "a reader went back",
                spoilt_history(read_meanwhile=[(P1, 0, 4), (P1, 1, 5), (P1, 0, 4)]),
                {"read again"},
            ),
            (
                "the offsets have a hole",
                spoilt_history(read={P0: [(0, 1), (1, 2), (2, 3), (4, 8)]}),
                {"gap"},
            ),
            (
                "the offsets fall",
                spoilt_history(read={P0: [(0, 1), (1, 2), (2, 3), (1, 2)]}),
                {"backwards", "twice"},
            ),
            (
                "a record was never sent",
                spoilt_history(read={P0: [(0, 1), (1, 2), (2, 3), (3, FOREIGN)]}),
                {"foreign"},
            ),
            (
                "the order is not that of sending",
                spoilt_history(read={P0: [(0, 2), (1, 1), (2, 3)]}, acknowledged={1: 1, 2: 0}),
                {"order"},
            ),
        )
    ],
)
def test_a_fault_is_found(history: History, faults: set[str]) -> None:
    assert faults_of(history) == faults


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_replica_with_another_value_disagrees(broker: int) -> None:
    history = good_history()
    history.replicas[P0][broker][1] = (1, 5)
    assert faults_of(history) == {"disagreement"}


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_replica_that_ends_early_disagrees(broker: int) -> None:
    history = good_history()
    del history.replicas[P0][broker][-1]
    assert faults_of(history) == {"disagreement"}


def test_replicas_that_all_hold_more_than_is_read_disagree() -> None:
    history = good_history()
    for log in history.replicas[P1].values():
        log.append((3, 9))
    assert faults_of(history) == {"disagreement"}


def test_many_faults_of_a_kind_are_counted_and_shown_by_a_few() -> None:
    history = History(sent=[SentRecord(number, P0, number) for number in range(100)])
    verdict = check(history)
    assert verdict.counts["lost"] == 100
    assert "lost (100): record 0, acknowledged at offset 0 of" in str(verdict)
    assert len(verdict.faults["lost"]) == 5


@pytest.mark.parametrize("size", [1, 20, 100, 1000])
def test_a_value_gives_its_number_back(size: int) -> None:
    assert number_of(value_of(123456, size)) == 123456
    assert number_of(b"not a number") == FOREIGN
    assert number_of(None) == FOREIGN
