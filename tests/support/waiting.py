"""The two ways to wait for a condition: `until` in a coroutine, `wait_for` in a thread.

The deadline is long because the machine may be busy; a test that passes never gets there.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_S = 60.0
_LONGEST_PAUSE_S = 0.05

T = TypeVar("T")


async def until(
    condition: Callable[[], object], what: str = "the condition", timeout_s: float = DEADLINE_S
) -> None:
    """Let the event loop run until the condition, which may be a coroutine's result, holds.

    Raises AssertionError after the deadline.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        value = condition()
        if await value if asyncio.iscoroutine(value) else value:
            return
        if loop.time() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s: {what}")
        await asyncio.sleep(0.001)


def wait_for(
    condition: Callable[[], T],
    what: str | Callable[[], object] = "the condition",
    timeout_s: float = DEADLINE_S,
) -> T:
    """The condition's first true value. Raises AssertionError with `what` after the deadline.

    The pauses grow with the time that has passed, so that a condition may start a process or a client.
    """
    began = time.monotonic()
    pause = threading.Event()
    while not (value := condition()):
        passed_s = time.monotonic() - began
        if passed_s > timeout_s:
            raise AssertionError(f"waited {timeout_s:g} s: {what() if callable(what) else what}")
        pause.wait(min(max(0.002, passed_s / 10), _LONGEST_PAUSE_S))
    return value
