"""Background work, on threads that exist only while there is work: `Workers`, and `Task` for one of a kind.

A thread starts when work is due and no other is idle, up to the number of the pool. A thread that has been
idle for a few seconds ends, except the one that waits for work that is due later. So an idle process has few
threads, and blocked work delays other work only when the pool has all its threads.
An exception that work lets through is a bug: it ends the thread and is passed to ``on_fatal``.
A pool that can start no thread is tried again by its own next work and by the threads of other pools.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from barnabas.common.threads import make_thread, try_to_start
from barnabas.protocol.errors import LocalError

IDLE_S: Final = 5.0
"""How long a thread without work lives on."""

Work = Callable[[], object]

_UNSERVED: Final[set[Workers]] = set()
"""The pools whose work waits for a thread that the system did not allow."""


class WorkRefused(LocalError):
    """Very much work waits already, or the pool has stopped."""

    retriable = True


class Workers:
    """A pool of threads; work that is due runs in order. Any thread may call any method.

    Work that is submitted before `start` waits for it.
    """

    def __init__(
        self,
        name: str,
        *,
        on_fatal: Callable[[BaseException], None],
        threads: int = 1,
        max_waiting: int | None = None,
    ) -> None:
        """``max_waiting`` bounds the work that is due at once; without it, the callers bound their work."""
        self._name = name
        self._on_fatal = on_fatal
        self._max_threads = threads
        self._max_waiting = max_waiting
        # Guards the fields below. A thread is in `_threads` until it has left its loop for good.
        self._condition = threading.Condition()
        self._waiting: list[tuple[float, int, Work]] = []
        self._turns = itertools.count()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_running = self._is_finishing = False

    @property
    def is_running(self) -> bool:
        return self._is_running

    def start(self) -> None:
        """Raises RuntimeError if work waits and the system allows no more threads now."""
        with self._condition:
            self._is_running = True
            thread = self._grow() if self._waiting else None
        if not self._start(thread):
            raise RuntimeError(f"no thread of {self._name} can be started")

    def start_missing(self) -> None:
        """Start a thread if work waits because none could be started."""
        if not self._threads:
            with self._condition:
                thread = self._grow() if self._is_running and self._waiting and not self._threads else None
            self._start(thread)

    def stop(self, timeout_s: float = 5.0, *, finishes: bool = False) -> bool:
        """End the threads after their present work, or, if it ``finishes``, after all work that is due.

        Returns whether they have ended in time. Later work is refused. Idempotent.
        """
        with self._condition:
            if not finishes:
                self._waiting.clear()
            self._is_running, self._is_finishing = False, True
            threads = list(self._threads)
            self._condition.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def submit(self, work: Work, *, after_s: float = 0.0) -> None:
        """Run the work once, after a delay. Raises WorkRefused."""
        with self._condition:
            if self._is_finishing:
                raise WorkRefused(f"{self._name} has stopped")
            if self._max_waiting is not None and len(self._waiting) >= self._max_waiting:
                raise WorkRefused(f"{self._max_waiting} requests wait for {self._name} already")
            heapq.heappush(self._waiting, (time.monotonic() + after_s, next(self._turns), work))
            thread = None
            if self._idle:
                self._condition.notify()
            elif self._is_running:
                thread = self._grow()
        self._start(thread)

    def withdraw(self, work: Work) -> None:
        """Drop submitted work that does not run yet."""
        with self._condition:
            left = [entry for entry in self._waiting if entry[2] is not work]
            if len(left) < len(self._waiting):
                heapq.heapify(left)
                self._waiting = left

    def _grow(self) -> threading.Thread | None:
        """A thread to be started without the lock, unless there are as many as allowed."""
        if len(self._threads) >= self._max_threads:
            return None
        name = self._name if self._max_threads == 1 else f"{self._name}-{len(self._threads)}"
        thread = make_thread(name, self._run, self._on_fatal)
        self._threads.add(thread)
        return thread

    def _start(self, thread: threading.Thread | None) -> bool:
        if thread is None or try_to_start(thread):
            return True
        with self._condition:
            self._threads.discard(thread)
            if self._is_running and not self._threads:
                _UNSERVED.add(self)
        return False

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()
            # An idle thread keeps nothing alive.
            del work
            for pool in _UNSERVED.copy() if _UNSERVED else ():
                _UNSERVED.discard(pool)
                pool.start_missing()

    def _next(self) -> Work | None:
        idle_until = time.monotonic() + IDLE_S
        with self._condition:
            while True:
                now = time.monotonic()
                if self._waiting and self._waiting[0][0] <= now:
                    work = heapq.heappop(self._waiting)[2]
                    thread = None
                    if self._waiting and self._is_running:
                        # Another thread runs, or waits for, what comes next.
                        if self._idle:
                            self._condition.notify()
                        else:
                            thread = self._grow()
                    break
                next_due = self._waiting[0][0] if self._waiting else math.inf
                is_the_last = not self._idle and next_due < math.inf
                if not self._is_running or (now >= idle_until and not is_the_last):
                    self._threads.discard(threading.current_thread())
                    if self._idle:
                        # It may have been woken for work that is due soon.
                        self._condition.notify()
                    return None
                self._idle += 1
                self._condition.wait((next_due if is_the_last else min(next_due, idle_until)) - now)
                self._idle -= 1
        self._start(thread)
        return work


class Task:
    """Work that runs on a thread soon after each `wake`, never twice at a time.

    ``run`` returns after how many seconds it must run again; None: when it is woken. The last answer counts.
    """

    def __init__(
        self, name: str, run: Callable[[], float | None], *, on_fatal: Callable[[BaseException], None]
    ) -> None:
        self._workers = Workers(name, on_fatal=on_fatal)
        self._run = run
        # The entry of a turn that `run` asked for, in one object: `withdraw` looks for that.
        self._again: Work = self._turn
        self._is_due = False
        """Whether the entry of a `wake` waits."""

    def start(self) -> None:
        self._workers.start()
        if self.take():
            self.wake()

    def take(self) -> bool:
        """Whether the work must run, for a caller that runs it without a thread, as a simulation does."""
        is_due, self._is_due = self._is_due, False
        return is_due

    @property
    def is_due(self) -> bool:
        return self._is_due

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End after the run in progress; returns whether that ended in time. Idempotent."""
        return self._workers.stop(timeout_s)

    def wake(self) -> None:
        """Run soon, also if it runs now. Any thread."""
        if not self._is_due:
            self._is_due = True
            if self._workers.is_running:
                self._submit(self._turn, 0.0)
        else:
            self._workers.start_missing()

    def _turn(self) -> None:
        # Before the run, which may miss the cause of a later `wake`.
        self._is_due = False
        again_s = self._run()
        self._workers.withdraw(self._again)
        if again_s is not None:
            self._submit(self._again, again_s)

    def _submit(self, work: Work, after_s: float) -> None:
        # Nothing runs after `stop`.
        with suppress(WorkRefused):
            self._workers.submit(work, after_s=after_s)
