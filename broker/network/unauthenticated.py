"""The connections whose peers are not known yet: in a TLS handshake, or before the end of SASL's exchange.

Their number is bounded. If it is reached, a new one takes the place of another: of the connections that the
broker waits for, the one that has made no progress for longest, of the address that has most of them. So a
flood of half-open handshakes displaces itself, single bytes do not help it, and a client that answers within
milliseconds gets through. A connection that waits for the broker is not displaced, because when thousands of
clients come back together those would be next: if all wait for the broker, the new one is refused and tries
again. Any thread.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Unauthenticated(Generic[T]):
    """At most so many connections of type T, which are told apart by identity."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self._hosts: dict[T, str] = {}
        # By host, in the order of the latest progress.
        self._by_host: dict[str, dict[T, None]] = {}
        # Those that wait for the broker.
        self._served: set[T] = set()

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, connection: T, host: str) -> T | None:
        """Count a connection; returns the one to close in its place, perhaps itself."""
        with self._lock:
            displaced: T | None = None
            if len(self._hosts) >= self._max_connections:
                displaced = self._oldest_silent()
                if displaced is None:
                    return connection
                self._remove(displaced)
            self._hosts[connection] = host
            self._by_host.setdefault(host, {})[connection] = None
            return displaced

    def serve(self, connection: T) -> None:
        """The peer has sent something: the connection waits for the broker."""
        with self._lock:
            if connection in self._hosts:
                self._served.add(connection)

    def wait(self, connection: T, *, has_advanced: bool = True) -> None:
        """The broker waits for the peer again, which has sent a part of the exchange, or just bytes."""
        with self._lock:
            self._served.discard(connection)
            if has_advanced and (host := self._hosts.get(connection)) is not None:
                of_host = self._by_host[host]
                del of_host[connection]
                of_host[connection] = None

    def remove(self, connection: T) -> None:
        """The peer is known, or gone. Idempotent."""
        with self._lock:
            self._remove(connection)

    def _oldest_silent(self) -> T | None:
        if len(self._served) == len(self._hosts):
            return None
        for of_host in sorted(self._by_host.values(), key=len, reverse=True):
            for connection in of_host:
                if connection not in self._served:
                    return connection
        return None

    def _remove(self, connection: T) -> None:
        host = self._hosts.pop(connection, None)
        if host is not None:
            self._served.discard(connection)
            of_host = self._by_host[host]
            del of_host[connection]
            if not of_host:
                del self._by_host[host]
