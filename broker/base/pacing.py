"""The pace of long work on records: bytes per second, the interpreter lock, and the end.

A cleaning, or a look into large produced batches, is Python that computes, in the process that serves
requests. A thread that waits for the interpreter lock gets it after `sys.getswitchinterval()` at the latest,
and a request needs it several times. So such work lets go of it by itself after every quarter of a
millisecond, for about as long as the system's shortest sleep. If it gets the lock back late, requests are
being served, and it rests again: so it is fast while nobody waits.

`IoThrottle` is shared by all cleaner threads, or by all threads that move logs between log dirs; a `Pace` and
`Rests` belong to one thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

WORK_S: Final = 0.000_25
REST_S: Final = 0.000_05
MOST_RESTS: Final = 10
"""Bounds the rests in a row, so that a cleaning ends on the busiest broker too."""
UNDISTURBED_S: Final = 0.000_25
"""A rest that takes longer ended with a wait for the interpreter lock, or for a core."""
_TOLERATED_S: Final = 0.01
"""A debt is slept off when it is this long, not after each batch."""
_LATE_S: Final = 0.05
"""A thread that comes back this much late from a wait has lost nothing: later waits are shorter for it."""
_LONGEST_WAIT_S: Final = 0.1
"""A wait for the throttle looks this often whether the rate has changed or the thread must stop."""


class Stopped(Exception):
    """The cleaning must end: the broker stops, the thread is one too many, or the log is gone."""


class IoThrottle:
    """Bounds the bytes per second of several threads. Any thread.

    Bytes are taken first and paid for by waiting, so one batch may be larger than a second's worth.
    """

    def __init__(self, bytes_per_second: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._now_s = now_s
        self.rate = bytes_per_second
        self._debt_bytes = 0.0
        self._paid_until_s = now_s()

    def set_rate(self, bytes_per_second: float) -> None:
        """Change the rate, also for threads that wait now. 0 lets no byte through."""
        with self._lock:
            self._pay()
            self.rate = bytes_per_second

    def take(self, size_bytes: int) -> None:
        with self._lock:
            self._pay()
            self._debt_bytes += size_bytes

    def wait_s(self) -> float:
        """How long a thread must wait at the present rate before it takes more."""
        with self._lock:
            self._pay()
            if self._debt_bytes <= 0:
                return 0.0
            wait_s = self._debt_bytes / self.rate if self.rate > 0 else math.inf
            return wait_s if wait_s > _TOLERATED_S else 0.0

    def _pay(self) -> None:
        now_s = self._now_s()
        self._debt_bytes -= (now_s - self._paid_until_s) * self.rate
        self._debt_bytes = max(self._debt_bytes, -_LATE_S * self.rate)
        self._paid_until_s = now_s


class Rests:
    """Called often by a thread that computes; hands on the interpreter lock after a while of work."""

    def __init__(
        self,
        most: int = MOST_RESTS,
        *,
        now_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._most = most
        self._now_s = now_s
        self._sleep = sleep
        self._rested_s = now_s()

    def __call__(self) -> None:
        if self.is_due():
            self.rest()

    def is_due(self) -> bool:
        return self._now_s() - self._rested_s >= WORK_S

    def rest(self) -> None:
        for _ in range(self._most):
            began_s = self._now_s()
            self._sleep(REST_S)
            self.have_rested()
            if self._rested_s - began_s < UNDISTURBED_S:
                return

    def have_rested(self) -> None:
        """Note that the thread has waited for something else."""
        self._rested_s = self._now_s()


class Pace:
    """Called often by a cleaning, with the bytes read or written since the last call.

    Throttles, hands on the interpreter lock, and raises Stopped.
    """

    def __init__(
        self,
        throttle: IoThrottle,
        must_stop: Callable[[], bool],
        *,
        now_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._throttle = throttle
        self._must_stop = must_stop
        self._sleep = sleep
        self._rests = Rests(now_s=now_s, sleep=sleep)

    def __call__(self, size_bytes: int) -> None:
        """Raises Stopped."""
        if size_bytes:
            self._throttle.take(size_bytes)
            while wait_s := self._throttle.wait_s():
                self._check()
                self._sleep(min(wait_s, _LONGEST_WAIT_S))
                self._rests.have_rested()
        if self._rests.is_due():
            self._check()
            self._rests.rest()

    def _check(self) -> None:
        if self._must_stop():
            raise Stopped
