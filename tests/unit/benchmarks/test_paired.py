"""The median of paired ratios, its interval, its mark, and the table."""

import pytest

from benchmarks.paired import Paired, median_interval, rows


def paired(*ratios: float) -> Paired:
    return Paired(name="produce", unit="µs", new=[10 * ratio for ratio in ratios], old=[10.0] * len(ratios))


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Ranks from the table of the sign test, for instance Conover, "Practical Nonparametric Statistics".
    [(1, 1, 1), (5, 1, 5), (6, 1, 6), (8, 1, 8), (9, 2, 8), (15, 4, 12), (20, 6, 15), (25, 8, 18)],
)
def test_the_interval_of_a_median_has_the_ranks_of_the_sign_test(count: int, low: int, high: int) -> None:
    assert median_interval(list(range(count, 0, -1))) == (low, high)


def test_the_ratio_is_the_median_of_the_pairs_not_that_of_the_medians() -> None:
    one = Paired(name="produce", unit="µs", new=[1, 20, 300], old=[1, 10, 150])
    assert one.ratios == [1, 2, 2]
    assert one.ratio == 2


@pytest.mark.parametrize(
    ("ratios", "mark"),
    [
        ([1.2] * 6, "LOSS"),
        ([1.09] * 6, ""),
        # The median is beyond, but its interval has 1 in it.
        ([0.9, 1.2, 1.2, 1.2, 1.2, 1.2], ""),
        ([0.8] * 6, "gain"),
        ([0.92] * 6, ""),
        ([0.8, 0.8, 0.8, 0.8, 0.8, 1.1], ""),
        # One pair in nine is an accident.
        ([0.5] + [1.2] * 8, "LOSS"),
    ],
)
def test_a_figure_is_marked_beyond_a_tenth_and_beyond_noise(ratios: list[float], mark: str) -> None:
    assert paired(*ratios).mark == mark


def test_a_loss_can_be_asked_for_beyond_another_share() -> None:
    one = paired(*[1.2] * 6)
    assert one.is_loss(0.15)
    assert not one.is_loss(0.25)


def test_a_row_has_both_medians_the_ratio_and_its_interval() -> None:
    head, row = rows([paired(1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7)], "this tree", "0.4.0")
    assert head[2:4] == ("this tree", "0.4.0")
    assert row == ("produce", "µs", "14", "10", "1.40", "1.10 to 1.70", "LOSS")
