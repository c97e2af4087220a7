"""The cleaner of a broker: threads that compact the logs of compacted topics, the dirtiest first.

A thread assesses all compacted logs, then cleans the due ones in that order, and pauses
``log.cleaner.backoff.ms`` when none is due. A log is cleaned by one thread at a time. A cleaning holds no
lock while it reads or writes (`segment_swap` has the rule of the swap). It ends quietly if the broker stops,
if its thread is one too many after ``log.cleaner.threads`` was lowered, or if the log was truncated, deleted
or closed meanwhile. Any other error concerns that log alone: it is marked (`UncleanableLogs`), and the others
go on. Only a failing disk is passed on, as every failure of a disk is.

The high watermark comes in as a function, because this layer knows no replicas. The lock here guards the
tables of the threads, and is never held during work on a log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.base.pacing import IoThrottle, Pace, Stopped
from barnabas.broker.compaction.choice import (
    Assessment,
    LogFigures,
    SegmentFigures,
    assess,
    dirtiest_first,
)
from barnabas.broker.compaction.cleaning import CleaningStats, clean
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.compaction.uncleanable import UncleanableLogs
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.log_segments import LogSegments
from barnabas.broker.log.lookups import look_up
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.common.workers import Task
from barnabas.protocol.errors import ApiError, LocalError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import NO_TIMESTAMP

logger = logging.getLogger(__name__)

_SAVE_INTERVAL_S: Final = 1.0
"""How often progress is saved while cleanings follow each other: a write lists all logs of a log dir."""
_LEAST_MAP_BYTES: Final = 64 * 1024
_LEAST_READ_BYTES: Final = 16 * 1024
_MOST_READ_BYTES: Final = 64 * 1024
_NEVER: Final = (1 << 63) - 1


class NoProgress(LocalError):
    """A cleaning has ended without cleaning anything; another one would do the same."""


class CleanerSettings(NamedTuple):
    """The settings of the cleaner; all can change while it runs."""

    threads: int
    dedupe_buffer_bytes: int
    io_buffer_bytes: int
    load_factor: float
    max_io_bytes_per_second: float
    backoff_ms: int

    @classmethod
    def of(cls, value: Callable[[str], Any]) -> CleanerSettings:
        """`value` gives the value of a broker's setting by its name."""
        return cls(
            value("log.cleaner.threads"),
            value("log.cleaner.dedupe.buffer.size"),
            value("log.cleaner.io.buffer.size"),
            value("log.cleaner.io.buffer.load.factor"),
            value("log.cleaner.io.max.bytes.per.second"),
            value("log.cleaner.backoff.ms"),
        )

    @property
    def map_bytes(self) -> int:
        """The bytes that the offset map of one thread may fill."""
        share = self.dedupe_buffer_bytes / max(1, self.threads)
        return max(_LEAST_MAP_BYTES, int(share * self.load_factor))

    @property
    def read_bytes(self) -> int:
        """The bytes that one thread reads at a time: half of its share, the other half is for writing.

        Not more than can be computed in half a millisecond or so, see `pacing`.
        """
        share = self.io_buffer_bytes // max(1, self.threads) // 2
        return min(max(_LEAST_READ_BYTES, share), _MOST_READ_BYTES)


class LastRun(NamedTuple):
    """The last cleaning of a thread."""

    stats: CleaningStats
    map_utilization: float
    elapsed_s: float


class Totals(NamedTuple):
    """The sums over all cleanings since the start of the broker."""

    cleanings: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def plus(self, stats: CleaningStats) -> Totals:
        return Totals(
            self.cleanings + 1,
            self.bytes_read + stats.bytes_read,
            self.bytes_written + stats.bytes_written,
        )


class CleanerFigures(NamedTuple):
    """The state of the cleaner, for metrics and `barnabas status`. Shares are between 0 and 1."""

    max_dirty_ratio: float
    """Of the dirtiest log at the last assessment, without those that cannot be cleaned."""
    max_compaction_delay_ms: int
    """How long ago a dirty record should have been cleaned, by ``max.compaction.lag.ms``."""
    ms_since_last_assessment: int
    max_buffer_utilization: float
    """The filled share of the fullest offset map in the last cleaning of each thread."""
    recopy_ratio: float
    """Bytes written by bytes read in the last cleaning of each thread."""
    max_clean_time_s: float
    dead_threads: int
    uncleanable: list[tuple[Path, int]]
    """Of each log that cannot be cleaned, its log dir and its dirty bytes."""
    in_progress: list[TopicPartition]
    totals: Totals


class LogCleaner:
    """`start` and `stop` once each. Any thread may call the other methods."""

    def __init__(
        self,
        logs: LogManager,
        settings: CleanerSettings,
        *,
        ends_of: Callable[[TopicPartition], tuple[int, int] | None],
        note_error: Callable[[ApiError], None],
        on_fatal: Callable[[BaseException], None],
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """``ends_of`` gives the last stable offset and the high watermark of a partition, or None if this
        broker has no role in it. ``note_error`` handles a failing disk.
        """
        self._logs = logs
        self.settings = settings
        self._ends_of = ends_of
        self._note_error = note_error
        self._on_fatal = on_fatal
        self._now_ms = now_ms
        self._throttle = IoThrottle(settings.max_io_bytes_per_second)
        self.uncleanable = UncleanableLogs()
        self._choosing = threading.Lock()
        """Held by the thread that assesses all logs. Before `_lock`, which it may take."""
        self._lock = threading.Lock()
        self._is_started = self._is_stopping = False
        self._tasks: list[Task] = []
        """The work of each thread, by its number; those beyond ``log.cleaner.threads`` rest."""
        self._dead_threads = 0
        self._in_progress: set[TopicPartition] = set()
        self._due: list[TopicPartition] = []
        """The logs to clean, the dirtiest last."""
        self._due_until_ms = 0
        self._resting_until_ms: dict[TopicPartition, int] = {}
        """Logs that changed during their cleaning: without a rest they might be tried without end."""
        self._assessed: dict[TopicPartition, Assessment] = {}
        self._saving = threading.Lock()
        """Held while the progress is saved. The last lock."""
        self._has_unsaved = False
        self._saved_s = time.monotonic()
        self._last_runs: dict[int, LastRun] = {}
        """By thread."""
        self._totals = Totals()
        self._last_assessment_ms = now_ms()

    # Threads

    def start(self) -> None:
        with self._lock:
            self._is_started = True
            self._wake_tasks()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the threads; a cleaning in progress is given up within a few milliseconds."""
        with self._lock:
            self._is_stopping = True
        deadline = time.monotonic() + timeout_s
        for number, task in enumerate(self._tasks):
            if not task.stop(max(0.0, deadline - time.monotonic())):
                logger.error("log-cleaner-%d did not end within %.0f s", number, timeout_s)
        self._save_progress()

    def reconfigure(self, settings: CleanerSettings) -> None:
        """Put changed settings into force; superfluous threads give up their cleanings."""
        with self._lock:
            if settings == self.settings:
                return
            self.settings = settings
            self._throttle.set_rate(settings.max_io_bytes_per_second)
            if self._is_started and not self._is_stopping:
                self._wake_tasks()
        logger.info("the log cleaner has other settings: %s", settings)

    def _wake_tasks(self) -> None:
        for number in range(len(self._tasks), self.settings.threads):
            task = Task(f"log-cleaner-{number}", partial(self._turn, number), on_fatal=self._note_dead)
            self._tasks.append(task)
            task.start()
        for task in self._tasks:
            task.wake()

    def _note_dead(self, error: BaseException) -> None:
        self._dead_threads += 1
        self._on_fatal(error)

    def _is_superfluous(self, number: int) -> bool:
        return self._is_stopping or number >= self.settings.threads

    def _turn(self, number: int) -> float | None:
        """Clean a log; returns the pause until the next one, None for a thread that is one too many."""
        if self._is_superfluous(number):
            self._last_runs.pop(number, None)
            return None
        with suppress(Stopped):
            if self.clean_next(number):
                return 0.0
        return self.settings.backoff_ms / 1_000

    # Choosing

    def clean_next(self, number: int = 0) -> bool:
        """Clean the dirtiest due log on behalf of a thread; False if none is due. Raises Stopped."""
        taken = self._take(Pace(self._throttle, partial(self._is_superfluous, number)))
        if taken is None:
            self._save_progress()
            return False
        log, assessment = taken
        try:
            self._clean(log, assessment, number)
        finally:
            with self._lock:
                self._in_progress.discard(log.topic_partition)
        if time.monotonic() - self._saved_s >= _SAVE_INTERVAL_S:
            self._save_progress()
        return True

    def _save_progress(self) -> None:
        """Save how far the logs are cleaned, and the horizons, after one or several cleanings.

        A log whose progress a crash forgets is cleaned once more.
        """
        with self._saving:
            if not self._has_unsaved:
                return
            self._has_unsaved = False
            self._logs.checkpoint_cleaning()
            self._saved_s = time.monotonic()

    def _take(self, pace: Pace) -> tuple[Log, Assessment] | None:
        """The next log to clean, which is then in progress; None if none is due."""
        with self._choosing:
            if self._now_ms() >= self._due_until_ms:
                self._due.clear()
            for is_refreshed in (False, True):
                if is_refreshed:
                    self._assess_all(pace)
                while self._due:
                    # It may be another log of that name by now, or clean.
                    log = self._logs.get(self._due.pop())
                    if log is not None and log.is_moving:
                        # The swap would be refused.
                        continue
                    assessment = None if log is None else self._assess(log)
                    if log is not None and assessment is not None and assessment.is_due:
                        with self._lock:
                            self._in_progress.add(log.topic_partition)
                        return log, assessment
            return None

    def _assess_all(self, pace: Pace) -> None:
        """Assess all compacted logs, and list the due ones."""
        assessed: dict[TopicPartition, Assessment] = {}
        compacted = [log for log in self._logs.all_logs() if log.config.is_compacted]
        self.uncleanable.keep_only(compacted)
        for log in compacted:
            pace(0)
            assessment = self._assess(log)
            if assessment is not None:
                assessed[log.topic_partition] = assessment
        now_ms = self._now_ms()
        with self._lock:
            self._resting_until_ms = {
                name: end_ms for name, end_ms in self._resting_until_ms.items() if end_ms > now_ms
            }
            left_out = self._in_progress | self._resting_until_ms.keys()
            tried = {
                log.topic_partition: assessed[log.topic_partition]
                for log in compacted
                if log.topic_partition in assessed
                and log.topic_partition not in left_out
                and self.uncleanable.is_tried(log, now_ms)
            }
        self._due = dirtiest_first(tried)[::-1]
        self._due_until_ms = now_ms + self.settings.backoff_ms
        self._assessed = assessed
        self._last_assessment_ms = now_ms

    def _assess(self, log: Log) -> Assessment | None:
        """None if the log has no role here, or if it cannot be read."""
        ends = self._ends_of(log.topic_partition)
        if ends is None or log.is_closed:
            return None
        now_ms = self._now_ms()
        try:
            if must_roll(log, now_ms):
                log.roll(now_ms)
            figures = figures_of(log, ends[0])
        except Exception as error:  # noqa: BLE001 - any error concerns this log alone
            if self.uncleanable.is_tried(log, now_ms):
                self._failed(log, error)
            return None
        return assess(figures, log.config, now_ms)

    # Cleaning

    def _clean(self, log: Log, assessment: Assessment, number: int) -> None:
        settings, ends = self.settings, self._ends_of(log.topic_partition)
        offset_map = OffsetMap(settings.map_bytes)
        pace = Pace(
            self._throttle,
            lambda: self._is_superfluous(number) or log.is_closed or not log.config.is_compacted,
        )
        began_s = time.perf_counter()
        try:
            stats = clean(
                log,
                assessment.dirty_end,
                offset_map=offset_map,
                now_ms=self._now_ms(),
                pause=pace,
                high_watermark=None if ends is None else ends[1],
                read_bytes=settings.read_bytes,
            )
            is_idle = assessment.dirty_bytes > 0 and stats.dirty_end <= stats.dirty_start
            if is_idle and not stats.is_abandoned:
                raise NoProgress(f"nothing was cleaned from offset {assessment.dirty_start} on")
        except Stopped:
            logger.info("the cleaning of %s is given up", log.topic_partition)
            return
        except Exception as error:  # noqa: BLE001 - any error concerns this log alone
            # An invariant that does not hold concerns this log alone too: nothing of the log changes before
            # the swap. If it ended the process, it would end all replicas of the partition.
            self._failed(log, error)
            return
        self.uncleanable.clear(log)
        if stats.is_abandoned:
            logger.info("the cleaning of %s is given up: the log has changed", log.topic_partition)
            with self._lock:
                self._resting_until_ms[log.topic_partition] = self._now_ms() + settings.backoff_ms
            return
        elapsed_s = time.perf_counter() - began_s
        self._succeeded(log, number, LastRun(stats, stats.map_used_bytes / settings.map_bytes, elapsed_s))

    def _failed(self, log: Log, error: Exception) -> None:
        """Mark the log, unless it was deleted or closed meanwhile."""
        if log.is_closed or self._logs.get(log.topic_partition) is not log:
            logger.info("%s is gone: %s", log, error)
        elif isinstance(error, LogDirFailure):
            # The log dir goes offline with this log.
            self._note_error(error)
        else:
            self.uncleanable.note(log, error, self._now_ms())

    def _succeeded(self, log: Log, number: int, run: LastRun) -> None:
        name, stats = log.topic_partition, run.stats
        with self._lock:
            self._last_runs[number] = run
            self._totals = self._totals.plus(stats)
        horizon_ms = stats.delete_horizon_ms
        # If it has passed, the batch has to stay for another reason.
        is_ahead = horizon_ms is not None and horizon_ms > self._now_ms()
        log.bounds.delete_horizon_ms = horizon_ms if is_ahead else None
        self._has_unsaved = True
        logger.info(
            "compacted %s from %d to %d: %d of %d records and %.1f of %.1f MB are left, "
            "in %d of %d segments; %.1f s, %.0f MB/s",
            name,
            stats.dirty_start,
            stats.dirty_end,
            stats.records_kept,
            stats.records_read,
            stats.bytes_kept / 1e6,
            stats.bytes_read / 1e6,
            stats.segments_after,
            stats.segments_before,
            run.elapsed_s,
            stats.bytes_read / 1e6 / max(run.elapsed_s, 1e-6),
        )
        if stats.keyless_records:
            logger.warning(
                "%s: %d records without a key were removed, because the topic is compacted",
                name,
                stats.keyless_records,
            )

    # Figures

    def figures(self) -> CleanerFigures:
        """The figures for operators; waits for no cleaning."""
        with self._lock:
            runs, totals = list(self._last_runs.values()), self._totals
            in_progress = sorted(self._in_progress)
        assessed, marked = self._assessed, self.uncleanable.logs()
        names = {log.topic_partition for log in marked}
        read_bytes = sum(run.stats.bytes_read for run in runs)
        return CleanerFigures(
            max_dirty_ratio=max(
                (found.dirty_ratio for name, found in assessed.items() if name not in names), default=0.0
            ),
            max_compaction_delay_ms=max((found.delay_ms for found in assessed.values()), default=0),
            ms_since_last_assessment=max(0, self._now_ms() - self._last_assessment_ms),
            max_buffer_utilization=max((run.map_utilization for run in runs), default=0.0),
            recopy_ratio=sum(run.stats.bytes_written for run in runs) / max(1, read_bytes),
            max_clean_time_s=max((run.elapsed_s for run in runs), default=0.0),
            dead_threads=self._dead_threads,
            uncleanable=[
                (log.folder.parent, assessed[log.topic_partition].dirty_bytes)
                if log.topic_partition in assessed
                else (log.folder.parent, 0)
                for log in marked
            ],
            in_progress=in_progress,
            totals=totals,
        )


def must_roll(log: Log, now_ms: int) -> bool:
    """Whether the active segment holds a record older than ``max.compaction.lag.ms``.

    Appends roll by age too, but a topic without appends would keep the record for ever.
    """
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= _NEVER:
        return False
    return 0 <= look_up(log, lambda segments: segments.active.first_timestamp_ms()) < now_ms - lag_ms


def figures_of(log: Log, stable_end_offset: int) -> LogFigures:
    """The figures of a log. Reads timestamps of dirty segments only if a setting needs them.

    Raises as `Segment.read`.
    """
    return look_up(log, lambda segments: _figures_of(log, segments, stable_end_offset))


def _figures_of(log: Log, segments: LogSegments, stable_end_offset: int) -> LogFigures:
    *sealed, active = segments.all
    config, dirty_start = log.config, log.first_dirty_offset
    figures: list[SegmentFigures] = []
    for segment in sealed:
        first_ms = largest_ms = NO_TIMESTAMP
        if segment.next_offset > dirty_start:
            if config.max_compaction_lag_ms < _NEVER:
                first_ms = segment.first_timestamp_ms()
            if config.min_compaction_lag_ms:
                with log.lock:
                    largest_ms = segment.age().largest_timestamp_ms
        figures.append(
            SegmentFigures(segment.base_offset, segment.next_offset, segment.size, first_ms, largest_ms)
        )
    horizon_ms = log.bounds.delete_horizon_ms
    return LogFigures(figures, active.base_offset, dirty_start, stable_end_offset, horizon_ms)
