"""Answers that wait for several tombstones. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class AllOf:
    """Calls ``done`` once: at once for a count of zero, else when so many things are done."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._left = count
        self._done = done
        if not count:
            done()

    def one_is_done(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._done()
