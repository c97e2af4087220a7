"""Lookups by time: the first record that is not older, also if timestamps fall, and what a lookup reads."""

import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.log.indexes import TimeIndex
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.protocol.compression import Compression
from barnabas.protocol.ids import TopicPartition
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.logs import OpenLog, append_batches, batch, spy
from tests.support.memory_folder import MEMORY
from tests.support.odd_batches import T0, record
from tests.support.odd_batches import batch as odd_batch

TIMES = st.lists(st.integers(0, 30), min_size=1, max_size=12)


def _open(folder: Path) -> Log:
    loader = LogLoader(folder / "topic-0", log_config(), now_ms=0, is_clean=True)
    return Log.open(TopicPartition("topic", 0), loader)


def _fill(log: Log, *timestamps_ms: int) -> None:
    """One record a segment."""
    for timestamp_ms in timestamps_ms:
        append_batches(log, batch(timestamp_ms=timestamp_ms))
        log.roll(0)


@given(times=TIMES, restarts=st.booleans(), start=st.integers(0, 12), gone=st.integers(0, 12))
def test_the_first_record_is_found_among_timestamps_that_fall(
    times: list[int], restarts: bool, start: int, gone: int
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        check_lookups(Path(folder), times, restarts, start, gone)


def check_lookups(folder: Path, times: list[int], restarts: bool, start: int, gone: int) -> None:
    log = _open(folder)
    _fill(log, *times[: len(times) // 2])
    log.offset_for_timestamp(0)
    _fill(log, *times[len(times) // 2 :])
    if restarts:
        log.close(0)
        log = _open(folder)
    end = max(1, len(times) - gone)
    log.truncate_to(end)
    log.increment_log_start_offset(min(start, end))
    for timestamp_ms in range(32):
        newer = [at for at in range(min(start, end), min(end, len(times))) if times[at] >= timestamp_ms]
        found = log.offset_for_timestamp(timestamp_ms)
        assert (found.offset if found else None) == (newer[0] if newer else None)
    log.abandon()


def test_a_lookup_after_the_first_reads_the_index_of_one_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _open(tmp_path)
    _fill(log, *range(0, 100, 2))
    log.close(0)
    log = _open(tmp_path)
    assert log.offset_for_timestamp(99) is None
    lasts = spy(monkeypatch, TimeIndex, "_read")
    for timestamp_ms in range(99):
        found = log.offset_for_timestamp(timestamp_ms)
        assert (found and found.offset) == (timestamp_ms + 1) // 2
        assert len(lasts) <= 1
        lasts.clear()
    log.abandon()


def test_a_lookup_after_a_roll_or_a_deletion_reads_nothing_of_the_segments_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _open(tmp_path)
    _fill(log, *range(100))
    log.close(0)
    log = _open(tmp_path)
    assert log.offset_for_timestamp(200) is None
    lasts = spy(monkeypatch, TimeIndex, "_read")
    for start, timestamp_ms in enumerate((300, 250, 400), 1):
        _fill(log, timestamp_ms)
        log.increment_log_start_offset(10 * start)
        assert log.delete_old_segments(0, log.log_end_offset) == 10
        lasts.clear()
        for time_ms, offset in ((260, 100), (50, 50), (0, 10 * start)):
            assert (found := log.offset_for_timestamp(time_ms))
            assert found.offset == offset
            assert len(lasts) <= 1
            lasts.clear()
    log.abandon()


def test_a_rebuilt_index_takes_part_in_lookups(tmp_path: Path) -> None:
    log = _open(tmp_path)
    _fill(log, 100, 200, 300)
    log.close(0)
    time_index = log.segments[1].time_index
    entry = TimeIndex.entry.pack(1, 0)
    time_index.path.write_bytes(entry)
    log = _open(tmp_path)
    found = log.offset_for_timestamp(150)
    assert (found and found.offset) == 2, "the damage hides the record"
    # Retention compares the index with the batches.
    log.segments[1].age()
    found = log.offset_for_timestamp(150)
    assert (found and found.offset) == 1
    log.abandon()


def test_the_first_record_of_a_batch_that_is_young_enough_is_found(open_log: OpenLog) -> None:
    log = open_log()
    records = build_batch([(None, b"v" * 300), (b"k", None), (None, b"w")], timestamp_ms=10)
    append_batches(log, records)
    append_batches(log, batch(3, timestamp_ms=20))
    log.increment_log_start_offset(1)
    assert [log.offset_for_timestamp(at) for at in (0, 10, 11, 20, 21)] == [
        (10, 1, 0),
        (10, 1, 0),
        (20, 3, 0),
        (20, 3, 0),
        None,
    ]


def test_the_record_with_the_largest_timestamp_is_found_while_another_is_appended(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    _fill(log, 10)
    write, found = SegmentFile.write, []

    def look(file: SegmentFile, *args: Any, **options: Any) -> None:
        write(file, *args, **options)
        found.append(log.max_timestamp_offset())

    monkeypatch.setattr(SegmentFile, "write", look)
    append_batches(log, batch(timestamp_ms=20))
    assert found == [(10, 0, 0)]
    assert log.max_timestamp_offset() == (20, 1, 0)


ODD = {
    "count one too high": odd_batch([record(0, time=10), record(1, time=70)], 3, max_timestamp=T0 + 70),
    "zstd garbage": odd_batch(
        [], 3, compression=Compression.ZSTD, packed=b"\xaa" * 99, max_timestamp=T0 + 70
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_a_batch_that_cannot_be_read_does_not_stop_lookups_by_time(open_log: OpenLog, name: str) -> None:
    """The answer is the first record that may be that young; older versions took such batches."""
    log = open_log()
    append_batches(log, odd_batch([record(0), record(1, time=5)], 2, max_timestamp=T0 + 5))
    append_batches(log, ODD[name])
    append_batches(log, odd_batch([record(0, time=100), record(1, time=110)], 2, max_timestamp=T0 + 110))
    readable = name == "count one too high"
    answers = {0: 0, 3: 1, 8: 2, 50: 3 if readable else 2, 71: 5, 105: 6, 111: None}
    for since, offset in answers.items():
        found = log.offset_for_timestamp(T0 + since)
        assert (found.offset if found else None) == offset, since
    newest = log.max_timestamp_offset()
    assert newest is not None
    assert (newest.offset, newest.timestamp_ms) == (6, T0 + 110)


def test_a_largest_timestamp_that_no_record_has_finds_the_newest_of_its_batch(open_log: OpenLog) -> None:
    log = open_log()
    lying = odd_batch([record(0, time=10), record(1, time=70), record(2, time=30)], 3, max_timestamp=T0 + 600)
    append_batches(log, lying)
    append_batches(log, odd_batch([record(0, time=100)], 1, max_timestamp=T0 + 100))
    newest = log.max_timestamp_offset()
    assert newest is not None
    assert (newest.offset, newest.timestamp_ms) == (1, T0 + 70)


def test_a_lookup_in_a_batch_that_decompresses_to_much_needs_little_memory(open_log: OpenLog) -> None:
    log = open_log()
    records = [record(0, value=bytes(40 << 20)), record(1, time=9)]
    append_batches(log, odd_batch(records, 2, max_timestamp=T0 + 9, compression=Compression.ZSTD))
    tracemalloc.start()
    found = log.offset_for_timestamp(T0 + 5)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert found.offset == 1
    assert peak_bytes < 1 << 20
