"""Why this broker may not write just now, if it may not.

A broker without ZooKeeper cannot know whether it still leads. There are two reasons to fence, and each ends
in its own way. ZooKeeper was *silent* for a session timeout: this ends when ZooKeeper answers again in the
same session, and until then a partition accepts acks=all writes while its followers are witnesses
(`Partition.is_witnessed`). The registration is *gone* with its session: this ends when the controller has
sent the new registration its roles. Each reason ends only by its own event, because a controller that is
connected to ZooKeeper again knows nothing of this broker's session.

A controller's request for an earlier registration does not end the second one, in any order of the threads.

Set by the session thread, confirmed by IO workers; `reason` is one reference, read without the lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from barnabas.protocol.ids import NO_BROKER_EPOCH, BrokerEpoch

logger = logging.getLogger(__name__)


class Fence:
    """`reason` is None while the broker may write; `on_fenced` is called when that ends."""

    def __init__(self, on_fenced: Callable[[], None] | None = None) -> None:
        self.reason: str | None = None
        self._on_fenced = on_fenced
        self._lock = threading.Lock()
        self._silence: str | None = None
        self.loss: str | None = None
        """Why the registration is gone, or None. Without a registration, witnesses do not count."""
        self._lost_life = NO_BROKER_EPOCH

    def silent(self, reason: str) -> None:
        """ZooKeeper does not answer."""
        with self._lock:
            self._silence = reason
            is_news = self._update()
        self._tell(is_news)

    def heard(self) -> None:
        """ZooKeeper answers again, in this session or a new one."""
        with self._lock:
            self._silence = None
            self._update()

    def registration_lost(self, reason: str, broker_epoch: BrokerEpoch) -> None:
        """The session has ended, and with it the registration of this broker epoch."""
        with self._lock:
            self.loss = reason
            self._lost_life = broker_epoch
            is_news = self._update()
        self._tell(is_news)

    def confirmed(self, broker_epoch: BrokerEpoch) -> None:
        """The controller has sent the registration of this broker epoch its roles."""
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
