"""The two clocks of a broker. Rules never read them: time is handed in."""

from __future__ import annotations

import time


def monotonic_ms() -> float:
    """The clock of lags and deadlines; never goes back."""
    return time.monotonic_ns() / 1_000_000


def wall_clock_ms() -> int:
    """The clock of timestamps and retention, in milliseconds since the epoch; may jump."""
    return time.time_ns() // 1_000_000
