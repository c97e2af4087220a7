"""Which quota holds for a user with a client id, and the clients that are counted under quotas.

The most specific of eight levels holds (`LEVELS`). Users with a client id that one quota does not
distinguish count together.

Source: KIP-55, and Apache Kafka's ``ClientQuotaManager``, which documents this order.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from barnabas.broker.security.rates import Windows
from barnabas.zookeeper.configs import DEFAULT_NAME, sanitize

M = TypeVar("M")

MAX_CLIENTS: Final = 10_000
MAX_RESOLVED: Final = 2 * MAX_CLIENTS
MAX_ID_LENGTH: Final = 255
INACTIVE_MS: Final = 3_600_000
_CHECK_MS: Final = 60_000


class QuotaEntity(NamedTuple):
    """A user, a client id or both, sanitized or `DEFAULT_NAME`; None for a part that is not named."""

    user: str | None
    client: str | None


class _Level(NamedTuple):
    """The kind of name that an entity of the level has: "name", `DEFAULT_NAME` or None."""

    user: str | None
    client: str | None


_NAME: Final = "name"
LEVELS: Final = (
    _Level(_NAME, _NAME),
    _Level(_NAME, DEFAULT_NAME),
    _Level(_NAME, None),
    _Level(DEFAULT_NAME, _NAME),
    _Level(DEFAULT_NAME, DEFAULT_NAME),
    _Level(DEFAULT_NAME, None),
    _Level(None, _NAME),
    _Level(None, DEFAULT_NAME),
)
"""The most specific level first."""


class Applied(NamedTuple):
    """The bound of a quota, and whose requests count together: an empty name means those of any."""

    user: str
    client: str
    bound: float


def most_specific(bounds: Mapping[QuotaEntity, float], user: str, client_id: str) -> Applied | None:
    """The quota of a user's requests with a client id; None if nothing limits them.

    A default holds for each user and each client id on its own: they do not share it.
    """
    sanitized_user, sanitized_client = sanitize(user), sanitize(client_id)
    for level in LEVELS:
        entity = QuotaEntity(
            sanitized_user if level.user == _NAME else level.user,
            sanitized_client if level.client == _NAME else level.client,
        )
        bound = bounds.get(entity)
        if bound is not None:
            return Applied(
                "" if level.user is None else user, "" if level.client is None else client_id, bound
            )
    return None


class Client(Generic[M]):
    """The requests that count together under one quota. Its measure is used with its lock held."""

    __slots__ = ("bound", "last_ms", "lock", "measure", "throttled", "throttled_ms")

    def __init__(self, measure: M) -> None:
        self.lock = threading.Lock()
        self.measure = measure
        self.bound = math.inf
        self.last_ms = 0.0
        """When it was last charged."""
        self.throttled = 0
        """How often a request was throttled, and for how long in all."""
        self.throttled_ms = 0


class QuotaTable(Generic[M]):
    """The bounds of one kind of quota, and the use that clients make of them. Any thread.

    Client ids are free to choose, so their number is bounded: a client whose measure says nothing any more is
    forgotten to make room for another one; while there are `MAX_CLIENTS` others, further ones count together,
    those of a user that the quota names apart from others.
    """

    def __init__(self, windows: Windows, make_measure: Callable[[Windows], M]) -> None:
        self._windows = windows
        self._make_measure = make_measure
        self._lock = threading.Lock()
        self._bounds: Mapping[QuotaEntity, float] = {}
        # By the names that the quota distinguishes.
        self._clients: dict[tuple[str, str], Client[M]] = {}
        # The clients that count together, by the user that the quota distinguishes and their bound.
        self._others: dict[tuple[str, float], Client[M]] = {}
        # The client of a user with a client id, None for one without a quota. Replaced when a bound changes.
        self._resolved: dict[tuple[str, str], Client[M] | None] = {}
        self._checked_ms = 0.0
        self.is_active = False
        """Whether there is a quota at all."""

    def set_bounds(self, bounds: Mapping[QuotaEntity, float]) -> None:
        """Replace all bounds; past use stays counted."""
        with self._lock:
            self._bounds = dict(bounds)
            self._resolved = {}
            self.is_active = bool(bounds)
            if not bounds:
                self._clients.clear()
                self._others.clear()

    def find(self, user: str, client_id: str, now_ms: float) -> Client[M] | None:
        """The client that a request counts for; None if no quota holds for it."""
        try:
            client = self._resolved[user, client_id]
        except KeyError:
            client = self._resolve(user, client_id, now_ms)
        if client is not None:
            client.last_ms = now_ms
        return client

    def clients(self) -> dict[tuple[str, str], Client[M]]:
        """By the user and the client id that count together, an empty name for any; for metrics."""
        with self._lock:
            return self._clients.copy()

    def _resolve(self, user: str, client_id: str, now_ms: float) -> Client[M] | None:
        with self._lock:
            applied = most_specific(self._bounds, user, client_id)
            client = None
            if applied is not None:
                client = self._client(applied, now_ms)
                client.bound = applied.bound
            # An id that is longer than any quota's takes memory; it is looked up each time.
            if len(client_id) <= MAX_ID_LENGTH:
                if len(self._resolved) >= MAX_RESOLVED:
                    self._resolved = {}
                self._resolved[user, client_id] = client
            return client

    def _client(self, applied: Applied, now_ms: float) -> Client[M]:
        name = applied.client
        if len(name) > MAX_ID_LENGTH:
            name = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
        key = (applied.user, name)
        client = self._clients.get(key)
        if client is None:
            self._forget_unused(now_ms)
            if len(self._clients) < MAX_CLIENTS:
                client = self._clients[key] = Client(self._make_measure(self._windows))
            else:
                shared = (applied.user, applied.bound)
                client = self._others.get(shared)
                if client is None:
                    client = self._others[shared] = Client(self._make_measure(self._windows))
        return client

    def _forget_unused(self, now_ms: float) -> None:
        """Forget clients after an hour without a request, earlier if there are too many."""
        is_full = len(self._clients) >= MAX_CLIENTS
        if now_ms - self._checked_ms < (self._windows.size_ms if is_full else _CHECK_MS):
            return
        self._checked_ms = now_ms
        longest_ms = self._windows.span_ms if is_full else INACTIVE_MS
        unused = [key for key, client in self._clients.items() if now_ms - client.last_ms > longest_ms]
        for key in unused:
            del self._clients[key]
        if unused:
            self._resolved = {}
        if not is_full:
            self._others.clear()
