"""The checker of groups finds each kind of fault, and no fault in a good run."""

from __future__ import annotations

from barnabas.protocol.ids import TopicPartition

from .group_checker import Acknowledged, Committed, Event, Owned, Seen, check_group

P0 = TopicPartition("t", 0)
P1 = TopicPartition("t", 1)


def good_run() -> list[Event]:
    """Two members; the first dies with record 12 seen and not committed, and the other sees it again."""
    return [
        *(Acknowledged(P0, offset, 10 + offset) for offset in range(4)),
        Acknowledged(P1, 0, 20),
        Owned("a", frozenset({P0})),
        Owned("b", frozenset({P1})),
        *(Seen("a", P0, offset, 10 + offset) for offset in range(2)),
        Seen("b", P1, 0, 20),
        Committed(P0, 2),
        Seen("a", P0, 2, 12),
        Owned("b", frozenset({P0, P1})),
        *(Seen("b", P0, offset, 10 + offset) for offset in (2, 3)),
        Committed(P0, 4),
        Committed(P1, 1),
    ]


def faults_of(events: list[Event]) -> set[str]:
    return set(check_group(events)[0].faults)


def test_a_good_run_has_no_faults_and_redelivered_records_are_counted() -> None:
    verdict, delivered_again = check_group(good_run())
    assert verdict.is_good, str(verdict)
    assert (verdict.acknowledged, delivered_again) == (5, 1)


def test_an_acknowledged_record_that_no_member_saw_is_found() -> None:
    assert faults_of([*good_run(), Acknowledged(P1, 1, 21)]) == {"unseen"}


def test_a_record_that_was_not_acknowledged_may_be_seen_or_not() -> None:
    assert faults_of([*good_run(), Seen("b", P1, 1, 21)]) == set()


def test_a_commit_before_its_records_are_seen_is_found() -> None:
    events = good_run()
    early = events.index(Committed(P0, 2))
    events.insert(early, Committed(P0, 3))
    del events[early + 1]
    assert faults_of(events) == {"covers"}


def test_a_commit_over_a_hole_is_found() -> None:
    events: list[Event] = [Seen("a", P0, 1, 11), Committed(P0, 2), Seen("b", P0, 0, 10)]
    assert faults_of(events) == {"covers"}


def test_a_commit_of_an_unread_partition_is_found() -> None:
    assert faults_of([Committed(P0, 1)]) == {"covers"}


def test_a_committed_offset_that_falls_is_found() -> None:
    assert faults_of([*good_run(), Committed(P0, 3)]) == {"rewound"}


def test_a_skipped_offset_within_one_assignment_is_found() -> None:
    events = good_run()
    events.remove(Seen("a", P0, 1, 11))
    events.insert(0, Seen("c", P0, 1, 11))
    assert faults_of(events) == {"gap"}


def test_an_offset_seen_twice_in_a_row_within_one_assignment_is_found() -> None:
    assert faults_of([*good_run(), Seen("b", P1, 0, 20)]) == {"gap"}


def test_a_member_that_gets_a_partition_again_may_start_anywhere() -> None:
    events = [
        *good_run(),
        Owned("b", frozenset()),
        Owned("b", frozenset({P1})),
        Seen("b", P1, 0, 20),
    ]
    assert faults_of(events) == set()


def test_another_record_than_was_acknowledged_there_is_found() -> None:
    events = good_run()
    events[events.index(Seen("b", P1, 0, 20))] = Seen("b", P1, 0, 99)
    assert faults_of(events) == {"changed"}


def test_an_offset_that_two_members_see_differently_is_found() -> None:
    events = good_run()
    events[events.index(Seen("b", P0, 2, 12))] = Seen("b", P0, 2, 13)
    assert "changed" in faults_of(events)
