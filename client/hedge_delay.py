"""Asking one broker after another until the first answers; one that does not answer soon is overtaken.

How long a broker may take before the next is asked as well follows the answers: a fixed delay multiplies the
load of a cluster that is merely slow, since every question then goes to all brokers.
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
"""What each further answer leaves of the slowest one's time."""


class HedgeDelay:
    """Twice the slowest of the recent answers, between ``least_s`` and `MOST_S`. Pure; times come in.

    ``least_s`` is what a broker that hangs may cost.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._slowest_s = 0.0

    @property
    def seconds(self) -> float:
        return min(MOST_S, max(self._least_s, self._slowest_s * _FACTOR))

    def answered(self, elapsed_s: float) -> None:
        """An answer came so long after its question."""
        self._slowest_s = max(elapsed_s, self._slowest_s * _KEPT)


async def first_answer(
    upcoming: deque[K],
    ask: Callable[[K], Coroutine[Any, Any, R]],
    failed: Callable[[K, BarnabasError], None],
    hedge: HedgeDelay,
) -> tuple[K, R] | None:
    """The first of ``upcoming`` that answers, and its answer; None if all fail.

    ``failed`` hears of each failure and may append to ``upcoming``. Raises any other error of ``ask``. The
    questions that are still open are cancelled, also when the caller is.
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
            # Answers first: a failure beside an answer is of no interest.
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
