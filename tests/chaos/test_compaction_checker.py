"""The checker of compacted topics finds each kind of fault, and no fault in a good history."""

from __future__ import annotations

import pytest

from barnabas.protocol.ids import TopicPartition

from .compaction_checker import check_compacted
from .history import FOREIGN, History, SentRecord

P = TopicPartition("t", 0)
A, B, C = b"a", b"b", b"c"
LOG = [(1, 2), (4, 5), (5, 6), (6, 7)]
"""A correctly cleaned log: record 2 of b, the tombstone 5 of a, record 6 of c, and record 7 of b."""


def sent(number: int, key: bytes, offset: int | None, *, is_tombstone: bool = False) -> SentRecord:
    return SentRecord(number, P, offset, None if offset is not None else "timed out", key, is_tombstone)


def history() -> History:
    """Three keys; record 7 was written but not acknowledged; 8 and the tombstone 9 were not written."""
    records = [
        sent(1, A, 0),
        sent(2, B, 1),
        sent(3, A, 2),
        sent(4, C, 3),
        sent(5, A, 4, is_tombstone=True),
        sent(6, C, 5),
        sent(7, B, None),
        sent(8, A, None),
    ]
    return History(sent=records, reads=[(P, 0, 1), (P, 3, 4), (P, 5, 6), (P, 0, 1)])


def faults(
    log: list[tuple[int, int]], *more: SentRecord, reads: list[tuple[int, int]] | None = None
) -> set[str]:
    judged = history()
    judged.sent += more
    judged.reads += [(P, *read) for read in reads or []]
    return set(check_compacted(judged, {"client": {P: log}}, {}).faults)


def test_a_good_history_has_no_faults() -> None:
    views = {name: {P: LOG} for name in ("ours", "theirs", "broker 1")}
    verdict = check_compacted(history(), views, {P: {1: 7, 2: 7}})
    assert verdict.is_good, str(verdict)
    assert (verdict.acknowledged, verdict.unacknowledged_but_written) == (6, 1)


@pytest.mark.parametrize(
    "log",
    [
        pytest.param([(0, 1), (1, 2), (2, 3), (3, 4), *LOG[1:]], id="nothing was cleaned"),
        pytest.param([(5, 6), (6, 7)], id="the tombstone is gone with all before it"),
        pytest.param([(1, 2), (4, 5), (5, 6)], id="the record without an acknowledgement was not written"),
        pytest.param([*LOG, (8, 8)], id="a deleted key came back by a later record"),
    ],
)
def test_every_result_that_a_cleaner_may_leave_is_accepted(log: list[tuple[int, int]]) -> None:
    assert faults(log) == set()


@pytest.mark.parametrize(
    ("log", "found"),
    [
        pytest.param([(1, 2), (4, 5), (6, 7)], {"lost"}, id="a last value is gone"),
        pytest.param([(1, 2), (3, 4), (4, 5), (6, 7)], {"lost"}, id="an older value took its place"),
        pytest.param([(0, 1), *LOG[:1], *LOG[2:]], {"resurrected"}, id="a value outlived its tombstone"),
        pytest.param([(1, 2), (4, 5), (5, 7)], {"changed", "lost"}, id="an offset has another record"),
        pytest.param([(1, 2), (3, 5), (5, 6)], {"changed", "twice", "resurrected"}, id="an offset moved"),
        pytest.param([*LOG, (7, 7)], {"twice"}, id="a record was written again"),
        pytest.param([*LOG, (7, FOREIGN)], {"foreign"}, id="a record was never sent"),
        pytest.param([(1, 2), (5, 6), (4, 5)], {"backwards"}, id="the offsets fall"),
        pytest.param([], {"lost"}, id="the log is empty"),
    ],
)
def test_a_planted_fault_is_found(log: list[tuple[int, int]], found: set[str]) -> None:
    assert faults(log) == found


def test_a_record_that_was_read_but_not_acknowledged_must_stay() -> None:
    assert faults([(1, 2), (4, 5), (5, 6)], reads=[(6, 7)]) == {"lost"}


def test_a_tombstone_without_an_acknowledgement_may_delete_its_key() -> None:
    without_c = [(1, 2), (4, 5), (6, 7)]
    assert faults(without_c, sent(9, C, None, is_tombstone=True)) == set()
    assert faults(without_c, sent(9, B, None, is_tombstone=True)) == {"lost"}


def test_the_records_of_a_key_are_in_the_order_of_sending() -> None:
    assert faults([*LOG, (7, 9), (8, 8)], sent(9, A, None)) == {"order"}


def test_two_records_at_one_offset_are_a_fault_if_a_consumer_read_one_of_them() -> None:
    assert faults(LOG, reads=[(2, 1)]) == {"changed", "twice"}


def test_a_replica_that_was_away_may_keep_what_a_removed_tombstone_deleted() -> None:
    views = {"client": {P: [(0, 1), *LOG[:1], *LOG[2:]]}}
    assert check_compacted(history(), views, {}, excused=[P]).is_good
    views = {"client": {P: LOG[:1]}}
    assert set(check_compacted(history(), views, {}, excused=[P]).faults) == {"lost"}


def test_replicas_with_different_ends_disagree() -> None:
    verdict = check_compacted(history(), {"client": {P: LOG}}, {P: {1: 7, 2: 8}})
    assert set(verdict.faults) == {"disagreement"}
