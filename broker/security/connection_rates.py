"""How many connections per second are accepted: by the broker, by a listener, and from an address.

Above the rate of the broker or a listener the acceptor pauses that listener; above the rate of an address it
closes the connection, after a delay that slows a client which connects again at once. Both take one window at
most. The brokers' own listener counts for its own rate alone. The calls may come from any thread.

Source: KIP-612, and `ConnectionQuotas` of Apache Kafka 3.9.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from barnabas.broker.security.quota_table import QuotaEntity, QuotaTable
from barnabas.broker.security.rates import SampledRate, Windows
from barnabas.zookeeper.configs import DEFAULT_NAME, Entity, EntityKind, desanitize, sanitize
from barnabas.zookeeper.znodes import StoredConfig

logger = logging.getLogger(__name__)

CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
UNLIMITED: Final = 2**31 - 1
MAPPED: Final = "::ffff:"
"""The prefix of an IPv4 address on a socket for both kinds."""


class Wait(NamedTuple):
    """The delays of an accepted connection; both are mostly 0."""

    pause_ms: int
    """For how long the listener accepts no other one."""
    close_after_ms: int
    """It must not be served, but closed after this time."""


NO_WAIT: Final = Wait(0, 0)


class ConnectionRates:
    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._lock = threading.Lock()
        self._of_broker = SampledRate(windows)
        self._of_listeners: dict[str, SampledRate] = {}
        self._of_addresses = QuotaTable(windows, SampledRate)
        self._broker_limit = UNLIMITED
        self._listener_limits: Mapping[str, int] = {}
        # The limits by names of hosts, with the addresses that these had when the limit was set.
        self._stored: dict[str, dict[QuotaEntity, int]] = {}
        self._is_limited = False

    def set_limits(self, of_broker: int, of_listeners: Mapping[str, int]) -> None:
        """`max.connection.creation.rate` of the broker, and of listeners that have one."""
        with self._lock:
            self._broker_limit = of_broker
            self._listener_limits = {name: limit for name, limit in of_listeners.items() if limit < UNLIMITED}
            self._of_listeners = {
                name: self._of_listeners.get(name) or SampledRate(self._windows)
                for name in self._listener_limits
            }
            self._is_limited = of_broker < UNLIMITED or bool(self._listener_limits)

    def take(self, configs: Mapping[Entity, StoredConfig]) -> None:
        """Put the present rates of these addresses into force; other entities are ignored.

        The names of changed hosts are looked up now, which may take a while.
        """
        changed = False
        for entity, config in configs.items():
            if entity.kind is not EntityKind.IP or not config.is_readable:
                continue
            name, limit = entity.name, _limit(entity, config.values)
            former = self._stored.pop(name, {})
            if limit is not None:
                is_same = limit in former.values()
                self._stored[name] = former if is_same else dict.fromkeys(_entities(name), limit)
            if self._stored.get(name, {}) != former:
                changed = True
                shown = "not limited" if limit is None else limit
                logger.info("%s of %s is %s", CONNECTION_CREATION_RATE, entity.key, shown)
        if changed:
            self._of_addresses.set_bounds(
                {entity: limit for limits in self._stored.values() for entity, limit in limits.items()}
            )

    def connected(self, host: str, listener_name: str, now_ms: float, *, is_protected: bool = False) -> Wait:
        """Count a connection that was just accepted."""
        if not (self._is_limited or self._of_addresses.is_active):
            return NO_WAIT
        close_after_ms = self._close_after_ms(host, now_ms)
        if close_after_ms:
            return Wait(0, close_after_ms)
        pause_ms = 0
        with self._lock:
            limits = []
            if self._broker_limit < UNLIMITED and not is_protected:
                limits.append((self._of_broker, self._broker_limit))
            if (limit := self._listener_limits.get(listener_name)) is not None:
                limits.append((self._of_listeners[listener_name], limit))
            for rate, limit in limits:
                rate.record(1, now_ms)
                pause_ms = max(pause_ms, rate.throttle_ms(limit, now_ms))
        return Wait(min(pause_ms, self._windows.size_ms), 0)

    def _close_after_ms(self, host: str, now_ms: float) -> int:
        client = self._of_addresses.find("", host, now_ms)
        if client is None:
            return 0
        with client.lock:
            client.measure.record(1, now_ms)
            throttle_ms = client.measure.throttle_ms(client.bound, now_ms)
            if throttle_ms:
                client.measure.record(-1, now_ms)
                client.throttled += 1
                client.throttled_ms += throttle_ms
        return min(throttle_ms, self._windows.size_ms)


def _limit(entity: Entity, values: Mapping[str, str]) -> int | None:
    text = values.get(CONNECTION_CREATION_RATE)
    try:
        limit = None if text is None else int(text)
    except ValueError:
        limit = -1
    if limit is not None and limit < 0:
        logger.error("%s of %s is not a number of at least 0; ignored", CONNECTION_CREATION_RATE, entity.key)
        return None
    return None if limit is not None and limit >= UNLIMITED else limit


def _entities(name: str) -> Iterator[QuotaEntity]:
    """The addresses of a host, as client ids."""
    if name == DEFAULT_NAME:
        yield QuotaEntity(None, name)
        return
    host = desanitize(name)
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        logger.error("%s of %s holds for no connection: %s", CONNECTION_CREATION_RATE, host, error)
        return
    for address in found:
        yield QuotaEntity(None, sanitize(address.removeprefix(MAPPED)))
