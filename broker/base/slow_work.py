"""Work for the few requests that block for long, such as creating topics in ZooKeeper.

The few IO workers must not wait for ZooKeeper. The work runs in order, on a thread of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from barnabas.common.workers import Workers

logger = logging.getLogger(__name__)

_MAX_WAITING: Final = 500

Failed = Callable[[Exception], None]


class SlowWork:
    """Runs submitted work in order."""

    def __init__(self, *, on_fatal: Callable[[BaseException], None], name: str = "slow-work") -> None:
        self._workers = Workers(name, on_fatal=on_fatal, max_waiting=_MAX_WAITING)

    def start(self) -> None:
        self._workers.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End after the submitted work, or abandon the work at the timeout."""
        if not self._workers.stop(timeout_s, finishes=True):
            logger.warning("slow work is abandoned: it takes more than %.0f s", timeout_s)

    def submit(self, failed: Failed, work: Callable[..., Any], *args: Any) -> None:
        """Run the work later; ``failed`` is called with an exception. Raises WorkRefused."""
        self._workers.submit(partial(_attempt, failed, work, args))


def _attempt(failed: Failed, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        work(*args)
    except Exception as error:
        logger.exception("%s failed", getattr(work, "__name__", work))
        failed(error)
