"""The checker of groups finds each kind of fault, and no fault in a good run."""

from __future__ import annotations

import pytest

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


def run_with(event: Event, in_place_of: Event) -> list[Event]:
    return [event if other == in_place_of else other for other in good_run()]


@pytest.mark.parametrize(
    ("events", "faults"),
    [
        pytest.param(events, faults, id=name)
        for name, events, faults in (
            ("a record that no member saw", [*good_run(), Acknowledged(P1, 1, 21)], {"unseen"}),
            ("a record that was not acknowledged", [*good_run(), Seen("b", P1, 1, 21)], set()),
            ("a commit before its records", run_with(Committed(P0, 3), Committed(P0, 2)), {"covers"}),
            (
                "a commit over a hole",
                [Seen("a", P0, 1, 11), Committed(P0, 2), Seen("b", P0, 0, 10)],
                {"covers"},
            ),
            ("a commit of an unread partition", [Committed(P0, 1)], {"covers"}),
            ("a committed offset that falls", [*good_run(), Committed(P0, 3)], {"rewound"}),
            (
                "a skipped offset within one assignment",
                [Seen("c", P0, 1, 11), *(event for event in good_run() if event != Seen("a", P0, 1, 11))],
                {"gap"},
            ),
            ("an offset seen twice in a row", [*good_run(), Seen("b", P1, 0, 20)], {"gap"}),
            (
                "a partition that is assigned again",
                [*good_run(), Owned("b", frozenset()), Owned("b", frozenset({P1})), Seen("b", P1, 0, 20)],
                set(),
            ),
            (
                "another record than was acknowledged",
                run_with(Seen("b", P1, 0, 99), Seen("b", P1, 0, 20)),
                {"changed"},
            ),
            (
                "another record than another member saw",
                run_with(Seen("b", P0, 2, 13), Seen("b", P0, 2, 12)),
                {"changed"},
            ),
        )
    ],
)
def test_the_faults_of(events: list[Event], faults: set[str]) -> None:
    assert faults_of(events) == faults
