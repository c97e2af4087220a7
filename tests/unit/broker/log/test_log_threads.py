"""Readers without a lock while a writer appends, rolls, truncates and deletes."""

import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log import open_files
from barnabas.broker.log.batch_scan import iter_headers
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.indexes import OffsetIndex
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.segment import Segment
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import check_batch, iter_batches
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.logs import OpenLog, append_batches, batch, flip_bits, index_entries, spy
from tests.support.waiting import DEADLINE_S

BATCHES = 2000


def follow(log: Log, is_written: threading.Event, faults: list[BaseException], read: list[int]) -> None:
    """Read from the start to the end that the writer reaches, checking each batch; note how many offsets."""
    offset = 0
    try:
        while not (is_written.is_set() and offset == log.log_end_offset):
            try:
                found = log.read(offset, 5000)
            except ApiError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                offset = int(log.log_start_offset)
                continue
            for position, header in iter_batches(found.records):
                check_batch(found.records, position)
                if header.base_offset != offset:
                    raise AssertionError(f"offset {header.base_offset} where {offset} was due")
                offset = header.next_offset
                read.append(offset)
            if offset != found.next_offset:
                raise AssertionError(f"read up to {offset}, told {found.next_offset}")
    except BaseException as error:
        faults.append(error)
        raise


@pytest.mark.usefixtures("eager_switching")
def test_readers_see_whole_batches_in_order_while_the_log_changes(open_log: Callable[..., Log]) -> None:
    log = open_log(log_config(segment_bytes=8000, index_interval_bytes=200, retention_bytes=30_000))
    is_written = threading.Event()
    faults: list[BaseException] = []
    reads: list[list[int]] = [[], [], []]
    readers = [
        threading.Thread(target=follow, args=(log, is_written, faults, read), daemon=True) for read in reads
    ]
    for reader in readers:
        reader.start()
    for index in range(BATCHES):
        append_batches(log, build_batch([(None, b"v" * (index % 90))] * (1 + index % 3)))
        if index % 50 == 0:
            log.delete_old_segments(0, log.log_end_offset)
    is_written.set()
    for reader in readers:
        reader.join(timeout=60)
    assert faults == []
    assert not any(reader.is_alive() for reader in readers)
    assert [read[-1] for read in reads] == [log.log_end_offset] * 3
    assert log.log_start_offset > 0


def test_two_readers_of_a_damaged_index_rebuild_it_once(
    open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = log_config(segment_bytes=1000, index_interval_bytes=0)
    before = open_log(config)
    for _ in range(20):
        append_batches(before, build_batch([(None, b"v" * 50)]))
    before.close(0)
    path = before.segments[0].offset_index.path
    path.write_bytes(path.read_bytes()[:-4] + b"\x7f\xff\xff\xff")
    log = open_log(config, is_clean=True)
    faults: list[BaseException] = []
    is_sane = OffsetIndex.is_sane
    have_looked = threading.Barrier(2)

    def look(index: OffsetIndex, size_bytes: int, **how: Any) -> bool:
        result = is_sane(index, size_bytes, **how)
        if not result:
            have_looked.wait(DEADLINE_S)
        return result

    monkeypatch.setattr(OffsetIndex, "is_sane", look)
    rebuilt = spy(monkeypatch, Segment, "take_indexes")

    def read() -> None:
        try:
            assert log.read(3, 10).start_offset == 3
        except BaseException as error:
            faults.append(error)
            raise

    readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert faults == []
    assert len(rebuilt) == 1


def test_readers_do_not_check_the_index_of_a_log_that_was_empty_at_the_start(
    open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    # During an append the index is ahead of the segment, which looks like damage.
    open_log().close(0)
    log = open_log(log_config(index_interval_bytes=0), is_clean=True)
    for _ in range(5):
        append_batches(log, build_batch([(None, b"v")]))
    monkeypatch.setattr(OffsetIndex, "is_sane", lambda *_, **__: pytest.fail("looked at"))
    assert log.read(1, 1).start_offset == 1


def filled(open_log: OpenLog, config: TopicConfig, **options: Any) -> Log:
    """Twenty records, each younger by 10 ms, of a log that was closed: reads look into the files."""
    before = open_log(config)
    for offset in range(20):
        append_batches(before, batch(size=80, timestamp_ms=1000 + 10 * offset))
    before.close(0)
    return open_log(config, is_clean=True, **options)


class PausedZeros(FileSystem):
    """Waits after each truncation has overwritten the batches."""

    def __init__(self) -> None:
        self.are_written = threading.Event()
        self.may_continue = threading.Event()

    def write_durably(self, descriptor: int, data: memoryview | bytes, position: int) -> None:
        super().write_durably(descriptor, data, position)
        self.are_written.set()
        assert self.may_continue.wait(DEADLINE_S)


def test_a_reader_leaves_the_indexes_of_a_truncated_segment_alone(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = PausedZeros()
    log = filled(open_log, log_config(index_interval_bytes=0), files=files)
    has_looked, is_appended = threading.Event(), threading.Event()
    reader: list[threading.Thread] = []

    def preadv(descriptor: int, buffers: list[Any], position: int, flags: int = 0) -> int:
        if threading.current_thread() in reader:
            # The entry that the reader finds points at zeros, and what it reads after that, it reads late.
            is_index = os.readlink(f"/proc/self/fd/{descriptor}").endswith(".index")
            if is_index:
                count = os.preadv(descriptor, buffers, position)
                has_looked.set()
                assert files.are_written.wait(DEADLINE_S)
                return count
            if not position:
                assert is_appended.wait(DEADLINE_S)
        return os.preadv(descriptor, buffers, position)

    monkeypatch.setattr(open_files, "preadv", preadv)
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(lambda: (reader.append(threading.current_thread()), log.read(15, 1)))
        assert has_looked.wait(DEADLINE_S)
        truncating = pool.submit(log.truncate_to, 10)
        assert files.are_written.wait(DEADLINE_S)
        files.may_continue.set()
        assert truncating.result(DEADLINE_S)
        append_batches(log, batch(timestamp_ms=5000))
        is_appended.set()
        reading.exception(DEADLINE_S)
    log.roll(0)
    assert log.segments[0].largest == (5000, 10)
    found = log.offset_for_timestamp(2000)
    assert (found and found.offset) == 10
    log.close(0)
    found = open_log(is_clean=True).offset_for_timestamp(2000)
    assert (found and found.offset) == 10, "so it is on disk"


def test_an_index_that_an_append_loads_meanwhile_is_not_replaced(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = log_config(index_interval_bytes=0)
    index = filled(open_log, config).segments[0].offset_index.path
    entry = OffsetIndex.entry.size
    flip_bits(index, 9 * entry - 1)
    log = open_log(config, is_clean=True)
    rebuilt = Segment.rebuilt

    def rebuilt_before_an_append(segment: Segment) -> Segment:
        new = rebuilt(segment)
        append_batches(log, batch(timestamp_ms=5000))
        return new

    monkeypatch.setattr(Segment, "rebuilt", rebuilt_before_an_append)
    assert log.read(9, 1).start_offset == 9
    assert log.log_end_offset == 21, "the entry at fault was looked at"
    log.roll(0)
    assert index_entries(log.segments[0].offset_index)[-1][0] == 20
    assert log.segments[0].largest == (5000, 20)


LOOKUPS: dict[str, Callable[[Log], Any]] = {
    "read": lambda log: bytes(log.read(9, 1).records),
    "time": lambda log: log.offset_for_timestamp(1085),
    "the end's time": lambda log: log.offset_for_timestamp(1185),
    "largest": lambda log: log.max_timestamp_offset(),
}


def truncate_and_append(log: Log) -> None:
    log.truncate_to(10)
    for size in (300, 50):
        append_batches(log, batch(size=size, timestamp_ms=1085))


def delete_segments(log: Log) -> None:
    log.increment_log_start_offset(13)
    log.delete_old_segments(0, log.log_end_offset)


CHANGES: dict[str, Callable[[Log], Any]] = {
    "truncation": lambda log: log.truncate_to(10),
    "truncation of whole segments": lambda log: log.truncate_to(3),
    "truncation and appends": truncate_and_append,
    "a new start": lambda log: log.truncate_fully_and_start_at(30),
    "retention": delete_segments,
    "deleted records": lambda log: log.increment_log_start_offset(19),
}


def outcome(look: Callable[[Log], Any], log: Log) -> Any:
    try:
        return look(log)
    except ApiError as error:
        return error.code


@pytest.mark.parametrize("look", LOOKUPS.values(), ids=LOOKUPS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("segment_bytes", [1000, 10_000])
def test_a_lookup_beside_a_change_is_answered_as_before_or_after_it(
    segment_bytes: int,
    change: Callable[[Log], Any],
    look: Callable[[Log], Any],
    open_log: OpenLog,
    fast_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = log_config(segment_bytes=segment_bytes, index_interval_bytes=0)
    filled(open_log, config).close(0)
    source = open_log(config, is_clean=True).folder

    def disturbed(number: int) -> tuple[Any, Any, bool]:
        """The outcome of a lookup whose read of this number waits for the change; the one after it."""
        folder = shutil.copytree(source, fast_folder / f"{number}" / source.name)
        log = Log.open(TopicPartition("topic", 0), LogLoader(folder, config, now_ms=0, is_clean=True))
        reads = itertools.count()
        is_changed = False

        def preadv(descriptor: int, buffers: list[Any], position: int, flags: int = 0) -> int:
            nonlocal is_changed
            if next(reads) == number:
                monkeypatch.setattr(open_files, "preadv", os.preadv)
                is_changed = True
                change(log)
            return os.preadv(descriptor, buffers, position)

        monkeypatch.setattr(open_files, "preadv", preadv)
        result = outcome(look, log)
        monkeypatch.setattr(open_files, "preadv", os.preadv)
        after = outcome(look, log)
        log.abandon()
        return result, after, is_changed

    before, _, _ = disturbed(-1)
    for number in itertools.count():
        result, after, is_changed = disturbed(number)
        # A reader that gets no records reads once more.
        assert result in (before, after, b""), f"changed at read {number}"
        if not is_changed:
            break
    assert number > 0, "a lookup that reads nothing"


@pytest.mark.parametrize("look", LOOKUPS.values(), ids=LOOKUPS)
@pytest.mark.parametrize("begins", ["hide_after", "truncate", "load_tail"])
def test_a_lookup_that_begins_within_a_truncation_is_answered_as_before_or_after_it(
    begins: str, look: Callable[[Log], Any], open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(open_log, log_config(index_interval_bytes=0))
    before, step = outcome(look, log), getattr(Segment, begins)
    has_begun, are_written = threading.Event(), threading.Event()
    truncating = threading.current_thread()

    def preadv(descriptor: int, buffers: list[Any], position: int, flags: int = 0) -> int:
        if threading.current_thread() is not truncating:
            has_begun.set()
            assert are_written.wait(DEADLINE_S)
        return os.preadv(descriptor, buffers, position)

    monkeypatch.setattr(open_files, "preadv", preadv)
    with ThreadPoolExecutor(1) as pool:
        looking: list[Future[Any]] = []

        def begin(segment: Segment, *args: Any) -> None:
            looking.append(pool.submit(outcome, look, log))
            looking[0].add_done_callback(lambda _: has_begun.set())
            assert has_begun.wait(DEADLINE_S)
            step(segment, *args)

        monkeypatch.setattr(Segment, begins, begin)
        log.truncate_to(10)
        are_written.set()
        assert looking[0].result(DEADLINE_S) in (before, outcome(look, log), b"")


def test_a_record_is_found_while_a_truncation_reads_the_timestamps_that_no_index_has(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(open_log, log_config())
    found: list[Any] = []

    def look(*args: Any) -> Iterator[Any]:
        monkeypatch.undo()
        found.append(log.offset_for_timestamp(1085))
        return iter_headers(*args)

    monkeypatch.setattr("barnabas.broker.log.segment.iter_headers", look)
    log.truncate_to(12)
    assert found == [(1090, 9, 0)]
