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
        reads=[(P0, 0, 1), (P1, 1, 5)],
        finally_read={partition: list(log) for partition, log in logs.items()},
        replicas={partition: {broker: list(log) for broker in (1, 2, 3)} for partition, log in logs.items()},
    )


def test_a_good_history_has_no_faults_and_its_oddities_are_counted() -> None:
    verdict = check(good_history())
    assert verdict.is_good, str(verdict)
    assert (verdict.acknowledged, verdict.unacknowledged_but_written) == (5, 2)


def faults_after(history: History) -> set[str]:
    return set(check(history).faults)


def test_an_acknowledged_record_that_is_nowhere_is_lost() -> None:
    history = good_history()
    history.replicas = {}
    history.finally_read[P1] = [(0, 4)]
    history.reads = []
    assert faults_after(history) == {"lost"}


def test_a_record_that_was_written_again_is_found() -> None:
    history = good_history()
    for log in (history.finally_read[P0], *history.replicas[P0].values()):
        log.append((4, 3))
    assert faults_after(history) == {"twice"}


def test_an_acknowledged_record_at_another_offset_is_lost() -> None:
    history = good_history()
    history.replicas = {}
    history.sent[1].offset = 3
    assert faults_after(history) == {"lost"}


def test_a_partition_that_was_not_read_at_all_is_lost() -> None:
    history = good_history()
    del history.finally_read[P0]
    assert "lost" in faults_after(history)


def test_two_records_acknowledged_at_one_offset_are_found() -> None:
    history = good_history()
    history.sent[2].offset = 1
    assert faults_after(history) == {"doubly acknowledged", "lost"}


def test_a_record_that_was_read_and_is_missing_in_the_end_is_found() -> None:
    history = good_history()
    history.reads.append((P1, 0, 9))
    assert faults_after(history) == {"changed"}


def test_a_read_beyond_the_end_is_found() -> None:
    history = good_history()
    history.reads.append((P1, 3, 9))
    assert faults_after(history) == {"changed"}


def test_a_hole_in_the_offsets_is_found() -> None:
    history = good_history()
    history.replicas = {}
    history.finally_read[P0] = [(0, 1), (1, 2), (2, 3), (4, 8)]
    assert faults_after(history) == {"gap"}


def test_offsets_that_fall_are_found() -> None:
    history = good_history()
    history.replicas = {}
    history.finally_read[P0] = [(0, 1), (1, 2), (2, 3), (1, 2)]
    assert faults_after(history) == {"backwards", "twice"}


def test_a_record_that_was_never_sent_is_found() -> None:
    history = good_history()
    history.replicas = {}
    history.finally_read[P0][3] = (3, FOREIGN)
    assert faults_after(history) == {"foreign"}


def test_records_out_of_the_order_of_sending_are_found() -> None:
    history = good_history()
    history.replicas = {}
    history.reads = []
    history.sent[0].offset, history.sent[1].offset = 1, 0
    history.finally_read[P0] = [(0, 2), (1, 1), (2, 3)]
    assert faults_after(history) == {"order"}


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_replica_with_another_value_disagrees(broker: int) -> None:
    history = good_history()
    history.replicas[P0][broker][1] = (1, 5)
    assert faults_after(history) == {"disagreement"}


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_replica_that_ends_early_disagrees(broker: int) -> None:
    history = good_history()
    del history.replicas[P0][broker][-1]
    assert faults_after(history) == {"disagreement"}


def test_replicas_that_all_hold_more_than_is_read_disagree() -> None:
    history = good_history()
    for log in history.replicas[P1].values():
        log.append((3, 9))
    assert faults_after(history) == {"disagreement"}


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
