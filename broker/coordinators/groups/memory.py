"""The memory that all groups of a broker take, their offsets apart: those are in the log as well.

A shard counts each of its groups after every event; a group asks before it takes more.
"""

from __future__ import annotations

import threading
from typing import Final

from barnabas.broker.base.limits import MAX_GROUPS_BYTES

GROUP_BYTES: Final = 3_000
"""About what a group takes without its members."""
MEMBER_BYTES: Final = 2_000
"""About what a member takes without the bytes that it sends, or a member id that is assigned and not used."""
PROTOCOL_BYTES: Final = 200


class GroupMemory:
    """Any thread. Events that run at the same time may exceed the bound, each by what its request brings."""

    def __init__(self, max_bytes: int = MAX_GROUPS_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._lock = threading.Lock()

    def has_room(self, added_bytes: int) -> bool:
        """Whether a group may take so much more; it may always give up some."""
        return added_bytes <= 0 or self.held_bytes + added_bytes <= self.max_bytes

    def change(self, added_bytes: int) -> None:
        if added_bytes:
            with self._lock:
                self.held_bytes += added_bytes
