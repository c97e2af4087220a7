"""The offsets that bound a log: log start, first dirty offset, recovery point and log end.

All but the log end are in checkpoints of the log dir (`LogDir.bounds`). `LogBounds` knows what these promise,
because a log must not become shorter than a checkpoint says.
"""

from __future__ import annotations

import threading
from enum import IntEnum
from typing import Final

from barnabas.protocol.ids import Offset
from barnabas.protocol.invariants import invariant

_PROMISE_LOCK: Final = threading.Lock()
"""One lock for all logs: it is taken seldom, and held for a few instructions."""


class Bound(IntEnum):
    """The offsets that have a checkpoint, in the order in which these are written."""

    START = 0
    FIRST_DIRTY = 1
    RECOVERY_POINT = 2


_FIELDS: Final = ("start", "first_dirty", "recovery_point")


class LogBounds:
    """log start, recovery point and first dirty offset ≤ log end, except for moments within a truncation.

    The recovery point may be below the log start: a deletion does not force the remaining records to disk.

    Changed under the log's lock. Each may be read without it, since each is one reference. The appender sets
    the end last, so that a reader of the new end finds every record below it. The checkpoint writer, which
    holds no log's lock, changes what the checkpoints promise under a lock of its own, the last in the lock
    order.
    """

    __slots__ = (
        "_promised",
        "cuts",
        "delete_horizon_ms",
        "end",
        "first_dirty",
        "recovery_point",
        "start",
    )

    def __init__(self, start: Offset, recovery_point: Offset, end: Offset) -> None:
        self.start = start
        """The first offset that may be read."""
        self.recovery_point = recovery_point
        """All records below it are on disk, also after a power cut."""
        self.end = end
        """The next offset to be written."""
        self.first_dirty = Offset(0)
        """All records from the log start to it were cleaned."""
        self.cuts = 0
        """The number of truncations: after one, the records below an offset may have changed."""
        self.delete_horizon_ms: int | None = None
        """When the first tombstone or marker that a cleaning has kept may go. The time makes the log due
        again without new records; without it, tombstones wait for the next cleaning."""
        self._promised = [0] * len(Bound)
        """The offset in each checkpoint on disk; the larger one while it is being replaced."""
        self.check()

    def raise_start(self, offset: Offset) -> None:
        self.start = offset
        self.check()

    def raise_recovery_point(self, offset: Offset, cuts: int) -> None:
        """The records below the offset are on disk, unless the log was truncated since ``cuts``."""
        if self.cuts == cuts:
            self.recovery_point = max(self.recovery_point, offset)

    def raise_first_dirty(self, offset: int, cuts: int) -> None:
        """The records below the offset were cleaned, unless the log was truncated since ``cuts``."""
        with _PROMISE_LOCK:
            if self.cuts == cuts:
                self.first_dirty = max(self.first_dirty, Offset(min(offset, self.end)))

    def lower(self, end: Offset) -> bool:
        """Lower the other bounds before a truncation to `end`, even below the start.

        Returns whether a checkpoint on disk names a higher offset.
        """
        with _PROMISE_LOCK:
            self.cuts += 1
            self.recovery_point = min(self.recovery_point, end)
            self.start = min(self.start, end)
            self.first_dirty = min(self.first_dirty, end)
            return max(self._promised) > end

    def lower_to_nothing(self, start: Offset) -> bool:
        """Lower all points before a log is emptied and restarted at `start`."""
        with _PROMISE_LOCK:
            self.cuts += 1
            self.recovery_point = Offset(0)
            self.start = min(self.start, start)
            self.first_dirty = min(self.first_dirty, start)
            *others, recovery_point = self._promised
            return recovery_point > 0 or max(others) > start

    def begin_at(self, offset: Offset) -> None:
        """The log is empty and continues at an offset."""
        self.start = self.recovery_point = self.end = offset

    def is_later_promised(self, bound: Bound) -> bool:
        """Whether the checkpoint on disk may name a higher offset than this log has."""
        offset: int = getattr(self, _FIELDS[bound])
        return self._promised[bound] > offset

    def promise(self, bound: Bound) -> int:
        """The offset to write into the checkpoint now; `promised` follows."""
        with _PROMISE_LOCK:
            offset: int = getattr(self, _FIELDS[bound])
            self._promised[bound] = max(self._promised[bound], offset)
            return offset

    def promised(self, bound: Bound, offset: int) -> None:
        """The checkpoint on disk now has this offset, and no longer the previous one."""
        with _PROMISE_LOCK:
            self._promised[bound] = offset

    def check(self) -> None:
        invariant(
            self.start <= self.end and self.recovery_point <= self.end,
            "log start %d, recovery point %d and log end %d are out of order",
            self.start,
            self.recovery_point,
            self.end,
        )
