"""The time that one thread has spent with requests. Only that thread calls `begin` and `end`."""

from __future__ import annotations

from time import monotonic_ns


class BusyTime:
    """Any thread may read `total_ns`, which may count a run twice at the moment of its end."""

    __slots__ = ("_began_ns", "_ended_runs_ns")

    def __init__(self) -> None:
        self._began_ns = 0
        self._ended_runs_ns = 0

    def begin(self) -> None:
        self._began_ns = monotonic_ns()

    def end(self) -> None:
        self._ended_runs_ns += monotonic_ns() - self._began_ns
        self._began_ns = 0

    def total_ns(self, now_ns: int) -> int:
        """The time until now, with that of a run in progress."""
        began_ns = self._began_ns
        return self._ended_runs_ns + (max(0, now_ns - began_ns) if began_ns else 0)
