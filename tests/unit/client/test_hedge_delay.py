"""When a second broker is asked: the delay follows how long answers take."""

from __future__ import annotations

import pytest

from barnabas.client.hedge_delay import MOST_S, HedgeDelay


def test_a_quick_cluster_has_the_least_delay() -> None:
    delay = HedgeDelay(0.3)
    assert delay.seconds == 0.3
    for _ in range(10):
        delay.answered(0.002)
    assert delay.seconds == 0.3


def test_a_slow_cluster_is_not_asked_twice_for_being_slow() -> None:
    delay = HedgeDelay(0.3)
    delay.answered(0.8)
    for _ in range(3):
        # Every answer comes before the delay is over.
        assert delay.seconds > 0.8
        delay.answered(0.8)


def test_one_slow_answer_is_forgotten_and_none_delays_for_ever() -> None:
    delay = HedgeDelay(0.3)
    delay.answered(60.0)
    assert delay.seconds == MOST_S
    for _ in range(100):
        delay.answered(0.001)
    assert delay.seconds == pytest.approx(0.3)
