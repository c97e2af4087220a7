"""Times are counted by their upper bounds, also by many threads."""

import sys
import threading

from barnabas.common.time_histogram import BOUNDS_NS, TimeHistogram

THREADS, TIMES = 8, 5_000


def test_a_time_is_counted_at_the_first_bound_that_it_does_not_exceed() -> None:
    histogram = TimeHistogram()
    for bound_ns in BOUNDS_NS:
        for time_ns in (bound_ns, bound_ns + 1):
            histogram.observe_ns(time_ns)
    assert histogram.counts == [1, *[2] * (len(BOUNDS_NS) - 1), 1]
    assert (histogram.count, histogram.sum_ns) == (2 * len(BOUNDS_NS), 2 * sum(BOUNDS_NS) + len(BOUNDS_NS))
    assert list(BOUNDS_NS) == sorted(BOUNDS_NS)


def test_seconds_are_added_as_nanoseconds_and_histograms_to_each_other() -> None:
    histogram, other = TimeHistogram(), TimeHistogram()
    histogram.observe_s(0.25)
    other.observe_ns(250_000_000)
    other.observe_ns(1)
    histogram.add(other)
    assert (histogram.count, histogram.sum_ns, max(histogram.counts)) == (3, 500_000_001, 2)
    assert (other.count, other.sum_ns) == (2, 250_000_001)


def test_no_time_of_many_threads_is_lost() -> None:
    histogram, before = TimeHistogram(), sys.getswitchinterval()

    def work() -> None:
        for _ in range(TIMES):
            histogram.observe_ns(3)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert (histogram.count, histogram.sum_ns) == (THREADS * TIMES, 3 * THREADS * TIMES)
