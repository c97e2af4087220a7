"""A disk that fills up at any one operation: the next start finds all accepted records, and no others."""

import errno
import os
import uuid
from pathlib import Path

import pytest

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicId, TopicPartition
from tests.support.defaults import log_config
from tests.support.logs import append_batches, crash, get_or_create, headers_of, produced

from .conftest import Managers

KEY = TopicPartition("t", 0)
CONFIG = log_config(segment_bytes=400, index_interval_bytes=0)
APPENDS = 12


class FullDisk(FileSystem):
    """Accepts `room` writes and new files; the first refused write is done in part."""

    def __init__(self, room: int) -> None:
        self.room = room

    @property
    def is_full(self) -> bool:
        return self.room < 0

    def pwrite(self, descriptor: int, data: memoryview | bytes, position: int) -> int:
        if self.room == 0:
            os.pwrite(descriptor, data[: len(data) // 2], position)
        self._take()
        return os.pwrite(descriptor, data, position)

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self._take()
        return super().open(path, flags)

    def mkdir(self, path: Path) -> None:
        if not path.is_dir():
            self._take()
        super().mkdir(path)

    def _take(self) -> None:
        self.room -= 1
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def work(manager: LogManager) -> int:
    """Append, roll, flush and checkpoint until the disk is full; returns the number of accepted appends."""
    taken = 0
    try:
        log = get_or_create(manager, KEY, TopicId(uuid.UUID(int=1)), 0)
        for number in range(APPENDS):
            append_batches(log, produced(2 * number, 2), 1 + number // 5)
            taken += 1
            if number % 4 == 3:
                log.flush(0)
                manager.checkpoint_pass(0)
                manager.checkpoint_high_watermarks({KEY: int(log.log_end_offset)})
    except ApiError as error:
        if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            raise
        if isinstance(error, LogDirFailure):
            manager.fail_dir(error)
    return taken


@pytest.mark.parametrize("many_producers", [False, True])
def test_no_accepted_record_is_lost_if_any_operation_finds_the_disk_full(
    managers: Managers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many_producers: bool
) -> None:
    if many_producers:
        # Snapshots are then written without the log's lock, by the next flush.
        monkeypatch.setattr("barnabas.broker.log.producer_snapshots._MANY", 0)
    managers.configs["t"] = CONFIG
    room, was_full = 0, True
    while was_full:
        paths = [tmp_path / str(room)]
        disk = FullDisk(1 << 30)
        manager = managers.open(paths=paths, files=disk)
        disk.room = room
        taken = work(manager)
        was_full = disk.is_full
        assert was_full == bool(manager.offline_dirs)
        crash(manager)
        again = managers.open(paths=paths)
        assert again.offline_partitions == {}
        log = again.get(KEY)
        assert taken == 0 or log is not None
        if log is not None:
            assert log.log_end_offset in (2 * taken, 2 * taken + 2)
            sequences = [header.base_sequence for header in headers_of(log)]
            assert sequences == [2 * number for number in range(len(sequences))]
            last = append_batches(log, produced(2 * len(sequences), 1), 99)
            assert last.base_offset == log.log_end_offset - 1
        crash(again)
        room += 1
    assert taken == APPENDS
    assert room > 40
