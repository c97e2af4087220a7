"""The purgatory: operations that wait for an event or for their deadline, and complete at most once.

A `DelayedOperation` watches some keys (a partition). The code that changes the awaited state calls
`check_and_complete(key)`. Late operations are expired by a reaper thread, shared by several purgatories, or
by other `Timers`, those of an event loop for example. If an event and the deadline race, one of them wins and
runs `on_complete`; the deadline runs `on_expiration` first. An operation whose answer nobody waits for is
cancelled, and runs neither.

Guarantees: no event is lost, because an operation tries once more after it has begun to watch its keys.
Checking an unwatched key costs one dict lookup and no lock. Completed operations leave the watch lists at
once, and never fill more than half of the reaper's heap. The numbers of waiting operations and of their
keys are bounded: an operation beyond them expires at once.

`try_complete`, `on_complete` and `on_expiration` run on the thread of a caller, or of the timers. No lock is
held while the latter two run. `try_complete` never runs at the same time or later. No caller waits for a try
that runs on another thread: that thread does what the caller asked for when its try returns, a check or the
end. A caller may hold a lock of its own if these three methods do not take it.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.base.limited_log import LimitedLog
from barnabas.broker.base.limits import (
    MAX_WAITING,
    MAX_WAITING_PARTITIONS,
    SLICE_OPERATIONS,
    SLICE_PARTITIONS,
)
from barnabas.common.compiled_core import mypyc_attr
from barnabas.common.threads import make_thread
from barnabas.protocol.invariants import InvariantViolation

logger = logging.getLogger(__name__)

_SWEEP_FROM: Final = 64
"""A smaller heap is not worth sweeping."""

_LATE_BITS: Final = 6
"""The step between two timers of a loop has so many bits less than the wait."""

Cancel = Callable[[], object]
"""Ends a wait for an answer that nobody needs. It does nothing if the answer was given."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayedOperation(ABC):
    """Something that completes when its condition holds or its deadline passes, whichever comes first.

    `deadline_ms` is a time of the reaper's clock.
    """

    deadline_group: dict[DelayedOperation, None] | None = None
    """For the timers: the operations that expire with this one."""

    def __init__(self, deadline_ms: float) -> None:
        self.deadline_ms = deadline_ms
        # Held during a try, and while the two fields below change.
        self._lock = threading.Lock()
        self.is_completed = False
        self._purgatory: Purgatory | None = None
        self._timers: Timers | None = None
        # Set by callers without the lock, before they try to take it; the thread that holds it reads them.
        self._try_again = False
        self._must_end = False
        self._is_late = False
        self._is_cancelled = False

    @property
    def size(self) -> int:
        """About how many partitions a try looks at."""
        return 1

    @abstractmethod
    def try_complete(self) -> bool:
        """Whether the condition holds; if so the purgatory completes the operation.

        Runs on any thread, but on one at a time, and never during or after `on_complete`. It must not
        complete another operation.
        """

    @abstractmethod
    def on_complete(self) -> None:
        """Answer. Runs exactly once, also after an expiration, but not after `cancel`."""

    def on_expiration(self) -> None:  # noqa: B027 - most operations need nothing here
        """The deadline won, or the purgatory was full or shut down. Runs once, before `on_complete`.

        `on_complete` runs even if this fails.
        """

    def force_complete(self) -> bool:
        """Complete now; False if another thread has completed it, or will after its try."""
        self._must_end = True
        purgatory = self._purgatory
        if self.is_completed or (purgatory is not None and purgatory.end_elsewhere(self)):
            return False
        return self.check()

    def cancel(self) -> bool:
        """End the wait without an answer, because nobody waits for it; False as for `force_complete`."""
        self._is_cancelled = True
        return self.force_complete()

    def expire(self) -> bool:
        """Complete as if the deadline had passed; False as for `force_complete`."""
        self._is_late = True
        return self.force_complete()

    def check(self) -> bool:
        """Complete if the condition holds; returns whether this call did.

        If another thread is trying, this call makes it try once more and does not wait. So no event is lost,
        and a caller that holds a lock of its own cannot deadlock here.
        """
        while not self.is_completed:
            self._try_again = True
            if not self._lock.acquire(blocking=False):
                return False
            try:
                self._try_again = False
                holds = not (self.is_completed or self._must_end) and self.try_complete()
            except BaseException:
                self._lock.release()
                if self._must_end:
                    # The caller that ends it relies on this thread.
                    self.check()
                raise
            ends = not self.is_completed and (holds or self._must_end)
            self.is_completed = self.is_completed or ends
            self._lock.release()
            if ends:
                self._ended(is_late=self._is_late and not holds)
                return True
            if not self._try_again:
                return False
        return False

    def _ended(self, *, is_late: bool) -> None:
        if self._purgatory is not None and self._timers is not None:
            self._purgatory._leave(self)
            self._timers.completed(self)
        if self._is_cancelled:
            return
        try:
            if is_late:
                self.on_expiration()
        finally:
            self.on_complete()

    def _enter(self, purgatory: Purgatory, timers: Timers) -> bool:
        with self._lock:
            if self.is_completed:
                return False
            self._purgatory, self._timers = purgatory, timers
            return True


class Timers(Protocol):
    """They expire operations at their deadlines."""

    def schedule(self, operation: DelayedOperation) -> None:
        """Expire the operation at its deadline unless it completes before."""

    def completed(self, operation: DelayedOperation) -> None:
        """An operation that is scheduled, or is being scheduled by another thread, has completed.

        Any thread.
        """


class DelayedCall(DelayedOperation):
    """Makes a call when a condition holds, or at the deadline; then ``on_deadline`` is called first."""

    def __init__(
        self,
        deadline_ms: float,
        is_due: Callable[[], bool],
        call: Callable[[], None],
        on_deadline: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(deadline_ms)
        self._is_due = is_due
        self._call = call
        self._on_deadline = on_deadline

    def try_complete(self) -> bool:
        return self._is_due()

    def on_expiration(self) -> None:
        self._on_deadline()

    def on_complete(self) -> None:
        self._call()


class Reaper:
    """Expires late operations of any number of purgatories, on one thread.

    `expire_due` does the work; tests call it without the thread.
    """

    def __init__(
        self, *, on_fatal: Callable[[BaseException], None], clock_ms: Callable[[], float] = monotonic_ms
    ) -> None:
        self.clock_ms = clock_ms
        self._condition = threading.Condition(threading.Lock())
        self._heap: list[tuple[float, int, DelayedOperation]] = []
        self._numbers = itertools.count()
        # Calls of `completed` minus entries removed. Each operation causes one of each, so at rest this is
        # the number of dead entries in the heap.
        self._dead = 0
        self._stopping = False
        self._reaper_thread = make_thread("purgatory-reaper", self._run, on_fatal)

    def start(self) -> None:
        self._reaper_thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread; `Purgatory.shut_down` completes the operations that still wait."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._reaper_thread.is_alive():
            self._reaper_thread.join(timeout_s)

    def call_at(self, deadline_ms: float, call: Callable[[], None]) -> DelayedCall:
        """Make a call at a time, unless the returned operation is completed before."""
        timer = DelayedCall(deadline_ms, lambda: False, lambda: self.completed(timer), call)
        self.schedule(timer)
        return timer

    def schedule(self, operation: DelayedOperation) -> None:
        with self._condition:
            number = next(self._numbers)
            heapq.heappush(self._heap, (operation.deadline_ms, number, operation))
            # Compiled tuples have no identity.
            if self._heap[0][1] == number:
                self._condition.notify()

    def completed(self, operation: DelayedOperation) -> None:
        with self._condition:
            self._dead += 1
            if self._dead * 2 > len(self._heap) >= _SWEEP_FROM:
                live = [entry for entry in self._heap if not entry[2].is_completed]
                self._dead -= len(self._heap) - len(live)
                heapq.heapify(live)
                self._heap = live

    def expire_due(self, now_ms: float) -> int:
        """Expire due operations; returns how many this call completed."""
        due: list[DelayedOperation] = []
        with self._condition:
            while self._heap and self._heap[0][0] <= now_ms:
                due.append(heapq.heappop(self._heap)[2])
                self._dead -= 1
        return sum(guarded(operation, operation.expire) for operation in due)

    def _run(self) -> None:
        while True:
            self.expire_due(self.clock_ms())
            with self._condition:
                if self._stopping:
                    return
                wait_ms = self._heap[0][0] - self.clock_ms() if self._heap else None
                if wait_ms is None or wait_ms > 0:
                    self._condition.wait(None if wait_ms is None else min(wait_ms, 3_600_000) / 1000)


@mypyc_attr(allow_interpreted_subclasses=True)
class LoopDeadlines:
    """Expires operations on the thread of an event loop: without a lock, and it hands no answer over.

    Deadlines that are close to each other have one timer. Each is late by at most a 32nd of its wait, and
    never early. Many of them end in slices, between which the thread does other work. `schedule` runs on the
    thread, `completed` on any. ``call_later``, after seconds, and ``call_soon`` call a function there.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        call_soon: Callable[[Callable[[], None]], object],
        clock_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        self._call_later = call_later
        self._call_soon = call_soon
        self._clock_ms = clock_ms
        # The operations that wait for each timer, by its time. An operation knows its group and leaves it.
        self._groups: dict[int, dict[DelayedOperation, None]] = {}

    def schedule(self, operation: DelayedOperation) -> None:
        """Expire the operation at its deadline unless it completes before."""
        now_ms, deadline_ms = self._clock_ms(), operation.deadline_ms
        step_ms = 1 << max(0, int(deadline_ms - now_ms).bit_length() - _LATE_BITS)
        at_ms = -int(-deadline_ms // step_ms) * step_ms
        group = self._groups.get(at_ms)
        if group is None:
            group = self._groups[at_ms] = {}
            self._call_later(max(0.0, at_ms - now_ms) / 1000, partial(self._end, at_ms))
        group[operation] = None
        operation.deadline_group = group
        if operation.is_completed:
            # By another thread, which may not have seen the group.
            group.pop(operation, None)

    def completed(self, operation: DelayedOperation) -> None:
        """An operation that is scheduled, or is being scheduled by another thread, has completed."""
        group = operation.deadline_group
        if group is not None:
            group.pop(operation, None)

    def _end(self, at_ms: int) -> None:
        self._end_some(self._groups.pop(at_ms))

    def _end_some(self, group: dict[DelayedOperation, None]) -> None:
        partitions = 0
        for _ in range(SLICE_OPERATIONS):
            try:
                operation, _ = group.popitem()
            except KeyError:
                return
            guarded(operation, operation.expire)
            partitions += operation.size
            if partitions >= SLICE_PARTITIONS:
                break
        if group:
            self._call_soon(partial(self._end_some, group))


class Purgatory:
    """Operations that watch keys, for one kind of request. Any thread may call any method."""

    def __init__(
        self,
        name: str,
        reaper: Reaper,
        *,
        max_operations: int = MAX_WAITING,
        max_keys: int = MAX_WAITING_PARTITIONS,
    ) -> None:
        self.name = name
        self._reaper = reaper
        self._max_operations = max_operations
        self._max_keys = max_keys
        self.end_elsewhere: Callable[[DelayedOperation], bool] = lambda operation: False
        """Takes an operation whose end would hold up the caller for long, and has another thread `check` it;
        returns whether it does."""
        self._lock = threading.Lock()
        # Guarded by the lock, except for the lookup of an unwatched key. The dicts are ordered sets: the
        # oldest operation is tried first. An operation is in both or in neither.
        self._watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._waiting: dict[DelayedOperation, tuple[Hashable, ...]] = {}
        # The keys of all waiting operations, each counted as often as it is watched.
        self._keys = 0
        self._is_shut_down = False
        self._report = LimitedLog(logger, logging.WARNING, reaper.clock_ms)

    @property
    def waiting(self) -> int:
        """The number of waiting operations."""
        return len(self._waiting)

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable], timers: Timers | None = None
    ) -> None:
        """Complete the operation if its condition holds, else let it wait for an event or its deadline.

        Without ``timers`` the reaper expires it. Raises the errors of the operation's own code.
        """
        if not (operation.check() or operation.is_completed):
            self.watch(operation, keys, timers)

    def watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable], timers: Timers | None = None
    ) -> None:
        """Let an operation wait whose condition did not hold a moment ago; raises as the other."""
        if self._watch(operation, tuple(keys), timers or self._reaper):
            # An event may have come after the first try and before the operation watched its keys.
            operation.check()
        else:
            operation.expire()

    def check_and_complete(self, key: Hashable) -> int:
        """Try every operation that watches the key; returns how many this call completed."""
        if not self.is_watched(key):
            return 0
        return sum(map(self.check, self.watchers(key)))

    def is_watched(self, key: Hashable) -> bool:
        """Whether an operation watches the key. An operation that begins to watch it now tries once more."""
        return key in self._watchers

    def watchers(self, key: Hashable) -> Sequence[DelayedOperation]:
        """The operations that watch the key, the oldest first."""
        with self._lock:
            return tuple(self._watchers.get(key, ()))

    def check(self, operation: DelayedOperation) -> bool:
        """Try one operation; returns whether this call completed it. Its failure is logged."""
        return guarded(operation, operation.check)

    def shut_down(self) -> None:
        """Expire all waiting operations; later ones are refused."""
        with self._lock:
            self._is_shut_down = True
            waiting = tuple(self._waiting)
        for operation in waiting:
            guarded(operation, operation.expire)

    def _watch(self, operation: DelayedOperation, keys: tuple[Hashable, ...], timers: Timers) -> bool:
        with self._lock:
            refusal = self._refusal(len(keys))
            if refusal:
                self._report("purgatory %s refuses an operation: %s", self.name, refusal)
                return False
            if not operation._enter(self, timers):
                return True
            self._waiting[operation] = keys
            self._keys += len(keys)
            for key in keys:
                self._watchers.setdefault(key, {})[operation] = None
        timers.schedule(operation)
        return True

    def _refusal(self, keys: int) -> str:
        if self._is_shut_down:
            return "it is shut down"
        if len(self._waiting) >= self._max_operations:
            return f"{self._max_operations} wait already"
        if self._keys + keys > self._max_keys:
            return f"it has {keys} keys, and {self._keys} of at most {self._max_keys} are watched"
        return ""

    def _leave(self, operation: DelayedOperation) -> None:
        with self._lock:
            keys = self._waiting.pop(operation, None)
            if keys is None:
                return
            self._keys -= len(keys)
            for key in keys:
                watchers = self._watchers.get(key)
                if watchers is not None:
                    watchers.pop(operation, None)
                    if not watchers:
                        del self._watchers[key]


def guarded(operation: DelayedOperation, work: Callable[[], bool]) -> bool:
    """Run one operation's code; log its failure, so that the other operations continue."""
    try:
        return work()
    except InvariantViolation:
        raise
    except Exception:
        logger.exception("%r failed while it was being completed", operation)
        return operation.is_completed
