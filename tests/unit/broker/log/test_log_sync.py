"""Syncs: each changed file once, and many logs with one call."""

import errno
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from barnabas.broker.log import log_dir
from barnabas.broker.log.epoch_cache import EpochCache
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.storage_errors import CorruptLog
from barnabas.protocol.ids import TopicPartition
from tests.support.defaults import log_config
from tests.support.logs import (
    TOPIC_ID,
    append_batches,
    crash,
    flip_bits,
    get_or_create,
    online,
    produced,
    spy,
)
from tests.support.slow_disk import SlowDisk
from tests.support.waiting import DEADLINE_S

from .conftest import Managers, OpenLog

KEYS = [TopicPartition("t", number) for number in range(12)]
MARK = ".kafka_cleanshutdown"


class NotingDisk(FileSystem):
    """Records which files are synced, by name below the partition's folder."""

    def __init__(self, *, syncs_all: bool = True) -> None:
        self.synced: Counter[str] = Counter()
        self.synced_all = 0
        self.syncs_all = syncs_all
        self.error: OSError | None = None

    def fsync(self, file: int | Path) -> None:
        if isinstance(file, Path):
            self.synced[file.name] += 1
        super().fsync(file)

    def sync_all(self, folder: Path) -> bool:
        self.synced_all += 1
        if self.error is not None:
            raise self.error
        return self.syncs_all


def write(manager: LogManager, *keys: TopicPartition) -> None:
    for key in keys:
        append_batches(get_or_create(manager, key, TOPIC_ID, 0), produced(0, 3), 1)


def test_a_clean_stop_forces_each_file_to_disk_once(open_log: OpenLog) -> None:
    disk = NotingDisk()
    log = open_log(log_config(segment_bytes=300, index_interval_bytes=0), files=disk)
    for number in range(9):
        append_batches(log, produced(number))
    log.flush(0, sealed_only=True)
    log.close(0)
    names = {path.name for path in log.folder.iterdir() if path.name != "partition.metadata"}
    # The folder is synced by both, as both may have written names into it.
    assert disk.synced.pop(log.folder.name) == 2
    # The folder's own name, once.
    assert disk.synced.pop(log.folder.parent.name) == 1
    assert disk.synced == dict.fromkeys(names, 1)


def test_a_stop_of_an_unwritten_log_syncs_nothing(open_log: OpenLog) -> None:
    log = open_log()
    append_batches(log, produced(0))
    log.close(0)
    disk = NotingDisk()
    open_log(files=disk, is_clean=True, recovery_point=1).close(0)
    assert not disk.synced


def test_a_sync_does_not_cover_an_append_made_after_it_began(open_log: OpenLog) -> None:
    disk = SlowDisk()
    log = open_log(files=disk)
    append_batches(log, produced(0))
    disk.is_slow = True
    first = threading.Thread(target=log.flush, args=(0,), daemon=True)
    first.start()
    assert disk.began.wait(DEADLINE_S)
    disk.began.clear()
    append_batches(log, produced(1))
    second = threading.Thread(target=log.flush, args=(0,), daemon=True)
    second.start()
    try:
        assert disk.began.wait(DEADLINE_S), "the second flush relies on the first"
        assert log.recovery_point == 0
    finally:
        disk.released.set()
        first.join(DEADLINE_S)
        second.join(DEADLINE_S)
    assert log.recovery_point == 2


def test_two_flushes_at_once_both_wait_for_the_disk(open_log: OpenLog) -> None:
    disk = SlowDisk()
    log = open_log(files=disk)
    append_batches(log, produced(0))
    disk.is_slow = True
    ended: list[int] = []

    def flush() -> None:
        log.flush(0)
        ended.append(log.recovery_point)

    threads = [threading.Thread(target=flush, daemon=True) for _ in range(2)]
    try:
        for thread in threads:
            disk.began.clear()
            thread.start()
            assert disk.began.wait(DEADLINE_S), "a flush did not wait for what another had only begun"
        assert ended == []
    finally:
        disk.released.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert ended == [1, 1]


@pytest.mark.parametrize("syncs_all", [True, False])
def test_many_logs_are_forced_to_disk_in_one_go_where_the_system_can(
    managers: Managers, monkeypatch: pytest.MonkeyPatch, syncs_all: bool
) -> None:
    monkeypatch.setattr(log_dir, "_SYNC_ALL_FROM", len(KEYS))
    disk = NotingDisk(syncs_all=syncs_all)
    manager = managers.open(paths=managers.paths[:1], files=disk, recovery_threads=3)
    write(manager, *KEYS)
    disk.synced.clear()
    manager.close(0)
    assert disk.synced_all == 1
    logs_synced = sum(count for name, count in disk.synced.items() if name.endswith(".log"))
    assert logs_synced == (0 if syncs_all else len(KEYS))
    again = managers.open(paths=managers.paths[:1], recovery_threads=3)
    assert {log.topic_partition: log.recovery_point for log in again.all_logs()} == dict.fromkeys(KEYS, 3)


def test_few_logs_are_forced_to_disk_by_file(managers: Managers) -> None:
    disk = NotingDisk()
    manager = managers.open(files=disk)
    write(manager, *KEYS)
    disk.synced.clear()
    manager.close(0)
    assert disk.synced_all == 0
    assert disk.synced["00000000000000000000.log"] == len(KEYS)


def test_a_disk_that_could_not_write_all_gets_no_clean_mark(
    managers: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dir, "_SYNC_ALL_FROM", 1)
    disk = NotingDisk()
    manager = managers.open(paths=managers.paths[:1], files=disk)
    write(manager, *KEYS)
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    manager.close(0)
    assert not (managers.paths[0] / MARK).exists()
    assert {log.recovery_point for log in managers.open(paths=managers.paths[:1]).all_logs()} == {0}


@pytest.mark.parametrize("end", ["close", "crash"])
def test_several_threads_open_the_same_logs_as_one(managers: Managers, end: str) -> None:
    manager = managers.open(recovery_threads=4)
    write(manager, *KEYS)
    for key in KEYS[:2]:
        log = online(manager, key)
        log.flush(0)
    manager.checkpoint_pass(0)
    if end == "crash":
        crash(manager)
        for root in managers.paths:
            for path in root.glob("t-[01]/*.log"):
                flip_bits(path, 70)
    else:
        manager.close(0)
    again = managers.open(recovery_threads=4)
    damaged = {key for key, error in again.offline_partitions.items() if isinstance(error, CorruptLog)}
    assert damaged == (set(KEYS[:2]) if end == "crash" else set())
    sound = {log.topic_partition: log.log_end_offset for log in again.all_logs()}
    assert sound == dict.fromkeys(set(KEYS) - damaged, 3)


def test_deleted_logs_make_room_for_new_ones(managers: Managers) -> None:
    manager = managers.open()
    write(manager, *KEYS)
    emptied = managers.paths[0]
    for log in manager.all_logs():
        if log.folder.parent == emptied:
            manager.delete(log.topic_partition, 0)
    new = [get_or_create(manager, TopicPartition("new", number), TOPIC_ID, 0) for number in range(6)]
    assert {log.folder.parent for log in new} == {emptied}


def test_an_unclean_start_writes_the_epochs_only_where_they_change(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    for number in range(3):
        append_batches(log, produced(number), number)
    written = spy(monkeypatch, FileSystem, "write_atomically")
    assert open_log().epoch_cache.entries == log.epoch_cache.entries
    assert log.epoch_cache.path not in written


def test_the_first_record_of_an_epoch_puts_it_into_the_file(open_log: OpenLog) -> None:
    log = open_log()
    log.epoch_cache.begin(4, 0)
    append_batches(log, produced(0), leader_epoch=4)
    log.abandon()
    assert EpochCache.load(log.folder).entries == ((4, 0),)
    led = open_log()
    led.epoch_cache.begin(6, led.log_end_offset)
    led.abandon()
    assert open_log().epoch_cache.latest_epoch == 4


def test_a_flush_during_retention_syncs_the_remaining_segments(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With flush.messages=1 a record is acknowledged when this returns.
    log = open_log(log_config(segment_bytes=300, retention_bytes=900))
    for number in range(9):
        append_batches(log, produced(3 * number, 3), 1)
    fsync = FileSystem.fsync

    def retain_before(files: FileSystem, file: int | Path) -> None:
        monkeypatch.setattr(FileSystem, "fsync", fsync)
        log.delete_old_segments(0, log.log_end_offset)
        files.fsync(file)

    monkeypatch.setattr(FileSystem, "fsync", retain_before)
    log.flush(0)
    assert log.log_start_offset > 0
    assert log.recovery_point == log.log_end_offset
