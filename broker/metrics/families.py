"""Builds families of samples, and bounds how many series a page has.

Kafka's metrics have the names that Prometheus' JMX exporter makes of Kafka's beans with its example rules for
Kafka in ZooKeeper mode (``kafka-2_0_0.yml``): ``kafka.server<type=ReplicaManager, name=IsrShrinksPerSec>``
becomes ``kafka_server_replicamanager_isrshrinks_total``, and the other keys of a bean become labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from barnabas.common.time_histogram import BOUNDS_MS, TimeHistogram

PARTITION: Final = ("topic", "partition")
"""The labels of a partition."""

Figures = Mapping[str, tuple[float, str]]
"""The value and the description of each metric, by the end of its name."""
Samples = Iterable[tuple[Sequence[str], float]]
"""Values by their labels."""


def gauges(prefix: str, figures: Figures) -> Iterator[Metric]:
    for name, (value, text) in figures.items():
        yield GaugeMetricFamily(prefix + name, text, value)


def counters(prefix: str, figures: Figures) -> Iterator[Metric]:
    """The samples' names end in ``_total``."""
    for name, (value, text) in figures.items():
        yield CounterMetricFamily(prefix + name, text, value)


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def times(name: str, text: str, by_label: Mapping[str, TimeHistogram], label: str = "") -> Metric:
    """A histogram in milliseconds for each value of the label; without a label there is one."""
    family = HistogramMetricFamily(name, text, labels=[label] if label else [])
    for value, histogram in by_label.items():
        counts = accumulate(histogram.counts.copy())
        buckets = list(zip([*(f"{bound:g}" for bound in BOUNDS_MS), "+Inf"], counts, strict=True))
        family.add_metric([value] if label else [], buckets, histogram.sum_ns / 1_000_000)
    return family


def bounded(
    families: Sequence[CounterMetricFamily | GaugeMetricFamily],
    rows: Iterable[tuple[Sequence[str], Sequence[float]]],
    *,
    left_out: str,
    max_series: int,
) -> Iterator[Metric]:
    """The families with the values of each row, as long as there is room for all values of a row.

    ``left_out`` is the name of the metric that counts the omitted series.
    """
    room, omitted = max_series, 0
    for labels, values in rows:
        if len(values) > room:
            omitted += len(values)
            # Later rows are not shown instead: the choice would change with every page.
            room = 0
            continue
        room -= len(values)
        for family, value in zip(families, values, strict=True):
            family.add_metric(labels, value)
    yield from families
    yield GaugeMetricFamily(left_out, "Series that are omitted because of metrics.max.series.", omitted)
