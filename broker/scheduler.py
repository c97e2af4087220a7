"""Background work at fixed intervals, on a bounded number of threads: ISR checks, checkpoints, flushes.

A task that raises is logged and runs again at its next turn; only a broken invariant ends the broker. A task
never runs twice at the same time; with several threads it may run at the same time as any other.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.threads import make_thread

logger = logging.getLogger(__name__)


@dataclass(order=True, slots=True)
class _Turn:
    due: float
    number: int
    name: str = field(compare=False)
    work: Callable[[], object] = field(compare=False)
    interval: float = field(compare=False)


class Scheduler:
    """Runs named tasks periodically until it is stopped.

    A slow task delays the others only if all threads are busy.
    """

    def __init__(
        self, *, on_fatal: Callable[[BaseException], None], threads: int = 1, name: str = "scheduler"
    ) -> None:
        self._condition = threading.Condition()
        self._turns: list[_Turn] = []
        self._numbers = itertools.count()
        self._stopping = False
        self._threads = [
            make_thread(f"{name}-{number}" if threads > 1 else name, self._run, on_fatal)
            for number in range(threads)
        ]

    def every(self, interval_ms: float, name: str, work: Callable[[], object]) -> None:
        """Run the work each ``interval_ms``, first after one interval."""
        interval = interval_ms / 1000
        with self._condition:
            turn = _Turn(time.monotonic() + interval, next(self._numbers), name, work, interval)
            heapq.heappush(self._turns, turn)
            self._condition.notify()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End each thread after its current task."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            try:
                turn.work()
            except InvariantViolation:
                raise
            except Exception:
                logger.exception("%s failed; it runs again in %.1f s", turn.name, turn.interval)
            turn.due = time.monotonic() + turn.interval
            with self._condition:
                heapq.heappush(self._turns, turn)
                self._condition.notify()

    def _next(self) -> _Turn | None:
        with self._condition:
            while not self._stopping:
                if not self._turns:
                    self._condition.wait()
                    continue
                wait = self._turns[0].due - time.monotonic()
                if wait <= 0:
                    # Another thread may wait for this very turn: wake it to wait for the next one.
                    self._condition.notify()
                    return heapq.heappop(self._turns)
                self._condition.wait(wait)
            return None
