"""The epochs of a fetch session, which client and broker both count (KIP-227).

A session's first incremental request has epoch 1, the next 2, and so on; the numbers begin again at 1.
Plain values and functions.
"""

from __future__ import annotations

from typing import Final

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""A full fetch, which may open a session."""
FINAL_EPOCH: Final = -1
"""A full fetch that does not open a session."""
_MAX_INT: Final = (1 << 31) - 1


def next_epoch(epoch: int) -> int:
    """The epoch that the next request must carry; it wraps around to 1, since 0 opens a new session."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _MAX_INT else epoch + 1
