"""The connections whose peers are not known yet: in a TLS handshake, or before the end of SASL's exchange.

Their number is bounded. If it is reached, a new one takes the place of another: of the connections that the
broker waits for, the one that has waited longest, of the address that has most of them. So a flood of
half-open handshakes displaces itself, and a client that answers within milliseconds gets through. A
connection that waits for the broker is not displaced, because when thousands of clients come back together
those would be next: if all wait for the broker, the new one is refused and tries again. Any thread.
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
        # By host, those that the broker waits for, in the order in which that began.
        self._silent: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, connection: T, host: str) -> T | None:
        """Count a connection; returns the one to close in its place, perhaps itself."""
        with self._lock:
            displaced: T | None = None
            if len(self._hosts) >= self._max_connections:
                if not self._silent:
                    return connection
                most = max(self._silent.values(), key=len)
                displaced = next(iter(most))
                self._remove(displaced)
            self._hosts[connection] = host
            self._silent.setdefault(host, {})[connection] = None
            return displaced

    def serve(self, connection: T) -> None:
        """The peer has sent something: the connection waits for the broker."""
        with self._lock:
            self._unlist(connection)

    def wait(self, connection: T) -> None:
        """The broker waits for the peer again."""
        with self._lock:
            if (host := self._hosts.get(connection)) is not None:
                silent = self._silent.setdefault(host, {})
                silent.pop(connection, None)
                silent[connection] = None

    def remove(self, connection: T) -> None:
        """The peer is known, or gone. Idempotent."""
        with self._lock:
            self._remove(connection)

    def _remove(self, connection: T) -> None:
        self._unlist(connection)
        self._hosts.pop(connection, None)

    def _unlist(self, connection: T) -> None:
        host = self._hosts.get(connection)
        silent = None if host is None else self._silent.get(host)
        if silent is not None and host is not None:
            silent.pop(connection, None)
            if not silent:
                del self._silent[host]
