"""The acceptor: one thread that accepts connections on every listener.

It closes a connection above `max.connections`, of the broker or of the listener, or `max.connections.per.ip`,
or one that takes a descriptor that logs need, at once and with a logged reason. The protected listener is the
brokers' own: only its own limit and that per address apply to it, so that clients cannot block connections
between brokers. Above a rate of new connections a listener pauses, or the connection is closed after a delay
(`ConnectionRates`). If the process is out of descriptors, the acceptor waits a moment instead of spinning. A
dying acceptor calls `on_fatal`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import resource
import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.base.limited_log import LimitedLog, LimitedLogByKey
from barnabas.broker.security.connection_rates import MAPPED, ConnectionRates
from barnabas.broker.security.rates import DEFAULT_WINDOWS
from barnabas.common.threads import make_thread

logger = logging.getLogger(__name__)
_above_rate = LimitedLog(logger, logging.WARNING)

_PAUSE_S: Final = 0.1
_RESERVE: Final = 128
_MOST_WAKES: Final = 4_096
_UNLIMITED: Final = 2**31 - 1
_MOST_DELAYED: Final = 1_000
"""Connections above the rate of their address that wait to be closed; further ones are closed at once, and so
are the first of them when others need their descriptors."""


def connections_within(limit: int) -> int:
    """The most connections for a limit of open files: all descriptors except an eighth, or except 128.

    Logs close kept descriptors when other code needs some, but logs need a few at any time.
    """
    return max(1, limit - max(_RESERVE, limit // 8))


def most_connections() -> int:
    """`connections_within` the limit of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else connections_within(soft)


class ConnectionQuota:
    """Counts connections: in all, by listener and by address. For any thread.

    ``descriptors`` limits the descriptors that connections take, also if the settings allow more.
    """

    def __init__(
        self, max_connections: int, max_connections_per_ip: int, descriptors: int = _UNLIMITED
    ) -> None:
        self._descriptors = descriptors
        self._max_connections = max_connections
        self._max_connections_per_ip = max_connections_per_ip
        self._of_hosts: Mapping[str, int] = {}
        self._of_addresses: Mapping[str, int] = {}
        self._of_listeners: Mapping[str, int] = {}
        self._lock = threading.Lock()
        self._by_host: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self.total = 0
        """The connections that are open now."""

    def set_limits(
        self,
        max_connections: int,
        max_connections_per_ip: int,
        *,
        of_hosts: Mapping[str, int] | None = None,
        of_listeners: Mapping[str, int] | None = None,
    ) -> None:
        """Change the limits; open connections stay.

        ``of_hosts`` are the limits of single addresses, or of names, which are looked up when they change.
        """
        of_hosts = of_hosts or {}
        # Otherwise a change of another setting would fail to look them up while there is no name service.
        is_same = of_hosts == self._of_hosts
        of_addresses = self._of_addresses if is_same else _by_address(of_hosts)
        with self._lock:
            self._of_hosts = of_hosts
            self._max_connections = max_connections
            self._max_connections_per_ip = max_connections_per_ip
            self._of_addresses = of_addresses
            self._of_listeners = of_listeners or {}

    def enter(self, host: str, listener_name: str = "", *, is_protected: bool = False) -> str:
        """Count a connection; if a limit refuses it, return the reason and count nothing.

        A protected connection is counted, but the limits on all connections do not refuse it.
        """
        with self._lock:
            if self.total >= self._max_connections and not is_protected:
                return f"max.connections={self._max_connections} are open"
            if self.total >= self._descriptors and not is_protected:
                return f"{self.total} are open, and logs need the remaining open files (ulimit -n)"
            of_listener = self._of_listeners.get(listener_name, _UNLIMITED)
            if self._by_listener[listener_name] >= of_listener:
                return f"listener.name.{listener_name.lower()}.max.connections={of_listener} are open"
            of_address = self._of_addresses.get(host)
            if of_address is not None and self._by_host[host] >= of_address:
                return f"max.connections.per.ip.overrides={host}:{of_address} are open"
            if of_address is None and self._by_host[host] >= self._max_connections_per_ip:
                return f"max.connections.per.ip={self._max_connections_per_ip} are open from {host}"
            self.total += 1
            self._by_listener[listener_name] += 1
            self._by_host[host] += 1
            return ""

    def lacks_descriptors(self, others: int) -> bool:
        """Whether the connections and so many other sockets take all the descriptors that they may."""
        return self.total + others >= self._descriptors

    def leave(self, host: str, listener_name: str = "") -> None:
        with self._lock:
            self.total -= 1
            for counts, name in ((self._by_host, host), (self._by_listener, listener_name)):
                counts[name] -= 1
                if not counts[name]:
                    del counts[name]


def _by_address(of_hosts: Mapping[str, int]) -> dict[str, int]:
    of_addresses: dict[str, int] = {}
    for host, limit in of_hosts.items():
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            logger.warning("max.connections.per.ip.overrides: %s is unknown: %s", host, error)
            continue
        of_addresses.update({str(address[0]).removeprefix(MAPPED): limit for *_, address in found})
    return of_addresses


class Acceptor:
    """Owns the listening sockets from `start` on.

    Accepted sockets go to ``hand_over(sock, host, port, listener_name)``, which may raise OSError.
    """

    def __init__(
        self,
        listeners: Iterable[tuple[str, socket.socket]],
        *,
        quota: ConnectionQuota,
        rates: ConnectionRates | None = None,
        protected_listener: str | None = None,
        hand_over: Callable[[socket.socket, str, int, str], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._listeners = list(listeners)
        self._quota = quota
        self._rates = rates or ConnectionRates(DEFAULT_WINDOWS)
        # Only the thread touches these: when a listener continues, and when connections are closed.
        self._paused: dict[socket.socket, tuple[float, str]] = {}
        self._delayed: list[tuple[float, int, socket.socket]] = []
        self._numbers = itertools.count()
        # A stranger must not fill the log: a line in an interval for each address and listener.
        self._refused = LimitedLogByKey(logger, logging.WARNING)
        self._closed = LimitedLogByKey(logger, logging.INFO)
        self._protected_listener = protected_listener
        self._hand_over = hand_over
        # A byte to the second socket wakes the thread. An eventfd would be one descriptor, but only on Linux.
        self._woken, self._waking = socket.socketpair()
        self._woken.setblocking(False)
        self._waking.setblocking(False)
        self._stopping = False
        self._changes: deque[tuple[frozenset[str], tuple[tuple[str, socket.socket], ...]]] = deque()
        self._thread = make_thread("acceptor", self._run, on_fatal)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Close the listeners and wait for the end; returns whether it came."""
        self._stopping = True
        self._wake()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def change(
        self,
        removed: Iterable[str],
        added: Iterable[tuple[str, socket.socket]],
        protected_listener: str | None,
    ) -> None:
        """Close some listeners, and own others, soon. Any thread."""
        self._protected_listener = protected_listener
        self._changes.append((frozenset(removed), tuple(added)))
        self._wake()

    def _wake(self) -> None:
        # A full buffer wakes the thread too; after its end nothing needs to.
        with suppress(OSError):
            self._waking.send(b"w")

    def _run(self) -> None:
        try:
            self._accept_until_stopped()
        finally:
            for _, listening in (*self._listeners, *(one for _, added in self._changes for one in added)):
                listening.close()
            for _, _, sock in self._delayed:
                sock.close()
            self._woken.close()
            self._waking.close()

    def _accept_until_stopped(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for name, listening in self._listeners:
                _listen(selector, name, listening)
            while True:
                for key, _ in selector.select(self._catch_up(selector)):
                    if key.fileobj is self._woken:
                        self._woken.recv(_MOST_WAKES)
                        if self._stopping:
                            return
                        self._apply_changes(selector)
                        # Some of the other keys may be of closed listeners.
                        break
                    if isinstance(key.fileobj, socket.socket) and not self._accept(key.fileobj, key.data):
                        with selectors.DefaultSelector() as pause:
                            pause.register(self._woken, selectors.EVENT_READ)
                            pause.select(_PAUSE_S)
                    if key.fileobj in self._paused:
                        selector.unregister(key.fileobj)

    def _catch_up(self, selector: selectors.BaseSelector) -> float | None:
        """Continue paused listeners and close delayed connections; returns when it must be called again."""
        paused, delayed = self._paused, self._delayed
        if not paused and not delayed:
            return None
        now_ms = monotonic_ms()
        for listening, (until_ms, name) in tuple(paused.items()):
            if now_ms >= until_ms:
                del paused[listening]
                _listen(selector, name, listening)
        while delayed and now_ms >= delayed[0][0]:
            heapq.heappop(delayed)[2].close()
        dues_ms = [until_ms for until_ms, _ in paused.values()] + [due_ms for due_ms, _, _ in delayed[:1]]
        return (min(dues_ms) - now_ms) / 1000 if dues_ms else None

    def _is_within_rates(
        self, sock: socket.socket, host: str, listening: socket.socket, listener_name: str
    ) -> bool:
        """Count a connection; False if the rate of its address is exceeded, and it is closed later."""
        now_ms = monotonic_ms()
        is_protected = listener_name == self._protected_listener
        wait = self._rates.connected(host, listener_name, now_ms, is_protected=is_protected)
        if wait.pause_ms:
            self._paused[listening] = (now_ms + wait.pause_ms, listener_name)
        if not wait.close_after_ms:
            return True
        _above_rate("%s connects more often than its connection_creation_rate; refused", host)
        if len(self._delayed) < _MOST_DELAYED:
            entry = (now_ms + wait.close_after_ms, next(self._numbers), sock)
            heapq.heappush(self._delayed, entry)
        else:
            sock.close()
        return False

    def _apply_changes(self, selector: selectors.BaseSelector) -> None:
        while self._changes:
            removed, added = self._changes.popleft()
            for name, listening in self._listeners:
                if name in removed:
                    if self._paused.pop(listening, None) is None:
                        selector.unregister(listening)
                    listening.close()
            self._listeners = [entry for entry in self._listeners if entry[0] not in removed]
            for name, listening in added:
                self._listeners.append((name, listening))
                _listen(selector, name, listening)

    def _accept(self, listening: socket.socket, listener_name: str) -> bool:
        """Accept one connection; returns False if the next try should wait."""
        try:
            sock, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return True
        except OSError as error:
            logger.error("cannot accept on %s: %s; the next try is in %g s", listener_name, error, _PAUSE_S)
            return False
        # As in Java, so that limits and ACLs of an IPv4 address hold on a socket for both kinds.
        host, port = address[0].removeprefix(MAPPED), address[1]
        while self._delayed and self._quota.lacks_descriptors(len(self._delayed)):
            heapq.heappop(self._delayed)[2].close()
        if not self._is_within_rates(sock, host, listening, listener_name):
            return True
        refusal = self._quota.enter(
            host, listener_name, is_protected=listener_name == self._protected_listener
        )
        if refusal:
            key = f"{host} {listener_name}"
            self._refused(key, "connection from %s:%d on %s refused: %s", host, port, listener_name, refusal)
            sock.close()
            return True
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._hand_over(sock, host, port, listener_name)
        except OSError as error:
            key = f"{host} {listener_name}"
            self._closed(key, "connection from %s:%d on %s closed: %s", host, port, listener_name, error)
            self._quota.leave(host, listener_name)
            sock.close()
        return True


def _listen(selector: selectors.BaseSelector, name: str, listening: socket.socket) -> None:
    listening.setblocking(False)
    selector.register(listening, selectors.EVENT_READ, name)
