"""Builds the metrics of a broker and serves them; further metrics are registered here.

A page has all metrics of the registry, in Prometheus' text format 0.0.4. A scrape rebuilds the page if it is
older than `FRESH_MS`, on one thread at a time; concurrent scrapes get its result. So the number of scrapes
does not affect the broker.

The collector runs on a thread that serves metrics. It reads only single references and copies that are atomic
in the interpreter. So it takes no group's lock, and no commit waits for a scrape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from barnabas.broker.clocks import monotonic_ms, wall_clock_ms
from barnabas.broker.compaction.cleaner import CleanerFigures, LogCleaner
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.group import Group
from barnabas.broker.coordinators.group_coordinator import GroupCoordinator
from barnabas.broker.coordinators.transaction_coordinator import TransactionCoordinator
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.metrics.endpoint import MetricsEndpoint
from barnabas.broker.metrics.group_lag import Ends, GroupSnapshot, group_metrics
from barnabas.broker.metrics.partition_ends import PartitionEnds
from barnabas.broker.metrics.transactions import TransactionCollector
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.ids import TopicPartition

FRESH_MS: Final = 1_000


class Page:
    """The page of a scrape. Any thread."""

    def __init__(self, registry: CollectorRegistry, now_ms: Callable[[], float] = monotonic_ms) -> None:
        self._registry = registry
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._text: bytes | None = None
        self._made_ms = 0.0

    def text(self) -> bytes:
        """Blocks while the collectors do, and raises their errors."""
        with self._lock:
            text = self._text
            if text is None or self._now_ms() - self._made_ms >= FRESH_MS:
                # Before the collection: no value on the page is older.
                made_ms = self._now_ms()
                text = generate_latest(self._registry)
                self._text, self._made_ms = text, made_ms
            return text


class GroupCollector:
    """Collects the metrics of groups, as `prometheus_client.registry.Collector` describes it."""

    def __init__(
        self,
        coordinated: Callable[[], Iterable[Group]],
        find_ends: Callable[[Collection[TopicPartition]], Ends],
        *,
        max_series: int,
    ) -> None:
        """``find_ends`` finds high watermarks and may block."""
        self._coordinated = coordinated
        self._find_ends = find_ends
        self._max_series = max_series

    def collect(self) -> list[Metric]:
        groups = [snapshot_of(group) for group in self._coordinated() if not group.is_dead]
        committed = {name for group in groups for name in group.committed}
        return group_metrics(groups, self._find_ends(committed), self._max_series)


def snapshot_of(group: Group) -> GroupSnapshot:
    """Read a group without its lock. A negative offset means that the client has no position."""
    committed = {
        name: value.committed_offset
        for name, (value, _) in group.offsets.copy().items()
        if value.committed_offset >= 0
    }
    return GroupSnapshot(group.group_id, group.state.value, group.member_count, committed)


class CleanerCollector:
    """Collects the metrics of the log cleaner.

    The names are those that Prometheus' JMX exporter, with the rules that Kafka's dashboards use, gives to
    Kafka's own metrics of `LogCleaner` and `LogCleanerManager`. The sums exist only here.
    """

    def __init__(self, figures: Callable[[], CleanerFigures], log_dirs: Iterable[str]) -> None:
        self._figures = figures
        self._log_dirs = [str(Path(log_dir).absolute()) for log_dir in log_dirs]

    def collect(self) -> list[Metric]:
        figures = self._figures()
        totals = figures.totals
        gauges = {
            "manager_max_dirty_percent": (
                int(100 * figures.max_dirty_ratio),
                "The dirty share of the dirtiest log that can be cleaned.",
            ),
            "manager_time_since_last_run_ms": (
                figures.ms_since_last_assessment,
                "Time since the cleaner last looked for logs to clean.",
            ),
            "_max_compaction_delay_secs": (
                figures.max_compaction_delay_ms // 1_000,
                "How long ago a record should have been cleaned, by max.compaction.lag.ms.",
            ),
            "_cleaner_recopy_percent": (
                int(100 * figures.recopy_ratio),
                "Bytes written by bytes read in the last cleaning of each thread.",
            ),
            "_max_buffer_utilization_percent": (
                int(100 * figures.max_buffer_utilization),
                "The filled share of the fullest offset map in the last cleaning of each thread.",
            ),
            "_max_clean_time_secs": (
                figures.max_clean_time_s,
                "The time of the longest of the last cleanings of each thread.",
            ),
            "_deadthreadcount": (figures.dead_threads, "Cleaner threads that should run and do not."),
        }
        metrics: list[Metric] = [
            GaugeMetricFamily(f"kafka_log_logcleaner{name}", text, value)
            for name, (value, text) in gauges.items()
        ]
        metrics += self._of_dirs(figures)
        counters = {
            "cleanings": (totals.cleanings, "Cleanings of a log."),
            "read_bytes": (totals.bytes_read, "Bytes that cleanings have read."),
            "written_bytes": (totals.bytes_written, "Bytes that cleanings have written."),
        }
        metrics += [
            CounterMetricFamily(f"barnabas_log_cleaner_{name}", text, value)
            for name, (value, text) in counters.items()
        ]
        return metrics

    def _of_dirs(self, figures: CleanerFigures) -> list[Metric]:
        labels = ["logdirectory"]
        count = GaugeMetricFamily(
            "kafka_log_logcleanermanager_uncleanable_partitions_count",
            "Logs that cannot be compacted; the broker's log says why.",
            labels=labels,
        )
        size = GaugeMetricFamily(
            "kafka_log_logcleanermanager_uncleanable_bytes", "Dirty bytes of these logs.", labels=labels
        )
        for log_dir in self._log_dirs:
            dirty = [size_bytes for path, size_bytes in figures.uncleanable if str(path) == log_dir]
            count.add_metric([log_dir], len(dirty))
            size.add_metric([log_dir], sum(dirty))
        return [count, size]


def serve_metrics(
    config: BrokerConfig,
    replicas: ReplicaManager,
    metadata: MetadataCache,
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    cleaner: LogCleaner | None,
    *,
    on_fatal: Callable[[BaseException], None],
) -> MetricsEndpoint:
    """Serve from now on; raises CannotBind."""
    ends = PartitionEnds(replicas, metadata, listener=config.inter_broker_listener_name)
    # Not the library's global registry, which adds metrics of the process.
    registry = CollectorRegistry()
    registry.register(
        GroupCollector(lambda: groups.all_machines()[0], ends.find, max_series=config.metrics_max_series)
    )
    registry.register(
        TransactionCollector(
            lambda: transactions.all_machines()[0],
            transactions.markers,
            lambda: transactions.shards.longest_load_ms,
            replicas.partitions,
            max_timeout_ms=config.transaction_max_timeout_ms,
            max_series=config.metrics_max_series,
            wall_clock_ms=wall_clock_ms,
        )
    )
    Gauge(
        "barnabas_stray_logs", "Logs that belong to no known topic and are kept.", registry=registry
    ).set_function(lambda: len(replicas.logs.strays.all()))
    Gauge(
        "barnabas_failed_replicas",
        "Replicas that failed by an unforeseen error, or whose groups could not be loaded.",
        registry=registry,
    ).set_function(lambda: len(replicas.roles.failed.reasons()))
    if cleaner is not None:
        registry.register(CleanerCollector(cleaner.figures, config.log_dirs))
    endpoint = MetricsEndpoint(
        config.metrics_host,
        config.metrics_port,
        Page(registry).text,
        content_type=CONTENT_TYPE_PLAIN_0_0_4,
        on_fatal=on_fatal,
    )
    endpoint.start()
    return endpoint
