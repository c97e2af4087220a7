"""The judgement of a producer's latencies beside stalls of the machine."""

import math

from benchmarks.dropped_cache import judge


def test_requests_that_a_stall_touched_or_delayed_have_no_part_in_the_second_figure() -> None:
    """500 requests a second: number 250 is due at 0.5 s after the beginning."""
    latencies = [1.0] * 249 + [212.0, 210.0] + [100.0] * 149 + [2.0] * 600
    measured = judge(10.0, latencies, [(10.5, 10.7)])
    assert measured.p99_ms == 100.0
    assert measured.untouched_p99_ms == 2.0
    assert math.isclose(measured.stalled_ms, 200.0)
    assert math.isnan(judge(0.0, [5.0], [(0.0, 1.0)]).untouched_p99_ms), "all were touched"
