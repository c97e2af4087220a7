"""The cleaner with real cleanings of real logs: what is left, and logs whose files fail or change."""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.base.pacing import Pace
from barnabas.broker.log.file_system import CLEANED_SUFFIX, SWAP_SUFFIX, FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.protocol.ids import TopicPartition
from tests.support.batches import build_batch
from tests.support.cleaner import SETTINGS, CleanerRig
from tests.support.compaction import records_in
from tests.support.logs import append_batches, flip_bits, log_files
from tests.support.waiting import wait_for


class FailingDisk(FileSystem):
    """Refuses changes of the files with a suffix, while the test says so."""

    def __init__(self) -> None:
        self.suffix: str | None = None
        self.error_number = errno.ENOSPC

    def _check(self, file: int | Path) -> None:
        path = file if isinstance(file, Path) else Path(os.readlink(f"/proc/self/fd/{file}"))
        if path.suffix == self.suffix:
            raise OSError(self.error_number, os.strerror(self.error_number))

    def pwrite(self, descriptor: int, data: memoryview | bytes, position: int) -> int:
        self._check(descriptor)
        return os.pwrite(descriptor, data, position)

    def rename(self, source: Path, target: Path) -> None:
        self._check(target)
        super().rename(source, target)


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def rig(tmp_path: Path, disk: FailingDisk) -> Iterator[CleanerRig]:
    made = CleanerRig(tmp_path, disk)
    yield made
    made.release()


def last_values(log: Log) -> dict[bytes | None, bytes | None]:
    return {key: value for _, _, key, value, _ in records_in(log)}


def other_files(log: Log) -> list[str]:
    """The files of unfinished cleanings."""
    return [path.name for path in log.folder.iterdir() if path.suffix in (CLEANED_SUFFIX, SWAP_SUFFIX)]


def test_the_last_value_of_each_key_stays_at_its_offset(rig: CleanerRig) -> None:
    log = rig.make_log("t", 5, keys=10)
    rig.write(log, 5, keys=3)
    before = records_in(log)
    rig.clean_all()
    assert records_in(log) == before[40:]
    assert [offset for offset, *_ in before[40:]] == list(range(40, 53))
    assert (log.first_dirty_offset, log.log_end_offset, len(log.segments)) == (50, 53, 2)
    figures = rig.cleaner.figures()
    assert figures.totals.cleanings == 1
    assert 0 < figures.recopy_ratio < 0.5
    assert 0 < figures.max_buffer_utilization < 1


def test_the_removal_of_records_without_a_key_is_logged(
    rig: CleanerRig, caplog: pytest.LogCaptureFixture
) -> None:
    log = rig.make_log("t")
    append_batches(log, build_batch([(None, b"1"), (b"key-0", b"2"), (None, b"3")], timestamp_ms=rig.now_ms))
    log.roll(0)
    rig.clean_all()
    [message] = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert message == "t-0: 2 records without a key were removed, because the topic is compacted"


def test_no_lock_is_held_while_a_cleaning_reads(rig: CleanerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rig.make_log("t", min_compaction_lag_ms=1, max_compaction_lag_ms=1 << 40)
    rig.now_ms += 10
    reads: list[bool] = []
    real = SegmentFile.read_into

    def read_into(self: SegmentFile, *arguments: Any, **options: Any) -> int:
        # The lock is reentrant, so another thread must try to take it.
        taken: list[bool] = []

        def take() -> None:
            taken.append(log.lock.acquire(blocking=False))
            if taken[0]:
                log.lock.release()

        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        reads.append(taken[0])
        return real(self, *arguments, **options)

    monkeypatch.setattr(SegmentFile, "read_into", read_into)
    rig.clean_all()
    assert log.first_dirty_offset == 12
    assert len(reads) > 3
    assert all(reads)


def test_a_damaged_log_is_marked_and_keeps_its_files(
    rig: CleanerRig, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, sound = rig.make_log("a", 5), rig.make_log("b")
    flip_bits(log_files(damaged)[1], 80)
    before = {path.name: path.read_bytes() for path in damaged.folder.iterdir()}
    rig.clean_all()
    assert "the log is damaged" in (damaged.cleaning_problem or "")
    assert "barnabas log verify" in (damaged.cleaning_problem or "")
    assert {path.name: path.read_bytes() for path in damaged.folder.iterdir()} == before
    assert len(records_in(sound)) == 4
    assert (rig.noted, other_files(damaged)) == ([], [])
    [error] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert error.exc_info is None, "a damaged log needs no traceback"


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_refuses_cleaned_files_takes_no_log_dir_offline(
    rig: CleanerRig, disk: FailingDisk, error_number: int
) -> None:
    log = rig.make_log("t")
    disk.suffix, disk.error_number = CLEANED_SUFFIX, error_number
    rig.clean_all()
    assert os.strerror(error_number) in (log.cleaning_problem or "")
    assert (rig.noted, rig.logs.offline_dirs, other_files(log)) == ([], {}, [])
    assert len(records_in(log)) == 12
    rig.write(log, 3)
    disk.suffix = None
    rig.now_ms += 60_000
    rig.clean_all()
    assert (log.cleaning_problem, len(records_in(log))) == (None, 8)


def test_a_swap_that_fails_takes_its_log_dir_offline(rig: CleanerRig, disk: FailingDisk) -> None:
    log = rig.make_log("t")
    disk.suffix, disk.error_number = SWAP_SUFFIX, errno.EIO

    assert rig.cleaner.clean_next()
    [failure] = rig.noted
    assert isinstance(failure, LogDirFailure)
    assert failure.path.is_relative_to(log.folder.parent)
    assert log.cleaning_problem is None


def in_the_middle(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> list[int]:
    """Do something else with the logs once, in the middle of the first cleaning.

    Returns the bytes that the cleaning has read or written before.
    """
    before: list[int] = []
    real = Pace.__call__

    def call(pace: Pace, size_bytes: int) -> None:
        if size_bytes:
            before.append(size_bytes)
            if len(before) == 6:
                work()
        real(pace, size_bytes)

    monkeypatch.setattr(Pace, "__call__", call)
    return before


@pytest.mark.parametrize("change", ["truncate", "restart at", "delete", "close", "retention", "roll"])
def test_a_log_that_changes_in_the_middle_is_neither_marked_nor_harmed(
    rig: CleanerRig, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    log = rig.make_log("t", 8, cleanup_policy=("compact", "delete"), retention_ms=1_000)
    name = log.topic_partition
    changes: dict[str, Callable[[], object]] = {
        "truncate": lambda: log.truncate_to(17),
        "restart at": lambda: log.truncate_fully_and_start_at(100),
        "delete": lambda: rig.logs.delete(name, rig.now_ms),
        "close": lambda: log.close(rig.now_ms),
        "retention": lambda: log.delete_old_segments(rig.now_ms + 2_000, 32),
        "roll": lambda: (rig.write(log, 8), log.roll(rig.now_ms)),
    }
    pieces = in_the_middle(monkeypatch, changes[change])
    assert rig.cleaner.clean_next()
    assert len(pieces) >= 6
    assert (log.cleaning_problem, rig.noted) == (None, [])
    if change not in ("delete", "close"):
        assert other_files(log) == []
        expected = {
            "truncate": {b"key-0": b"value-4"} | {b"key-%d" % key: b"value-3" for key in (1, 2, 3)},
            "restart at": {},
            "retention": {},
            "roll": {b"key-%d" % key: b"value-8" for key in range(4)},
        }
        if change != "truncate":
            assert last_values(log) == expected[change]
        rig.now_ms += SETTINGS.backoff_ms
        rig.clean_all()
        assert log.cleaning_problem is None


def test_a_log_that_is_written_during_cleanings_keeps_its_last_values(rig: CleanerRig) -> None:
    """Cleans on the real threads while one thread appends and rolls, and another reads."""
    log = rig.make_log("t", 1, keys=5, min_cleanable_dirty_ratio=0.01)
    rig.cleaner = rig.make_cleaner(threads=2, backoff_ms=1)
    rig.cleaner.start()
    problems: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                offset = int(log.log_start_offset)
                while offset < (end := log.log_end_offset):
                    result = log.read(offset, 1 << 20)
                    # All records up to the end may be gone before they are read, but only if newer ones came.
                    assert result.next_offset > offset or log.log_end_offset > end
                    offset = result.next_offset
        except BaseException as error:
            problems.append(error)
            raise

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 200):
        rig.write(log, number, keys=5)
        if number % 3 == 0:
            log.roll(rig.now_ms)
    log.roll(rig.now_ms)
    wait_for(lambda: log.first_dirty_offset == log.log_end_offset)
    done.set()
    reader.join()
    rig.cleaner.stop()
    assert problems == []
    assert last_values(log) == {b"key-%d" % key: b"value-199" for key in range(5)}
    assert len(records_in(log)) == 5
    assert rig.logs.get(TopicPartition("t", 0)) is log


def test_a_move_to_another_log_dir_brings_no_deleted_key_back(rig: CleanerRig) -> None:
    log = rig.make_log("t", 1, delete_retention_ms=0, min_cleanable_dirty_ratio=0.0)
    append_batches(log, build_batch([(b"key-0", None)], timestamp_ms=rig.now_ms), now_ms=rig.now_ms)
    log.roll(rig.now_ms)
    target = next(path for path in rig.logs.dirs if path != log.folder.parent)
    future = rig.logs.begin_move(log.topic_partition, target, rig.now_ms)
    assert future.copy(1, rig.now_ms) > 0, "the values, and not the tombstone"
    assert future.offset_lag == 1
    for number in range(1, 4):
        rig.now_ms += 100_000
        rig.clean_all()
        append_batches(log, build_batch([(b"key-1", b"%d" % number)], timestamp_ms=rig.now_ms))
        log.roll(rig.now_ms)
    while future.copy(1 << 20, rig.now_ms):
        pass
    assert rig.logs.finish_move(future, 1 << 20, rig.now_ms)
    assert last_values(log).get(b"key-0") is None
    log.roll(rig.now_ms)
    assert rig.clean_all() > 0
    values = {b"key-%d" % number: b"value-0" for number in range(2, 4)}
    assert last_values(log) == {b"key-0": None, b"key-1": b"3", **values}


def test_the_figures_count_a_log_that_moves(rig: CleanerRig) -> None:
    log = rig.make_log("t", 1, min_cleanable_dirty_ratio=0.0)
    target = next(path for path in rig.logs.dirs if path != log.folder.parent)
    rig.logs.begin_move(log.topic_partition, target, rig.now_ms)
    assert rig.clean_all() == 0
    assert rig.cleaner.figures().max_dirty_ratio == 1
