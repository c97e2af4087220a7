"""OpenTelemetry reads what clients measure."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from barnabas.client import telemetry
from barnabas.client.admin.admin import Admin
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.measurements import CONSUMER_METRICS
from barnabas.client.metrics import CLIENT_METRICS
from barnabas.client.producer.measurements import PRODUCER_METRICS
from barnabas.client.producer.producer import Producer
from barnabas.client.telemetry import instrument_name, observe, unit_of

PAGE = (Path(__file__).parents[3] / "docs/client.md").read_text()


class Meter:
    """A meter and what it has read."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.meter = self._provider.get_meter("test")

    def read(self) -> dict[str, Any]:
        """The instruments by name."""
        data = self._reader.get_metrics_data()
        scopes = [scope for each in (data.resource_metrics if data else []) for scope in each.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def values(self, name: str) -> dict[str, float]:
        """The value of each client, by its id."""
        metric = self.read().get(name)
        points = [] if metric is None else metric.data.data_points
        return {point.attributes["messaging.client.id"]: point.value for point in points}

    def close(self) -> None:
        self._provider.shutdown()


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    monkeypatch.setattr(telemetry, "_FRESH_S", -1.0)
    made = Meter()
    yield made
    made.close()


def producer(client_id: str, sent: int) -> Producer:
    """A client that is not started, and says that it has sent records."""
    made = Producer(client_id=client_id)
    made.metrics = lambda: {"record-send-total": sent, "metadata-age": sent / 2}  # type: ignore[method-assign] # a fake
    return made


def test_the_clients_of_a_kind_share_instruments(meter: Meter) -> None:
    first, second = producer("first", 3), producer("second", 8)
    observe(first, meter.meter, part="billing")
    observe(second, meter.meter)
    sent = meter.read()["messaging.client.sent.messages"]
    assert (sent.unit, sent.data.is_monotonic) == ("{message}", True)
    assert meter.values("messaging.client.sent.messages") == {"first": 3, "second": 8}
    assert meter.values("barnabas.producer.metadata.age") == {"first": 1.5, "second": 4}
    parts = {point.attributes.get("part") for point in sent.data.data_points}
    assert parts == {"billing", None}
    assert meter.values("barnabas.producer.record.retry") == {}, "it is not known"


def test_counters_of_clients_with_one_name_are_added(meter: Meter) -> None:
    twins = [producer("twin", 3), producer("twin", 4)]
    for twin in twins:
        observe(twin, meter.meter)
    assert meter.values("messaging.client.sent.messages") == {"twin": 7}


def test_a_client_that_nobody_has_is_observed_no_more(meter: Meter) -> None:
    left, gone = producer("left", 1), producer("gone", 2)
    observe(left, meter.meter)
    observe(gone, meter.meter)
    assert len(meter.values("messaging.client.sent.messages")) == 2
    del gone
    gc.collect()
    assert meter.values("messaging.client.sent.messages") == {"left": 1}


def test_without_a_meter_all_clients_have_that_of_the_global_provider(
    meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The provider of a process can be set only once; until then each call makes another meter.
    made = [meter.meter]
    monkeypatch.setattr("opentelemetry.metrics.get_meter", lambda name: made.pop())
    telemetry._default_meter.cache_clear()
    first, second = producer("first", 3), producer("second", 8)
    observe(first)
    observe(second)
    telemetry._default_meter.cache_clear()
    assert meter.values("messaging.client.sent.messages") == {"first": 3, "second": 8}


def test_one_collection_takes_one_snapshot(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_FRESH_S", 60.0)
    made, snapshots = producer("p", 1), []
    measured = made.metrics
    made.metrics = lambda: snapshots.append(1) or measured()  # type: ignore[method-assign,func-returns-value] # a fake
    observe(made, meter.meter)
    meter.read()
    assert len(snapshots) == 1


def test_each_measurement_has_an_instrument_of_its_own() -> None:
    for kind, names in (
        ("admin", CLIENT_METRICS),
        ("producer", PRODUCER_METRICS),
        ("consumer", CONSUMER_METRICS),
    ):
        assert len({instrument_name(kind, name) for name in names}) == len(names)
    assert instrument_name("consumer", "fetch-latency-avg") == "barnabas.consumer.fetch.latency.avg"


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("outgoing-byte-total", "By"),
        ("buffer-available-bytes", "By"),
        ("fetch-size-avg", "By"),
        ("bufferpool-wait-time-ns-total", "ns"),
        ("record-queue-time-max", "ms"),
        ("time-between-poll-avg", "ms"),
        ("request-latency-max", "ms"),
        ("last-poll-seconds-ago", "s"),
        ("metadata-age", "s"),
        ("records-lag-max", "1"),
        ("rebalance-total", "1"),
    ],
)
def test_units(name: str, unit: str) -> None:
    assert unit_of(name) == unit


@pytest.mark.parametrize("made", [Consumer(), Admin()], ids=["consumer", "admin"])
def test_other_clients_can_be_observed_before_their_start(meter: Meter, made: Any) -> None:
    observe(made, meter.meter)
    assert not any("connection" in name for name in meter.read())


def test_what_cannot_be_observed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="client='localhost:9092': expected a Producer"):
        observe("localhost:9092")  # type: ignore[arg-type] # wrong on purpose
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(ImportError, match=r"pip install 'barnabas\[otel\]'"):
        observe(Admin())


# ---- the page


def test_the_page_explains_each_measurement() -> None:
    own = {name: text for name, text in PRODUCER_METRICS.items() if name not in CLIENT_METRICS}
    of_consumer = {name: text for name, text in CONSUMER_METRICS.items() if name not in CLIENT_METRICS}
    for names in (CLIENT_METRICS, own, of_consumer):
        assert "\n".join(f"| `{name}` | {text} |" for name, text in names.items()) + "\n\n" in PAGE + "\n"
