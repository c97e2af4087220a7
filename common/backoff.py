"""The waits between attempts: doubled after each failure, with jitter, until a deadline.

Plain objects of one thread or event loop. `Backoff` takes the time as an argument; `Retries` sleeps.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.protocol.errors import ApiError, BarnabasError, RequestTimedOutLocally

_JITTER: Final = (0.8, 1.2)
"""The bounds of the random factor that spreads the attempts of many callers over time."""


def doubled(first: float, failures: int, longest: float) -> float:
    """The wait after ``failures`` earlier ones: ``first``, doubled each time, at most ``longest``."""
    # The exponent is bounded, because a float overflows after a thousand failures.
    return min(first * 2.0 ** min(failures, 30), longest)


class Pause(NamedTuple):
    """The pause of one of many things that failed, in any one unit of time; see `after`."""

    until: float = 0.0
    length: float = 0.0

    def after(self, now: float, first: float, longest: float) -> Pause:
        """The pause after another failure: the ``first``, or twice this one, at most the ``longest``."""
        length = min(2 * self.length, longest) if self.length else first
        return Pause(now + length, length)


def jittered(wait: float, uniform: Callable[[float, float], float] = random.uniform) -> float:
    """A wait that differs at random from the waits of other callers."""
    return wait * uniform(*_JITTER)


class Backoff:
    """The wait after each failure in a row: ``first_ms``, then doubled up to ``max_ms``, with jitter.

    ``uniform`` returns a random number between its two arguments. Times are seconds of one monotonic clock.
    """

    __slots__ = ("_failures", "_first_ms", "_max_ms", "_retry_at", "_uniform")

    def __init__(
        self, first_ms: float, max_ms: float, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._uniform = uniform
        self._failures = 0
        self._retry_at = -math.inf

    def failed(self, now: float) -> float:
        """Count a failed attempt; returns the seconds to wait before the next one."""
        wait_s = jittered(doubled(self._first_ms, self._failures, self._max_ms), self._uniform) / 1000
        self._failures += 1
        self._retry_at = now + wait_s
        return wait_s

    def succeeded(self) -> None:
        """Make the wait after the next failure the first one again."""
        self._failures = 0

    def remaining(self, now: float) -> float:
        """Seconds until the next attempt is allowed; 0 or less if it is allowed now."""
        return self._retry_at - now


class Retries:
    """The attempts of one call: retries retriable errors until a deadline, with a wait before each retry.

    ::

        retries = Retries(config.make_retry_backoff(), timeout_ms / 1000)
        while True:
            try:
                return await ask(timeout_ms=retries.left_ms())
            except BarnabasError as error:
                await retries.wait_after(error)

    Without ``limit_s`` there is no deadline. The error of the last attempt names the limit, because its own
    time-out was what was left of it. If it is such a time-out, it also names the error before, which tells
    more.
    """

    __slots__ = ("_backoff", "_error_before", "_limit_s", "deadline")

    def __init__(self, backoff: Backoff, limit_s: float = math.inf) -> None:
        self._backoff = backoff
        self._limit_s = limit_s
        self.deadline = time.monotonic() + limit_s
        self._error_before = ""
        """Its text: the error itself would keep the frames of the caller, and these keep this object."""

    def left_ms(self, at_most: int | None = None) -> int:
        """The timeout of the next attempt: the time until the deadline, at least 1 ms.

        ``at_most`` is an upper limit, such as ``request_timeout_ms``; without a deadline it must be given.
        """
        left_ms = (self.deadline - time.monotonic()) * 1000
        return max(1, int(left_ms if at_most is None else min(left_ms, at_most)))

    async def wait_after(self, error: BarnabasError) -> None:
        """Wait before the next attempt. Raises the error if it is permanent or the deadline would pass."""
        wait_s = self._backoff.failed(time.monotonic())
        self.check(error, wait_s)
        self.failed(error)
        await asyncio.sleep(wait_s)

    def failed(self, error: BarnabasError) -> None:
        """Remember the error of an attempt for the error of the next one."""
        self._error_before = str(error)

    @property
    def is_over(self) -> bool:
        return self._ends_within(0.0)

    def check(self, error: BarnabasError, wait_s: float = 0.0) -> None:
        """Raise the error if it is permanent, or if the deadline would pass within a wait."""
        if not error.retriable:
            raise error
        if self._ends_within(wait_s):
            raise self.last_error(error) from error

    def _ends_within(self, wait_s: float) -> bool:
        # Timers may fire early; an attempt of less than a millisecond tells nothing.
        return time.monotonic() + wait_s + 0.001 > self.deadline

    def last_error(self, error: BarnabasError) -> BarnabasError:
        """The error of the last attempt, with the limit."""
        text = error.text if isinstance(error, ApiError) else str(error)
        if isinstance(error, RequestTimedOutLocally) and self._error_before:
            text += f"; the attempt before: {self._error_before}"
        limit = f"{round(self._limit_s * 1000)} ms"
        return error if text.endswith(limit) else error.with_text(f"{text} (asked for {limit})")
