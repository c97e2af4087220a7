"""The offsets that bound a log, and the order that they keep.

Changed under the log's lock; each may be read without it, for each is one reference. The end is set last by
whoever appends, so that who sees a new end finds what lies below it.
"""

from __future__ import annotations

from barnabas.protocol.invariants import invariant


class LogBounds:
    """log start ≤ recovery point ≤ log end, but for the moments within a truncation."""

    __slots__ = ("cuts", "end", "recovery_point", "start")

    def __init__(self, start: int, recovery_point: int, end: int) -> None:
        self.start = start
        """The first offset that may be read."""
        self.recovery_point = recovery_point
        """All below is known to be on disk, also after a power cut."""
        self.end = end
        """The next offset to be written."""
        self.cuts = 0
        """How often the log has become shorter: what lay below an offset before may be something else now."""
        self.check()

    def raise_start(self, offset: int) -> None:
        self.start = offset
        self.recovery_point = max(self.recovery_point, offset)
        self.check()

    def raise_recovery_point(self, offset: int, cuts: int) -> None:
        """What lay below the offset is on disk, unless the log was cut since ``cuts``."""
        if self.cuts == cuts:
            self.recovery_point = max(self.recovery_point, offset)

    def lower(self, end: int) -> bool:
        """Before a cut to an end, even one before the start: lower the others. Whether that was needed."""
        self.cuts += 1
        if end >= self.recovery_point and end >= self.start:
            return False
        self.recovery_point = min(self.recovery_point, end)
        self.start = min(self.start, end)
        return True

    def begin_at(self, offset: int) -> None:
        """The log is empty and goes on at an offset."""
        self.start = self.recovery_point = self.end = offset

    def check(self) -> None:
        invariant(
            self.start <= self.recovery_point <= self.end,
            "log start %d, recovery point %d and log end %d are out of order",
            self.start,
            self.recovery_point,
            self.end,
        )
