"""The effects of a topic's settings on its log, and of their changes on a log in use."""

import errno
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import LogDirFailure, StorageCallFailed
from tests.support.defaults import log_config
from tests.support.logs import OpenLog, append_batches, batch, headers_of, index_entries

MIB = 1 << 20


def first_times(log: Log) -> list[int]:
    """The timestamp of the first record of each segment."""
    firsts = {segment.base_offset for segment in log.segments}
    return [header.max_timestamp for header in headers_of(log) if header.base_offset in firsts]


def fill(log: Log, first_ms: int, last_ms: int, step_ms: int = 10) -> None:
    for time_ms in range(first_ms, last_ms, step_ms):
        append_batches(log, batch(timestamp_ms=time_ms), 0, time_ms)


def ages_ms(log: Log) -> list[int]:
    """The age of each segment when it was rolled."""
    times = first_times(log)
    return [later - earlier for earlier, later in pairwise(times)]


# Rolling


def test_jitter_rolls_segments_earlier_by_a_random_part_of_it(open_log: OpenLog) -> None:
    log = open_log(log_config(segment_ms=1_000, segment_jitter_ms=600))
    fill(log, 0, 12_000)
    ages = ages_ms(log)
    assert all(400 < age <= 1_010 for age in ages)
    assert len(set(ages)) > len(ages) // 2, ages


def test_jitter_is_the_same_for_a_segment_after_a_restart(open_log: OpenLog) -> None:
    config = log_config(segment_ms=1_000, segment_jitter_ms=600)
    log = open_log(config)
    for time_ms in range(0, 6_000, 10):
        append_batches(log, batch(timestamp_ms=time_ms), 0, time_ms)
        if not time_ms % 300:
            log.close(time_ms)
            log = open_log(config, is_clean=True)
    again = ages_ms(log)
    for path in log.folder.iterdir():
        path.unlink()
    log = open_log(config)
    fill(log, 0, 6_000)
    assert ages_ms(log) == again


def test_jitter_longer_than_the_age_rolls_no_segment_at_once(open_log: OpenLog) -> None:
    log = open_log(log_config(segment_ms=100, segment_jitter_ms=1 << 62))
    fill(log, 0, 1_000, 1)
    assert all(1 <= age <= 101 for age in ages_ms(log))
    assert 9 < len(log.segments) < 60


def test_the_lag_of_compaction_bounds_the_age_of_a_compacted_segment(open_log: OpenLog) -> None:
    config = log_config(segment_ms=5_000, max_compaction_lag_ms=1_000)
    log = open_log(config)
    fill(log, 0, 3_000, 100)
    assert len(log.segments) == 1, "the topic is not compacted"
    log.config = replace(config, cleanup_policy=("compact", "delete"))
    fill(log, 3_000, 6_000, 100)
    assert first_times(log) == [0, 3_000, 4_100, 5_200]


def test_changed_roll_rules_bind_the_next_append(open_log: OpenLog) -> None:
    log = open_log(log_config())
    fill(log, 0, 1_000, 100)
    assert len(log.segments) == 1
    log.config = log_config(segment_ms=500)
    fill(log, 1_000, 1_100, 100)
    assert first_times(log) == [0, 1_000]
    log.config = log_config(segment_bytes=100)
    fill(log, 1_100, 1_400, 100)
    assert first_times(log) == [0, 1_000, 1_100, 1_200, 1_300]
    log.config = log_config(segment_index_bytes=12, index_interval_bytes=0)
    fill(log, 1_400, 1_600, 100)
    assert len(log.segments) == 7


@pytest.mark.parametrize("limit_bytes", [12, 24, 40, 100])
@pytest.mark.parametrize("interval_bytes", [0, 150])
def test_no_index_file_exceeds_its_limit(open_log: OpenLog, limit_bytes: int, interval_bytes: int) -> None:
    log = open_log(log_config(segment_index_bytes=limit_bytes, index_interval_bytes=interval_bytes))
    for time_ms in range(60):
        append_batches(log, b"".join([batch(timestamp_ms=time_ms)] * (1 + time_ms % 2)))
    log.close(0)
    sizes = [path.stat().st_size for path in log.folder.glob("*index")]
    assert max(sizes) <= limit_bytes
    assert len(log.segments) < 60 or limit_bytes == 12 or interval_bytes == 0


def test_a_new_index_interval_holds_from_the_next_segment_on(open_log: OpenLog) -> None:
    """As in Kafka."""
    log = open_log(log_config(index_interval_bytes=0))
    fill(log, 0, 10, 1)
    log.config = log_config(index_interval_bytes=4_096)
    log.roll(0)
    fill(log, 10, 20, 1)
    assert [len(index_entries(segment.offset_index)) for segment in log.segments] == [9, 0]


# Preallocation


class SmallDisk(FileSystem):
    """Refuses to allocate more than its room, but keeps a part of the allocation, as ext4 does."""

    def __init__(self, room: int, error_number: int = errno.ENOSPC) -> None:
        self.room = room
        self.error_number = error_number

    def allocate(self, descriptor: int, size: int) -> None:
        if size > self.room:
            super().allocate(descriptor, min(self.room, size) // 2 or 1)
            raise OSError(self.error_number, os.strerror(self.error_number))
        super().allocate(descriptor, size)


def on_disk(path: Path) -> tuple[int, int]:
    """The length of a file, and the bytes that it takes on disk."""
    found = path.stat()
    return found.st_size, found.st_blocks * 512


def test_a_segment_takes_its_whole_size_with_its_first_record(open_log: OpenLog) -> None:
    log = open_log(log_config(segment_bytes=MIB, preallocate=True))
    active = log.segments[-1].file.path
    append_batches(log, batch())
    assert on_disk(active) == (MIB, MIB)
    assert log.size_bytes == len(batch())
    log.roll(0)
    assert on_disk(active)[0] == len(batch())
    append_batches(log, batch())
    assert on_disk(log.segments[-1].file.path) == (MIB, MIB)
    assert [header.base_offset for header in headers_of(log)] == [0, 1]


def test_preallocation_begins_and_ends_with_the_setting(open_log: OpenLog) -> None:
    log = open_log(log_config(segment_bytes=MIB))
    append_batches(log, batch())
    log.config = log_config(segment_bytes=MIB, preallocate=True)
    append_batches(log, batch())
    assert on_disk(log.segments[-1].file.path)[0] < MIB, "only a new segment"
    log.roll(0)
    append_batches(log, batch())
    assert on_disk(log.segments[-1].file.path)[0] == MIB
    log.config = log_config(segment_bytes=MIB)
    log.roll(0)
    append_batches(log, batch())
    assert on_disk(log.segments[-1].file.path)[0] < MIB


def test_a_clean_stop_cuts_a_preallocated_segment(open_log: OpenLog) -> None:
    config = log_config(segment_bytes=MIB, preallocate=True)
    log = open_log(config)
    append_batches(log, batch())
    log.roll(0)
    log.close(0)
    assert [on_disk(segment.file.path)[0] for segment in log.segments] == [len(batch()), 0]
    log = open_log(config, is_clean=True)
    append_batches(log, batch())
    assert on_disk(log.segments[-1].file.path)[0] == MIB
    log.close(0)
    assert [header.base_offset for header in headers_of(open_log(config, is_clean=True))] == [0, 1]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_recovery_cuts_the_unused_part_that_a_crash_leaves(open_log: OpenLog, count: int) -> None:
    config = log_config(segment_bytes=MIB, preallocate=True)
    log = open_log(config)
    append_batches(log, batch())
    log.roll(0)
    for _ in range(count):
        append_batches(log, batch())
    again = open_log(config)
    assert again.log_end_offset == 1 + count
    assert on_disk(again.segments[-1].file.path)[0] == count * len(batch())
    append_batches(again, batch())
    assert again.log_end_offset == 2 + count
    again.close(0)
    assert [header.base_offset for header in headers_of(open_log(config, is_clean=True))] == [
        *range(2 + count)
    ]


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_segment_without_room_is_refused_and_the_log_stays(open_log: OpenLog, error_number: int) -> None:
    disk = SmallDisk(MIB, error_number)
    log = open_log(log_config(segment_bytes=MIB, preallocate=True), files=disk)
    append_batches(log, batch())
    log.roll(0)
    disk.room = MIB - 1
    for _ in range(2):
        with pytest.raises(StorageCallFailed, match=f"{MIB} bytes cannot be preallocated"):
            append_batches(log, batch())
        assert log.log_end_offset == 1
        assert on_disk(log.segments[-1].file.path) == (0, 0)
    assert [header.base_offset for header in headers_of(log)] == [0]
    disk.room = MIB
    append_batches(log, batch())
    assert [header.base_offset for header in headers_of(log)] == [0, 1]


def test_a_disk_that_breaks_during_the_allocation_goes_offline(open_log: OpenLog) -> None:
    log = open_log(log_config(preallocate=True), files=SmallDisk(0, errno.EIO))
    with pytest.raises(LogDirFailure):
        append_batches(log, batch())


def test_retention_empties_a_log_that_finds_no_room_for_a_segment(open_log: OpenLog) -> None:
    disk = SmallDisk(MIB)
    log = open_log(log_config(segment_bytes=MIB, preallocate=True, retention_ms=10), files=disk)
    append_batches(log, batch())
    disk.room = 0
    assert log.delete_old_segments(1_000, 1) == 1
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)


def test_truncation_needs_no_room(open_log: OpenLog) -> None:
    disk = SmallDisk(MIB)
    log = open_log(log_config(segment_bytes=MIB, preallocate=True), files=disk)
    append_batches(log, batch(5))
    disk.room = 0
    log.truncate_fully_and_start_at(100)
    assert log.log_end_offset == 100
    disk.room = MIB
    append_batches(log, batch())
    assert log.log_end_offset == 101
