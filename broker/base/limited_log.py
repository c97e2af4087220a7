"""Lines of a log that thousands of requests may cause together: at most one in an interval is written."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from barnabas.broker.base.clocks import monotonic_ms

INTERVAL_MS: Final = 10_000
_MOST_KEYS: Final = 1_000


class LimitedLog:
    """Writes lines of one kind, and the number of those since the last line that it did not write.

    Any thread.
    """

    def __init__(
        self, logger: logging.Logger, level: int, clock_ms: Callable[[], float] = monotonic_ms
    ) -> None:
        self._logger = logger
        self._level = level
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._next_ms = float("-inf")
        self._unreported = 0

    def __call__(self, text: str, *args: object) -> None:
        with self._lock:
            now_ms = self._clock_ms()
            if now_ms < self._next_ms:
                self._unreported += 1
                return
            self._next_ms = now_ms + INTERVAL_MS
            others, self._unreported = self._unreported, 0
        self._logger.log(self._level, f"{text} (%d more since the last report)", *args, others)


class LimitedLogByKey:
    """A `LimitedLog` for each key, such as the address of a peer. Any thread.

    It remembers the latest keys; one that comes back after many others may be written earlier.
    """

    def __init__(
        self, logger: logging.Logger, level: int, clock_ms: Callable[[], float] = monotonic_ms
    ) -> None:
        self._logger, self._level, self._clock_ms = logger, level, clock_ms
        self._lock = threading.Lock()
        self._logs: dict[str, LimitedLog] = {}

    def __call__(self, key: str, text: str, *args: object) -> None:
        with self._lock:
            log = self._logs.get(key)
            if log is None:
                if len(self._logs) >= _MOST_KEYS:
                    del self._logs[next(iter(self._logs))]
                log = self._logs[key] = LimitedLog(self._logger, self._level, self._clock_ms)
        log(text, *args)
