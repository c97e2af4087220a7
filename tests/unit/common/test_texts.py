"""Numbers and times as texts."""

import pytest

from barnabas.common.texts import age_text


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [(-5, "0s"), (999, "0s"), (61_000, "1min 1s"), (3_600_000, "1h 0min"), (90_000_000, "1d 1h")],
)
def test_an_age_has_its_two_largest_units(age_ms: int, text: str) -> None:
    assert age_text(age_ms) == text
