"""Moves of logs between the log dirs of a broker: the copy, the swap, and what a stop leaves."""

import errno
import gc
import os
import re
import shutil
import tempfile
import threading
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.log import recovery
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.future_log import interrupted_swaps
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_bounds import LogBounds
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.segment import ReadResult
from barnabas.broker.log.storage_errors import CorruptLog, LogDirFailure, StorageCallFailed
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import Offset, TopicId, TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.record_batch import iter_batches
from tests.support.defaults import log_config
from tests.support.errors import refused
from tests.support.logs import (
    TOPIC_ID,
    append_batches,
    batch,
    crash,
    failing,
    flip_bits,
    get_or_create,
    headers_of,
    online,
    produced,
)
from tests.support.memory_folder import MEMORY

from .conftest import Managers

KEY = TopicPartition("t", 0)
_MANY_BYTES = 1 << 20


def dir_of(log: Log) -> str:
    return log.folder.parent.name


def names(managers: Managers, pattern: str = "t-*") -> list[str]:
    """The folders in both log dirs, with their unique parts left out."""
    return sorted(
        f"{path.name}/{folder.name[:3]}{re.sub('.*-', '*-', folder.name[3:])}"
        for path in managers.paths
        for folder in path.glob(pattern)
    )


def filled(manager: LogManager, key: TopicPartition = KEY, batches: int = 5) -> Log:
    """A log with records, in dir a, which comes first."""
    log = get_or_create(manager, key, TOPIC_ID, 0)
    for number in range(batches):
        append_batches(log, produced(number), 1 + number // 2)
    return log


def move(manager: LogManager, managers: Managers, key: TopicPartition = KEY, *, to: str = "b") -> None:
    manager.begin_move(key, managers.paths["ab".index(to)], 0)
    finish(manager, key)


def finish(manager: LogManager, key: TopicPartition = KEY, high_watermark: int = 0) -> None:
    future = manager.futures.get(key)
    assert future is not None
    while future.copy(_MANY_BYTES, 0):
        pass
    manager.checkpoint_high_watermarks({key: high_watermark})
    assert manager.finish_move(future, _MANY_BYTES, 0)


def test_a_log_moves_with_all_that_belongs_to_it(managers: Managers, manager: LogManager) -> None:
    managers.configs[KEY.topic] = log_config(segment_bytes=250)
    manager.update_config()
    log = filled(manager, batches=8)
    log.increment_log_start_offset(2)
    manager.checkpoint_high_watermarks({KEY: 6})
    view = log.read(3, 200).records
    before, copy = headers_of(log), bytes(view)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    assert names(managers) == ["a/t-0", "b/t-0*-future"]
    assert future.copy(1, 0) > 0
    finish(manager, high_watermark=6)
    assert online(manager, KEY) is log
    assert dir_of(log) == "b"
    assert names(managers) == ["a/t-0*-delete", "b/t-0"]
    assert headers_of(log) == before
    assert bytes(view) == copy, "a view outlives the move"
    assert append_batches(log, produced(7), 9).base_offset == 7, "a repeated batch is recognized"
    assert append_batches(log, produced(8), 9).base_offset == 8
    assert manager.remove_deleted(1 << 60) == 1
    assert names(managers) == ["b/t-0"]
    for is_clean in (False, True):
        crash(manager) if not is_clean else manager.close(0)
        manager = managers.open()
        again = online(manager, KEY)
        assert (again.log_start_offset, again.log_end_offset, again.topic_id) == (2, 9, TOPIC_ID)
        assert again.epoch_cache.entries == ((2, 2), (3, 4), (4, 6), (9, 8))
        assert manager.load_high_watermarks()[KEY] == 6
        assert append_batches(again, produced(8), 9).base_offset == 8


def test_a_move_begins_again_after_a_restart(managers: Managers, manager: LogManager) -> None:
    for is_clean in (False, True):
        log = filled(manager, batches=0 if is_clean else 5)
        if not is_clean:
            manager.begin_move(KEY, managers.paths[1], 0).copy(1, 0)
        crash(manager) if not is_clean else manager.close(0)
        manager = managers.open()
        future = manager.futures.get(KEY)
        assert future is not None
        assert future.log.log_end_offset == 0
        assert future.offset_lag == log.log_end_offset
        manager.remove_deleted(0)
        assert names(managers) == ["a/t-0", "b/t-0*-future"]
    finish(manager)
    assert headers_of(online(manager, KEY))[-1].last_offset == 4
    assert names(managers) == ["a/t-0*-delete", "b/t-0"]


def test_records_that_the_log_has_lost_are_truncated_from_its_copy(
    manager: LogManager, managers: Managers
) -> None:
    log = filled(manager)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    future.copy(_MANY_BYTES, 0)
    log.truncate_to(Offset(3))
    append_batches(log, produced(3), 9)
    future.copy(_MANY_BYTES, 0)
    assert headers_of(future.log) == headers_of(log)
    assert future.log.epoch_cache.entries == ((1, 0), (2, 2), (9, 3))


def test_the_copy_takes_over_what_the_log_is_given_meanwhile(managers: Managers, manager: LogManager) -> None:
    log = manager.get_or_create_without_id(KEY, None, 0)
    for number in range(4):
        append_batches(log, produced(number), 1)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    future.copy(_MANY_BYTES, 0)
    assert (future.offset_lag, future.log.log_start_offset) == (0, 0)
    append_batches(log, produced(4), 1)
    assert future.offset_lag == 1
    log.increment_log_start_offset(3)
    log.assign_topic_id(TOPIC_ID)
    finish(manager)
    append_batches(log, produced(5), 2)
    crash(manager)
    log = online(managers.open(), KEY)
    assert (log.log_start_offset, log.log_end_offset, log.topic_id) == (3, 6, TOPIC_ID)


def test_the_last_records_are_as_safe_in_the_copy(managers: Managers, manager: LogManager) -> None:
    log = filled(manager)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    log.flush(0)
    assert not future.catch_up(1, 0), "more is left than may be copied under the lock"
    assert future.catch_up(_MANY_BYTES, 0)
    assert future.log.recovery_point == log.recovery_point == 5


def test_a_truncation_during_a_read_discards_its_bytes(
    managers: Managers, manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(manager)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    read = log.read

    def read_and_truncate(offset: int, max_bytes: int) -> ReadResult:
        result = read(offset, max_bytes)
        log.truncate_to(3)
        return result

    monkeypatch.setattr(log, "read", read_and_truncate)
    assert future.copy(_MANY_BYTES, 0) == 0
    monkeypatch.undo()
    append_batches(log, produced(3), 9)
    finish(manager)
    assert [header.partition_leader_epoch for header in headers_of(log)] == [1, 1, 2, 9]


@pytest.mark.parametrize("change", ["truncation", "deletion"])
def test_a_read_that_a_change_of_the_log_refuses_is_made_again(
    managers: Managers, manager: LogManager, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    log = filled(manager)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    future.copy(120, 0)
    assert 0 < future.log.log_end_offset < 4
    read = log.read

    def change_and_read(offset: int, max_bytes: int) -> ReadResult:
        if change == "truncation":
            log.truncate_to(0)
        else:
            log.increment_log_start_offset(4)
        return read(offset, max_bytes)

    monkeypatch.setattr(log, "read", change_and_read)
    assert future.copy(_MANY_BYTES, 0) == 0
    monkeypatch.undo()
    finish(manager)
    start = 4 if change == "deletion" else 0
    assert (log.log_start_offset, log.log_end_offset) == (start, 5 if start else 0)


def test_a_read_that_fails_fails_the_copy(
    managers: Managers, manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(manager)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    monkeypatch.setattr(
        log, "read", Mock(side_effect=LogDirFailure(log.folder, OSError(errno.EIO, "broken")))
    )
    with pytest.raises(LogDirFailure):
        future.copy(_MANY_BYTES, 0)


def test_a_move_changes_the_bounds_of_a_log_under_its_lock(managers: Managers, manager: LogManager) -> None:
    log = filled(manager)
    manager.begin_move(KEY, managers.paths[1], 0)

    class Watched(LogBounds):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            assert log.lock._is_owned(), name
            super().__setattr__(name, value)

    log.bounds.__class__ = Watched
    finish(manager)
    assert dir_of(log) == "b"


def test_a_copy_that_has_not_caught_up_is_refused_before_anything_is_renamed(
    managers: Managers, manager: LogManager
) -> None:
    log = filled(manager)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    future.copy(1, 0)
    with log.lock, pytest.raises(InvariantViolation):
        future.swap(log.files)
    assert names(managers) == ["a/t-0", "b/t-0*-future"]


def test_a_cancelled_move_leaves_no_files(managers: Managers, manager: LogManager) -> None:
    log = filled(manager)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    future.copy(_MANY_BYTES, 0)
    manager.end_move(KEY, 0)
    assert manager.futures.get(KEY) is None
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        manager.finish_move(future, _MANY_BYTES, 0)
    assert manager.remove_deleted(0) == 1
    assert names(managers) == ["a/t-0"]
    assert (dir_of(log), log.log_end_offset) == ("a", 5)


def test_a_deletion_removes_both_logs(managers: Managers, manager: LogManager) -> None:
    filled(manager)
    manager.begin_move(KEY, managers.paths[1], 0)
    manager.delete(KEY, 0)
    manager.remove_deleted(1 << 60)
    assert names(managers) == []
    crash(manager)
    assert managers.open().get(KEY) is None


def test_setting_a_log_aside_ends_its_move(managers: Managers, manager: LogManager) -> None:
    filled(manager)
    manager.begin_move(KEY, managers.paths[1], 0)
    manager.set_aside(KEY, 0)
    manager.remove_deleted(1 << 60)
    assert names(managers) == ["a/t-0*-stray"]


def test_future_logs_count_for_the_choice_of_a_dir(managers: Managers, manager: LogManager) -> None:
    for number in range(4):
        get_or_create(manager, TopicPartition("t", number), TOPIC_ID, 0)
    assert names(managers) == ["a/t-0", "a/t-2", "b/t-1", "b/t-3"]
    manager.begin_move(KEY, managers.paths[1], 0)
    assert dir_of(get_or_create(manager, TopicPartition("t", 4), TOPIC_ID, 0)) == "a"
    assert dir_of(get_or_create(manager, TopicPartition("t", 5), TOPIC_ID, 0)) == "a", "the first of equals"
    finish(manager)
    # Now a has t-2, t-4 and t-5, b has t-0, t-1 and t-3.
    assert dir_of(get_or_create(manager, TopicPartition("t", 6), TOPIC_ID, 0)) == "a"
    assert dir_of(get_or_create(manager, TopicPartition("t", 7), TOPIC_ID, 0)) == "b"


def test_a_missing_log_is_created_in_its_preferred_dir(managers: Managers, manager: LogManager) -> None:
    with refused(ErrorCode.REPLICA_NOT_AVAILABLE):
        manager.begin_move(KEY, managers.paths[1], 0)
    assert dir_of(get_or_create(manager, KEY, TOPIC_ID, 0)) == "b"
    # The preference holds for one creation.
    manager.delete(KEY, 0)
    assert dir_of(get_or_create(manager, KEY, TOPIC_ID, 0)) == "a"


A, B, C = Path("/a"), Path("/b"), Path("/c")
UNIQUE, UNRELATED = "0" * 32, "1" * 32


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        ({A: ["t-0"], B: [f"t-0.{UNIQUE}-future"]}, []),
        (
            {A: [f"t-0.{UNIQUE}-delete"], B: [f"t-0.{UNIQUE}-future"]},
            [(B / f"t-0.{UNIQUE}-future", B / "t-0")],
        ),
        ({A: [f"t-0.{UNIQUE}-delete"], B: ["t-0"]}, []),
        ({A: [f"t-0.{UNRELATED}-delete"], B: [f"t-0.{UNIQUE}-future"]}, []),
        ({A: [], B: [f"t-0.{UNIQUE}-future"]}, []),
        ({A: [f"t-0.{UNIQUE}-delete"], B: [f"t-0.{UNIQUE}-future"], C: ["t-0"]}, []),
        ({A: [f"t-0.{UNIQUE}-delete", f"t-0.{UNIQUE}-future"]}, [(A / f"t-0.{UNIQUE}-future", A / "t-0")]),
    ],
)
def test_a_start_finishes_the_swaps_that_were_committed(
    folders: dict[Path, list[str]], expected: list[tuple[Path, Path]]
) -> None:
    assert interrupted_swaps([path / name for path, names in folders.items() for name in names]) == expected


def test_a_dir_is_offline_if_a_file_has_the_name_of_a_log_that_has_moved(
    managers: Managers, manager: LogManager
) -> None:
    filled(manager)
    move(manager, managers)
    crash(manager)
    (deleted,) = managers.paths[0].glob("*-delete")
    moved = managers.paths[1] / "t-0"
    future = moved.rename(managers.paths[1] / deleted.name.replace("-delete", "-future"))
    moved.write_text("a file, where a folder is expected")
    manager = managers.open()
    assert list(manager.offline_dirs) == [managers.paths[1]]
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        get_or_create(manager, KEY, TOPIC_ID, 0)
    crash(manager)
    moved.unlink()
    assert online(managers.open(), KEY).log_end_offset == 5
    assert not future.exists()


def test_no_deleted_log_is_removed_while_the_dir_of_its_successor_may_be_offline(
    managers: Managers, manager: LogManager
) -> None:
    filled(manager)
    move(manager, managers)
    crash(manager)
    # As a stop between the two renames leaves it.
    (deleted,) = managers.paths[0].glob("*-delete")
    future = managers.paths[1] / deleted.name.replace("-delete", "-future")
    (managers.paths[1] / "t-0").rename(future)
    hidden = managers.paths[1].rename(managers.paths[1].with_name("hidden"))
    managers.paths[1].write_text("a file, where a folder is expected")
    manager = managers.open()
    assert managers.paths[1] in manager.offline_dirs
    assert manager.remove_deleted(1 << 60) == 0
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        get_or_create(manager, KEY, TOPIC_ID, 0)
    crash(manager)
    managers.paths[1].unlink()
    hidden.rename(managers.paths[1])
    manager = managers.open()
    assert online(manager, KEY).log_end_offset == 5
    assert manager.remove_deleted(1 << 60) == 1
    assert names(managers) == ["b/t-0"]


def test_a_dir_in_which_a_swap_cannot_be_finished_stays_offline_as_a_whole(
    managers: Managers, manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(manager)
    other = TopicPartition("t", 1)
    assert dir_of(filled(manager, other)) == "b"
    move(manager, managers)
    crash(manager)
    # As a stop between the two renames leaves it.
    (deleted,) = managers.paths[0].glob("*-delete")
    future = managers.paths[1] / deleted.name.replace("-delete", "-future")
    (managers.paths[1] / "t-0").rename(future)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "rename", failing(errno.EIO))
        manager = managers.open()
    assert list(manager.offline_dirs) == [managers.paths[1]]
    assert (manager.get(KEY), manager.get(other)) == (None, None)
    for key in (KEY, other):
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            get_or_create(manager, key, TOPIC_ID, 0)
    assert manager.remove_deleted(1 << 60) == 0
    crash(manager)
    manager = managers.open()
    assert [online(manager, key).log_end_offset for key in (KEY, other)] == [5, 5]


def test_a_future_log_of_an_earlier_topic_is_removed_at_the_start(managers: Managers) -> None:
    manager = managers.open()
    filled(manager)
    manager.begin_move(KEY, managers.paths[1], 0)
    crash(manager)
    (managers.paths[0] / "t-0").rename(managers.paths[0] / f"t-0.{UNRELATED}-delete")
    manager = managers.open()
    assert not manager.futures
    assert manager.remove_deleted(1 << 60) == 1
    assert names(managers) == ["b/t-0*-future"], "it may be the last copy"
    get_or_create(manager, KEY, TopicId(uuid.uuid4()), 0)
    crash(manager)
    manager = managers.open()
    manager.remove_deleted(1 << 60)
    assert names(managers) == ["a/t-0"]


def check_that_a_deletion_removes_both(managers: Managers, manager: LogManager) -> None:
    assert names(managers) == ["a/t-0", "b/t-0*-future"]
    assert manager.delete(KEY, 0, TOPIC_ID)
    manager.remove_deleted(1 << 60)
    assert names(managers) == []


def test_a_deletion_removes_the_copy_of_a_log_that_could_not_be_opened(
    managers: Managers, manager: LogManager
) -> None:
    log = filled(manager)
    log.flush(0)
    manager.checkpoint_pass(0)
    manager.begin_move(KEY, managers.paths[1], 0).copy(_MANY_BYTES, 0)
    crash(manager)
    flip_bits(log.segments[0].file.path, 100)
    manager = managers.open()
    assert isinstance(manager.offline_partitions[KEY], CorruptLog)
    check_that_a_deletion_removes_both(managers, manager)


def test_damage_that_is_found_during_a_move_ends_the_move_and_keeps_the_copy(
    managers: Managers, manager: LogManager
) -> None:
    log = filled(manager)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    future.copy(_MANY_BYTES, 0)
    manager.fail_log(CorruptLog(log.segments[0].file.path, 0, 0, 5, "bad"), log)
    assert not manager.futures
    assert future.log.is_closed
    check_that_a_deletion_removes_both(managers, manager)


def test_damage_in_the_files_that_a_log_has_left_is_not_its_own(
    managers: Managers, manager: LogManager
) -> None:
    log = filled(manager)
    left = log.segments[0].file.path
    move(manager, managers)
    manager.fail_log(CorruptLog(left, 0, 0, 5, "bad"), log)
    assert online(manager, KEY).log_end_offset == 5


@pytest.mark.parametrize("change", ["truncation", "deletion"])
def test_checkpoints_of_an_earlier_state_of_the_log_are_not_left_to_its_copy(
    managers: Managers, manager: LogManager, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    log = filled(manager)
    log.flush(0)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    assert future is not None
    future.copy(_MANY_BYTES, 0)
    catch_up = future.catch_up

    def change_first(max_bytes: int, now_ms: int) -> bool:
        if change == "truncation":
            log.truncate_to(3)
            append_batches(log, produced(3), 9)
        else:
            log.increment_log_start_offset(2)
        return catch_up(max_bytes, now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(future, "catch_up", change_first)
        assert not manager.finish_move(future, _MANY_BYTES, 0)
    assert dir_of(log) == "a"
    finish(manager)
    crash(manager)
    log = online(managers.open(), KEY)
    assert (log.log_start_offset, log.log_end_offset) == ((0, 4) if change == "truncation" else (2, 5))


@pytest.mark.parametrize("end", ["cancellation", "deletion", "failure"])
def test_a_move_that_ends_while_it_catches_up_changes_no_folder(
    managers: Managers, manager: LogManager, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    log = filled(manager)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    assert future is not None
    catch_up = future.catch_up

    def catch_up_and_end(max_bytes: int, now_ms: int) -> bool:
        is_equal = catch_up(max_bytes, now_ms)
        if end == "cancellation":
            manager.end_move(KEY, 0)
        elif end == "deletion":
            # As far as it comes without the log's lock.
            with manager._lock:
                manager._pop(KEY)
        else:
            manager.fail_dir(LogDirFailure(managers.paths[1], OSError(errno.EIO, "broken")))
        return is_equal

    monkeypatch.setattr(future, "catch_up", catch_up_and_end)
    assert not manager.finish_move(future, _MANY_BYTES, 0)
    assert dir_of(log) == "a"
    assert "a/t-0" in names(managers)
    assert "b/t-0" not in names(managers)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_move_that_cannot_begin_leaves_the_log_to_the_cleaner(
    managers: Managers, manager: LogManager, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    log = filled(manager)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "write_atomically", failing(number))
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            manager.begin_move(KEY, managers.paths[1], 0)
    assert not manager.futures
    assert not log.is_moving
    if number == errno.EMFILE:
        assert names(managers) == ["a/t-0"]


def test_a_cancellation_that_does_not_reach_the_disk_is_not_confirmed(
    managers: Managers, manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start begins the move again."""
    filled(manager)
    manager.begin_move(KEY, managers.paths[1], 0)
    monkeypatch.setattr(FileSystem, "rename", failing(errno.EIO))
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        manager.begin_move(KEY, managers.paths[0], 0)
    assert not manager.futures


def test_the_copy_of_a_move_that_has_ended_is_freed(managers: Managers, manager: LogManager) -> None:
    filled(manager)
    future = manager.begin_move(KEY, managers.paths[1], 0)
    assert future is not None
    copy = weakref.ref(future.log)
    del future
    finish(manager)
    gc.collect()
    assert copy() is None


def test_a_request_replaces_the_move_of_a_log_that_was_opened_late(
    managers: Managers, manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(manager)
    manager.begin_move(KEY, managers.paths[1], 0)
    crash(manager)
    read = recovery.read_partition_metadata

    def read_or_fail(folder: Path) -> TopicId | None:
        if folder == managers.paths[0] / "t-0":
            raise StorageCallFailed(folder, OSError(errno.EMFILE, "too many"))
        return read(folder)

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "read_partition_metadata", read_or_fail)
        manager = managers.open()
    assert manager.get_or_open(KEY, 0)
    assert names(managers) == ["a/t-0", "b/t-0*-future"]
    move(manager, managers)
    manager.remove_deleted(1 << 60)
    assert names(managers) == ["b/t-0"]


def test_a_copy_in_the_dir_of_its_log_ends_no_move_at_a_start(
    managers: Managers, manager: LogManager
) -> None:
    filled(manager)
    manager.begin_move(KEY, managers.paths[1], 0)
    crash(manager)
    (future,) = managers.paths[1].glob("*-future")
    shutil.copytree(future, managers.paths[0] / f"t-0.{UNRELATED}-future")
    manager = managers.open(paths=managers.paths[::-1])
    assert [future.path for future in manager.futures.values()] == [managers.paths[1]]
    manager.remove_deleted(1 << 60)
    assert names(managers) == ["a/t-0", "b/t-0*-future"]


# Failing disks


class FailingDir:
    """Makes the n-th rename or sync in a log dir fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> None:
        self._path, self._left = path, number
        for method in ("rename", "fsync"):
            monkeypatch.setattr(FileSystem, method, self._watched(getattr(FileSystem, method)))

    def _watched(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(files: FileSystem, changed: Path | int, *rest: Path) -> None:
            if isinstance(changed, Path) and changed.is_relative_to(self._path):
                self._left -= 1
                if not self._left:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(files, changed, *rest)

        return call

    @property
    def has_failed(self) -> bool:
        return self._left <= 0


@pytest.mark.parametrize("in_dir", ["a", "b"])
def test_the_failure_of_a_dir_at_any_step_of_a_swap_loses_nothing(
    managers: Managers, monkeypatch: pytest.MonkeyPatch, in_dir: str
) -> None:
    path = managers.paths["ab".index(in_dir)]
    outcomes = set()
    for number in range(1, 100):
        manager = managers.open()
        log = filled(manager)
        future = manager.begin_move(KEY, managers.paths[1], 0)
        while future.copy(_MANY_BYTES, 0):
            pass
        with monkeypatch.context() as patch:
            disk = FailingDir(patch, path, number)
            try:
                assert manager.finish_move(future, _MANY_BYTES, 0)
            except LogDirFailure as failure:
                manager.fail_dir(failure)
                is_failed = path in manager.offline_dirs
                outcomes.add("offline" if manager.get(KEY) is None else "kept")
            else:
                is_failed = False
        here = manager.get(KEY)
        assert (here is None) <= is_failed
        end = 5
        if here is not None:
            # The log must not be in both dirs: what it takes now would be lost.
            append_batches(here, batch(), 50)
            end = 6
        else:
            assert manager.dir_of_offline(KEY) == path
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                append_batches(log, batch(), 50)
        crash(manager)
        manager = managers.open()
        assert online(manager, KEY).log_end_offset == end
        manager.delete(KEY, 0)
        manager.remove_deleted(1 << 60)
        assert names(managers) == []
        crash(manager)
        if not disk.has_failed:
            break
    assert not disk.has_failed
    assert outcomes == ({"offline"} if in_dir == "a" else {"offline", "kept"})


def test_a_dir_that_fails_ends_only_the_moves_to_it(managers: Managers, manager: LogManager) -> None:
    log = filled(manager)
    manager.begin_move(KEY, managers.paths[1], 0).copy(_MANY_BYTES, 0)
    failure = LogDirFailure(managers.paths[1], OSError(errno.EIO, "broken"))
    assert manager.fail_dir(failure) == []
    assert manager.futures.get(KEY) is None
    assert append_batches(log, produced(5), 9).base_offset == 5
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        manager.begin_move(KEY, managers.paths[1], 0)
    manager.close(0)
    # The move goes on when the dir is back.
    manager = managers.open()
    finish(manager)
    assert (dir_of(online(manager, KEY)), online(manager, KEY).log_end_offset) == ("b", 6)


def test_a_move_ends_with_the_dir_of_the_current_log(managers: Managers, manager: LogManager) -> None:
    filled(manager)
    manager.begin_move(KEY, managers.paths[1], 0).copy(1, 0)
    failure = LogDirFailure(managers.paths[0], OSError(errno.EIO, "broken"))
    assert manager.fail_dir(failure) == [KEY]
    assert manager.futures.get(KEY) is None
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        get_or_create(manager, KEY, TOPIC_ID, 0)
    manager.close(0)
    manager = managers.open()
    finish(manager)
    assert online(manager, KEY).log_end_offset == 5


def test_a_missing_file_of_the_folder_that_a_log_has_left_is_no_failure(
    managers: Managers, manager: LogManager
) -> None:
    log = filled(manager)
    before = log.folder
    manager.begin_move(KEY, managers.paths[1], 0)
    future = manager.futures.get(KEY)
    assert future is not None
    left = (before / "00000000000000000000.log", future.log.folder / "x.log")
    finish(manager)
    for path in left:
        assert manager.fail_dir(LogDirFailure(path, FileNotFoundError(errno.ENOENT, "gone"))) == []
    assert not manager.offline_dirs
    assert manager.fail_dir(LogDirFailure(log.folder / "x.log", FileNotFoundError(errno.ENOENT, "gone"))) == [
        KEY
    ]


# The copy follows


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_copy_equals_the_log_whatever_happens_to_it_meanwhile(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        check_copy(Managers(Path(folder)), data)


def check_copy(managers: Managers, data: st.DataObject) -> None:
    managers.configs[KEY.topic] = log_config(segment_bytes=300, index_interval_bytes=100, retention_ms=-1)
    manager = managers.open()
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    manager.begin_move(KEY, managers.paths[1], 0)
    epoch = 1
    for number in range(data.draw(st.integers(1, 25))):
        end, start = log.log_end_offset, log.log_start_offset
        step = data.draw(
            st.sampled_from(("append", "append", "cut", "restart", "delete", "roll", "copy", "stop"))
        )
        if step == "append":
            append_batches(log, batch(data.draw(st.integers(1, 3)), size=1 + number), epoch)
        elif step == "cut":
            log.truncate_to(data.draw(st.integers(start, end)))
            epoch += 1
        elif step == "restart":
            log.truncate_fully_and_start_at(data.draw(st.integers(max(0, start - 2), end + 5)))
            epoch += 1
        elif step == "delete":
            log.increment_log_start_offset(data.draw(st.integers(start, end)))
            if data.draw(st.booleans()):
                log.delete_old_segments(0, end)
        elif step == "roll":
            log.roll(0)
        elif step == "copy":
            future = manager.futures.get(KEY)
            assert future is not None
            future.copy(data.draw(st.integers(1, 400)), 0)
        else:
            manager.checkpoint_pass(0)
            manager.close(0)
            manager = managers.open()
            log = online(manager, KEY)
    expected = headers_of(log)
    before = (log.log_start_offset, log.log_end_offset, log.epoch_cache.entries)
    finish(manager)
    assert dir_of(log) == "b"
    assert headers_of(log) == expected
    assert (log.log_start_offset, log.log_end_offset, log.epoch_cache.entries) == before
    crash(manager)
    log = online(managers.open(), KEY)
    assert headers_of(log) == expected
    assert (log.log_start_offset, log.log_end_offset) == before[:2]
    for opened in managers._opened:
        crash(opened)


# Threads


def test_readers_and_a_writer_do_not_notice_moves(managers: Managers) -> None:
    managers.configs[KEY.topic] = log_config(segment_bytes=20_000, file_delete_delay_ms=0)
    manager = managers.open()
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    append_batches(log, batch(10))
    stopping, moves = threading.Event(), 0
    reads = [0, 0]

    def write() -> None:
        # The copy competes with five threads and must catch up.
        while not stopping.wait(0.002):
            append_batches(log, batch(3, size=200), 1)

    def read(number: int) -> None:
        offset, may_wait = 0, True
        while not stopping.is_set():
            try:
                result = log.read(offset, 5_000, may_wait=may_wait)
            except NotCached:
                may_wait = True
                continue
            may_wait = not number
            heads = [head for _, head in iter_batches(result.records)]
            assert all(head.base_offset <= offset <= head.last_offset for head in heads[:1])
            reads[number] += len(heads)
            offset = int(result.next_offset) if heads else 0
            log.offset_for_timestamp(0)

    def keep() -> None:
        while not stopping.wait(0.005):
            manager.flush_pass(0)
            manager.checkpoint_pass(0)
            manager.checkpoint_high_watermarks({KEY: 5})
            manager.remove_deleted(1 << 60)

    with ThreadPoolExecutor(4) as pool:
        works = [pool.submit(write), pool.submit(read, 0), pool.submit(read, 1), pool.submit(keep)]
        try:
            while (moves < 4 or not min(reads)) and not any(work.done() for work in works):
                target = managers.paths[log.folder.parent == managers.paths[0]]
                future = manager.begin_move(KEY, target, 0)
                while not manager.finish_move(future, 1 << 20, 0):
                    while future.copy(_MANY_BYTES, 0):
                        pass
                assert log.folder.parent == target
                moves += 1
        finally:
            stopping.set()
        for work in works:
            work.result(30)
    assert not manager.offline_dirs
    end = log.log_end_offset
    assert headers_of(log)[0].base_offset == 0
    crash(manager)
    assert online(managers.open(), KEY).log_end_offset == end
