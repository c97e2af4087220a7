"""The queue between network threads and the workers of one lane, bounded by `queued.max.requests`.

What is queued are connections that have requests to run, each at most once, so that the requests of one
connection run one at a time and in order while different connections run side by side. The bound counts
their requests; those of a connection that must not run now, because its peer does not read or too much of it
is in flight, count for that connection's own limits alone, so that no peer can keep the queue full.

A full queue never blocks a network thread: `add` says so, the thread stops reading from the socket, and is
called back when half of the queue is free again. What a connection had received at that moment (at most one
receive buffer) still comes in: the bound is the maximum and one such chunk per connection.

A waiting worker sleeps on a lock of its own, and the one that fell asleep last is woken first: exactly one
thread wakes per connection made ready, its caches are warm, and with little to do the others sleep on.
Any thread may call any method; nothing is called back while the queue's lock is held.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Protocol

from barnabas.broker.network.request import Lane, Request
from barnabas.protocol.invariants import invariant


class Runnable(Protocol):
    """A connection as the queue and the workers see it."""

    @abstractmethod
    def take_request(self) -> Request | None:
        """The next request, which the queue has just stopped counting; None when the connection is closed."""

    @abstractmethod
    def request_done(self) -> bool:
        """Whether the next request may run here at once; if not, the connection is queued until it may."""

    @abstractmethod
    def put_back(self, request: Request, lane: Lane) -> bool:
        """Take the request back and queue the connection in that lane; returns whether the queue is full."""


class Waiter:
    """The bed of one worker."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


class RequestQueue:
    """Ready connections in order of arrival, and the number of requests that wait in them."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._low_water = max_requests // 2
        self._lock = threading.Lock()
        self._ready: deque[Runnable] = deque()
        self._idle: list[Waiter] = []
        self._queued = 0
        self._stalled: list[Callable[[], None]] = []
        self._closed = False

    @property
    def queued(self) -> int:
        """Requests that could run and were not yet taken by a worker."""
        return self._queued

    def add(self, ready: Runnable | None, requests: int, on_room: Callable[[], None]) -> bool:
        """Count requests and queue their connection unless it already is (None).

        Returns whether the queue is full; then `on_room` is called once, on any thread, when there is room.
        """
        waiter = None
        with self._lock:
            self._queued += requests
            if ready is not None:
                self._ready.append(ready)
                if self._idle:
                    waiter = self._idle.pop()
            full = self._queued >= self._max_requests
            if full and on_room not in self._stalled:
                self._stalled.append(on_room)
        if waiter is not None:
            waiter.lock.release()
        return full

    def discount(self, requests: int) -> None:
        """Requests that were counted wait no more for a worker but for something of their own."""
        with self._lock:
            stalled = self._removed(requests)
        for on_room in stalled:
            on_room()

    def take(self, waiter: Waiter) -> Runnable | None:
        """Wait for a ready connection, of which the caller takes one request; None: the queue is closed."""
        while True:
            with self._lock:
                if self._ready:
                    ready = self._ready.popleft()
                    stalled = self._removed(1)
                    break
                if self._closed:
                    return None
                self._idle.append(waiter)
            waiter.lock.acquire()
        for on_room in stalled:
            on_room()
        return ready

    def swap(self, ready: Runnable) -> Runnable:
        """Give a connection back that has more to run and take the one whose turn it is, maybe the same."""
        with self._lock:
            if self._ready:
                self._ready.append(ready)
                ready = self._ready.popleft()
            stalled = self._removed(1)
        for on_room in stalled:
            on_room()
        return ready

    def close(self) -> None:
        """Let the workers end when nothing is ready any more."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for waiter in idle:
            waiter.lock.release()

    def _removed(self, requests: int) -> list[Callable[[], None]]:
        self._queued -= requests
        invariant(self._queued >= 0, "more requests taken than queued: %d", self._queued)
        if self._stalled and self._queued <= self._low_water:
            stalled, self._stalled = self._stalled, []
            return stalled
        return []
