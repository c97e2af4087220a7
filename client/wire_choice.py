"""The protocol that a client speaks, which with ``wire="auto"`` its first exchange decides, once for all.

The first request goes out in the native protocol, so that Barnabas costs no round trip. A broker of other
software closes such a connection, or does not answer for a while: then it is asked in Kafka's protocol too.
Only an answer decides: a broker of ours that is being killed or restarted also closes connections, and in
Kafka's protocol it says that it speaks the native one. Until then each request for metadata tries again.

Everything here runs on the event loop of the client.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from barnabas.client.config import AUTO
from barnabas.client.first_answer import HedgeDelay, first_answer
from barnabas.common.channel import Channel
from barnabas.common.dialects import Wire
from barnabas.protocol.errors import AuthenticationFailed, BarnabasError, ClosedUnanswered
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")
log = logging.getLogger(__name__)

_PATIENCE_S: Final = 1.0
"""The time after which a broker that is silent in the native protocol is asked in Kafka's too."""


class WireChoice:
    """``chosen`` is None until it is known; then it never changes."""

    def __init__(self, setting: str, channel: Callable[[Endpoint, Wire], Channel]) -> None:
        self.chosen = None if setting == AUTO else Wire(setting)
        self._channel = channel

    async def ask(self, endpoint: Endpoint, message: RequestOf[R]) -> R:
        """Ask a broker in the protocol that is chosen, or in both. Raises as `Channel.request`."""
        if self.chosen is not None:
            return await self._channel(endpoint, self.chosen).request(message)
        errors: dict[Wire, BarnabasError] = {}
        upcoming = deque([Wire.NATIVE, Wire.KAFKA])

        def failed(wire: Wire, error: BarnabasError) -> None:
            errors[wire] = error
            if not isinstance(error, ClosedUnanswered):
                # Any other failure of the native attempt is one of either protocol.
                upcoming.clear()

        def attempt(wire: Wire) -> Coroutine[Any, Any, R]:
            return self._attempt(endpoint, wire, message)

        try:
            return (await first_answer(upcoming, attempt, HedgeDelay(_PATIENCE_S), failed))[1]
        except BarnabasError:
            pass
        # The last error tells nothing of a broker that speaks only the other protocol.
        refused = [error for error in errors.values() if isinstance(error, AuthenticationFailed)]
        # Another broker may have decided meanwhile for a protocol in which this one was not asked.
        raise refused[0] if refused else errors.get(self.chosen or Wire.NATIVE, errors[Wire.NATIVE])

    async def _attempt(self, endpoint: Endpoint, wire: Wire, message: RequestOf[R]) -> R:
        channel = self._channel(endpoint, wire)
        if wire is Wire.KAFKA:
            await channel.connect()
            if channel.peer_is_ours:
                return await self._ask_ours(endpoint, message)
            self._choose(wire)
        answer = await channel.request(message)
        self._choose(wire)
        return answer

    async def _ask_ours(self, endpoint: Endpoint, message: RequestOf[R]) -> R:
        """Ask a broker of ours that had lost the native connection, or was slow."""
        self._choose(Wire.NATIVE)
        native = self._channel(endpoint, Wire.NATIVE)
        if not native.is_connected:
            # It would wait for its back-off.
            native.close("the broker has been restarted")
            native = self._channel(endpoint, Wire.NATIVE)
        return await native.request(message)

    def _choose(self, wire: Wire) -> None:
        if self.chosen is None:
            self.chosen = wire
            log.debug("the brokers are asked in the protocol %s", wire.value)
