"""The quotas of users and client ids: how long the answer to a request must hold up its connection.

`ClientQuotas.take` gets the stored quotas at start and after each change, on the thread that watches for
changes; the other calls may come from any thread. Times are of `monotonic_ms`. A handler charges the
bytes or the time of a request, and gets the time for which its connection is muted after the answer
(KIP-219); 0 mostly.

Sources: KIP-13 (bytes), KIP-124 (time of threads), KIP-599 (changes of topics), KIP-546 (names and storage).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from barnabas.broker.security.quota_table import Client, QuotaEntity, QuotaTable
from barnabas.broker.security.rates import DEFAULT_WINDOWS, SampledRate, TokenBucket, Windows
from barnabas.zookeeper.configs import DEFAULT_NAME, Entity, EntityKind, desanitize, sanitize
from barnabas.zookeeper.znodes import StoredConfig

logger = logging.getLogger(__name__)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
QUOTA_TYPES: Final[Mapping[str, Callable[[str], float]]] = {
    PRODUCER_BYTE_RATE: int,
    CONSUMER_BYTE_RATE: int,
    REQUEST_PERCENTAGE: float,
    CONTROLLER_MUTATION_RATE: float,
}
"""The quotas of users and client ids, and how their stored texts are read."""
_PERCENT_PER_NS: Final = 100 / 1_000_000_000


class Mutation(NamedTuple):
    """Whether topics may be changed, and how long the connection is muted."""

    is_accepted: bool
    throttle_ms: int


class QuotaUse(NamedTuple):
    """The use that one client makes of a quota, for metrics."""

    quota: str
    user: str
    client_id: str
    """Empty as the user is, if the quota does not distinguish them."""
    rate: float
    """Per second; the tokens that are left of a rate of changes."""
    throttled: int
    """How often its requests were throttled, and for how long in all."""
    throttled_ms: int


class ClientQuotas:
    def __init__(
        self, windows: Windows = DEFAULT_WINDOWS, controller_windows: Windows = DEFAULT_WINDOWS
    ) -> None:
        self._windows = windows
        self.produced = QuotaTable(windows, SampledRate)
        self.fetched = QuotaTable(windows, SampledRate)
        self.requests = QuotaTable(windows, SampledRate)
        """In percent: seconds of threads in a second, times 100."""
        self.mutations = QuotaTable(controller_windows, TokenBucket)
        self._stored: dict[str, dict[QuotaEntity, float]] = {name: {} for name in QUOTA_TYPES}
        self.is_active = False
        """Whether there is any quota; if not, handlers charge nothing."""

    @property
    def tables(self) -> Mapping[str, QuotaTable[SampledRate] | QuotaTable[TokenBucket]]:
        return {
            PRODUCER_BYTE_RATE: self.produced,
            CONSUMER_BYTE_RATE: self.fetched,
            REQUEST_PERCENTAGE: self.requests,
            CONTROLLER_MUTATION_RATE: self.mutations,
        }

    def take(self, configs: Mapping[Entity, StoredConfig]) -> None:
        """Put the present quotas of these users and client ids into force; other entities are ignored."""
        changed = set()
        for entity, config in configs.items():
            key = _quota_entity(entity)
            if key is None or not config.is_readable:
                continue
            bounds = _bounds(entity, config.values)
            for name, stored in self._stored.items():
                if bounds.get(name) != stored.get(key):
                    changed.add(name)
                    stored.pop(key, None)
                    if name in bounds:
                        stored[key] = bounds[name]
                    logger.info("%s of %s is %s", name, entity.key, bounds.get(name, "not limited"))
        tables = self.tables
        for name in changed:
            tables[name].set_bounds(self._stored[name])
        self.is_active = any(self._stored.values())

    def uses(self, now_ms: float) -> Iterator[QuotaUse]:
        """Of the clients that are remembered."""
        for name, table in self.tables.items():
            for (user, client_id), client in table.clients().items():
                with client.lock:
                    measure = client.measure
                    if isinstance(measure, TokenBucket):
                        rate = measure.left(client.bound, now_ms)
                    else:
                        rate = measure.measure(now_ms)
                    yield QuotaUse(name, user, client_id, rate, client.throttled, client.throttled_ms)

    def charge_produced(self, user: str, client_id: str, size_bytes: int, now_ms: float) -> int:
        """Returns for how many milliseconds to mute the connection."""
        client = self.produced.find(user, client_id, now_ms)
        return 0 if client is None else _charge(client, size_bytes, now_ms)

    def charge_fetched(self, user: str, client_id: str, size_bytes: int, now_ms: float) -> int:
        """As `charge_produced`; above 0 the answer is sent without records, and given back."""
        client = self.fetched.find(user, client_id, now_ms)
        return 0 if client is None else _charge(client, size_bytes, now_ms)

    def give_back_fetched(self, user: str, client_id: str, size_bytes: int, now_ms: float) -> None:
        """Uncharge an answer that is not sent."""
        client = self.fetched.find(user, client_id, now_ms)
        if client is not None:
            with client.lock:
                client.measure.record(-size_bytes, now_ms)

    def most_fetched_bytes(self, user: str, client_id: str, now_ms: float) -> int | None:
        """The size of an answer that is always too much at once; None without a quota.

        A consumer that got no more than that many bytes is not throttled for ever.
        """
        client = self.fetched.find(user, client_id, now_ms)
        if client is None:
            return None
        number, size_ms = self._windows
        return int(min(client.bound * (number - 1) * size_ms / 1000, 2**31 - 1))

    def charge_request(self, user: str, client_id: str, busy_ns: int, now_ms: float) -> int:
        """Charge the time of a thread; one window is the longest wait, as in Kafka."""
        client = self.requests.find(user, client_id, now_ms)
        if client is None:
            return 0
        return min(_charge(client, busy_ns * _PERCENT_PER_NS, now_ms), self._windows.size_ms)

    def note_request(self, user: str, client_id: str, busy_ns: int, now_ms: float) -> None:
        """Charge time after the answer; the next request pays for it."""
        client = self.requests.find(user, client_id, now_ms)
        if client is not None:
            with client.lock:
                client.measure.record(busy_ns * _PERCENT_PER_NS, now_ms)

    def charge_mutation(
        self, user: str, client_id: str, partitions: int, now_ms: float, *, is_strict: bool
    ) -> Mutation:
        """Charge the partitions that are created or deleted.

        With too few tokens left, a strict request is refused and not charged; any other waits afterwards.
        """
        client = self.mutations.find(user, client_id, now_ms)
        if client is None:
            return Mutation(True, 0)
        with client.lock:
            if is_strict:
                throttle_ms = client.measure.throttle_ms(client.bound, now_ms)
                if throttle_ms:
                    _note_throttle(client, throttle_ms)
                    return Mutation(False, throttle_ms)
            client.measure.take(partitions, client.bound, now_ms)
            throttle_ms = 0 if is_strict else client.measure.throttle_ms(client.bound, now_ms)
            if throttle_ms:
                _note_throttle(client, throttle_ms)
            return Mutation(True, throttle_ms)


def _charge(client: Client[SampledRate], value: float, now_ms: float) -> int:
    with client.lock:
        measure = client.measure
        measure.record(value, now_ms)
        throttle_ms = measure.throttle_ms(client.bound, now_ms)
        if throttle_ms:
            _note_throttle(client, throttle_ms)
        return throttle_ms


def _note_throttle(client: Client[SampledRate] | Client[TokenBucket], throttle_ms: int) -> None:
    client.throttled += 1
    client.throttled_ms += throttle_ms


def _quota_entity(entity: Entity) -> QuotaEntity | None:
    if entity.kind is EntityKind.USER:
        return QuotaEntity(_normal(entity.name), None if entity.client is None else _normal(entity.client))
    if entity.kind is EntityKind.CLIENT:
        return QuotaEntity(None, _normal(entity.name))
    return None


def _normal(name: str) -> str:
    """Other programs may have encoded more or fewer characters."""
    return name if name == DEFAULT_NAME else sanitize(desanitize(name))


def _bounds(entity: Entity, values: Mapping[str, str]) -> dict[str, float]:
    """The quotas among the stored settings; unusable texts are logged and ignored."""
    bounds = {}
    for name, parse in QUOTA_TYPES.items():
        if name in values:
            try:
                bound = parse(values[name])
            except (ValueError, OverflowError):
                bound = math.nan
            if 0 <= bound < math.inf:
                bounds[name] = bound
            else:
                logger.error("%s of %s is not a number of at least 0; ignored", name, entity.key)
    return bounds
