"""The figures of the connector beside Spark's own Kafka source."""

import pytest

from benchmarks.spark import alternate, ratio


def test_a_ratio_is_of_the_medians_and_above_one_where_ours_is_faster() -> None:
    figure = ratio("read", ours=[1.0, 2.0, 90.0], theirs=[6.0, 0.1, 8.0], at_least=3)
    assert figure.measured == 3.0
    assert figure.times_better == 1.0
    assert figure.rounds == pytest.approx([6.0, 0.05, 8 / 90])


def test_an_inverted_ratio_says_how_much_longer_ours_takes() -> None:
    figure = ratio("micro-batch", ours=[0.24], theirs=[0.2], at_most=1.2, inverted=True)
    assert figure.measured == pytest.approx(1.2)


def test_jobs_take_turns() -> None:
    ran: list[str] = []

    def job(name: str, seconds: float) -> float:
        ran.append(name)
        return seconds

    found = alternate(2, {"a": lambda: job("a", 1.0), "b": lambda: job("b", 2.0)})
    assert ran == ["a", "b", "a", "b"]
    assert found == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
