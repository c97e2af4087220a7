"""The page of metrics: made when asked for, and not oftener than it is to be."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from barnabas.broker.metrics.serving import FRESH_MS, Page
from tests.support.building import Clock


class Counting:
    """Counts how often it was collected; takes some time for it, and fails when told."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.takes_ms = 0.0
        self.calls = 0
        self.error: Exception | None = None

    def collect(self) -> list[Metric]:
        self.calls += 1
        self.clock.now_ms += self.takes_ms
        if self.error is not None:
            raise self.error
        return [GaugeMetricFamily("calls", "How often.", value=self.calls)]


def test_a_page_is_made_anew_when_it_is_no_longer_fresh() -> None:
    clock = Clock()
    registry, counting = CollectorRegistry(), Counting(clock)
    registry.register(counting)
    page = Page(registry, clock)
    assert counting.calls == 0
    assert page.text() == b"# HELP calls How often.\n# TYPE calls gauge\ncalls 1.0\n"
    clock.now_ms += FRESH_MS - 1
    assert page.text().endswith(b"calls 1.0\n")
    clock.now_ms += 1
    assert page.text().endswith(b"calls 2.0\n")


def test_the_age_of_a_page_counts_from_where_its_making_began() -> None:
    clock = Clock()
    registry, counting = CollectorRegistry(), Counting(clock)
    registry.register(counting)
    page = Page(registry, clock)
    counting.takes_ms = FRESH_MS
    page.text()
    page.text()
    assert counting.calls == 2


def test_a_collector_that_fails_is_tried_again_at_once() -> None:
    clock = Clock()
    registry, counting = CollectorRegistry(), Counting(clock)
    registry.register(counting)
    page = Page(registry, clock)
    counting.error = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        page.text()
    counting.error = None
    assert page.text().endswith(b"calls 2.0\n")
