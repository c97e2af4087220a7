"""One thread for the few requests that block for long, such as creating topics in ZooKeeper.

The few IO workers must not wait for ZooKeeper. The queue is bounded; a full queue raises `SlowWorkRefused`.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import Any, Final

from barnabas.common.threads import make_thread
from barnabas.protocol.errors import LocalError

logger = logging.getLogger(__name__)

_MAX_WAITING: Final = 500


_Work = tuple[Callable[..., Any], tuple[Any, ...], Callable[[Exception], None]]
"""The function, its arguments, and the function to call with its error."""


class SlowWorkRefused(LocalError):
    """The queue is full."""

    retriable = True


class SlowWork:
    """Runs the submitted work in order, on its own thread."""

    def __init__(self, *, on_fatal: Callable[[BaseException], None], name: str = "slow-work") -> None:
        self._queue: queue.Queue[_Work | None] = queue.Queue(_MAX_WAITING)
        self._thread = make_thread(name, self._run, on_fatal)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End after the queued work, or abandon the work at the timeout."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            logger.warning("slow work is abandoned: the queue is full")
            return
        self._thread.join(timeout_s)

    def submit(self, failed: Callable[[Exception], None], work: Callable[..., Any], *args: Any) -> None:
        """Run the work later; ``failed`` is called with an exception. Raises SlowWorkRefused."""
        try:
            self._queue.put_nowait((work, args, failed))
        except queue.Full:
            raise SlowWorkRefused(f"{_MAX_WAITING} requests wait for ZooKeeper already") from None

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, args, failed = item
            try:
                work(*args)
            except Exception as error:
                logger.exception("%s failed", getattr(work, "__name__", work))
                failed(error)
