"""Counts how often something was done, and keeps how long the last ones took, for metrics. Any thread.

Nothing is locked: the interpreter does not switch threads within an addition to an attribute.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

_KEPT: Final = 1_000


class RecentTimes:
    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self.count = 0
        self._last_s: deque[float] = deque(maxlen=_KEPT)

    def note_since(self, began_s: float) -> None:
        """Something that began at that time is done."""
        self._last_s.append(self.now_s() - began_s)
        self.count += 1

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Note the time of the block unless it raises."""
        began_s = self.now_s()
        yield
        self.note_since(began_s)

    def percentiles_ms(self, shares: Sequence[float]) -> list[float]:
        """The times in milliseconds below which these shares of the last ones remained; 0 without one."""
        ordered = sorted(self._last_s.copy()) or [0.0]
        return [ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1_000 for share in shares]
