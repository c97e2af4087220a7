"""The queue of requests that wait for a worker, one for each lane.

A queue holds connections that have requests to run, each at most once, so that the requests of one connection
run one at a time and in order while different connections run side by side. `queued.max.requests` bounds the
number of their requests. Requests that must not run now, because their peer does not read or too many of them
are in flight, count for the limits of their own connection alone, so no peer can keep the queue full.

A full queue never blocks a network thread: `RequestQueue.add` reports it, the thread stops reading from the
socket, and is called back when half of the queue is free again. What a connection had received at that moment
(at most one receive buffer) still comes in: the bound is the maximum and one such chunk per connection.

Any thread may call any method; nothing is called back while a queue's lock is held.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from barnabas.common.workers import IDLE_S
from barnabas.protocol.invariants import invariant

T = TypeVar("T")


class RequestQueue(Generic[T]):
    """Connections (`T`) in order of arrival, and the number of requests that wait in them.

    An idle worker blocks on a lock of its own, and the worker that blocked last is woken first: exactly one
    thread wakes per connection, its caches are warm, and with little to do the others sleep on. A worker that
    has slept for `IDLE_S` ends; ``start_worker`` starts one when a connection finds all of them busy.
    """

    def __init__(self, max_requests: int, workers: int, start_worker: Callable[[int], bool]) -> None:
        """``start_worker`` starts the worker of a number, or returns False if it cannot now."""
        self._max_requests = max_requests
        self._start_worker = start_worker
        # The numbers of the workers that do not run.
        self._ended = list(reversed(range(workers)))
        self._low_water = max_requests // 2
        self._lock = threading.Lock()
        self._ready: deque[T] = deque()
        self._idle: list[threading.Lock] = []
        self.queued = 0
        """Requests that could run and that no worker has taken."""
        self._stalled: list[Callable[[], None]] = []
        self._closed = False

    def add(self, connection: T | None, requests: int, on_room: Callable[[], None]) -> bool:
        """Count requests, and queue their connection unless it already is (None).

        Returns whether the queue is full; then `on_room` is called once, on any thread, when there is room.
        """
        idle = number = None
        with self._lock:
            self.queued += requests
            if connection is not None:
                self._ready.append(connection)
                if self._idle:
                    idle = self._idle.pop()
                elif self._ended:
                    number = self._ended.pop()
            full = self.queued >= self._max_requests
            if full and on_room not in self._stalled:
                self._stalled.append(on_room)
        if idle is not None:
            idle.release()
        elif number is not None:
            self._start(number)
        return full

    def start_missing(self) -> None:
        """Start a worker if connections wait and none is idle: the last one could perhaps not be started."""
        with self._lock:
            number = self._ended.pop() if self._ready and self._ended and not self._idle else None
        if number is not None:
            self._start(number)

    def discount(self, requests: int) -> None:
        """Requests that were counted no longer wait for a worker of this lane."""
        with self._lock:
            stalled = self._removed(requests)
        for on_room in stalled:
            on_room()

    def take(self, number: int, idle: threading.Lock) -> T | None:
        """Wait for a connection, of which the worker takes one request. None: the worker must end.

        ``idle`` is the worker's own lock, which it holds.
        """
        while True:
            with self._lock:
                if self._ready:
                    connection = self._ready.popleft()
                    stalled = self._removed(1)
                    break
                if self._closed:
                    return None
                self._idle.append(idle)
            if not idle.acquire(timeout=IDLE_S) and self._has_ended(number, idle):
                return None
        for on_room in stalled:
            on_room()
        return connection

    def swap(self, connection: T) -> T:
        """Give a connection back that has more to run and take the one whose turn it is, maybe the same."""
        with self._lock:
            if self._ready:
                self._ready.append(connection)
                connection = self._ready.popleft()
            stalled = self._removed(1)
        for on_room in stalled:
            on_room()
        return connection

    def close(self) -> None:
        """Let the workers end when the queue is empty."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for lock in idle:
            lock.release()

    def _start(self, number: int) -> None:
        if not self._start_worker(number):
            # The next request tries again, or the next call of `start_missing`.
            with self._lock:
                self._ended.append(number)

    def _has_ended(self, number: int, idle: threading.Lock) -> bool:
        """End the worker unless it was woken at the last moment."""
        with self._lock:
            if idle in self._idle:
                self._idle.remove(idle)
                self._ended.append(number)
                return True
        # It is released soon, if it is not yet.
        idle.acquire()
        return False

    def _removed(self, requests: int) -> list[Callable[[], None]]:
        self.queued -= requests
        invariant(self.queued >= 0, "more requests taken than queued: %d", self.queued)
        if self._stalled and self.queued <= self._low_water:
            stalled, self._stalled = self._stalled, []
            return stalled
        return []
