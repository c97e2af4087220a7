"""Reads without the mapping: the same answers, and an error where a mapping would raise SIGBUS."""

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log import open_files
from barnabas.broker.log.batch_scan import LARGE_BYTES
from barnabas.broker.log.log import Log
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.storage_errors import LogDirFailure, StorageCallFailed
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.record_batch import iter_batches
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.logs import append_batches, failing

from .conftest import OpenLog

CONFIG = log_config(segment_bytes=1 << 20, index_interval_bytes=512)


def filled(open_log: OpenLog, sizes: list[int], config: TopicConfig = CONFIG) -> Log:
    log = open_log(config)
    for number, size in enumerate(sizes):
        records = [(None, b"v" * size)] * (1 + number % 3)
        append_batches(log, build_batch(records, timestamp_ms=number))
    return log


def cold(log: Log) -> None:
    """Make the log look as after a restart: this process wrote no part of it."""
    for segment in log.segments:
        segment.file._hot_from = segment.size


def answers(log: Log, seed: int) -> list[tuple[int, bytes, int, int]]:
    draw = random.Random(seed)
    found = []
    for _ in range(300):
        start = draw.randrange(log.log_end_offset + 1)
        bound = draw.randrange(log.log_end_offset + 1)
        result = log.read(
            start,
            draw.choice([0, 1, 60, 500, 5_000, 50_000, 1 << 20]),
            upper_bound_offset=bound,
            min_one_batch=draw.random() < 0.7,
        )
        found.append((start, bytes(result.records), result.start_offset, result.next_offset))
        assert [header.next_offset for _, header in iter_batches(result.records)][-1:] in (
            [],
            [result.next_offset],
        )
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_cold_log_answers_as_a_hot_one(open_log: OpenLog, seed: int) -> None:
    draw = random.Random(seed)
    log = filled(open_log, [draw.choice([10, 200, 3_000, 40_000]) for _ in range(200)])
    hot = answers(log, seed)
    cold(log)
    for in_mapping, copied in zip(hot, answers(log, seed), strict=True):
        # It may end earlier, because the read begins at an index entry, but it returns at least one batch.
        assert copied[0] == in_mapping[0]
        assert in_mapping[1].startswith(copied[1])
        assert bool(copied[1]) == bool(in_mapping[1])
        assert copied[2] == in_mapping[2]
        assert copied[3] <= in_mapping[3]
    for offset in range(0, log.log_end_offset, 17):
        assert log.read(offset, 1).start_offset <= offset


def test_a_batch_larger_than_any_block_comes_whole(open_log: OpenLog) -> None:
    config = log_config(segment_bytes=8 << 20, max_message_bytes=8 << 20)
    log = filled(open_log, [3 * LARGE_BYTES, 10], config)
    cold(log)
    result = log.read(0, 1)
    assert result.next_offset == 1
    assert len(result.records) > 3 * LARGE_BYTES
    assert len(log.read(0, 1, min_one_batch=False).records) == 0


def test_a_hint_that_a_truncation_made_stale_is_ignored(open_log: OpenLog) -> None:
    log = filled(open_log, [100, 2_000, 100])
    cold(log)
    segment = log.segments[0]
    stale = log.read(0, 200).next_offset
    segment._read_hint = (stale, segment._read_hint[1] + 7)
    assert log.read(stale, 1 << 20).start_offset == stale


def intercept_reads(
    monkeypatch: pytest.MonkeyPatch, look: Callable[[memoryview, int, int], memoryview | None]
) -> None:
    """Call ``look`` with buffer, position and flags before each read; it may return a shorter buffer."""

    def preadv(descriptor: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
        return os.preadv(descriptor, [look(buffers[0], position, flags) or buffers[0]], position)

    monkeypatch.setattr(open_files, "preadv", preadv)


def test_a_reader_that_may_not_wait_gets_an_error_for_uncached_bytes(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(open_log, [1_000] * 20)
    cold(log)
    cached = [0]

    def look(buffer: memoryview, position: int, flags: int) -> memoryview:
        if flags and position >= cached[0]:
            raise BlockingIOError(errno.EAGAIN, "not cached")
        return buffer[: cached[0] - position] if flags else buffer

    intercept_reads(monkeypatch, look)
    with pytest.raises(NotCached):
        log.read(0, 5_000, may_wait=False)
    cached[0] = 2_500
    first = log.read(0, 5_000, may_wait=False)
    assert 0 < len(first.records) <= 2_500
    with pytest.raises(NotCached):
        log.read(first.next_offset, 5_000, may_wait=False)
    assert len(log.read(first.next_offset, 5_000).records) > 1_000


def test_no_single_read_of_the_disk_is_long(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(open_log, [1_000] * 500)
    cold(log)
    sizes: list[int] = []
    intercept_reads(monkeypatch, lambda buffer, position, flags: sizes.append(len(buffer)))
    result = log.read(0, 1 << 20)
    assert len(result.records) > 500_000
    assert max(sizes) <= 128 * 1024


def test_a_read_that_a_truncation_overtakes_is_no_damaged_disk(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long read waits for the disk several times; meanwhile a follower may truncate and roll."""
    config = log_config(segment_bytes=600_000)
    log = open_log(config)
    for _ in range(20):
        append_batches(log, build_batch([(None, b"v" * 20_000)]))
    log.close(0)
    again = open_log(config, is_clean=True)

    def overtake(buffer: memoryview, position: int, flags: int) -> None:
        if position == 128 * 1024:
            monkeypatch.setattr(open_files, "preadv", os.preadv)
            again.truncate_to(1)
            append_batches(again, build_batch([(None, b"v" * 590_000)]), 1)

    intercept_reads(monkeypatch, overtake)
    result = again.read(0, 1 << 20)
    assert (result.start_offset, result.next_offset) == (0, 1)
    assert len(again.segments) == 2
    assert again.read(0, 1 << 20).next_offset == 1


@pytest.mark.parametrize("how", ["size", "age", "retention"])
def test_no_roll_cuts_off_truncated_pages_that_a_reader_holds(open_log: OpenLog, how: str) -> None:
    """Python code that looks at such a page would end the broker by SIGBUS."""
    log = open_log(log_config(segment_bytes=600_000, segment_ms=1_000, retention_bytes=0))
    for _ in range(20):
        append_batches(log, build_batch([(None, b"v" * 20_000)], timestamp_ms=0))
    read = log.read(0, 1 << 20)
    end = len(read.records)
    log.truncate_to(1)
    path = log.segments[0].file.path

    def roll() -> None:
        if how == "retention":
            log.delete_old_segments(0, log.log_end_offset)
        else:
            size, timestamp_ms = (599_000, 0) if how == "size" else (10, 2_000)
            append_batches(log, build_batch([(None, b"v" * size)], timestamp_ms=timestamp_ms), 1)

    roll()
    assert path.stat().st_size >= end
    assert [segment.file.path for segment in log.segments] == [path]
    del read
    roll()
    assert path != log.segments[-1].file.path, "the roll was only put off"


def test_a_file_system_that_cannot_tell_counts_as_cold(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(open_log, [100])
    cold(log)

    def refuse_flags(buffer: memoryview, position: int, flags: int) -> None:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    intercept_reads(monkeypatch, refuse_flags)
    with pytest.raises(NotCached):
        log.read(0, 100, may_wait=False)
    assert len(log.read(0, 100).records) > 100


@pytest.mark.parametrize(
    ("error_number", "expected"), [(errno.EIO, LogDirFailure), (errno.ENOMEM, StorageCallFailed)]
)
def test_a_sector_that_cannot_be_read_is_an_error_of_the_reader(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, error_number: int, expected: type[ApiError]
) -> None:
    log = filled(open_log, [100] * 100)
    cold(log)
    monkeypatch.setattr(open_files, "preadv", failing(error_number))
    for read in (lambda: log.read(0, 100), lambda: log.offset_for_timestamp(50)):
        with pytest.raises(expected) as caught:
            read()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    assert len(log.read(0, 100).records) > 0


@pytest.mark.parametrize("is_clean", [True, False])
def test_recovery_truncates_nothing_at_an_unreadable_sector(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, is_clean: bool
) -> None:
    log = filled(open_log, [100] * 10)
    log.close(0)
    with monkeypatch.context() as patch:
        patch.setattr(open_files, "preadv", failing(errno.EIO))
        with pytest.raises(LogDirFailure):
            open_log(CONFIG, is_clean=is_clean)
    assert open_log(CONFIG, is_clean=is_clean).log_end_offset == log.log_end_offset


CUT_FILE = """
import os, sys
from pathlib import Path
from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.storage_errors import LogDirFailure
from tests.support.batches import build_batch
from barnabas.protocol.ids import TopicPartition
from tests.support.defaults import log_config

folder = Path(sys.argv[1]) / "t-0"
config = log_config(segment_bytes=300_000)
log = Log.open(TopicPartition("t", 0), LogLoader(folder, config, now_ms=0))
for _ in range(50):
    log.append_as_leader(parse_produced(build_batch([(None, b"v" * 20_000)])), 0, 0)
assert len(log.segments) > 3
for part in (log.segments[0], log.segments[1]):
    log.read(part.base_offset, 1 << 20)
    os.truncate(part.file.path, 4096)
for attempt in (
    lambda: log.read(log.segments[0].base_offset + 1, 1 << 20),
    lambda: log.read(log.segments[1].base_offset, 1 << 20),
    lambda: log.truncate_to(log.segments[1].base_offset + 5),
    lambda: log.offset_for_timestamp(1),
):
    try:
        attempt()
    except LogDirFailure as error:
        print("refused:", error)
print("alive")
"""


def test_a_file_that_somebody_shortened_is_an_error_and_no_signal(tmp_path: Path) -> None:
    """A read beyond the new end through a mapping would kill the process (SIGBUS)."""
    ran = subprocess.run(
        [sys.executable, "-c", CUT_FILE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"exit {ran.returncode}: {ran.stderr}"
    assert ran.stdout.splitlines()[-1] == "alive"
    assert ran.stdout.count("refused:") >= 3
