"""The cleaner as a service: which logs it cleans and when, its threads, and logs that cannot be cleaned.

The cleaning is a fake that only returns figures; `test_cleaner_logs` runs the real one.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.base.pacing import Pace
from barnabas.broker.compaction import cleaner as cleaner_module
from barnabas.broker.compaction.choice import LogFigures
from barnabas.broker.compaction.cleaner import figures_of
from barnabas.broker.compaction.cleaning import CleaningStats
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.compaction.uncleanable import FIRST_PAUSE_MS, LONGEST_PAUSE_MS
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_dir import CLEANER_CHECKPOINT
from barnabas.broker.log.retention import SegmentAge
from barnabas.broker.log.segment import Segment
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import CleanedFilesFailed, LogDirFailure, LogGone, StorageCallFailed
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.invariants import InvariantViolation
from tests.support.cleaner import SETTINGS, CleanerRig
from tests.support.defaults import log_config
from tests.support.waiting import DEADLINE_S, wait_for


class Cleanings:
    """A fake of `clean`: records its calls, runs the work of the topic, and returns figures of a cleaning."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.maps: list[int] = []
        self.delete_horizon_ms: int | None = None
        self.is_abandoned = False
        self.work: dict[str, Callable[[Log, Pace], None]] = {}
        """The work of a call, by topic."""

    def __call__(
        self, log: Log, dirty_end: int, *, offset_map: OffsetMap, pause: Pace, **options: Any
    ) -> CleaningStats:
        topic = log.topic_partition.topic
        self.calls.append((topic, dirty_end))
        self.maps.append(offset_map.max_bytes)
        start = log.first_dirty_offset
        self.work.get(topic, lambda log, pause: None)(log, pause)
        if not self.is_abandoned:
            log.bounds.raise_first_dirty(dirty_end, log.bounds.cuts)
        return CleaningStats(
            bytes_read=1_000,
            bytes_written=400,
            records_read=10,
            records_kept=4,
            dirty_start=start,
            dirty_end=dirty_end,
            segments_before=3,
            segments_after=1,
            passes=1,
            delete_horizon_ms=self.delete_horizon_ms,
            is_abandoned=self.is_abandoned,
        )


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[CleanerRig]:
    made = CleanerRig(tmp_path)
    yield made
    made.release()


@pytest.fixture
def cleanings(monkeypatch: pytest.MonkeyPatch) -> Cleanings:
    made = Cleanings()
    monkeypatch.setattr(cleaner_module, "clean", made)
    return made


def raising(error: Exception) -> Callable[..., None]:
    def work(*_: object) -> None:
        raise error

    return work


# The choice


def test_each_due_log_is_cleaned_once_the_dirtiest_first(rig: CleanerRig, cleanings: Cleanings) -> None:
    half = rig.make_log("half", 2, min_cleanable_dirty_ratio=0.2)
    half.bounds.raise_first_dirty(4, 0)
    rig.make_log("whole", 3)
    small = rig.make_log("small", 5)
    small.bounds.raise_first_dirty(16, 0)
    assert rig.clean_all() == 2
    assert cleanings.calls == [("whole", 12), ("half", 8)]
    assert not rig.cleaner.clean_next()


def test_other_logs_are_left_alone(rig: CleanerRig, cleanings: Cleanings) -> None:
    rig.make_log("deleted", cleanup_policy=("delete",))
    rig.stable_ends[rig.make_log("without-role").topic_partition] = None
    rig.stable_ends[rig.make_log("not-committed").topic_partition] = 3
    rig.make_log("closed").abandon()
    rig.make_log("only-active", 0)
    assert rig.clean_all() == 0


def test_the_lags_are_kept(rig: CleanerRig, cleanings: Cleanings) -> None:
    log = rig.make_log("t", 1, min_compaction_lag_ms=1_000, min_cleanable_dirty_ratio=0.1)
    rig.now_ms += 999
    rig.write(log, 1)
    log.roll(rig.now_ms)
    rig.clean_all()
    rig.now_ms += 1
    rig.clean_all()
    rig.now_ms += 999
    rig.clean_all()
    assert cleanings.calls == [("t", 4), ("t", 8)]


def test_a_record_older_than_the_lag_is_cleaned_out_of_the_active_segment(
    rig: CleanerRig, cleanings: Cleanings
) -> None:
    log = rig.make_log("t", 0, max_compaction_lag_ms=1_000, min_cleanable_dirty_ratio=1.0)
    rig.write(log, 0)
    rig.now_ms += 1_000
    assert rig.clean_all() == 0
    rig.now_ms += 1
    assert rig.clean_all() == 1
    assert (cleanings.calls, len(log.segments)) == ([("t", 4)], 2)


def test_a_log_is_due_again_when_its_tombstones_may_go(rig: CleanerRig, cleanings: Cleanings) -> None:
    rig.make_log("t")
    cleanings.delete_horizon_ms = rig.now_ms + 1_000
    assert rig.clean_all() == 1
    rig.now_ms += 999
    assert rig.clean_all() == 0
    rig.now_ms += 1
    rig.restart()
    assert rig.clean_all() == 1, "the horizon survives a restart"
    assert rig.clean_all() == 0, "after that cleaning the log is no longer due"
    assert cleanings.calls == [("t", 12), ("t", 12)]


def test_the_horizon_of_a_deleted_log_does_not_concern_its_successor(
    rig: CleanerRig, cleanings: Cleanings
) -> None:
    cleanings.delete_horizon_ms = rig.now_ms + 1_000
    log = rig.make_log("t")
    rig.clean_all()
    rig.logs.delete(log.topic_partition, rig.now_ms)
    assert rig.clean_all() == 0
    successor = rig.make_log("t")
    successor.bounds.raise_first_dirty(12, 0)
    rig.now_ms += 2_000
    assert rig.clean_all() == 0


def test_the_progress_survives_a_restart(rig: CleanerRig, cleanings: Cleanings) -> None:
    log = rig.make_log("t")
    rig.clean_all()
    saved = (log.folder.parent / CLEANER_CHECKPOINT).read_text()
    assert saved == "0\n1\nt 0 12\n"
    rig.restart()
    assert rig.clean_all() == 0


# Logs that cannot be cleaned


def test_a_failed_log_is_marked_and_the_others_go_on(
    rig: CleanerRig, cleanings: Cleanings, caplog: pytest.LogCaptureFixture
) -> None:
    failing = rig.make_log("a", 9)
    rig.make_log("b")
    cleanings.work["a"] = raising(ValueError("a bug"))
    assert rig.clean_all() == 2
    assert [topic for topic, _ in cleanings.calls] == ["a", "b"]
    assert failing.cleaning_problem == "unforeseen error: ValueError('a bug')"
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "a-0 cannot be compacted" in record.message
    assert record.exc_info is not None
    assert rig.cleaner.figures().uncleanable == [(failing.folder.parent, failing.size_bytes)]


def test_a_marked_log_is_tried_again_after_growing_pauses(
    rig: CleanerRig, cleanings: Cleanings, caplog: pytest.LogCaptureFixture
) -> None:
    log = rig.make_log("t")
    cleanings.work["t"] = raising(ValueError("a bug"))
    pause_ms, pauses = FIRST_PAUSE_MS, 0
    rig.clean_all()
    while pauses < 8:
        rig.now_ms += pause_ms - 1
        assert rig.clean_all() == 0
        rig.now_ms += 1
        assert rig.clean_all() == 1
        pause_ms, pauses = min(2 * pause_ms, LONGEST_PAUSE_MS), pauses + 1
    assert pause_ms == LONGEST_PAUSE_MS
    assert sum(record.levelno >= logging.ERROR for record in caplog.records) == 1, "the error is logged once"
    del cleanings.work["t"]
    rig.now_ms += LONGEST_PAUSE_MS
    assert rig.clean_all() == 1
    assert log.cleaning_problem is None
    assert rig.cleaner.figures().uncleanable == []
    assert "t-0 is compacted again" in caplog.text


@pytest.mark.parametrize("cause", ["truncated", "log start", "settings"])
def test_a_marked_log_is_tried_at_once_when_the_cause_may_be_gone(
    rig: CleanerRig, cleanings: Cleanings, cause: str
) -> None:
    log = rig.make_log("t", min_cleanable_dirty_ratio=0.1)
    cleanings.work["t"] = raising(ValueError("a bug"))
    rig.clean_all()
    del cleanings.work["t"]
    assert rig.clean_all() == 0
    if cause == "truncated":
        log.truncate_to(9)
    elif cause == "log start":
        log.increment_log_start_offset(5)
    else:
        rig.configs["t"] = log_config(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.2)
        rig.logs.update_config(["t"])
    rig.now_ms += SETTINGS.backoff_ms
    assert rig.clean_all() == 1
    assert log.cleaning_problem is None


def test_a_mark_goes_with_its_log(rig: CleanerRig, cleanings: Cleanings) -> None:
    log = rig.make_log("t")
    cleanings.work["t"] = raising(ValueError("a bug"))
    rig.clean_all()
    rig.logs.delete(log.topic_partition, rig.now_ms)
    del cleanings.work["t"]
    rig.make_log("t")
    assert rig.clean_all() == 1
    assert rig.cleaner.figures().uncleanable == []


def test_a_mark_goes_when_the_topic_is_no_longer_compacted(rig: CleanerRig, cleanings: Cleanings) -> None:
    log = rig.make_log("t")
    cleanings.work["t"] = raising(ValueError("a bug"))
    rig.clean_all()
    rig.configs["t"] = log_config()
    rig.logs.update_config(["t"])
    rig.now_ms += SETTINGS.backoff_ms
    rig.clean_all()
    assert log.cleaning_problem is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (api_error(ErrorCode.CORRUPT_MESSAGE, "CRC of offset 3"), "the log is damaged"),
        (CleanedFilesFailed(Path("x.cleaned"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))), "No space"),
        (StorageCallFailed(Path("x"), OSError(errno.EMFILE, os.strerror(errno.EMFILE))), "Too many open"),
        (InvariantViolation("offset 3 does not follow 3"), "unforeseen error: InvariantViolation"),
        (MemoryError(), "unforeseen error: MemoryError"),
    ],
)
def test_an_error_that_concerns_one_log_marks_it(
    rig: CleanerRig, cleanings: Cleanings, error: Exception, reason: str
) -> None:
    log = rig.make_log("t")
    cleanings.work["t"] = raising(error)
    rig.clean_all()
    assert reason in (log.cleaning_problem or "")
    assert rig.noted == []


def test_a_failing_disk_is_passed_on(rig: CleanerRig, cleanings: Cleanings) -> None:
    log = rig.make_log("t")
    failure = LogDirFailure(log.folder, OSError(errno.EIO, os.strerror(errno.EIO)))

    def fail(log: Log, pause: Pace) -> None:
        rig.cleaner.stop()  # The log dir goes offline on another thread.
        raise failure

    cleanings.work["t"] = fail
    assert rig.cleaner.clean_next()
    assert rig.noted == [failure]
    assert log.cleaning_problem is None


def test_a_cleaning_without_progress_is_not_repeated_at_once(
    rig: CleanerRig, cleanings: Cleanings, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rig.make_log("t")

    def do_nothing(log: Log, dirty_end: int, **options: Any) -> CleaningStats:
        return CleaningStats(0, 0)

    monkeypatch.setattr(cleaner_module, "clean", do_nothing)
    assert rig.clean_all() == 1
    assert "nothing was cleaned" in (log.cleaning_problem or "")


@pytest.mark.parametrize("change", ["close", "delete", "truncate"])
def test_a_log_that_changes_meanwhile_ends_its_cleaning_quietly(
    rig: CleanerRig, cleanings: Cleanings, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    def work(log: Log, pause: Pace) -> None:
        if change == "close":
            log.close(rig.now_ms)
        elif change == "delete":
            rig.logs.delete(log.topic_partition, rig.now_ms)
        else:
            log.truncate_to(5)
            cleanings.is_abandoned = True
            return
        raise LogGone(log.folder / "x.log")

    log = rig.make_log("t")
    cleanings.work["t"] = work
    assert rig.cleaner.clean_next()
    assert log.cleaning_problem is None
    assert rig.noted == []
    assert rig.cleaner.figures().totals.cleanings == 0
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_a_log_that_cannot_be_assessed_is_marked(
    rig: CleanerRig,
    cleanings: Cleanings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = rig.make_log("t")
    rig.make_log("u")
    calls = [0]

    def fail(log: Log, *figures: object) -> LogFigures:
        if log.topic_partition.topic != "t":
            return figures_of(log, 12)
        calls[0] += 1
        raise api_error(ErrorCode.CORRUPT_MESSAGE, "no batch at 0")

    monkeypatch.setattr(cleaner_module, "figures_of", fail)
    rig.clean_all()
    assert cleanings.calls == [("u", 12)]
    assert "no batch at 0" in (log.cleaning_problem or "")
    assert calls[0] > 1
    assert sum("t-0 cannot be compacted" in record.message for record in caplog.records) == 1


def test_retention_beside_an_assessment_does_not_mark_the_log(
    rig: CleanerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rig.make_log("t", max_compaction_lag_ms=1_000)
    read_into = SegmentFile.read_into

    def read_late(file: SegmentFile, *args: Any, **named: Any) -> int:
        monkeypatch.undo()
        log.increment_log_start_offset(log.segments[1].base_offset)
        log.config = log_config(cleanup_policy=("compact", "delete"), max_compaction_lag_ms=1_000)
        assert log.delete_old_segments(0, log.log_end_offset) == 1
        return read_into(file, *args, **named)

    monkeypatch.setattr(SegmentFile, "read_into", read_late)
    assert [figure.base_offset for figure in figures_of(log, 12).sealed] == [4, 8]


def test_ages_are_read_under_the_lock_because_a_damaged_index_is_rebuilt(
    rig: CleanerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rig.make_log("t", min_compaction_lag_ms=1_000)
    age, may_others = Segment.age, []

    def look(segment: Segment) -> SegmentAge:
        with ThreadPoolExecutor(1) as pool:
            may_others.append(pool.submit(log.lock.acquire, blocking=False).result(DEADLINE_S))
        return age(segment)

    monkeypatch.setattr(Segment, "age", look)
    figures_of(log, 12)
    assert set(may_others) == {False}


def test_a_log_that_keeps_changing_is_tried_again_only_after_the_backoff(
    rig: CleanerRig, cleanings: Cleanings
) -> None:
    def change(log: Log, pause: Pace) -> None:
        log.truncate_to(log.log_end_offset - 1)

    rig.make_log("t")
    cleanings.work["t"], cleanings.is_abandoned = change, True
    assert rig.clean_all() == 1
    rig.now_ms += SETTINGS.backoff_ms - 1
    assert rig.clean_all() == 0
    rig.now_ms += 1
    assert rig.clean_all() == 1


def test_a_buffer_size_of_zero_becomes_the_smallest_one() -> None:
    settings = SETTINGS._replace(dedupe_buffer_bytes=0, io_buffer_bytes=0, load_factor=0.0)
    assert (settings.map_bytes, settings.read_bytes) == (65_536, 16_384)
    assert SETTINGS._replace(threads=4, io_buffer_bytes=1 << 18).read_bytes == 32_768
    assert SETTINGS.read_bytes == 65_536


# Threads


def test_threads_clean_different_logs_at_the_same_time(rig: CleanerRig, cleanings: Cleanings) -> None:
    barrier = threading.Barrier(3)
    for topic in "abc":
        rig.make_log(topic)
        cleanings.work[topic] = lambda log, pause: [None, barrier.wait(DEADLINE_S)][0]
    rig.cleaner = rig.make_cleaner(threads=3)
    rig.cleaner.start()
    wait_for(lambda: len(cleanings.calls) == 3 and not rig.cleaner.figures().in_progress)
    assert sorted(cleanings.calls) == [("a", 12), ("b", 12), ("c", 12)]
    assert cleanings.maps == [int((1 << 20) / 3 * 0.9)] * 3
    assert rig.cleaner.figures().dead_threads == 0


def block(log: Log, pause: Pace) -> None:
    """A cleaning that never ends by itself."""
    while True:
        pause(1)


@pytest.mark.parametrize("is_throttled", [False, True])
def test_a_stop_ends_a_cleaning_in_progress(
    rig: CleanerRig, cleanings: Cleanings, is_throttled: bool
) -> None:
    log = rig.make_log("t")
    cleanings.work["t"] = block
    if is_throttled:
        rig.cleaner = rig.make_cleaner(max_io_bytes_per_second=0.0)
    rig.cleaner.start()
    wait_for(lambda: rig.cleaner.figures().in_progress == [log.topic_partition])
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("log-cleaner")]
    rig.cleaner.stop()
    assert not any(thread.is_alive() for thread in threads)
    assert (log.cleaning_problem, log.first_dirty_offset) == (None, 0)


def test_the_number_of_threads_changes_while_they_run(rig: CleanerRig, cleanings: Cleanings) -> None:
    for topic in "abcd":
        rig.make_log(topic)
        cleanings.work[topic] = block
    cleaner = rig.cleaner
    cleaner.start()

    def are_busy(threads: int) -> bool:
        return len(cleaner.figures().in_progress) == threads

    for threads in (1, 4, 2, 3, 0, 1):
        cleaner.reconfigure(SETTINGS._replace(threads=threads))
        wait_for(partial(are_busy, threads))
    cleanings.work.clear()
    cleaner.reconfigure(SETTINGS._replace(threads=2))
    wait_for(lambda: rig.cleaner.figures().totals.cleanings >= 3)
    assert all(log.cleaning_problem is None for log in rig.logs.all_logs())


def test_another_rate_wakes_a_throttled_cleaning(rig: CleanerRig, cleanings: Cleanings) -> None:
    rig.make_log("t")
    rig.cleaner = rig.make_cleaner(max_io_bytes_per_second=1.0)
    cleanings.work["t"] = lambda log, pause: pause(1_000_000)
    rig.cleaner.start()
    wait_for(lambda: rig.cleaner.figures().in_progress)
    rig.cleaner.reconfigure(SETTINGS._replace(max_io_bytes_per_second=1e9))
    wait_for(lambda: rig.cleaner.figures().totals.cleanings)


def test_a_topic_that_is_no_longer_compacted_ends_its_cleaning(rig: CleanerRig, cleanings: Cleanings) -> None:
    log = rig.make_log("t")
    cleanings.work["t"] = block
    rig.cleaner.start()
    wait_for(lambda: rig.cleaner.figures().in_progress)
    rig.configs["t"] = log_config()
    rig.logs.update_config(["t"])
    wait_for(lambda: not rig.cleaner.figures().in_progress)
    assert log.cleaning_problem is None


def test_a_thread_that_dies_ends_the_broker(
    rig: CleanerRig, cleanings: Cleanings, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ZeroDivisionError()
    monkeypatch.setattr(rig.logs, "all_logs", raising(error))
    rig.cleaner.start()
    assert rig.fatal.was_called.wait(DEADLINE_S)
    assert rig.fatal.errors == [error]
    rig.fatal.errors.clear()
    wait_for(lambda: rig.cleaner.figures().dead_threads == 1)
    monkeypatch.undo()


# Figures


def test_the_figures_of_the_last_cleanings(rig: CleanerRig, cleanings: Cleanings) -> None:
    log = rig.make_log("t", 4, max_compaction_lag_ms=1_000)
    log.bounds.raise_first_dirty(4, 0)
    assert rig.cleaner.figures().max_dirty_ratio == 0.0
    rig.now_ms += 3_500
    assert rig.cleaner.clean_next()
    figures = rig.cleaner.figures()
    assert (figures.max_dirty_ratio, figures.max_compaction_delay_ms) == (0.75, 2_500)
    assert figures.recopy_ratio == 0.4
    assert figures.totals == (1, 1_000, 400)
    rig.now_ms += 70
    assert rig.cleaner.figures().ms_since_last_assessment == 70
    assert rig.clean_all() == 0
    assert rig.cleaner.figures().max_dirty_ratio == 0.0
