"""Detects late copies of the controller's requests, which occur because requests are resent.

A controller numbers its requests and sends them to each broker in that order. So a request with a lower
number than the last one handled is a late copy: its content was applied, or replaced by a later request.
Guarded by the lock of its owner.
"""

from __future__ import annotations

from barnabas.protocol.ids import NO_CONTROLLER_EPOCH, ControllerEpoch


class RequestOrder:
    """The last handled request of one controller; each controller has its own numbers."""

    def __init__(self) -> None:
        self._controller_epoch = NO_CONTROLLER_EPOCH
        self._last = -1

    def is_late(self, controller_epoch: int, sequence: int) -> bool:
        """Whether a later request was handled already; if not, this one is recorded.

        The caller refuses older controllers first. A request without a number (-1) is never late.
        """
        if controller_epoch != self._controller_epoch:
            self._controller_epoch, self._last = ControllerEpoch(controller_epoch), sequence
            return False
        if 0 <= sequence < self._last:
            return True
        self._last = max(self._last, sequence)
        return False
