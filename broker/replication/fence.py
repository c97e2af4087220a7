"""Why this broker may not write just now, if it may not.

Without ZooKeeper nobody may believe that it still leads, and there are two reasons for doubt, which end in
different ways. ZooKeeper is *silent* for a session timeout: ends when it is heard of again in the same
session. The registration is *gone* with its session: ends when the controller has said, to the new one, what
this broker leads. Neither ends the other: a controller that has ZooKeeper back earlier than we do cannot
speak for our session.

Set by the session thread, confirmed by IO workers; `reason` is one reference, read without the lock.
"""

from __future__ import annotations

import logging
import threading

logger = logging.getLogger(__name__)


class Fence:
    """See the module. `reason` is None while the broker may write."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._lock = threading.Lock()
        self._silence: str | None = None
        self._loss: str | None = None

    def silent(self, reason: str) -> None:
        """ZooKeeper is not heard of."""
        with self._lock:
            self._silence = reason
            self._update()

    def heard(self) -> None:
        """ZooKeeper is heard of again, in this session or a new one."""
        with self._lock:
            self._silence = None
            self._update()

    def registration_lost(self, reason: str) -> None:
        """The session has ended and the registration with it."""
        with self._lock:
            self._loss = reason
            self._update()

    def confirmed(self) -> None:
        """The controller has told the broker's present life what it leads."""
        with self._lock:
            self._loss = None
            self._update()

    def _update(self) -> None:
        before, self.reason = self.reason, self._loss or self._silence
        if before is None and self.reason is not None:
            logger.warning("refusing writes: %s", self.reason)
        elif before is not None and self.reason is None:
            logger.info("accepting writes again")
