"""Asks brokers one after another until one answers; a slow one does not delay the next (hedging).

The delay before the next broker is asked follows the answer times. A fixed delay would multiply the load of a
slow cluster, because every request would go to all brokers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from barnabas.protocol.errors import BarnabasError

K = TypeVar("K")
R = TypeVar("R")

MOST_S: Final = 5.0
_FACTOR: Final = 2.0
_KEPT: Final = 0.9
"""The factor by which each further answer shrinks the slowest time."""


class HedgeDelay:
    """Twice the slowest recent answer time, between ``least_s`` and `MOST_S`. Pure; times are arguments.

    ``least_s`` is the delay that a hung broker adds.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._slowest_s = 0.0

    @property
    def seconds(self) -> float:
        return min(MOST_S, max(self._least_s, self._slowest_s * _FACTOR))

    def answered(self, elapsed_s: float) -> None:
        """Record an answer and its time."""
        self._slowest_s = max(elapsed_s, self._slowest_s * _KEPT)


async def first_answer(
    upcoming: deque[K],
    ask: Callable[[K], Coroutine[Any, Any, R]],
    failed: Callable[[K, BarnabasError], None],
    hedge: HedgeDelay,
) -> tuple[K, R] | None:
    """The first candidate of ``upcoming`` that answers, with its answer; None if all fail.

    ``failed`` is called for each BarnabasError and may append to ``upcoming``. Raises any other error of
    ``ask``. Open requests are cancelled at the end, also if the caller is cancelled.
    """
    asked: dict[asyncio.Task[R], tuple[K, float]] = {}
    try:
        while upcoming or asked:
            if upcoming:
                candidate = upcoming.popleft()
                asked[asyncio.create_task(ask(candidate))] = candidate, time.monotonic()
            done, _ = await asyncio.wait(
                asked,
                timeout=hedge.seconds if upcoming else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            # Answers first: a failure does not matter if another candidate has answered.
            for task in sorted(done, key=lambda task: task.exception() is not None):
                candidate, asked_at = asked.pop(task)
                error = task.exception()
                if error is None:
                    hedge.answered(time.monotonic() - asked_at)
                    return candidate, task.result()
                if not isinstance(error, BarnabasError):
                    raise error
                failed(candidate, error)
    finally:
        for task in asked:
            task.cancel()
    return None
