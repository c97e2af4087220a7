"""Deadlines of waiting operations on the event loop of one thread.

An operation that waits on its own thread needs no lock, and hands no answer to another thread, when its time
is over. Deadlines that are close to each other end together, with one timer: each by at most a 32nd of its
wait too late, and never too early. Many of them end in slices, between which the thread does other work.

`schedule` runs on the thread, `completed` on any.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.base.limits import SLICE_OPERATIONS, SLICE_PARTITIONS
from barnabas.broker.base.purgatory import DelayedOperation, guarded

_LATE_BITS: Final = 6
"""The step between two timers has so many bits less than the wait."""


class LoopDeadlines:
    """``call_later`` and ``call_soon`` call a function on the thread, the former after seconds."""

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
