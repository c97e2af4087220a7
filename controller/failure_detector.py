"""Decides which brokers are dead before their ZooKeeper sessions end, from attempts to connect to them.

A registration (a broker with its epoch) is declared dead if a connection to it was up before, and now

- its port refuses, or for two seconds there has been no route to its host,
- or for half a second its name is gone and its last address is silent, as when a machine vanishes.

A timeout alone never counts. An error is safe, because epochs fence the broker, but costs a failover: after
one the evidence must last longer the next time, and after five only the session decides. One detector per
process serves the sentinel and the channels of every term, on any thread; `try_connect` needs an event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from barnabas.common.connection import resolve
from barnabas.protocol.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId, Endpoint

log = logging.getLogger("barnabas.controller")

UNREACHABLE_S: Final = 2.0
VANISHED_S: Final = 0.5
FIRST_HOLD_S: Final = 10.0
FRESH_S: Final = 10.0
"""How long a declaration counts after the last evidence; later attempts may be missing."""
MOST_ERRORS: Final = 5
"""After this many errors a registration is never declared dead again."""
_CONNECT_TIMEOUT_S: Final = 1.0
_LAST_ADDRESS_TIMEOUT_S: Final = 0.2
"""Only the operating system has to answer; a broker is declared dead only after two such silences."""

_NO_ROUTE: Final = frozenset(
    getattr(errno, name, errno.EHOSTUNREACH)  # macOS does not have ENONET
    for name in ("EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN", "ENONET")
)

Address = tuple[Any, ...]
"""As `socket.getpeername` returns it."""


class ConnectResult(Enum):
    """The result of an attempt to connect."""

    ANSWERS = "takes connections"
    REFUSES = "refuses connections"
    UNREACHABLE = "cannot be reached: no route to the host"
    VANISHED = "has vanished: its name does not resolve and its last address does not answer"
    SILENT = "does not answer"


_NEEDED_S: Final = {
    ConnectResult.REFUSES: 0.0,
    ConnectResult.UNREACHABLE: UNREACHABLE_S,
    ConnectResult.VANISHED: VANISHED_S,
}


def result_of(error: OSError) -> ConnectResult:
    """The result of a failed attempt to connect; an unresolved name alone is SILENT."""
    if isinstance(error, ConnectionRefusedError):
        return ConnectResult.REFUSES
    if not isinstance(error, socket.gaierror) and error.errno in _NO_ROUTE:
        return ConnectResult.UNREACHABLE
    return ConnectResult.SILENT


def _weakest(results: list[ConnectResult]) -> ConnectResult:
    """The result for a host with several addresses: the weakest evidence of a death."""
    by_weight = (ConnectResult.SILENT, ConnectResult.UNREACHABLE, ConnectResult.REFUSES)
    return min(results, key=by_weight.index, default=ConnectResult.SILENT)


@dataclass(slots=True)
class _Registration:
    broker_epoch: BrokerEpoch
    was_connected: bool = False
    address: Address | None = None
    since_s: float | None = None
    """When the present series of evidence began."""
    evidence_s: float = 0.0
    """The time of the last evidence."""
    is_dead: bool = False
    errors: int = 0

    @property
    def hold_s(self) -> float:
        if self.errors >= MOST_ERRORS:
            return math.inf
        return FIRST_HOLD_S * 2.0 ** (self.errors - 1) if self.errors else 0.0


class FailureDetector:
    """``was_reached``: whether another part of this process has been connected to a registration."""

    def __init__(
        self,
        now_s: Callable[[], float],
        was_reached: Callable[[BrokerId, BrokerEpoch], bool] = lambda broker, broker_epoch: False,
    ) -> None:
        self.now_s = now_s
        self._reached_elsewhere = was_reached
        self._lock = threading.Lock()
        self._registrations: dict[BrokerId, _Registration] = {}

    def connected(self, broker: BrokerId, broker_epoch: BrokerEpoch, address: Address | None = None) -> None:
        """A connection to this registration is up."""
        with self._lock:
            registration = self._registration(broker, broker_epoch)
            registration.was_connected = True
            registration.address = address or registration.address
            self._is_alive(registration)

    def proved_alive(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """Record that a broker acted after it was declared dead, for instance became controller."""
        with self._lock:
            self._is_alive(self._registration(broker, broker_epoch))

    def attempted(
        self, broker: BrokerId, broker_epoch: BrokerEpoch, result: ConnectResult, began_s: float | None = None
    ) -> bool:
        """Record an attempt to connect; returns whether the registration is now declared dead.

        `began_s` is when the attempt began, by `now_s`: an attempt without an answer takes a while itself.
        """
        with self._lock:
            registration = self._registration(broker, broker_epoch)
            now_s = self.now_s()
            if not self._is_dead_now(registration, now_s):
                registration.is_dead = False
            if result not in _NEEDED_S:
                registration.since_s = None
                return registration.is_dead
            registration.evidence_s = now_s
            if registration.is_dead:
                return True
            is_first = registration.since_s is None
            if registration.since_s is None:
                registration.since_s = now_s if began_s is None else began_s
            if is_first and _NEEDED_S[result]:
                # However long it took: this process may have been stopped meanwhile.
                return False
            if not registration.was_connected and not self._reached_elsewhere(broker, broker_epoch):
                return False
            registration.is_dead = now_s - registration.since_s >= max(_NEEDED_S[result], registration.hold_s)
            return registration.is_dead

    def forget_evidence(self) -> None:
        """Declare no broker dead until there is new evidence: this process may have been cut off itself."""
        with self._lock:
            for registration in self._registrations.values():
                registration.is_dead, registration.since_s = False, None

    def is_dead(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        with self._lock:
            return self._is_dead_now(self._registration(broker, broker_epoch), self.now_s())

    def address(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> Address | None:
        """The address of its last connection."""
        with self._lock:
            return self._registration(broker, broker_epoch).address

    def _is_dead_now(self, registration: _Registration, now_s: float) -> bool:
        return registration.is_dead and now_s - registration.evidence_s <= FRESH_S

    def _is_alive(self, registration: _Registration) -> None:
        if registration.is_dead:
            registration.errors += 1
        registration.is_dead, registration.since_s = False, None

    def _registration(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> _Registration:
        """The registration with this epoch; an earlier one is empty and not kept."""
        newest = self._registrations.get(broker)
        if newest is None or newest.broker_epoch < broker_epoch:
            newest = self._registrations[broker] = _Registration(broker_epoch)
        return newest if newest.broker_epoch == broker_epoch else _Registration(NO_BROKER_EPOCH)


async def try_connect(endpoint: Endpoint, last: Address | None) -> tuple[ConnectResult, socket.socket | None]:
    """The connection if there is one; takes at most a second per address.

    If the name does not resolve, the last address is tried, because only the resolver may be gone.
    """
    try:
        hosts = await resolve(endpoint)
    except OSError as error:
        log.info("%s: %s", endpoint, error)
        if last is None:
            return ConnectResult.SILENT, None
        attempt = await _attempt(last, _LAST_ADDRESS_TIMEOUT_S)
        if isinstance(attempt, OSError):
            refuses = result_of(attempt) is ConnectResult.REFUSES
            return ConnectResult.REFUSES if refuses else ConnectResult.VANISHED, None
        return ConnectResult.ANSWERS, attempt
    results = []
    for host in hosts:
        attempt = await _attempt((host, endpoint.port), _CONNECT_TIMEOUT_S)
        if not isinstance(attempt, OSError):
            return ConnectResult.ANSWERS, attempt
        results.append(result_of(attempt))
    return _weakest(results), None


async def _attempt(address: Address, timeout_s: float) -> socket.socket | OSError:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            connection.setblocking(False)
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(connection, address)
        except OSError as error:
            return error
        stack.pop_all()
        return connection
