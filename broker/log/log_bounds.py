"""The offsets that bound a log, and the order that they keep.

Changed under the log's lock. Each may be read without it, since each is one reference. The appender sets the
end last, so that a reader of the new end finds every record below it. The checkpoint writer, which holds no
log's lock, changes what the checkpoints promise under a lock of its own, the last in the lock order.
"""

from __future__ import annotations

import threading
from typing import Final

from barnabas.protocol.invariants import invariant

_PROMISE_LOCK: Final = threading.Lock()
"""One lock for all logs: it is taken seldom, for a few instructions."""


class LogBounds:
    """log start ≤ log end and recovery point ≤ log end, except for moments within a truncation.

    The recovery point may be below the log start: a deletion does not force the remaining records to disk.
    """

    __slots__ = ("_promised_recovery_point", "_promised_start", "cuts", "end", "recovery_point", "start")

    def __init__(self, start: int, recovery_point: int, end: int) -> None:
        self.start = start
        """The first offset that may be read."""
        self.recovery_point = recovery_point
        """All below is known to be on disk, also after a power cut."""
        self.end = end
        """The next offset to be written."""
        self.cuts = 0
        """How often the log has become shorter: what lay below an offset before may be something else now."""
        self._promised_recovery_point = self._promised_start = 0
        """The offset in the checkpoints on disk; the larger one while a checkpoint is being replaced."""
        self.check()

    def raise_start(self, offset: int) -> None:
        self.start = offset
        self.check()

    def raise_recovery_point(self, offset: int, cuts: int) -> None:
        """What lay below the offset is on disk, unless the log was cut since ``cuts``."""
        if self.cuts == cuts:
            self.recovery_point = max(self.recovery_point, offset)

    def lower(self, end: int) -> bool:
        """Lower the other bounds before a cut to `end`, even below the start.

        Returns whether a checkpoint on disk names a higher offset.
        """
        with _PROMISE_LOCK:
            self.cuts += 1
            self.recovery_point = min(self.recovery_point, end)
            self.start = min(self.start, end)
            return max(self._promised_recovery_point, self._promised_start) > end

    def lower_to_nothing(self, start: int) -> bool:
        """As `lower`, before a log is emptied and restarted at `start`."""
        with _PROMISE_LOCK:
            self.cuts += 1
            self.recovery_point = 0
            self.start = min(self.start, start)
            return self._promised_recovery_point > 0 or self._promised_start > start

    def begin_at(self, offset: int) -> None:
        """The log is empty and goes on at an offset."""
        self.start = self.recovery_point = self.end = offset

    @property
    def is_later_start_promised(self) -> bool:
        """Whether a checkpoint on disk may name a later log start than this log has."""
        return self._promised_start > self.start

    def promise_recovery_point(self) -> int:
        """The recovery point to write into a checkpoint now."""
        with _PROMISE_LOCK:
            self._promised_recovery_point = max(self._promised_recovery_point, self.recovery_point)
            return self.recovery_point

    def promise_start(self) -> int:
        """The log start to write into a checkpoint now."""
        with _PROMISE_LOCK:
            self._promised_start = max(self._promised_start, self.start)
            return self.start

    def promised(self, *, recovery_point: int | None = None, start: int | None = None) -> None:
        """The checkpoint on disk now has this offset, and no longer the previous one."""
        with _PROMISE_LOCK:
            if recovery_point is not None:
                self._promised_recovery_point = recovery_point
            if start is not None:
                self._promised_start = start

    def check(self) -> None:
        invariant(
            self.start <= self.end and self.recovery_point <= self.end,
            "log start %d, recovery point %d and log end %d are out of order",
            self.start,
            self.recovery_point,
            self.end,
        )
