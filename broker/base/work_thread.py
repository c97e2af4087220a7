"""A thread for work that may block on ZooKeeper or a disk, with retries.

The owner keeps the work, under a condition that both use. An exception is a bug: it ends the thread and stops
the broker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from barnabas.common.threads import make_thread

_RETRY_SECONDS: Final = 0.25


class WorkThread:
    """Calls ``work_off``, without the condition, while ``has_work`` is true under the condition.

    ``work_off`` returns whether all work is done; if not, it is called again after a pause or a notification.
    """

    def __init__(
        self,
        name: str,
        condition: threading.Condition,
        *,
        has_work: Callable[[], bool],
        work_off: Callable[[], bool],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._condition = condition
        self._has_work = has_work
        self._work_off = work_off
        self._stopping = False
        self._thread = make_thread(name, self._run, on_fatal)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End after the work in progress."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stopping and not self._has_work():
                    self._condition.wait()
                if self._stopping:
                    return
            if not self._work_off():
                with self._condition:
                    if not self._stopping:
                        self._condition.wait(_RETRY_SECONDS)
