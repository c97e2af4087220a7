"""How long one broker may take to answer before another one is asked as well. Pure; time comes in.

A fixed delay multiplies the load of a cluster that is merely slow: every question then goes to all brokers.
So the delay follows the answers: twice the slowest of late, which is forgotten bit by bit.
"""

from __future__ import annotations

from typing import Final

MOST_S: Final = 5.0
_FACTOR: Final = 2.0
_KEPT: Final = 0.9
"""What each further answer leaves of the slowest one's time."""


class HedgeDelay:
    """Between ``least_s``, which a broker that hangs may cost, and `MOST_S`."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._slowest_s = 0.0

    @property
    def seconds(self) -> float:
        return min(MOST_S, max(self._least_s, self._slowest_s * _FACTOR))

    def answered(self, elapsed_s: float) -> None:
        """An answer came so long after its question."""
        self._slowest_s = max(elapsed_s, self._slowest_s * _KEPT)
