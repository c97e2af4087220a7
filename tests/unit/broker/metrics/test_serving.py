"""The page of metrics and its freshness, and what the collector reads of live groups."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from barnabas.broker.cluster.metadata_cache import ClusterMetadata
from barnabas.broker.compaction.cleaner import CleanerFigures, Totals
from barnabas.broker.coordinators.groups.records import OffsetAndMetadata
from barnabas.broker.metrics.groups import all_group_metrics, snapshot_of
from barnabas.broker.metrics.logs import cleaner_metrics
from barnabas.broker.metrics.serving import FRESH_MS, Page
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.ids import TopicPartition
from tests.support.building import Clock
from tests.support.grouping import WALL_MS, GroupRig

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))


def commit(rig: GroupRig, member: str, offsets: dict[TopicPartition, int]) -> None:
    rig.commit(member, offsets={tp: OffsetAndMetadata(offset, WALL_MS) for tp, offset in offsets.items()})


def test_a_snapshot_has_the_committed_offsets_of_a_group() -> None:
    rig = GroupRig()
    rig.stable("m", "n")
    commit(rig, "m", {T0: 7, T1: -1, T2: 0})
    assert snapshot_of(rig.group) == ("g", "Stable", 2, {})
    rig.settle()
    assert snapshot_of(rig.group) == ("g", "Stable", 2, {T0: 7, T2: 0})


def test_a_dead_group_has_no_metrics() -> None:
    rig, dead = GroupRig(), GroupRig()
    rig.stable("m")
    dead.apply(lambda group, now: group.unload(now))
    replicas = cast(ReplicaManager, SimpleNamespace(partitions=list, broker_id=1))
    metrics = all_group_metrics([rig.group, dead.group], replicas, ClusterMetadata(), max_series=100)
    values = {metric.name: [sample.value for sample in metric.samples] for metric in metrics}
    assert values["kafka_consumergroup_members"] == [1]


def test_the_metrics_of_the_cleaner_have_kafkas_names() -> None:
    figures = CleanerFigures(
        max_dirty_ratio=0.567,
        max_compaction_delay_ms=1_001_999,
        ms_since_last_assessment=15_000,
        max_buffer_utilization=0.999,
        recopy_ratio=0.999,
        max_clean_time_s=1.5,
        dead_threads=1,
        uncleanable=[(Path("/a"), 100), (Path("/a"), 20)],
        in_progress=[T0],
        totals=Totals(3, 1_000, 250),
    )

    class Cleaner(Collector):
        def collect(self) -> Iterator[Metric]:
            return cleaner_metrics(figures, ["/a", "/b"])

    registry = CollectorRegistry()
    registry.register(Cleaner())
    lines = Page(registry, Clock()).text().decode().splitlines()
    assert [line for line in lines if not line.startswith("#") and "_created" not in line] == [
        "kafka_log_logcleanermanager_max_dirty_percent 56.0",
        "kafka_log_logcleanermanager_time_since_last_run_ms 15000.0",
        "kafka_log_logcleaner_max_compaction_delay_secs 1001.0",
        "kafka_log_logcleaner_cleaner_recopy_percent 99.0",
        "kafka_log_logcleaner_max_buffer_utilization_percent 99.0",
        "kafka_log_logcleaner_max_clean_time_secs 1.5",
        "kafka_log_logcleaner_deadthreadcount 1.0",
        'kafka_log_logcleanermanager_uncleanable_partitions_count{logDirectory="/a"} 2.0',
        'kafka_log_logcleanermanager_uncleanable_partitions_count{logDirectory="/b"} 0.0',
        'kafka_log_logcleanermanager_uncleanable_bytes{logDirectory="/a"} 120.0',
        'kafka_log_logcleanermanager_uncleanable_bytes{logDirectory="/b"} 0.0',
        "barnabas_log_cleaner_cleanings_total 3.0",
        "barnabas_log_cleaner_read_bytes_total 1000.0",
        "barnabas_log_cleaner_written_bytes_total 250.0",
    ]


class Counting:
    """Counts its collections; each takes ``takes_ms``, or raises ``error``. Its page is ``page``."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.clock.now_ms = 10 * FRESH_MS
        self.takes_ms = 0.0
        self.calls = 0
        self.error: Exception | None = None
        registry = CollectorRegistry()
        registry.register(self)
        self.page = Page(registry, self.clock)

    def collect(self) -> list[Metric]:
        self.calls += 1
        self.clock.now_ms += self.takes_ms
        if self.error is not None:
            raise self.error
        return [GaugeMetricFamily("calls", "How often.", value=self.calls)]


def test_a_page_is_rebuilt_when_it_is_no_longer_fresh() -> None:
    counting = Counting()
    page = counting.page
    assert counting.calls == 0
    assert page.text() == b"# HELP calls How often.\n# TYPE calls gauge\ncalls 1.0\n"
    counting.clock.now_ms += FRESH_MS - 1
    assert page.text().endswith(b"calls 1.0\n")
    counting.clock.now_ms += 1
    # Its age counts since the collection began.
    counting.takes_ms = FRESH_MS
    assert page.text().endswith(b"calls 2.0\n")
    assert page.text().endswith(b"calls 3.0\n")


def test_a_collector_that_fails_is_retried_by_the_next_scrape() -> None:
    counting = Counting()
    counting.error = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        counting.page.text()
    counting.error = None
    assert counting.page.text().endswith(b"calls 2.0\n")
