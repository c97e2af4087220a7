"""Answers that wait for several tombstones. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from barnabas.broker.coordinators.offsets import commit_error
from barnabas.protocol.errors import ErrorCode


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


def removal_error(error: ErrorCode) -> ErrorCode:
    """What a client is told whose tombstones were not replicated: that it should try again."""
    if error == ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return commit_error(error)
