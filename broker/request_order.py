"""The order of the controller's requests: one at a time, and without late copies, which resending causes.

A controller numbers its requests and sends them to each broker in that order. So a request with a lower
number than the last one handled is a late copy: it was applied, or a later request has replaced its content.
"""

from __future__ import annotations

import threading

from barnabas.protocol.ids import NO_CONTROLLER_EPOCH, ControllerEpoch


class RequestOrder:
    """The last handled request of one controller; each controller has its own numbers.

    `lock` is held while a request is checked and applied, so that no other one is applied in between.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
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
