"""Zombie fencing: a broker that may not lead any more writes nothing, and late requests change nothing.

`Fence` says whether this broker may write. `RequestOrder` finds the late copies of a controller's requests;
requests of former controllers, and for earlier registrations, are refused by `RoleChanges.check_epochs`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from barnabas.protocol.ids import NO_BROKER_EPOCH, NO_CONTROLLER_EPOCH, BrokerEpoch, ControllerEpoch

logger = logging.getLogger(__name__)

_NUMBERS: Final = 2**32
"""More than a controller needs; numbers that are further apart are of two senders."""
_MAX_SENDERS: Final = 8


class Fence:
    """Why this broker may not write at present, if it may not.

    A broker without ZooKeeper cannot know whether it still leads. There are two reasons to fence it:

    - ZooKeeper was *silent* for a session timeout. This ends when ZooKeeper answers again in the same
      session. Until then a partition accepts acks=all writes while its followers are witnesses
      (`Partition.is_witnessed`).
    - The registration is *gone* with its session. This ends when the controller has sent the new registration
      its roles; a request for an earlier registration does not end it, in any order of the threads.

    Each reason ends only by its own event, because a controller that is connected to ZooKeeper again knows
    nothing of this broker's session.

    Set by the session thread, confirmed by IO workers; `reason` is one reference, read without the lock.
    `on_fenced` is called when the broker may write no longer.
    """

    def __init__(self, on_fenced: Callable[[], None] = lambda: None) -> None:
        self.reason: str | None = None
        """None while the broker may write."""
        self.loss: str | None = None
        """Why the registration is gone, or None. Without a registration, witnesses do not count."""
        self._on_fenced = on_fenced
        self._lock = threading.Lock()
        self._silence: str | None = None
        self._lost_epoch = NO_BROKER_EPOCH

    def silent(self, reason: str) -> None:
        """ZooKeeper does not answer."""
        with self._lock:
            self._silence = reason
            is_fenced_now = self._update()
        if is_fenced_now:
            self._on_fenced()

    def heard(self) -> None:
        """ZooKeeper answers again, in this session or a new one."""
        with self._lock:
            self._silence = None
            self._update()

    def registration_lost(self, reason: str, broker_epoch: BrokerEpoch) -> None:
        """The session has ended, and with it the registration of this broker epoch."""
        with self._lock:
            self.loss = reason
            self._lost_epoch = broker_epoch
            is_fenced_now = self._update()
        if is_fenced_now:
            self._on_fenced()

    def confirmed(self, broker_epoch: BrokerEpoch) -> None:
        """The controller has sent the registration of this broker epoch its roles."""
        with self._lock:
            if broker_epoch > self._lost_epoch:
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


class RequestOrder:
    """The last handled request of the controller.

    A controller numbers its requests and sends them to each broker in that order; it may resend some. A
    request with a lower number than the last one handled is a late copy: it was applied, or a later request
    has replaced its content. `lock` is held while a request is checked and applied.

    A controller begins at a random number. Numbers that are far from all others are of another sender; they
    make no request of the controller late.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._controller_epoch = NO_CONTROLLER_EPOCH
        self._lasts: list[int] = []
        """Each sender's last number; the sender of the newest request is the last one."""

    def is_late(self, controller_epoch: int, sequence: int) -> bool:
        """Whether a later request was handled already; if not, this one is recorded.

        The caller refuses older controllers first. A request without a number (-1) is never late.
        """
        if controller_epoch != self._controller_epoch:
            self._controller_epoch, self._lasts = ControllerEpoch(controller_epoch), []
        if sequence < 0:
            return False
        last = next((each for each in self._lasts if abs(sequence - each) < _NUMBERS), -1)
        if last >= 0:
            self._lasts.remove(last)
        self._lasts.append(max(sequence, last))
        del self._lasts[:-_MAX_SENDERS]
        return sequence < last
