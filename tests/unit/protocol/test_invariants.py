"""Invariants raise, also in an optimised interpreter, and name what is wrong."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.invariants import InvariantViolation, check_offset_order, invariant


def test_a_condition_that_holds_costs_no_formatting() -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise AssertionError("was formatted")

    invariant(True, "%s", Unprintable())


def test_a_broken_condition_is_reported_with_its_values() -> None:
    with pytest.raises(InvariantViolation, match=r"^offset 5 of t-0 is below 7$"):
        invariant(False, "offset %d of %s is below %d", 5, "t-0", 7)


def test_a_message_without_values_may_hold_a_percent_sign() -> None:
    with pytest.raises(InvariantViolation, match="100% broken"):
        invariant(False, "100% broken")


def test_a_violation_is_not_an_error_that_handlers_expect() -> None:
    assert not issubclass(InvariantViolation, BarnabasError | OSError | ValueError)


@given(st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_offsets_are_accepted_exactly_in_order(offsets: list[int]) -> None:
    if offsets == sorted(offsets):
        check_offset_order(*offsets)
    else:
        with pytest.raises(InvariantViolation, match="offsets out of order"):
            check_offset_order(*offsets)


def test_offsets_out_of_order_are_all_named() -> None:
    with pytest.raises(InvariantViolation, match=r"log start 1, last stable 2, high watermark 9, log end 4"):
        check_offset_order(1, 2, 9, 4)


def test_checks_stay_on_in_an_optimised_interpreter() -> None:
    program = "from barnabas.protocol.invariants import invariant; invariant(False, 'still on')"
    ended = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, timeout=150)
    assert ended.returncode != 0
    assert "InvariantViolation: still on" in ended.stderr
