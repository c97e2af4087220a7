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
    with pytest.raises(InvariantViolation, match=r"^offset 5 of t-0 is below 7$") as caught:
        invariant(False, "offset %d of %s is below %d", 5, "t-0", 7)
    with pytest.raises(InvariantViolation, match="100% broken"):
        invariant(False, "100% broken")
    # Nothing that a handler expects.
    assert not isinstance(caught.value, BarnabasError | OSError | ValueError)


@given(st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_offsets_are_accepted_exactly_in_order(offsets: list[int]) -> None:
    if offsets == sorted(offsets):
        check_offset_order(*offsets)
    else:
        text = "log start {}, last stable {}, high watermark {}, log end {}".format(*offsets)
        with pytest.raises(InvariantViolation, match=f"offsets out of order.*{text}"):
            check_offset_order(*offsets)


def test_checks_stay_on_in_an_optimised_interpreter() -> None:
    program = "from barnabas.protocol.invariants import invariant; invariant(False, 'still on')"
    ended = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, timeout=150)
    assert ended.returncode != 0
    assert "InvariantViolation: still on" in ended.stderr
