"""Who may be declared dead before its session ends: what this process has seen of each broker's present life.

A life is a registration, named by its broker epoch. It is declared dead when a connection to this very life
was up, and now its port refuses; or for a while nothing leads there any more: no route to the host, or its
name is gone and its last address does not answer, as when a container or a machine vanishes. A time-out is
never a sign. To err is safe, for whoever is wrongly deposed is fenced by its epochs; but it costs a failover.
So a life that was declared dead in error has to be silent for longer the next time, and after a few errors
its session decides.

One per process, shared by the sentinel and the channels of every reign, so that what one saw the other knows.
Any thread; the lock is held for moments.
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
"""For how long a declaration counts after the last sign: nobody may have looked since."""
MOST_ERRORS: Final = 5
"""After so many errors a life is never declared dead again."""

_NO_ROUTE: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENONET})

Address = tuple[Any, ...]
"""As a socket's `getpeername` gives it."""


class Sign(Enum):
    """What an attempt to connect has come to."""

    ANSWERS = "takes connections"
    REFUSES = "refuses connections"
    UNREACHABLE = "has no route to it"
    VANISHED = "has no name any more, and its last address does not answer"
    SILENT = "does not answer"


_NEEDED_S: Final = {Sign.REFUSES: 0.0, Sign.UNREACHABLE: UNREACHABLE_S, Sign.VANISHED: VANISHED_S}


def sign_of(error: OSError) -> Sign:
    """What the failure of one attempt to connect says; of a name that does not resolve alone, nothing."""
    if isinstance(error, ConnectionRefusedError):
        return Sign.REFUSES
    if not isinstance(error, socket.gaierror) and error.errno in _NO_ROUTE:
        return Sign.UNREACHABLE
    return Sign.SILENT


def of_all_addresses(signs: list[Sign]) -> Sign:
    """Of a host with several addresses: the weakest of the signs."""
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
        # Since when it has given signs of death and no other.
        self.since_s: float | None = None
        # When it gave the last sign of death.
        self.seen_s = 0.0
        self.is_dead = False
        self.errors = 0

    @property
    def hold_s(self) -> float:
        if self.errors >= MOST_ERRORS:
            return math.inf
        return FIRST_HOLD_S * 2.0 ** (self.errors - 1) if self.errors else 0.0


class PeerLives:
    """See the module. ``was_reached`` says whether others in this process have had a connection to a life."""

    def __init__(
        self,
        now_s: Callable[[], float],
        was_reached: Callable[[BrokerId, BrokerEpoch], bool] = lambda broker, broker_epoch: False,
    ) -> None:
        self._now_s = now_s
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
        """This life did something after it was declared dead, such as to become controller."""
        with self._lock:
            self._is_alive(self._life(broker, broker_epoch))

    def seen(self, broker: BrokerId, broker_epoch: BrokerEpoch, sign: Sign) -> bool:
        """Take note of an attempt to connect; whether the life is declared dead now."""
        with self._lock:
            life = self._life(broker, broker_epoch)
            now_s = self._now_s()
            if not self._is_dead_now(life, now_s):
                life.is_dead = False
            if sign not in _NEEDED_S:
                life.since_s = None
                return life.is_dead
            life.seen_s = now_s
            if life.is_dead:
                return True
            if life.since_s is None:
                life.since_s = now_s
            if not life.was_reached and not self._reached_elsewhere(broker, broker_epoch):
                return False
            life.is_dead = now_s - life.since_s >= max(_NEEDED_S[sign], life.hold_s)
            return life.is_dead

    def is_dead(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        with self._lock:
            return self._is_dead_now(self._life(broker, broker_epoch), self._now_s())

    def address(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> Address | None:
        """Where it was reached last."""
        with self._lock:
            return self._life(broker, broker_epoch).address

    def _is_dead_now(self, life: _Life, now_s: float) -> bool:
        return life.is_dead and now_s - life.seen_s <= FRESH_S

    def _is_alive(self, life: _Life) -> None:
        if life.is_dead:
            life.errors += 1
        life.is_dead, life.since_s = False, None

    def _life(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> _Life:
        """That of this epoch; of an earlier one nothing is known, nor kept."""
        known = self._lives.get(broker)
        if known is None or known.broker_epoch < broker_epoch:
            known = self._lives[broker] = _Life(broker_epoch)
        return known if known.broker_epoch == broker_epoch else _Life(NO_BROKER_EPOCH)
