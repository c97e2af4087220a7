"""Numbers and times as texts."""

import pytest

from barnabas.common.texts import age_text, first_of


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [(-5, "0s"), (999, "0s"), (61_000, "1min 1s"), (3_600_000, "1h 0min"), (90_000_000, "1d 1h")],
)
def test_an_age_has_its_two_largest_units(age_ms: int, text: str) -> None:
    assert age_text(age_ms) == text


@pytest.mark.parametrize(("most", "text"), [(1, "a and 2 more"), (2, "a, b and 1 more"), (3, "a, b, c")])
def test_a_long_list_is_cut_and_the_rest_is_counted(most: int, text: str) -> None:
    assert first_of(["a", "b", "c"], most) == text
