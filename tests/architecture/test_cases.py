"""The loop over cases: all run, and those that fail are named."""

import inspect

import pytest
from hypothesis import strategies as st

from tests.support.cases import each, every


def test_all_cases_run_and_every_failed_one_is_named_with_its_error() -> None:
    seen = []

    def check(case: int) -> None:
        seen.append(case)
        assert case % 2, f"{case} is even"
        if case == 3:
            raise ValueError("a three")
        if case == 5:
            pytest.fail("a five")

    with pytest.raises(pytest.fail.Exception) as failed:
        every([1, 2, 3, 4, 5, 7], check, name=lambda case: f"case-{case}")
    assert seen == [1, 2, 3, 4, 5, 7]
    text = str(failed.value)
    assert text.startswith("4 of 6 failed: case-2, case-3, case-4, case-5\n")
    for said in ("2 is even", "ValueError: a three", "4 is even", "a five"):
        assert said in text


def test_cases_that_hold_fail_nothing_and_no_case_at_all_fails() -> None:
    every([1, 2], bool)
    with pytest.raises(AssertionError, match="no case"):
        every([], bool)


def test_a_check_becomes_a_test_that_takes_no_fixtures_and_draws_for_each_case() -> None:
    drawn: dict[str, list[int]] = {"a": [], "b": []}

    @each(["a", "b"], examples=20)
    def check(case: str, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, 1000))
        drawn[case].append(number)
        assert case == "a" or number < 100

    assert not inspect.signature(check).parameters
    with pytest.raises(pytest.fail.Exception, match="1 of 2 failed: b") as failed:
        check()
    assert "Draw 1: 100" in str(failed.value)
    assert len(drawn["a"]) == 20
