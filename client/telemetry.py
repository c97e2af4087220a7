"""Shows what clients measure to OpenTelemetry; needs the extra ``otel``.

    from barnabas.client.telemetry import observe

    observe(producer)  # by the meter of the global provider
    observe(consumer, meter, **{"service.part": "billing"})

Each measurement of `metrics` is one observable instrument, made once for all clients of its kind: a counter
for a name that ends in ``-total``, else a gauge. Two have the names of OpenTelemetry's conventions; the names
of the others are made as ``barnabas.producer.request.latency.avg``. The attributes distinguish clients;
``messaging.client.id`` is the setting ``client_id``. Counters of clients with equal attributes are added.

A client is observed until nobody refers to it any more, so that the last counts of a closed one are seen too.
Any thread may call this; the exporter's thread takes the snapshots.

Source: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from barnabas.client.admin.base import AdminBase
from barnabas.client.client import Client
from barnabas.client.config import ClientConfig
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.measurements import CONSUMER_METRICS
from barnabas.client.loop_thread import BlockingClient
from barnabas.client.metrics import CLIENT_METRICS, TOTAL, Metrics
from barnabas.client.producer.measurements import PRODUCER_METRICS
from barnabas.client.producer.producer import Producer

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

_STANDARD: Final = {
    "record-send-total": "messaging.client.sent.messages",
    "records-consumed-total": "messaging.client.consumed.messages",
}
_UNITS: Final = (
    ("-ns-total", "ns"),
    ("-seconds-ago", "s"),
    ("-age", "s"),
    ("byte", "By"),
    ("size", "By"),
    ("latency", "ms"),
    ("-time-", "ms"),
    ("-between-poll", "ms"),
)
"""The unit of a name by a part of it; the first part that fits counts. The other names are numbers."""
_FRESH_S: Final = 0.05
"""One collection reads all instruments, so that it takes one snapshot of a client."""

AnyClient = Client | BlockingClient[Any]


@dataclass(slots=True)
class _Observed:
    attributes: Mapping[str, Any]
    taken_at: float = float("-inf")
    metrics: Metrics = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Kind:
    """The observed clients of one kind, by one meter."""

    clients: WeakKeyDictionary[AnyClient, _Observed] = field(default_factory=WeakKeyDictionary)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, client: AnyClient, attributes: Mapping[str, Any]) -> None:
        with self.lock:
            self.clients[client] = _Observed(attributes)

    def read(
        self, make: Callable[..., Observation], name: str, options: CallbackOptions
    ) -> Iterable[Observation]:
        """The callback of one instrument."""
        with self.lock:
            observed = list(self.clients.items())
        present = time.monotonic()
        for client, last in observed:
            if present - last.taken_at > _FRESH_S:
                last.taken_at, last.metrics = present, client.metrics()
            if (value := last.metrics.get(name)) is not None:
                yield make(value, last.attributes)


_lock = threading.Lock()
_kinds: WeakKeyDictionary[Meter, dict[str, _Kind]] = WeakKeyDictionary()


def observe(client: AnyClient, meter: Meter | None = None, **attributes: str | int | float | bool) -> None:
    """Have a meter, by default one of the global provider, read what a client measures.

    A repeated call replaces the attributes. Raises ImportError without the packages, TypeError.
    """
    try:
        from opentelemetry.metrics import Observation
    except ImportError as error:
        raise ImportError(
            "OpenTelemetry is missing: install it with `pip install 'barnabas[otel]'`"
        ) from error
    inner = client._client if isinstance(client, BlockingClient) else client
    kind, names, config = _measured_by(inner)
    chosen = _default_meter() if meter is None else meter
    with _lock:
        kinds = _kinds.setdefault(chosen, {})
        is_new = kind not in kinds
        clients = kinds.setdefault(kind, _Kind())
    labels = {"messaging.system": "kafka", "messaging.client.id": config.client_id}
    clients.add(client, labels | attributes)
    for name, text in names.items() if is_new else ():
        is_counter = name.endswith(TOTAL)
        create = chosen.create_observable_counter if is_counter else chosen.create_observable_gauge
        callback = partial(clients.read, Observation, name)
        create(instrument_name(kind, name), [callback], unit_of(name), text)


def instrument_name(kind: str, name: str) -> str:
    """Without the end ``-total``, which exporters add where it is usual."""
    return _STANDARD.get(name) or f"barnabas.{kind}.{name.removesuffix(TOTAL).replace('-', '.')}"


def unit_of(name: str) -> str:
    """The unit in UCUM."""
    if name in _STANDARD:
        return "{message}"
    return next((unit for part, unit in _UNITS if part in name), "1")


def _measured_by(client: object) -> tuple[str, Mapping[str, str], ClientConfig]:
    if isinstance(client, Producer):
        return "producer", PRODUCER_METRICS, client.config
    if isinstance(client, Consumer):
        return "consumer", CONSUMER_METRICS, client.config
    if isinstance(client, AdminBase):
        return "admin", CLIENT_METRICS, client.config
    raise TypeError(f"client={client!r}: expected a Producer, a Consumer or an Admin")


@cache
def _default_meter() -> Meter:
    """One for all, because the global provider may make a new one for each call."""
    from opentelemetry.metrics import get_meter

    return get_meter("barnabas")
