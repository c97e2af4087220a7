"""The table that decides what an operating system error means, and its effects in a log manager."""

import errno
import logging
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_bounds import Bound
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.open_files import OPEN_FILES
from barnabas.broker.log.storage_errors import (
    CorruptLog,
    LogDirFailure,
    LogGone,
    Operation,
    StorageCallFailed,
    Verdict,
    disk_work,
    must_be_whole,
    storage_error,
    verdict,
)
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicId, TopicPartition
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.logs import (
    PRODUCER_ID,
    TOPIC_ID,
    append_batches,
    crash,
    failing,
    get_or_create,
    online,
    produced,
)

from .conftest import Managers, OpenLog

READ, WRITE, RESERVE, CHANGE, SYNC = Operation
BROKEN, FAILED, GONE = Verdict.DISK_BROKEN, Verdict.CALL_FAILED, Verdict.LOG_GONE
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TABLE = [
    (errno.EIO, {READ: BROKEN, WRITE: BROKEN, RESERVE: BROKEN, CHANGE: BROKEN, SYNC: BROKEN}),
    (errno.EROFS, {READ: BROKEN, WRITE: BROKEN, RESERVE: BROKEN, CHANGE: BROKEN, SYNC: BROKEN}),
    (errno.ENOSPC, {READ: BROKEN, WRITE: BROKEN, RESERVE: FAILED, CHANGE: BROKEN, SYNC: BROKEN}),
    (errno.EDQUOT, {READ: BROKEN, WRITE: BROKEN, RESERVE: FAILED, CHANGE: BROKEN, SYNC: BROKEN}),
    (errno.EFBIG, {READ: BROKEN, WRITE: BROKEN, RESERVE: FAILED, CHANGE: BROKEN, SYNC: BROKEN}),
    (errno.EACCES, {READ: BROKEN, WRITE: BROKEN, RESERVE: BROKEN, CHANGE: BROKEN, SYNC: BROKEN}),
    (errno.EMFILE, {READ: FAILED, WRITE: FAILED, RESERVE: FAILED, CHANGE: BROKEN, SYNC: FAILED}),
    (errno.ENFILE, {READ: FAILED, WRITE: FAILED, RESERVE: FAILED, CHANGE: BROKEN, SYNC: FAILED}),
    (errno.ENOMEM, {READ: FAILED, WRITE: FAILED, RESERVE: FAILED, CHANGE: BROKEN, SYNC: BROKEN}),
    (errno.ENOENT, {READ: BROKEN, WRITE: BROKEN, RESERVE: BROKEN, CHANGE: BROKEN, SYNC: BROKEN}),
    (None, {READ: BROKEN, WRITE: BROKEN, RESERVE: BROKEN, CHANGE: BROKEN, SYNC: BROKEN}),
]


@pytest.mark.parametrize(("number", "expected"), TABLE)
def test_the_table(number: int | None, expected: dict[Operation, Verdict]) -> None:
    assert {operation: verdict(number, operation, is_log_there=True) for operation in Operation} == expected


@pytest.mark.parametrize("operation", list(Operation))
def test_a_missing_file_of_a_log_that_is_gone_is_no_failure(operation: Operation) -> None:
    assert verdict(errno.ENOENT, operation, is_log_there=False) is GONE
    assert verdict(errno.EIO, operation, is_log_there=False) is BROKEN


def test_each_error_has_a_code_and_is_retriable() -> None:
    path = Path("/logs/t-0/1.log")
    broken = storage_error(path, OSError(errno.EIO, "sector"), READ)
    failed = storage_error(path, OSError(errno.EMFILE, "too many"), READ)
    gone = storage_error(path, OSError(errno.ENOENT, "no such file"), READ, is_log_there=False)
    assert [type(error) for error in (broken, failed, gone)] == [LogDirFailure, StorageCallFailed, LogGone]
    assert broken.code == failed.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert gone.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broken.retriable
    assert failed.retriable
    assert gone.retriable


def test_a_call_that_fails_half_way_through_a_change_is_a_broken_disk(tmp_path: Path) -> None:
    with pytest.raises(LogDirFailure), must_be_whole(tmp_path), disk_work(tmp_path):
        raise OSError(errno.EMFILE, "too many open files")


def test_failed_calls_are_reported_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        storage_error(Path("/logs/t-0/1.log"), OSError(errno.ENFILE, "table overflow"), READ)
    assert sum("refused with a retriable error" in record.message for record in caplog.records) <= 2


@pytest.fixture
def manager(managers: Managers) -> LogManager:
    """A manager of one log dir."""
    del managers.paths[1:]
    return managers.open()


def append(manager: LogManager, name: TopicPartition) -> None:
    append_batches(get_or_create(manager, name, None, 0), build_batch([(None, b"v")]))


@pytest.mark.parametrize("error_number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_write_without_descriptors_or_memory_is_refused_and_the_dir_stays(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch, error_number: int
) -> None:
    append(manager, T0)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "pwrite", staticmethod(failing(error_number)))
        with pytest.raises(StorageCallFailed) as refused:
            append(manager, T0)
    assert refused.value.retriable
    assert manager.offline_dirs == {}
    append(manager, T0)
    log = online(manager, T0)
    assert log.log_end_offset == 2


def test_a_roll_that_finds_no_descriptor_is_done_by_a_later_append(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(manager, T0)
    log = online(manager, T0)
    log.config = log_config(segment_bytes=100)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(errno.EMFILE))
        with pytest.raises(StorageCallFailed):
            append(manager, T0)
    assert (log.log_end_offset, len(log.segments)) == (1, 1)
    append(manager, T0)
    assert (log.log_end_offset, len(log.segments)) == (2, 2)
    assert [log.read(offset, 1).next_offset for offset in (0, 1)] == [1, 2]


def test_a_pass_skips_the_log_whose_call_failed_and_does_the_others(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (T0, T1):
        append(manager, name)
    poor, rich = manager.get(T0), manager.get(T1)
    assert poor is not None
    assert rich is not None
    poor.config = rich.config = log_config(flush_ms=1)

    def lacking(now_ms: int) -> None:
        raise storage_error(poor.folder, OSError(errno.EMFILE, "too many open files"), SYNC)

    monkeypatch.setattr(poor, "flush", lacking)
    with caplog.at_level(logging.WARNING):
        manager.flush_pass(1_000)
    assert "left to the next pass" in caplog.text
    assert (rich.recovery_point, manager.offline_dirs) == (1, {})


def test_a_reader_of_a_deleted_log_takes_no_dir_offline(manager: LogManager) -> None:
    append(manager, T0)
    append(manager, T1)
    log = online(manager, T0)
    assert manager.delete(T0, 0)
    with pytest.raises(LogGone):
        log.read(0, 1 << 20)
    with pytest.raises(LogGone):
        log.offset_for_timestamp(0)
    assert manager.offline_dirs == {}


def test_many_readers_during_a_deletion_report_no_failed_disk(manager: LogManager) -> None:
    append(manager, T0)
    log = online(manager, T0)
    begun, result = threading.Semaphore(0), []

    def read() -> None:
        begun.release()
        while True:
            try:
                log.segments[0].file.close()
                log.read(0, 1 << 20)
            except ApiError as error:
                result.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
        begun.acquire()
    manager.delete(T0, 0)
    for reader in readers:
        reader.join(60)
    assert [type(error) for error in result] == [LogGone] * 4


def test_a_log_whose_folder_is_missing_can_be_deleted(manager: LogManager, managers: Managers) -> None:
    append(manager, T0)
    (managers.paths[0] / "t-0").rename(managers.paths[0].with_name("elsewhere"))
    assert manager.delete(T0, 0)
    assert manager.offline_dirs == {}
    assert manager.offline_partitions == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.roll(0),
        lambda log: log.truncate_to(1),
        lambda log: log.flush(0),
        lambda log: log.assign_topic_id(TopicId(uuid.uuid4())),
    ],
    ids=["roll", "truncation", "flush", "topic id"],
)
def test_a_change_without_a_free_descriptor_evicts_one_kept_for_reading(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, change: Callable[[Log], object]
) -> None:
    log = open_log()
    for sequence in range(3):
        append_batches(log, produced(sequence), 1 + sequence)
        log.read(sequence, 100)
    kept, really = OPEN_FILES.kept, os.open
    refused = []

    def open_if_there_is_room(path: Any, *rest: Any) -> int:
        if OPEN_FILES.kept >= kept:
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return really(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_if_there_is_room)
        change(log)
    assert len(refused) == 1


class EpochsRefused(FileSystem):
    """A disk that refuses to open the epoch file while the test says so."""

    def __init__(self) -> None:
        self.refuses = False

    def open(self, path: Path, flags: int) -> int:
        if self.refuses and path.name.startswith("leader-epoch"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(path, flags)


def test_a_refused_truncation_changes_nothing_and_the_next_one_works(open_log: OpenLog) -> None:
    # If all but the producer states were truncated, a resent batch would be acknowledged at its old offset.
    disk = EpochsRefused()
    log = open_log(files=disk)
    append_batches(log, produced(0), 1)
    append_batches(log, produced(1), 2)
    disk.refuses = True
    with pytest.raises(StorageCallFailed):
        log.truncate_to(1)
    assert (log.log_end_offset, log.epoch_cache.latest_epoch) == (2, 2)
    with pytest.raises(StorageCallFailed):
        log.truncate_fully_and_start_at(5)
    assert (log.log_end_offset, log.epoch_cache.latest_epoch) == (2, 2)
    assert log.read(0, 1000).next_offset == 2
    disk.refuses = False
    assert log.truncate_to(1)
    producer = log.producers.get(PRODUCER_ID)
    assert producer is not None
    assert (log.log_end_offset, log.epoch_cache.latest_epoch, producer.last_sequence) == (1, 1, 0)


def test_a_checkpoint_that_finds_no_descriptor_is_left_to_the_next_pass(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(manager, T0)
    log = online(manager, T0)
    log.flush(0)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "write_atomically", failing(errno.EMFILE))
        manager.checkpoint_pass(0)
        manager.checkpoint_high_watermarks({T0: 1})
        manager.checkpoint_log_starts()
    assert manager.offline_dirs == {}
    manager.checkpoint_pass(0)
    (log_dir,) = manager._dirs.values()
    assert log_dir.bounds[Bound.RECOVERY_POINT].read() == {T0: 1}


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_that_could_not_be_opened_at_start_is_opened_on_demand(
    managers: Managers, monkeypatch: pytest.MonkeyPatch, is_clean: bool
) -> None:
    manager = managers.open()
    log = get_or_create(manager, T0, TOPIC_ID, 0)
    append_batches(log, build_batch([(None, b"value")] * 5), 2)
    log.increment_log_start_offset(2)
    log.flush(0)
    manager.checkpoint_pass(0)
    manager.checkpoint_high_watermarks({T0: 4})
    manager.close(0) if is_clean else crash(manager)

    def refuse(*_: object, **__: object) -> None:
        raise StorageCallFailed(Path("log"), OSError(errno.EMFILE, "Too many open files"))

    with monkeypatch.context() as patch:
        patch.setattr(Log, "open", refuse)
        manager = managers.open()
        # Refused as a failed call, so that the role is requested again.
        with pytest.raises(StorageCallFailed):
            get_or_create(manager, T0, TOPIC_ID, 0)
    assert manager.load_high_watermarks() == {T0: 4}
    result = get_or_create(manager, T0, TOPIC_ID, 0)
    assert (result.log_start_offset, result.log_end_offset) == (2, 5)
    assert manager.offline_partitions == {}
    # The log writes its own checkpoint entries again.
    result.truncate_fully_and_start_at(0)
    crash(manager)
    again = online(managers.open(), T0)
    assert again.log_start_offset == 0


def test_a_log_that_is_damaged_at_the_second_try_stays_offline(
    managers: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = managers.open()
    get_or_create(manager, T0, TOPIC_ID, 0)
    manager.close(0)
    refusals: list[Exception] = [
        StorageCallFailed(Path("log"), OSError(errno.ENOMEM, "Cannot allocate memory")),
        CorruptLog(Path("log"), 0, 0, 1, "a flipped bit"),
    ]

    def refuse(*_: object, **__: object) -> None:
        raise refusals.pop(0)

    with monkeypatch.context() as patch:
        patch.setattr(Log, "open", refuse)
        manager = managers.open()
        for _ in range(2):
            with pytest.raises(ApiError, match="a flipped bit"):
                get_or_create(manager, T0, TOPIC_ID, 0)
    assert isinstance(manager.offline_partitions[T0], CorruptLog)
