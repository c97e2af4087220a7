"""Starting threads, waiting and reading the clock, for this package.

Injected, so that a simulation can drive the session and the controller step by step, without threads.
"""

from __future__ import annotations

import threading
import time


class Threads:
    """Real threads and real time."""

    def start(self, thread: threading.Thread) -> None:
        thread.start()

    def now_s(self) -> float:
        """Monotonic."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Whether the event was set within the time."""
        return event.wait(timeout_s)
