"""The two clocks of a broker. Rules never read them: time is handed in."""

from __future__ import annotations

import math
import time


def monotonic_ms() -> float:
    """The clock of lags and deadlines; never goes back."""
    return time.monotonic_ns() / 1_000_000


def wall_clock_ms() -> int:
    """The clock of timestamps and retention, in milliseconds since the epoch; may jump."""
    return time.time_ns() // 1_000_000


class ForwardSteps:
    """By how much the wall clock was set forward since the first reading. Any thread."""

    def __init__(self) -> None:
        self._least_lead_ms = math.inf
        """How far the wall clock was ahead of the monotonic clock, when that was least."""

    def total_ms(self, monotonic_ms: float, wall_ms: int) -> float:
        """Pass both clocks; the monotonic one is to be read first, so that a pause is no step back."""
        lead_ms = wall_ms - monotonic_ms
        # Without a lock: if another thread overwrites a reading, the next reading repeats it.
        self._least_lead_ms = least_ms = min(self._least_lead_ms, lead_ms)
        return lead_ms - least_ms
