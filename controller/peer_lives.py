"""Decides which brokers are dead before their ZooKeeper sessions end, from attempts to connect to them.

A life is one registration of a broker, named by its broker epoch. It is declared dead if a connection to it
was up before, and now its port refuses, or for a while it cannot be reached: no route to the host, or its
name is gone and its last address does not answer, as when a container or a machine vanishes. A timeout is
never a sign. An error is safe, since epochs fence a broker that was wrongly declared dead, but it costs a
failover. So after an error the signs must last longer the next time, and after a few errors only the session
decides.

One object per process, shared by the sentinel and the channels of every reign. Any thread; the lock is held
briefly.
"""

from __future__ import annotations

import errno
import math
import socket
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from barnabas.protocol.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId

UNREACHABLE_S: Final = 2.0
VANISHED_S: Final = 0.5
FIRST_HOLD_S: Final = 10.0
FRESH_S: Final = 10.0
"""How long a declaration counts after the last sign; later attempts may be missing."""
MOST_ERRORS: Final = 5
"""After this many errors a life is never declared dead again."""

_NO_ROUTE: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENONET})

Address = tuple[Any, ...]
"""As `socket.getpeername` returns it."""


class Sign(Enum):
    """The result of an attempt to connect."""

    ANSWERS = "takes connections"
    REFUSES = "refuses connections"
    UNREACHABLE = "cannot be reached: no route to the host"
    VANISHED = "has vanished: its name does not resolve and its last address does not answer"
    SILENT = "does not answer"


_NEEDED_S: Final = {Sign.REFUSES: 0.0, Sign.UNREACHABLE: UNREACHABLE_S, Sign.VANISHED: VANISHED_S}


def sign_of(error: OSError) -> Sign:
    """The sign of a failed attempt to connect; an unresolved name alone is SILENT."""
    if isinstance(error, ConnectionRefusedError):
        return Sign.REFUSES
    if not isinstance(error, socket.gaierror) and error.errno in _NO_ROUTE:
        return Sign.UNREACHABLE
    return Sign.SILENT


def of_all_addresses(signs: list[Sign]) -> Sign:
    """The sign of a host with several addresses: the weakest one."""
    for sign in (Sign.ANSWERS, Sign.SILENT, Sign.UNREACHABLE, Sign.REFUSES):
        if sign in signs:
            return sign
    return Sign.SILENT


class _Life:
    __slots__ = ("address", "broker_epoch", "errors", "is_dead", "seen_s", "since_s", "was_reached")

    def __init__(self, broker_epoch: BrokerEpoch) -> None:
        self.broker_epoch = broker_epoch
        self.was_reached = False
        self.address: Address | None = None
        # When the present series of signs of death began.
        self.since_s: float | None = None
        # The time of the last sign of death.
        self.seen_s = 0.0
        self.is_dead = False
        self.errors = 0

    @property
    def hold_s(self) -> float:
        if self.errors >= MOST_ERRORS:
            return math.inf
        return FIRST_HOLD_S * 2.0 ** (self.errors - 1) if self.errors else 0.0


class PeerLives:
    """``was_reached``: whether another part of this process has had a connection to a life."""

    def __init__(
        self,
        now_s: Callable[[], float],
        was_reached: Callable[[BrokerId, BrokerEpoch], bool] = lambda broker, broker_epoch: False,
    ) -> None:
        self.now_s = now_s
        self._reached_elsewhere = was_reached
        self._lock = threading.Lock()
        self._lives: dict[BrokerId, _Life] = {}

    def reached(self, broker: BrokerId, broker_epoch: BrokerEpoch, address: Address | None = None) -> None:
        """A connection to this life is up."""
        with self._lock:
            life = self._life(broker, broker_epoch)
            life.was_reached = True
            life.address = address or life.address
            self._is_alive(life)

    def acted(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """Record that this life acted after it was declared dead, for instance became controller."""
        with self._lock:
            self._is_alive(self._life(broker, broker_epoch))

    def seen(
        self, broker: BrokerId, broker_epoch: BrokerEpoch, sign: Sign, began_s: float | None = None
    ) -> bool:
        """Record an attempt to connect; returns whether the life is now declared dead.

        `began_s` is when the attempt began, by `now_s`: an attempt without an answer takes a while itself.
        """
        with self._lock:
            life = self._life(broker, broker_epoch)
            now_s = self.now_s()
            if not self._is_dead_now(life, now_s):
                life.is_dead = False
            if sign not in _NEEDED_S:
                life.since_s = None
                return life.is_dead
            life.seen_s = now_s
            if life.is_dead:
                return True
            is_first = life.since_s is None
            if life.since_s is None:
                life.since_s = now_s if began_s is None else began_s
            if is_first and _NEEDED_S[sign]:
                # However long it took: this process may have been stopped meanwhile.
                return False
            if not life.was_reached and not self._reached_elsewhere(broker, broker_epoch):
                return False
            life.is_dead = now_s - life.since_s >= max(_NEEDED_S[sign], life.hold_s)
            return life.is_dead

    def is_dead(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        with self._lock:
            return self._is_dead_now(self._life(broker, broker_epoch), self.now_s())

    def address(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> Address | None:
        """The last address at which it was reached."""
        with self._lock:
            return self._life(broker, broker_epoch).address

    def _is_dead_now(self, life: _Life, now_s: float) -> bool:
        return life.is_dead and now_s - life.seen_s <= FRESH_S

    def _is_alive(self, life: _Life) -> None:
        if life.is_dead:
            life.errors += 1
        life.is_dead, life.since_s = False, None

    def _life(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> _Life:
        """The life with this epoch; an earlier one is empty and not kept."""
        known = self._lives.get(broker)
        if known is None or known.broker_epoch < broker_epoch:
            known = self._lives[broker] = _Life(broker_epoch)
        return known if known.broker_epoch == broker_epoch else _Life(NO_BROKER_EPOCH)
