"""The order of the controller's requests, of which a copy may come late: it was sent again meanwhile.

Each request of a controller has a number, and those to one broker come in its order. So one with a lower
number than the last that was done is an old copy; what it said was done, or replaced by what came after it.
Guarded by the lock of its owner.
"""

from __future__ import annotations

from barnabas.protocol.ids import NO_CONTROLLER_EPOCH, ControllerEpoch


class RequestOrder:
    """What was done last of one controller; another controller's numbers are its own."""

    def __init__(self) -> None:
        self._controller_epoch = NO_CONTROLLER_EPOCH
        self._last = -1

    def is_late(self, controller_epoch: int, sequence: int) -> bool:
        """Whether a request of a controller that is not older comes after a later one; else it is noted.

        One without a number (-1) is never late.
        """
        if controller_epoch != self._controller_epoch:
            self._controller_epoch, self._last = ControllerEpoch(controller_epoch), sequence
            return False
        if 0 <= sequence < self._last:
            return True
        self._last = max(self._last, sequence)
        return False
