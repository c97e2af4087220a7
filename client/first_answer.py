"""Asks several candidates, such as brokers, one after another, and returns the first answer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from barnabas.protocol.errors import BarnabasError, ConnectionClosed

K = TypeVar("K")
R = TypeVar("R")

MAX_HEDGE_S: Final = 5.0
_HEDGE_FACTOR: Final = 2.0
_HEDGE_MEMORY: Final = 0.9
"""The factor by which each further answer shrinks the slowest time."""


@dataclass
class HedgeDelay:
    """The time to wait for a broker before the next is asked too: twice the slowest recent answer time.

    It is between ``least_s``, the delay that a hung broker adds, and `MAX_HEDGE_S`. A fixed delay would
    multiply the load of a slow cluster, because every request would go to all brokers.
    """

    _least_s: float
    _slowest_s: float = 0.0

    @property
    def seconds(self) -> float:
        return min(MAX_HEDGE_S, max(self._least_s, self._slowest_s * _HEDGE_FACTOR))

    def answered(self, elapsed_s: float) -> None:
        """Record an answer and its time."""
        self._slowest_s = max(elapsed_s, self._slowest_s * _HEDGE_MEMORY)


async def first_answer(
    upcoming: deque[K],
    ask: Callable[[K], Coroutine[Any, Any, R]],
    hedge: HedgeDelay,
    failed: Callable[[K, BarnabasError], None] = lambda candidate, error: None,
) -> tuple[K, R]:
    """Ask one candidate after another; returns the first that answers, with its answer.

    ``failed`` is called for each BarnabasError and may append to ``upcoming``; if all fail, the last one is
    raised. Raises any other error of ``ask`` at once. Open requests are cancelled at the end, also if the
    caller is cancelled.
    """
    last_error: BarnabasError = ConnectionClosed("no broker is known to be alive")
    open_requests: dict[asyncio.Task[R], tuple[K, float]] = {}
    try:
        while upcoming or open_requests:
            if upcoming:
                candidate = upcoming.popleft()
                open_requests[asyncio.create_task(ask(candidate))] = candidate, time.monotonic()
            done, _ = await asyncio.wait(
                open_requests,
                timeout=hedge.seconds if upcoming else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            # Answers first: a failure does not matter if another candidate has answered.
            for task in sorted(done, key=lambda task: task.exception() is not None):
                candidate, asked_at = open_requests.pop(task)
                error = task.exception()
                if error is None:
                    hedge.answered(time.monotonic() - asked_at)
                    return candidate, task.result()
                if not isinstance(error, BarnabasError):
                    raise error
                last_error = error
                failed(candidate, error)
        raise last_error
    finally:
        for task in open_requests:
            task.cancel()
