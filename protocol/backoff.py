"""The wait before a lost or refused peer is tried again: it doubles, with jitter.

A plain rule: time is an argument. Belongs to its owner's thread.
"""

from __future__ import annotations

from collections.abc import Callable

JITTER = (0.8, 1.2)
"""The bounds of the factor that spreads the reconnects to a restarted broker over time."""


def doubled(first: float, failures: int, longest: float) -> float:
    """The pause after that many failures before: the first one, doubled each time, up to the longest."""
    # The exponent is bounded, because a float overflows after a thousand failures.
    return min(first * 2.0 ** min(failures, 30), longest)


class Backoff:
    """The wait after each failure in a row: ``first_ms``, then doubled up to ``max_ms``, times the jitter.

    ``uniform`` gives a random number between its two arguments. Times are seconds of one monotonic clock.
    """

    __slots__ = ("_failures", "_first_ms", "_max_ms", "_retry_at", "_uniform")

    def __init__(self, first_ms: int, max_ms: int, uniform: Callable[[float, float], float]) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._uniform = uniform
        self._failures = 0
        self._retry_at = float("-inf")

    def failed(self, now: float) -> None:
        """An attempt has failed."""
        wait_ms = doubled(self._first_ms, self._failures, self._max_ms)
        self._failures += 1
        self._retry_at = now + wait_ms * self._uniform(*JITTER) / 1000

    def succeeded(self) -> None:
        """An attempt has succeeded: the next failure waits as the first one did."""
        self._failures = 0

    def remaining(self, now: float) -> float:
        """Seconds until the next attempt may be made; 0 or less when it may be made now."""
        return self._retry_at - now
