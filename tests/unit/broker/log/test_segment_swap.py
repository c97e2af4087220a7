"""Replacing segments by a cleaned one: what readers find, and when the log refuses it."""

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log import segment_swap
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.indexes import OffsetIndex
from barnabas.broker.log.log import Log
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.segment_swap import paths_of, replace_segments
from barnabas.broker.log.storage_errors import (
    CorruptLog,
    LogDirFailure,
    SegmentReplaced,
    StorageError,
)
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.record_batch import parse_header
from tests.support.batches import build_batch
from tests.support.cleaning import batches_of, build, clean, cleaned_batches
from tests.support.defaults import log_config
from tests.support.errors import refused
from tests.support.logs import OpenLog, append_batches, crash, get_or_create, index_entries, online
from tests.support.waiting import DEADLINE_S

from .conftest import Managers

CONFIG = log_config(segment_bytes=400, index_interval_bytes=0, retention_ms=-1)


def even(offset: int) -> bool:
    return offset % 2 == 0


def drop_all(offset: int) -> bool:
    return False


def fill(log: Log, batches: int = 20) -> Log:
    for number in range(batches):
        append_batches(log, build_batch([(b"k", b"v" * 50)], timestamp_ms=100 + number))
    return log


def files_of(log: Log) -> list[str]:
    return sorted(path.name for path in log.folder.iterdir())


def content(log: Log) -> list[bytes]:
    return [batch for segment in log.segments for batch in batches_of(segment)]


def read_all(log: Log) -> list[bytes]:
    """All batches, read one by one through the indexes."""
    batches, offset = [], int(log.log_start_offset)
    while offset < log.log_end_offset:
        result = log.read(offset, 1)
        batches.append(bytes(result.records))
        offset = result.next_offset
    return batches


@pytest.fixture
def log(open_log: OpenLog) -> Log:
    log = fill(open_log(CONFIG))
    assert len(log.segments) > 4
    return log


@pytest.mark.parametrize("is_clean", [False, True])
def test_the_cleaned_segment_is_the_content_of_its_range_now_and_after_a_restart(
    log: Log, open_log: OpenLog, is_clean: bool
) -> None:
    bases = [segment.base_offset for segment in log.segments]
    expected = cleaned_batches(content(log), lambda at: even(at) or at >= bases[2], ends=[bases[2]])
    assert clean(log, even, 0, 2)
    assert [segment.base_offset for segment in log.segments] == [bases[0], *bases[2:]]
    assert read_all(log) == content(log) == expected
    stems = {name.partition(".")[0] for name in files_of(log)} - {"leader-epoch-checkpoint"}
    assert stems == {f"{segment.base_offset:020d}" for segment in log.segments}
    assert not [name for name in files_of(log) if name.endswith((".cleaned", ".swap", ".tmp"))]
    if is_clean:
        log.close(0)
    again = open_log(CONFIG, is_clean=is_clean, recovery_point=log.recovery_point)
    assert read_all(again) == expected
    assert again.log_end_offset == 20


def test_lookups_by_time_and_the_indexes_are_those_of_the_cleaned_segment(log: Log) -> None:
    assert clean(log, even, 1, 2)
    segment = log.segments[1]
    entries = dict(index_entries(segment.offset_index))
    assert segment.offset_index.path.exists()
    position = 0
    for batch, header in ((batch, batch[:8]) for batch in batches_of(segment)):
        offset = int.from_bytes(header)
        assert entries.get(offset, position) == position
        position += len(batch)
    odd = segment.base_offset | 1
    found = log.offset_for_timestamp(100 + odd)
    assert (found and found.offset) == odd + 1, "the record at an odd offset is gone"


def test_the_time_of_the_newest_replaced_file_is_kept(log: Log) -> None:
    os.utime(log.segments[2].file.path, ns=(5, 5_000_000))
    assert clean(log, even, 0, 3)
    assert log.segments[0].file.path.stat().st_mtime_ns == 5_000_000


# The log has changed meanwhile


def truncate(log: Log) -> None:
    log.truncate_to(log.log_end_offset - 1)


def truncate_and_append_again(log: Log) -> None:
    end = log.log_end_offset
    log.truncate_to(1)
    fill(log, end - log.log_end_offset)


def truncate_and_seal_another_end(log: Log) -> None:
    """The second segment is the same object, and ends elsewhere."""
    log.truncate_to(log.segments[1].base_offset + 1)
    log.roll(0)
    fill(log, 2)
    log.flush(0)


def delete_the_first_segment(log: Log) -> None:
    log.increment_log_start_offset(log.segments[1].base_offset)
    assert log.delete_old_segments(0, log.log_end_offset)


def restart_at_zero(log: Log) -> None:
    log.truncate_fully_and_start_at(0)


CHANGES: list[Callable[[Log], object]] = [
    truncate,
    truncate_and_append_again,
    truncate_and_seal_another_end,
    delete_the_first_segment,
    restart_at_zero,
    lambda log: log.close(0),
    lambda log: log.abandon(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_log_that_changed_meanwhile_stays_as_it_is(log: Log, change: Callable[[Log], object]) -> None:
    built = build(log, drop_all, 0, 2)
    change(log)
    before = {path: path.read_bytes() for path in log.folder.iterdir() if ".cleaned" not in path.name}
    segments = log.segments
    assert not replace_segments(log, *built)
    assert log.segments == segments
    if log.is_closed:
        assert {path: path.read_bytes() for path in log.folder.iterdir()} == before
    assert not [name for name in files_of(log) if name.endswith((".cleaned", ".swap", ".tmp"))]


def test_appends_rolls_and_a_later_start_do_not_disturb_a_swap(log: Log) -> None:
    built = build(log, even, 0, 2)
    fill(log, 20)
    log.increment_log_start_offset(1)
    assert replace_segments(log, *built)
    assert [parse_header(batch).base_offset for batch in read_all(log)[:4]] == [2, 4, 5, 6]


def test_the_active_segment_is_never_replaced(log: Log) -> None:
    assert not clean(log, even, len(log.segments) - 2, 2)


def test_a_swap_of_other_offsets_is_a_bug(log: Log) -> None:
    built = build(log, even, 0, 2)
    with pytest.raises(InvariantViolation, match="cannot replace"):
        replace_segments(log, built.old[:1], built.cleaned, built.cuts)
    assert not list(log.folder.glob("*.cleaned"))


def test_a_partition_that_was_deleted_and_created_again_is_not_touched(managers: Managers) -> None:
    managers.configs["t"] = CONFIG
    del managers.paths[1:]
    manager = managers.open()
    key = TopicPartition("t", 0)
    old = fill(get_or_create(manager, key, None, 0))
    built = build(old, drop_all, 0, 2)
    manager.delete(key, 0)
    new = fill(get_or_create(manager, key, None, 0))
    before = content(new)
    assert not replace_segments(old, *built)
    assert content(new) == before
    assert clean(new, even)


# Readers


def test_views_of_replaced_segments_stay_valid(log: Log) -> None:
    before = content(log)
    views = [log.read(offset, 1).records for offset in range(20)]
    assert clean(log, drop_all, 0, 3)
    assert [bytes(view) for view in views] == before


def test_a_segment_that_was_replaced_never_reads_the_file_of_its_name(log: Log) -> None:
    segments, old = log.log_segments, log.segments[0]
    entries = index_entries(old.offset_index)
    assert clean(log, drop_all, 0, 3)
    old.file.let_go()
    with pytest.raises(SegmentReplaced):
        old.file.read_into(memoryview(bytearray(61)), 0)
    for look in (lambda: old.offset_index.lookup(1), lambda: old.time_index.last()):
        with pytest.raises(SegmentReplaced):
            look()
    with pytest.raises(SegmentReplaced):
        segments.find_by_timestamp(100, 0)
    assert index_entries(log.segments[0].offset_index) != entries


def test_a_reader_of_a_replaced_segment_does_not_write_the_index_of_its_name(
    log: Log, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.close(0)
    log = open_log(CONFIG, is_clean=True)
    before: list[tuple[str, bytes]] = []

    def indexes() -> list[tuple[str, bytes]]:
        return [(path.name, path.read_bytes()) for path in sorted(log.folder.glob("*index"))]

    def look(*_: object, **__: object) -> bool:
        """The reader sees damage before the swap, and looks for the cure after it."""
        monkeypatch.undo()
        assert clean(log, drop_all, 0, 3)
        before.extend(indexes())
        return False

    monkeypatch.setattr(OffsetIndex, "is_sane", look)
    assert log.read(1, 1).records == log.read(1, 1).records
    assert indexes() == before
    assert before


class Paused(FileSystem):
    """Waits before each rename to a final name, that is, within a swap."""

    def __init__(self) -> None:
        self.is_within = threading.Event()
        self.may_continue = threading.Event()

    def rename(self, source: Path, target: Path) -> None:
        if source.name.endswith(".log.swap"):
            self.is_within.set()
            assert self.may_continue.wait(DEADLINE_S)
        super().rename(source, target)


def within_a_swap(log: Log, files: Paused, work: Callable[[], Any], *, waits: bool = True) -> Any:
    """The result of a function that is called while a swap is half done."""
    with ThreadPoolExecutor(2) as pool:
        swapping = pool.submit(clean, log, even, 0, 3)
        try:
            assert files.is_within.wait(DEADLINE_S)
            working = pool.submit(work)
            if not waits:
                return working.exception(DEADLINE_S) or working.result()
        finally:
            files.may_continue.set()
        assert swapping.result(DEADLINE_S)
        return working.result(DEADLINE_S)


@pytest.fixture
def paused(open_log: OpenLog) -> tuple[Log, Paused]:
    files = Paused()
    return fill(open_log(CONFIG, files=files)), files


def test_a_read_within_a_swap_waits_and_finds_the_new_segment(paused: tuple[Log, Paused]) -> None:
    log, files = paused
    size = len(content(log)[1])
    before, after = log.read(1, 1), within_a_swap(log, files, lambda: log.read(1, 1))
    assert (before.start_offset, after.start_offset, len(after.records)) == (1, 2, size)


def test_a_read_within_a_swap_that_may_not_wait_is_not_cached(paused: tuple[Log, Paused]) -> None:
    result = within_a_swap(*paused, lambda: paused[0].read(1, 1, may_wait=False), waits=False)
    assert isinstance(result, NotCached)


@pytest.mark.parametrize(
    ("look", "offset"),
    [
        (lambda log: log.offset_for_timestamp(101).offset, 2),
        (lambda log: log.max_timestamp_offset().offset, 19),
        (lambda log: log.flush(0) or log.recovery_point, 20),
        (lambda log: log.truncate_to(0) and log.log_end_offset, 0),
        (lambda log: log.close(0) or log.recovery_point, 20),
    ],
)
def test_others_wait_for_the_end_of_a_swap(
    paused: tuple[Log, Paused], look: Callable[[Log], Any], offset: int
) -> None:
    assert within_a_swap(*paused, lambda: look(paused[0])) == offset


def test_the_blocks_of_large_files_are_freed_outside_the_lock(
    paused: tuple[Log, Paused], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_swap, "_LARGE_BYTES", 1)
    log, _ = paused
    mine = str(log.folder)

    def held() -> int:
        links: list[str] = []
        for number in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                links.append(os.readlink(f"/proc/self/fd/{number}"))
        return sum(link.startswith(mine) and link.endswith(".log (deleted)") for link in links)

    assert within_a_swap(*paused, held, waits=False) == 3
    assert held() == 0


# The disk


class Failing(FileSystem):
    """Fails the n-th change: of the files whose names have a part, or without a part, of a swap."""

    def __init__(self, error_number: int, part: str = "") -> None:
        self.left = -1
        self._error_number, self._part = error_number, part
        self._is_swapping = False

    def _count(self, file: int | Path) -> None:
        path = file if isinstance(file, Path) else Path(os.readlink(f"/proc/self/fd/{file}"))
        if self._part in path.name if self._part else self._is_swapping:
            self.left -= 1
            if self.left == 0:
                raise OSError(self._error_number, os.strerror(self._error_number))

    def open(self, path: Path, flags: int) -> int:
        if self._part:
            self._count(path)
        return super().open(path, flags)

    def pwrite(self, descriptor: int, data: memoryview | bytes, position: int) -> int:
        self._count(descriptor)
        return os.pwrite(descriptor, data, position)

    def truncate(self, file: int | Path, size: int) -> None:
        self._count(file)
        super().truncate(file, size)

    def fsync(self, file: int | Path) -> None:
        self._count(file)
        super().fsync(file)

    def rename(self, source: Path, target: Path) -> None:
        self._is_swapping |= target.name.endswith(".index.swap")
        self._count(source)
        super().rename(source, target)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        if not self._part:
            self._count(path)
        super().unlink(path, missing_ok=missing_ok)

    def set_modified(self, path: Path, time_ns: int) -> None:
        self._count(path)
        super().set_modified(path, time_ns)

    def stop(self) -> None:
        self._is_swapping = False


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_a_disk_that_refuses_a_cleaned_file_changes_nothing(open_log: OpenLog, error_number: int) -> None:
    files = Failing(error_number, ".cleaned")
    log = fill(open_log(CONFIG, files=files))
    before = content(log)
    names = files_of(log)
    count = 0
    failure: StorageError | None = None
    while not isinstance(failure, LogDirFailure):
        count += 1
        files.left = count
        with pytest.raises(StorageError) as raised:
            clean(log, even, 0, 2)
        failure = raised.value
        assert failure.cause.errno == error_number
        assert isinstance(failure, LogDirFailure) or files_of(log) == names
        assert content(log) == before
    # The last failure was that of the swap's first rename.
    assert count > 10


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_a_disk_that_fails_within_a_swap_goes_offline_and_keeps_one_of_the_two_logs(
    managers: Managers, tmp_path: Path, error_number: int
) -> None:
    key = TopicPartition("t", 0)
    managers.configs["t"] = CONFIG
    count = 0
    failure: StorageError | None = None
    while count == 0 or failure is not None:
        count += 1
        failure = None
        paths = [tmp_path / str(count)]
        files = Failing(error_number)
        manager = managers.open(paths=paths, files=files)
        log = fill(get_or_create(manager, key, None, 0))
        before = content(log)
        after = cleaned_batches(before, lambda at: even(at) or at >= 6, ends=[6])
        files.left = count
        try:
            assert clean(log, even, 0, 2)
        except StorageError as error:
            failure = error
        files.stop()
        if failure is not None:
            assert isinstance(failure, LogDirFailure)
            check_read(log, [before, after])
            manager.fail_dir(failure)
            with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
                log.read(1, 1 << 20)
        crash(manager)
        again = managers.open(paths=paths)
        assert read_all(online(again, key)) in ([before, after] if failure else [after])
        crash(again)
    assert count > 12


def check_read(log: Log, contents: list[list[bytes]]) -> None:
    """Between the failure and the end of the log, reads get either log or a retriable error."""
    try:
        assert bytes(log.read(1, 1).records) in [batch for batches in contents for batch in batches]
    except ApiError as error:
        if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            raise


# A start


def interrupt(log: Log) -> Path:
    """Leave a committed swap of the first two segments; returns its file."""
    built = build(log, even, 0, 2)
    log.close(0)
    for part, path in paths_of(built.cleaned.segment, ".swap"):
        part.move_to(path)
    return built.cleaned.segment.file.path


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_start_finishes_a_swap(log: Log, open_log: OpenLog, is_clean: bool) -> None:
    after = cleaned_batches(content(log), lambda at: even(at) or at >= 6, ends=[6])
    swap = interrupt(log)
    os.utime(swap, ns=(5, 5_000_000))
    (log.folder / f"{3:020d}.txnindex").write_bytes(b"")
    again = open_log(CONFIG, is_clean=is_clean)
    assert read_all(again) == after
    assert [segment.base_offset for segment in again.segments][:2] == [0, 6]
    assert again.segments[0].file.path.stat().st_mtime_ns == 5_000_000
    assert not [path for path in log.folder.iterdir() if path.suffix in (".swap", ".cleaned", ".txnindex")]


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: data[:-1], "60 are left"),
        (lambda data: data[:100] + b"x" + data[101:], "CRC"),
        (lambda data: data[:-61], "no segment begins at its end"),
        (lambda data: b"", "no batches"),
        (lambda data: data + bytes(100), "magic 0"),
        (lambda data: data + data, "at least 6"),
    ],
)
def test_a_damaged_swap_keeps_the_log_offline_and_its_files_as_they_are(
    log: Log, open_log: OpenLog, is_clean: bool, spoil: Callable[[bytes], bytes], reason: str
) -> None:
    swap = interrupt(log)
    swap.write_bytes(spoil(swap.read_bytes()))
    (log.folder / f"{9:020d}.log.cleaned").write_bytes(b"")
    before = {path: path.read_bytes() for path in log.folder.iterdir()}
    with pytest.raises(CorruptLog, match=reason):
        open_log(CONFIG, is_clean=is_clean)
    assert {path: path.read_bytes() for path in log.folder.iterdir()} == before


def test_a_start_removes_what_a_cleaning_left(log: Log, open_log: OpenLog) -> None:
    before = content(log)
    build(log, even, 0, 2)
    (log.folder / f"{0:020d}.index.swap").write_bytes(b"")
    log.abandon()
    again = open_log(CONFIG)
    assert content(again) == before
    assert not [name for name in files_of(log) if name.endswith((".cleaned", ".swap", ".tmp"))]
