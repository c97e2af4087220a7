"""Why this broker may not write just now, if it may not.

Without ZooKeeper nobody may believe by itself that it still leads, and there are two reasons for doubt, which
end in different ways. ZooKeeper is *silent* for a session timeout: ends when it is heard of again in the same
session; until then a partition may go on whose other members bear witness (`Partition.is_witnessed`). The
registration is *gone* with its session: ends when the controller has said, to the new one, what this broker
leads. Neither ends the other: a controller that has ZooKeeper back earlier than we do cannot speak for our
session.

What a controller says to a life that is over does not end it either, however the two threads meet.

Set by the session thread, confirmed by IO workers; `reason` is one reference, read without the lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from barnabas.protocol.ids import NO_BROKER_EPOCH, BrokerEpoch

logger = logging.getLogger(__name__)


class Fence:
    """See the module. `reason` is None while the broker may write; `on_fenced` is called when that ends."""

    def __init__(self, on_fenced: Callable[[], None] | None = None) -> None:
        self.reason: str | None = None
        self._on_fenced = on_fenced
        self._lock = threading.Lock()
        self._silence: str | None = None
        self.loss: str | None = None
        """Why the registration is gone, if it is: then no witness counts."""
        self._lost_life = NO_BROKER_EPOCH

    def silent(self, reason: str) -> None:
        """ZooKeeper is not heard of."""
        with self._lock:
            self._silence = reason
            is_news = self._update()
        self._tell(is_news)

    def heard(self) -> None:
        """ZooKeeper is heard of again, in this session or a new one."""
        with self._lock:
            self._silence = None
            self._update()

    def registration_lost(self, reason: str, broker_epoch: BrokerEpoch) -> None:
        """The session has ended and the registration with it: that of the life with this epoch."""
        with self._lock:
            self.loss = reason
            self._lost_life = broker_epoch
            is_news = self._update()
        self._tell(is_news)

    def confirmed(self, broker_epoch: BrokerEpoch) -> None:
        """The controller has told the life with this epoch what it leads."""
        with self._lock:
            if broker_epoch > self._lost_life:
                self.loss = None
                self._update()

    def _update(self) -> bool:
        """Whether writes are refused from now on and were not before."""
        before, self.reason = self.reason, self.loss or self._silence
        if before is None and self.reason is not None:
            logger.warning("refusing writes: %s", self.reason)
        elif before is not None and self.reason is None:
            logger.info("accepting writes again")
        return before is None and self.reason is not None

    def _tell(self, is_news: bool) -> None:
        if is_news and self._on_fenced is not None:
            self._on_fenced()
