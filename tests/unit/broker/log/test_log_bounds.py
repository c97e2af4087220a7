"""The offsets that bound a log."""

from __future__ import annotations

import pytest

from barnabas.broker.log.log_bounds import LogBounds
from barnabas.protocol.invariants import InvariantViolation


def seen(bounds: LogBounds) -> tuple[int, int, int]:
    return bounds.start, bounds.recovery_point, bounds.end


@pytest.mark.parametrize("offsets", [(3, 2, 5), (2, 6, 5), (6, 6, 5)])
def test_offsets_out_of_order_are_refused(offsets: tuple[int, int, int]) -> None:
    with pytest.raises(InvariantViolation, match="out of order"):
        LogBounds(*offsets)


@pytest.mark.parametrize(("offset", "expected"), [(15, (15, 20, 30)), (25, (25, 25, 30))])
def test_a_start_that_moves_takes_the_recovery_point_along(
    offset: int, expected: tuple[int, int, int]
) -> None:
    bounds = LogBounds(10, 20, 30)
    bounds.raise_start(offset)
    assert seen(bounds) == expected


@pytest.mark.parametrize(
    ("end", "expected", "is_lowered"),
    [(25, (10, 20, 30), False), (20, (10, 20, 30), False), (15, (10, 15, 30), True), (5, (5, 5, 30), True)],
)
def test_what_lies_behind_a_cut_is_lowered_before_it(
    end: int, expected: tuple[int, int, int], is_lowered: bool
) -> None:
    bounds = LogBounds(10, 20, 30)
    assert bounds.lower(end) is is_lowered
    assert seen(bounds) == expected


def test_a_flush_that_a_cut_has_overtaken_moves_nothing() -> None:
    bounds = LogBounds(0, 0, 30)
    before = bounds.cuts
    bounds.lower(25)
    bounds.raise_recovery_point(30, before)
    assert bounds.recovery_point == 0
    bounds.raise_recovery_point(20, bounds.cuts)
    bounds.raise_recovery_point(10, bounds.cuts)
    assert bounds.recovery_point == 20


def test_an_empty_log_begins_anywhere() -> None:
    bounds = LogBounds(10, 20, 30)
    bounds.begin_at(5)
    assert seen(bounds) == (5, 5, 5)
    bounds.check()
