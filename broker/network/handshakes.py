"""The TLS handshakes of one network thread, which take turns.

A handshake costs up to a millisecond, and thousands may begin at the same moment. In each turn of the loop
they run for a bounded time, so that the requests of other connections come in between. Runs on the network
thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    # A transport asks for its turn here, and each knows the other.
    from barnabas.broker.network.tls_transport import TlsTransport

RECEIVE_BYTES: Final = 64 * 1024


class Handshakes:
    """``run_ns`` is the time for handshakes in one turn; at least one runs."""

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
        self._waiting: deque[TlsTransport] = deque()

    def queue(self, transport: TlsTransport) -> None:
        """Have a handshake continued soon. It waits in the queue once at most."""
        if not self._waiting:
            self.call_soon(self._run)
        self._waiting.append(transport)

    def _run(self, *_: Any) -> None:
        deadline_ns = time.monotonic_ns() + self._run_ns
        waiting = self._waiting
        while waiting:
            waiting.popleft().step()
            if time.monotonic_ns() >= deadline_ns:
                break
        if waiting:
            self.call_soon(self._run)
