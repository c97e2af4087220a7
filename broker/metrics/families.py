"""Builds families of samples for collectors, and bounds how many series a page has.

Kafka's metrics have the names that Prometheus' JMX exporter makes of Kafka's beans with its example rules for
Kafka in ZooKeeper mode (``kafka-2_0_0.yml``): ``kafka.server<type=ReplicaManager, name=IsrShrinksPerSec>``
becomes ``kafka_server_replicamanager_isrshrinks_total``, and the other keys of a bean become labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from barnabas.common.recent_times import RecentTimes

QUANTILES: Final = {"0.50": 0.5, "0.75": 0.75, "0.95": 0.95, "0.98": 0.98, "0.99": 0.99, "0.999": 0.999}
"""The label → the share; the JMX exporter makes such labels of Kafka's percentiles."""

Figures = Mapping[str, tuple[float, str]]
"""The value and the description of each metric."""


def gauges(prefix: str, figures: Figures) -> list[Metric]:
    return [GaugeMetricFamily(prefix + name, text, value) for name, (value, text) in figures.items()]


def counters(prefix: str, figures: Figures) -> list[Metric]:
    """The samples' names end in ``_total``."""
    return [CounterMetricFamily(prefix + name, text, value) for name, (value, text) in figures.items()]


class Summary:
    """Percentiles and a count without a sum, as the JMX exporter makes them of a histogram."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.metric = Metric(name, text, "summary")
        self._labels = tuple(labels)

    def add(self, labels: Sequence[str], count: int, percentiles: Sequence[float]) -> None:
        """``percentiles`` in the order of `QUANTILES`."""
        named = dict(zip(self._labels, labels, strict=True))
        for quantile, value in zip(QUANTILES, percentiles, strict=True):
            self.metric.add_sample(self.metric.name, {**named, "quantile": quantile}, value)
        self.metric.add_sample(f"{self.metric.name}_count", named, count)


def recent_times(name: str, text: str, times: RecentTimes) -> Metric:
    """A summary without labels."""
    summary = Summary(name, text)
    summary.add([], times.count, times.percentiles_ms(list(QUANTILES.values())))
    return summary.metric


class Room:
    """The series that one kind of object may still have; every page begins a new one."""

    def __init__(self, max_series: int) -> None:
        self._left = max_series
        self.omitted = 0

    def take(self, series: int) -> bool:
        """Whether there is room for all of these series; if not, they are counted as omitted."""
        if series > self._left:
            self.omitted += series
            # Later objects are not shown instead: the choice would change with every page.
            self._left = 0
            return False
        self._left -= series
        return True
