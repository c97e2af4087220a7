"""Counts times by upper bounds, as a Prometheus histogram shows them. Any thread.

Nothing is locked: the interpreter does not switch threads within an addition to an attribute or an item.
Not the class of Prometheus' library, which takes two locks for each time, and which only brokers that serve
metrics load.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_MS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000)
BOUNDS_NS: Final = tuple(int(bound_ms * 1_000_000) for bound_ms in BOUNDS_MS)


class TimeHistogram:
    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        """The times up to each bound and above the one before it; the last are above all bounds."""
        self.sum_ns = 0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe_ns(self, time_ns: int) -> None:
        self.counts[bisect_left(BOUNDS_NS, time_ns)] += 1
        self.sum_ns += time_ns

    def observe_s(self, time_s: float) -> None:
        self.observe_ns(int(time_s * 1_000_000_000))

    def add(self, other: TimeHistogram) -> None:
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_ns += other.sum_ns
