"""The offsets that bound a log."""

from __future__ import annotations

import pytest

from barnabas.broker.log.checkpoints import LogBounds
from barnabas.protocol.invariants import InvariantViolation


def seen(bounds: LogBounds) -> tuple[int, int, int]:
    return bounds.start, bounds.recovery_point, bounds.end


@pytest.mark.parametrize("offsets", [(2, 6, 5), (6, 2, 5), (6, 6, 5)])
def test_offsets_out_of_order_are_refused(offsets: tuple[int, int, int]) -> None:
    with pytest.raises(InvariantViolation, match="out of order"):
        LogBounds(*offsets)


@pytest.mark.parametrize("offset", [15, 25])
def test_a_start_that_moves_puts_nothing_on_disk(offset: int) -> None:
    bounds = LogBounds(10, 20, 30)
    bounds.raise_start(offset)
    assert seen(bounds) == (offset, 20, 30)


@pytest.mark.parametrize(
    ("end", "expected"),
    [(25, (10, 20, 30)), (20, (10, 20, 30)), (15, (10, 15, 30)), (5, (5, 5, 30))],
)
def test_bounds_above_a_cut_are_lowered_before_it(end: int, expected: tuple[int, int, int]) -> None:
    bounds = LogBounds(10, 20, 30)
    bounds.lower(end)
    assert seen(bounds) == expected


def test_a_cut_needs_a_checkpoint_only_below_the_promised_offsets() -> None:
    bounds = LogBounds(0, 20, 30)
    assert not bounds.lower(15)
    bounds.raise_recovery_point(30, bounds.cuts)
    assert bounds.promise_recovery_point() == 30
    assert bounds.lower(25), "the checkpoint is being written"
    bounds.promised(recovery_point=25)
    assert not bounds.lower(25)
    assert bounds.lower(24)


def test_a_log_that_is_emptied_needs_a_checkpoint_if_any_promises_records_or_a_later_start() -> None:
    bounds = LogBounds(0, 0, 30)
    assert not bounds.lower_to_nothing(50)
    bounds.promised(start=10)
    assert bounds.lower_to_nothing(5)
    bounds.promised(recovery_point=1, start=0)
    assert bounds.lower_to_nothing(50)
    assert seen(bounds) == (0, 0, 30)


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
