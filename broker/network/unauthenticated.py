"""The connections whose peers are not known yet: in a TLS handshake, or before the end of SASL's exchange.

Their number is bounded. If it is reached, a new one takes the place of another: of the connections that the
broker waits for, the one that has made no progress for longest, of the address that has most of them; one
that sends bytes without progress is next. So a flood of half-open handshakes displaces itself, and a client
that answers within milliseconds gets through. A connection that waits for the broker is not displaced by
others of its address, because it would be next when thousands of clients come back together: if nearly all
wait for the broker, the new one is refused and tries again. One of another address takes the place of the
latest of the address that has most, so that a flood of real handshakes keeps nobody else out. Any thread.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")


class Unauthenticated(Generic[T]):
    """At most so many connections of type T, which are told apart by identity."""

    def __init__(self, max_connections: int) -> None:
        self.max_connections = max_connections
        self._lock = threading.Lock()
        self._hosts: dict[T, str] = {}
        self._counts = Counter[str]()
        # The connections that the broker waits for: by host, in the order of the latest progress.
        self._silent: dict[str, OrderedDict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, connection: T, host: str) -> T | None:
        """Count a connection; returns the one to close in its place, perhaps itself."""
        with self._lock:
            displaced: T | None = None
            if len(self._hosts) >= self.max_connections:
                displaced = self._next(host)
                if displaced is None:
                    return connection
                self._remove(displaced)
            self._hosts[connection] = host
            self._counts[host] += 1
            self._add_silent(connection, host)
            return displaced

    def _next(self, host: str) -> T | None:
        """The connection that gives way to one of this address; None if that one is refused."""
        largest = max(self._silent.values(), key=len, default=None)
        busiest, most = max(self._counts.items(), key=itemgetter(1), default=("", 0))
        if largest is not None and 2 * len(largest) >= most:
            return next(iter(largest))
        if most <= self._counts[host] + 1:
            return None
        return next(iter(self._silent.get(busiest, ())), None) or next(
            connection for connection, of_host in reversed(self._hosts.items()) if of_host == busiest
        )

    def serve(self, connection: T) -> None:
        """The peer has sent something: the connection waits for the broker."""
        with self._lock:
            if (host := self._hosts.get(connection)) is not None:
                self._remove_silent(connection, host)

    def wait(self, connection: T, *, has_advanced: bool = True) -> None:
        """The broker waits for the peer again, which has sent a part of the exchange, or just bytes."""
        with self._lock:
            if (host := self._hosts.get(connection)) is not None:
                self._add_silent(connection, host)
                self._silent[host].move_to_end(connection, last=has_advanced)

    def remove(self, connection: T) -> None:
        """The peer is known, or gone. Idempotent."""
        with self._lock:
            self._remove(connection)

    def _add_silent(self, connection: T, host: str) -> None:
        self._silent.setdefault(host, OrderedDict())[connection] = None

    def _remove_silent(self, connection: T, host: str) -> None:
        of_host = self._silent.get(host)
        if of_host is not None and connection in of_host:
            del of_host[connection]
            if not of_host:
                del self._silent[host]

    def _remove(self, connection: T) -> None:
        host = self._hosts.pop(connection, None)
        if host is not None:
            self._counts[host] -= 1
            if not self._counts[host]:
                del self._counts[host]
            self._remove_silent(connection, host)
