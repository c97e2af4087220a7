"""Collects the metrics of logs, of log dirs and of the log cleaner. Takes no log's lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from barnabas.broker.compaction.cleaner import CleanerFigures
from barnabas.broker.log.file_system import FLUSH_TIMES
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.metrics.families import PARTITION, bounded, counters, gauge, gauges, times

_LOG: Final = {
    "size": "The bytes of a log's segments.",
    "logendoffset": "The offset of the next record.",
    "logstartoffset": "The offset of the first record.",
    "numlogsegments": "The segments of a log.",
}


def log_metrics(manager: LogManager, max_series: int) -> Iterator[Metric]:
    logs = sorted(manager.all_logs(), key=lambda log: log.topic_partition)
    yield from bounded(
        [GaugeMetricFamily(f"kafka_log_log_{name}", text, labels=PARTITION) for name, text in _LOG.items()],
        (
            (
                [log.topic_partition.topic, str(log.topic_partition.partition)],
                [log.size_bytes, log.log_end_offset, log.log_start_offset, len(log.segments)],
            )
            for log in logs
        ),
        left_out="barnabas_log_series_left_out",
        max_series=max_series,
    )
    failed = {str(path): failure is not None for path, failure in manager.dirs.items()}
    prefix = "kafka_log_logmanager_"
    yield gauge(
        f"{prefix}logdirectoryoffline",
        "1 if a log dir has failed.",
        ["logDirectory"],
        (([path], is_failed) for path, is_failed in failed.items()),
    )
    yield from gauges(
        prefix, {"offlinelogdirectorycount": (sum(failed.values()), "Log dirs that have failed.")}
    )
    text = "Flushes of logs to disk, and their time in milliseconds."
    yield times("kafka_log_logflushstats_logflushrateandtimems", text, {"": FLUSH_TIMES})
    text = "Logs that belong to no known topic and are kept."
    yield from gauges("barnabas_", {"stray_logs": (len(manager.strays.all()), text)})


def cleaner_metrics(figures: CleanerFigures, log_dirs: Sequence[str]) -> Iterator[Metric]:
    """The sums exist only here; the other names are those of Kafka's `LogCleaner` and `LogCleanerManager`."""
    totals = figures.totals
    yield from gauges(
        "kafka_log_logcleaner",
        {
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
        },
    )
    dirty: dict[str, list[int]] = {str(Path(log_dir).absolute()): [] for log_dir in log_dirs}
    for path, size_bytes in figures.uncleanable:
        dirty.setdefault(str(path), []).append(size_bytes)
    yield gauge(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Logs that cannot be compacted; the broker's log says why.",
        ["logDirectory"],
        (([path], len(sizes)) for path, sizes in dirty.items()),
    )
    yield gauge(
        "kafka_log_logcleanermanager_uncleanable_bytes",
        "Dirty bytes of these logs.",
        ["logDirectory"],
        (([path], sum(sizes)) for path, sizes in dirty.items()),
    )
    yield from counters(
        "barnabas_log_cleaner_",
        {
            "cleanings": (totals.cleanings, "Cleanings of a log."),
            "read_bytes": (totals.bytes_read, "Bytes that cleanings have read."),
            "written_bytes": (totals.bytes_written, "Bytes that cleanings have written."),
        },
    )
