"""Waiting for a condition with a deadline, never for a time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

DEADLINE_S = 60.0


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Let the event loop run until the condition holds. Raises AssertionError after the deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        if loop.time() > deadline:
            raise AssertionError(f"{what} did not come true within {DEADLINE_S} s")
        await asyncio.sleep(0.001)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Let other threads run until the condition holds. Raises AssertionError after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {DEADLINE_S} s")
        pause.wait(0.002)
