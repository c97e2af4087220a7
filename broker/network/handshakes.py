"""The steps of peers that are not known yet, on one network thread: they take turns.

A TLS handshake costs up to a millisecond, and a message of SASL's exchange a few tenths; thousands may come
at the same moment. In each turn of the loop they run for a bounded time, so that the requests of other
connections come in between, and addresses alternate, so that one with thousands of handshakes delays its
own. Runs on the network thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

RECEIVE_BYTES: Final = 64 * 1024


class Handshakes:
    """``run_ns`` is the time for these steps in one turn; at least one runs."""

    def __init__(
        self,
        call_soon: Callable[..., object],
        call_later: Callable[..., asyncio.TimerHandle],
        run_ns: int,
    ) -> None:
        self.call_soon = call_soon
        self.call_later = call_later
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        """Encrypted bytes of all connections of the thread are received into it, and copied out at once."""
        self._run_ns = run_ns
        # Also during a run, or a step that queues the next one of its connection would add runs, each with
        # its own time, to the next turn.
        self._is_scheduled = False
        # By address; the next one is the first.
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    def queue(self, step: Callable[[], None], host: str) -> None:
        """Have a connection of this address continue soon. It waits in the queue once at most."""
        self._waiting.setdefault(host, deque()).append(step)
        if not self._is_scheduled:
            self._is_scheduled = True
            self.call_soon(self._run)

    def _run(self, *_: Any) -> None:
        deadline_ns = time.monotonic_ns() + self._run_ns
        waiting = self._waiting
        try:
            while waiting:
                host = next(iter(waiting))
                steps = waiting.pop(host)
                step = steps.popleft()
                if steps:
                    waiting[host] = steps
                step()
                if time.monotonic_ns() >= deadline_ns:
                    break
        finally:
            # Also after an error, which ends one connection and must not end the others.
            self._is_scheduled = bool(waiting)
            if waiting:
                self.call_soon(self._run)
