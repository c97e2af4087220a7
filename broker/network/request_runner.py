"""Runs one request, and keeps its failures where they belong.

An exception that escapes the handler is logged and costs its connection alone. An `InvariantViolation` goes
up to whoever runs the request, who calls `on_fatal`: going on could lose data.

Most requests are short: a few dozen microseconds, no waiting but for the page cache. Handing one to a worker
and its answer back costs more than that, for on each way the interpreter lock has to change threads. So a
network thread runs short requests itself, and the workers are for those that may take long. Which are short
is for the handlers' side to say: before one is decoded, or, where that was rash, by `NotShort`. Any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from barnabas.broker.network.request import Lane, NotShort, Request
from barnabas.protocol.invariants import InvariantViolation

logger = logging.getLogger(__name__)


def _nothing() -> None:
    """What follows a run when nobody asked for more."""


def _never(request: Request) -> bool:
    """Without anybody who can tell, no request is short."""
    return False


def _general(request: Request) -> Lane:
    return Lane.GENERAL


class RequestRunner:
    """One per server. `is_short`, `lane_of` and `after_run`: see `SocketServer`."""

    def __init__(
        self,
        process: Callable[[Request], None],
        *,
        on_fatal: Callable[[BaseException], None],
        is_short: Callable[[Request], bool] | None = None,
        lane_of: Callable[[Request], Lane] | None = None,
        after_run: Callable[[], None] | None = None,
    ) -> None:
        self._process = process
        self.on_fatal = on_fatal
        self.is_short = is_short or _never
        self._lane_of = lane_of or _general
        self.after_run = after_run or _nothing

    def lane_of(self, request: Request) -> Lane:
        """The lane of a request: the one its handler asked for, else that of the constructor's function."""
        if request.lane is None:
            request.lane = self._lane_of(request)
        return request.lane

    def handle(self, request: Request) -> None:
        """Run the handler. Raises only what must end the broker, and `NotShort` where that is allowed."""
        try:
            self._process(request)
        except (InvariantViolation, NotShort):
            raise
        except Exception as error:
            logger.exception(
                "a request of %s on %s, %d bytes, failed",
                request.connection_id,
                request.listener_name,
                request.size_bytes,
            )
            request.fail(f"its request failed: {error!r}")
