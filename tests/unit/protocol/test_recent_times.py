"""The number and the percentiles of the last times."""

import pytest

from barnabas.common.recent_times import RecentTimes


def test_percentiles_are_of_the_last_thousand_times_and_the_count_of_all() -> None:
    now_s = [100.0]
    times = RecentTimes(lambda: now_s[0])
    assert (times.count, times.percentiles_ms([0.5, 0.999])) == (0, [0, 0])
    for number in range(3_000):
        times.note_since(now_s[0] - (9 if number < 2_000 else (number - 2_000) / 1_000))
    assert times.count == 3_000
    assert times.percentiles_ms([0.5, 0.99, 0.999]) == pytest.approx([500, 990, 999])


def test_the_time_of_a_block_counts_unless_it_raises() -> None:
    now_s = [0.0]
    times = RecentTimes(lambda: now_s[0])
    with times.measured():
        now_s[0] = 0.25
    with pytest.raises(OSError, match="full"), times.measured():
        raise OSError("full")
    assert (times.count, times.percentiles_ms([0.5])) == (1, [250])
