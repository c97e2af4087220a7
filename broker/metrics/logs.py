"""Collects the metrics of logs, of log dirs and of the log cleaner. Takes no log's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from barnabas.broker.compaction.cleaner import CleanerFigures
from barnabas.broker.log.log import Log
from barnabas.broker.metrics.families import Room, counters, gauges, recent_times
from barnabas.common.recent_times import RecentTimes

_LOG: Final = {
    "size": "The bytes of a log's segments.",
    "logendoffset": "The offset of the next record.",
    "logstartoffset": "The offset of the first record.",
    "numlogsegments": "The segments of a log.",
}


class LogCollector:
    """A collector of the library. ``dirs`` has the failure of each offline dir."""

    def __init__(
        self,
        logs: Callable[[], Iterable[Log]],
        dirs: Callable[[], Mapping[Path, object]],
        *,
        stray_count: Callable[[], int],
        flush_times: RecentTimes,
        max_series: int,
    ) -> None:
        self._logs = logs
        self._dirs = dirs
        self._stray_count = stray_count
        self._flush_times = flush_times
        self._max_series = max_series

    def collect(self) -> list[Metric]:
        families = [
            GaugeMetricFamily(f"kafka_log_log_{name}", text, labels=["topic", "partition"])
            for name, text in _LOG.items()
        ]
        room = Room(self._max_series)
        for log in sorted(self._logs(), key=lambda log: log.topic_partition):
            if room.take(len(families)):
                labels = [log.topic_partition.topic, str(log.topic_partition.partition)]
                values = (log.size_bytes, log.log_end_offset, log.log_start_offset, len(log.segments))
                for family, value in zip(families, values, strict=True):
                    family.add_metric(labels, value)
        return [
            *families,
            *self._of_dirs(),
            recent_times(
                "kafka_log_logflushstats_logflushrateandtimems",
                "Flushes of logs to disk, and their time in milliseconds.",
                self._flush_times,
            ),
            *gauges(
                "barnabas_",
                {
                    "log_series_left_out": (
                        room.omitted,
                        "Series of logs that are omitted because of metrics.max.series.",
                    ),
                    "stray_logs": (self._stray_count(), "Logs that belong to no known topic and are kept."),
                },
            ),
        ]

    def _of_dirs(self) -> list[Metric]:
        dirs = self._dirs()
        offline = GaugeMetricFamily(
            "kafka_log_logmanager_logdirectoryoffline", "1 if a log dir has failed.", labels=["logDirectory"]
        )
        for path, failure in dirs.items():
            offline.add_metric([str(path)], int(failure is not None))
        count = sum(failure is not None for failure in dirs.values())
        return [
            offline,
            *gauges(
                "kafka_log_logmanager_",
                {"offlinelogdirectorycount": (count, "Log dirs that have failed.")},
            ),
        ]


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
        figures_of_logs = {
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
        sums = {
            "cleanings": (totals.cleanings, "Cleanings of a log."),
            "read_bytes": (totals.bytes_read, "Bytes that cleanings have read."),
            "written_bytes": (totals.bytes_written, "Bytes that cleanings have written."),
        }
        return [
            *gauges("kafka_log_logcleaner", figures_of_logs),
            *self._of_dirs(figures),
            *counters("barnabas_log_cleaner_", sums),
        ]

    def _of_dirs(self, figures: CleanerFigures) -> list[Metric]:
        labels = ["logDirectory"]
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
