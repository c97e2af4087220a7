"""Which log dirs are on a slow disk: only appends that took long tell.

A slow append makes its partition wait for a worker, because the next one may be slow too. One may have had
another reason, such as busy processors, so a log dir is slow after two of them, of any of its partitions.

Any thread. Nothing is locked: a note that is lost to another one at the same moment is made by the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

SLOW_APPEND_S: Final = 0.1
"""An append that takes longer shows a slow disk."""
SLOW_DISK_S: Final = 10.0
"""How long a disk counts as slow after such an append."""


class SlowDisks:
    """The slow log dirs of one broker."""

    def __init__(self) -> None:
        self._last_s: dict[Path, float] = {}
        self._slow_until_s: dict[Path, float] = {}
        self.any_until_s = 0.0
        """The largest of them, so that the usual question costs a comparison."""

    def note(self, log_dir: Path, ended_s: float) -> None:
        """An append in this log dir was slow."""
        last_s, self._last_s[log_dir] = self._last_s.get(log_dir), ended_s
        if last_s is not None and ended_s - last_s < SLOW_DISK_S:
            self._slow_until_s[log_dir] = self.any_until_s = ended_s + SLOW_DISK_S

    def include(self, folder: Path, now_s: float) -> bool:
        """Whether the log dir of this folder is slow."""
        return now_s < self._slow_until_s.get(folder.parent, 0.0)
