"""Which log dirs are on a slow disk: only appends that took long tell.

A slow append makes its partition wait for a worker, because the next one may be slow too. One may have had
another reason, such as busy processors, so a log dir is slow after two of them, of any of its partitions.

Any thread. Nothing is locked: a note that is lost to another one at the same moment is made by the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from barnabas.broker.base.clocks import monotonic_ms

SLOW_APPEND_MS: Final = 100.0
"""An append that takes longer shows a slow disk."""
SLOW_DISK_MS: Final = 10_000.0
"""How long a disk counts as slow after such an append."""


class SlowDisks:
    """The slow log dirs of one broker."""

    def __init__(self) -> None:
        self._last_ms: dict[Path, float] = {}
        self._slow_until_ms: dict[Path, float] = {}
        # The largest of them, so that the usual question costs a comparison.
        self._any_until_ms = 0.0

    def note(self, log_dir: Path, ended_ms: float) -> None:
        """An append in this log dir was slow."""
        last_ms, self._last_ms[log_dir] = self._last_ms.get(log_dir), ended_ms
        if last_ms is not None and ended_ms - last_ms < SLOW_DISK_MS:
            self._slow_until_ms[log_dir] = self._any_until_ms = ended_ms + SLOW_DISK_MS

    def include(self, folder: Path) -> bool:
        """Whether the log dir of this folder is slow."""
        if not self._any_until_ms:
            return False
        now_ms = monotonic_ms()
        return now_ms < self._any_until_ms and now_ms < self._slow_until_ms.get(folder.parent, 0.0)
