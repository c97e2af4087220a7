"""Checks of the many fetches that one record may complete, and the reads that these share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from barnabas.broker.base.limits import MAX_ON_NETWORK_THREAD, SLICE_OPERATIONS, SLICE_PARTITIONS
from barnabas.broker.base.purgatory import DelayedOperation, Purgatory
from barnabas.common.workers import Task

R = TypeVar("R")

_MOST_SHARED: Final = 16
"""If consumers ask for more different reads in turns, each reads for itself."""


class SharedReads(Generic[R]):
    """Reads that several waiting consumers share, because they ask the same of the same state of a partition.

    A record may wake thousands of consumers, and most of them wait at one offset. The first one reads, and
    the others get its result, with the encoded answers. A result is found only while the partition's offsets
    and epoch are those of before its read, so it is never older than a read would be.

    Bounded: a few results. One with records, which keep a segment's mapping, lasts only for a slice of
    wake-ups: while the slice's thread has entered this context manager. Any thread may read meanwhile.
    """

    def __init__(self) -> None:
        self._is_slice = False
        self._results: dict[Hashable, tuple[Hashable, R]] = {}

    def __enter__(self) -> None:
        self._is_slice = True

    def __exit__(self, *exc: object) -> None:
        self._is_slice = False
        self._results.clear()

    def find(self, question: Hashable, state: Hashable) -> R | None:
        """The result of that question for that state, if it is known."""
        known = self._results.get(question)
        return known[1] if known is not None and known[0] == state else None

    def keep(self, question: Hashable, state: Hashable, result: R, *, has_records: bool) -> None:
        """Keep a result whose read began after the state was looked at."""
        results = self._results
        if len(results) >= _MOST_SHARED:
            results.clear()
        if self._is_slice or not has_records:
            results[question] = state, result
        if has_records and not self._is_slice:
            # The slice may have ended just before it was kept.
            results.pop(question, None)


class SlicedChecks:
    """Checks keys of a purgatory later and in slices, so that nothing waits for its many operations.

    One record may complete thousands of waiting fetches, and each takes about fifty microseconds. The code
    that makes the record readable only notes the key. ``call_soon`` calls a function later, on one thread,
    which does other work between two slices. An operation of more than `MAX_ON_NETWORK_THREAD`
    partitions would be a long slice of its own: a thread for such operations checks and ends them, one after
    the other, also at their deadlines and when their connections are lost.

    No event is lost: a key that is noted during a slice is checked again, and a large operation that is noted
    during its check too. ``_due`` has each key once and ``_large`` each operation, so they are bounded by
    what waits. `note` may be called on any thread.
    """

    def __init__(
        self,
        purgatory: Purgatory,
        call_soon: Callable[[Callable[[], None]], None],
        shared: SharedReads[Any],
        *,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.call_soon = call_soon
        self._shared = shared
        self._purgatory = purgatory
        purgatory.end_elsewhere = self._take_large
        # Guards the fields below.
        self._lock = threading.Lock()
        self._due: dict[Hashable, None] = {}
        self._is_scheduled = False
        self._large: dict[DelayedOperation, None] = {}
        self._is_stopped = False
        # Only the running slice touches it.
        self._operations: deque[DelayedOperation] = deque()
        self._task = Task("large-fetches", self.check_large, on_fatal=on_fatal)

    def start(self) -> None:
        self._task.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread; from now on a large operation is ended by the thread that demands it."""
        with self._lock:
            self._is_stopped = True
        self._task.stop(timeout_s)

    def note(self, key: Hashable) -> None:
        """Check the operations that watch the key soon."""
        if not self._purgatory.is_watched(key):
            return
        with self._lock:
            self._due[key] = None
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self.call_soon(self._run_slice)

    def check_large(self) -> float | None:
        """Check or end the large operation that was noted first; 0 if there are more."""
        with self._lock:
            operation = next(iter(self._large), None)
            if operation is None:
                return None
            del self._large[operation]
        self._purgatory.check(operation)
        return 0.0 if self._large else None

    def _take_large(self, operation: DelayedOperation) -> bool:
        """Have the thread check an operation, if it is large; returns whether it is."""
        if operation.size <= MAX_ON_NETWORK_THREAD:
            return False
        with self._lock:
            if self._is_stopped:
                return False
            self._large[operation] = None
        self._task.wake()
        return True

    def _run_slice(self) -> None:
        with self._shared:
            has_more = self._check_some()
        if has_more:
            self.call_soon(self._run_slice)

    def _check_some(self) -> bool:
        partitions = 0
        for _ in range(SLICE_OPERATIONS):
            operation = self._next()
            if operation is None:
                return False
            if self._take_large(operation):
                continue
            self._purgatory.check(operation)
            partitions += operation.size
            if partitions >= SLICE_PARTITIONS:
                break
        return True

    def _next(self) -> DelayedOperation | None:
        """The next operation to check; if there is none, the next `note` schedules another slice."""
        operations = self._operations
        while not operations:
            with self._lock:
                if not self._due:
                    self._is_scheduled = False
                    return None
                key = next(iter(self._due))
                del self._due[key]
            operations.extend(self._purgatory.watchers(key))
        return operations.popleft()
