"""The controller's queue of events: first in, first out, bounded, each "look again" in it at most once.

Any thread puts, the controller's event thread takes. Watches and channels can put only as much as there are
kinds of events and brokers, so that the bound is met by requests from outside alone, which are refused.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from barnabas.controller.events import LOOK_AGAIN, Event
from barnabas.protocol.errors import LocalError

CAPACITY: Final = 10_000


class EventQueueFull(LocalError):
    """So many events wait that no more are taken."""

    retriable = True


class EventQueue:
    """See the module."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._events: deque[Event] = deque()
        self._waiting: set[Event] = set()
        self._changed = threading.Condition()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        """Add an event, unless it only asks to look again and such a one waits already.

        Once the queue is closed, events are dropped. Raises EventQueueFull.
        """
        with self._changed:
            if self._is_closed:
                return
            if isinstance(event, LOOK_AGAIN):
                if event in self._waiting:
                    return
                self._waiting.add(event)
            elif len(self._events) >= self._capacity:
                raise EventQueueFull(f"{len(self._events)} events wait for the controller")
            self._events.append(event)
            self._changed.notify()

    def take(self, timeout_s: float | None = None) -> Event | None:
        """The next event, or None once the queue is closed or the time is up."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_closed or bool(self._events), timeout_s):
                return None
            if self._is_closed:
                return None
            event = self._events.popleft()
            if isinstance(event, LOOK_AGAIN):
                self._waiting.discard(event)
            return event

    def close(self) -> list[Event]:
        """Wake the taker for good; what was still waiting is handed back."""
        with self._changed:
            self._is_closed = True
            left = list(self._events)
            self._events.clear()
            self._changed.notify_all()
            return left

    @property
    def is_closed(self) -> bool:
        return self._is_closed
