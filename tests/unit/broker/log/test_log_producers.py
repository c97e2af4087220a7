"""A log and its idempotent producers: duplicates, refusals, failures, truncation, restarts of both kinds."""

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log import log_segments, producer_snapshots
from barnabas.broker.log.batch_scan import iter_produced
from barnabas.broker.log.file_system import SNAPSHOT_SUFFIX, FileSystem, segment_name
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_segments import LogSegments
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.record_batch import BatchHeader
from tests.support.defaults import log_config
from tests.support.errors import refused
from tests.support.logs import OpenLog, append_batches, flip_bits, headers_of, produced, spy

SIZE = len(produced(0))
SMALL = log_config(segment_bytes=4 * SIZE, index_interval_bytes=0)


def append(log: Log, sequence: int, count: int = 1, *, now_ms: int = 0, **options: int) -> int:
    return append_batches(log, produced(sequence, count, **options), 0, now_ms).base_offset


def refusal(log: Log, sequence: int, count: int = 1, **options: int) -> ErrorCode:
    before = log.log_end_offset
    with pytest.raises(ApiError) as caught:
        append(log, sequence, count, **options)
    assert log.log_end_offset == before
    return caught.value.code


def snapshots(log: Log) -> list[int]:
    return sorted(int(path.stem) for path in log.folder.glob("*.snapshot"))


def filled(open_log: OpenLog, count: int, config: TopicConfig = SMALL) -> Log:
    log = open_log(config)
    for sequence in range(count):
        append(log, sequence)
    return log


def sequences(log: Log) -> list[int]:
    return [header.base_sequence for header in headers_of(log)]


def test_a_duplicate_is_answered_with_the_old_time(open_log: OpenLog) -> None:
    log = open_log()
    append(log, 0, 2, timestamp_ms=55)
    assert append_batches(log, produced(0, 2, timestamp_ms=66), 0, 1000).log_append_time_ms == 55


def test_of_a_request_that_begins_with_duplicates_only_the_rest_is_written(open_log: OpenLog) -> None:
    log = filled(open_log, 3, log_config())
    result = append_batches(log, produced(1) + produced(2) + produced(3) + produced(4, 2))
    assert (result.base_offset, result.last_offset, result.record_count) == (1, 5, 3)
    assert sequences(log) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "lowered",
    [log_config(max_message_bytes=SIZE), log_config(segment_bytes=2 * SIZE)],
    ids=["message", "segment"],
)
def test_a_duplicate_is_answered_even_if_it_is_too_large_for_new_limits(
    open_log: OpenLog, lowered: TopicConfig
) -> None:
    """Or its producer would cut it up, and write its records a second time under other numbers."""
    log = filled(open_log, 2, log_config())
    assert append(log, 2, 20) == 2
    log.config = lowered
    assert append(log, 2, 20) == 2
    assert log.log_end_offset == 22
    expected = {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}
    assert refusal(log, 22, 20) in expected
    with pytest.raises(ApiError) as caught:
        append_batches(log, produced(2, 20) + produced(22, 20))
    assert caught.value.code in expected


def test_a_log_that_is_closed_answers_no_duplicate_either(open_log: OpenLog) -> None:
    log = filled(open_log, 1)
    log.abandon()
    assert refusal(log, 0) is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("room", [0, 1, SIZE])
def test_a_batch_that_the_disk_refuses_may_come_again(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, room: int, restarts: bool
) -> None:
    log = filled(open_log, 3, log_config())
    write = os.pwrite

    def full(descriptor: int, data: memoryview, position: int) -> int:
        left = 3 * SIZE + room - position
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:left], position)

    monkeypatch.setattr(FileSystem, "pwrite", staticmethod(full))
    with pytest.raises(LogDirFailure):
        append_batches(log, produced(3) + produced(4))
    monkeypatch.undo()
    if restarts:
        log.abandon()
        log = open_log(log_config())
    assert log.log_end_offset == 3
    assert append(log, 3) == 3
    assert sequences(log) == [0, 1, 2, 3]


def test_a_leaders_request_goes_into_one_segment_whole_or_not_at_all(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(open_log, 3)
    before = log.log_end_offset

    def full(descriptor: int, data: memoryview, position: int) -> int:
        if not position:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(descriptor, data, position)

    monkeypatch.setattr(FileSystem, "pwrite", staticmethod(full))
    with pytest.raises(LogDirFailure):
        append_batches(log, produced(3) + produced(4))
    monkeypatch.undo()
    assert log.log_end_offset == before
    assert append(log, 3) == 3


def test_a_snapshot_that_cannot_be_written_stops_the_roll(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(open_log, 4)
    rename = FileSystem.rename

    def rename_without_room(files: FileSystem, source: Path, target: Path) -> None:
        if target.suffix == SNAPSHOT_SUFFIX:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(files, source, target)

    monkeypatch.setattr(FileSystem, "rename", rename_without_room)
    with pytest.raises(LogDirFailure, match="snapshot"):
        append(log, 4)
    monkeypatch.undo()
    assert (log.log_end_offset, len(log.segments)) == (4, 1)
    assert append(log, 4) == 4


def test_a_roll_leaves_a_snapshot_and_so_does_a_clean_stop(open_log: OpenLog) -> None:
    log = filled(open_log, 10)
    assert snapshots(log) == [4, 8]
    log.close(0)
    assert snapshots(log) == [4, 8, 10]
    again = open_log(SMALL, is_clean=True)
    append(again, 10)
    again.close(0)
    assert snapshots(again) == [4, 8, 10, 11]
    assert snapshots(open_log(SMALL, is_clean=True)) == [4, 8, 11]


def test_a_clean_start_reads_no_batch(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(open_log, 40).close(0)
    offsets = spy(monkeypatch, LogSegments, "produced_from")
    assert append(open_log(SMALL, is_clean=True), 39) == 39
    assert offsets == []


def test_a_start_after_a_crash_reads_only_the_batches_after_the_newest_snapshot(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(open_log, 39).abandon()
    offsets = spy(monkeypatch, LogSegments, "produced_from")
    assert append(open_log(SMALL), 38) == 38
    assert offsets == [36]


@pytest.mark.parametrize("with_id", [(), (4,), (9,), (2, 8)])
def test_a_start_after_a_crash_reads_segments_without_producers_once(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, with_id: tuple[int, ...]
) -> None:
    log = open_log(SMALL)
    for offset in range(11):
        ids = {} if offset in with_id else {"producer_id": -1, "epoch": -1}
        append(log, with_id.index(offset) if ids == {} else -1, **ids)
    log.abandon()
    for path in log.folder.glob("*.snapshot"):
        path.unlink()
    read_again: list[str] = []

    def read(file: SegmentFile, *arguments: int) -> Iterator[BatchHeader]:
        read_again.append(file.path.name)
        return iter_produced(file, *arguments)

    monkeypatch.setattr(log_segments, "iter_produced", read)
    again = open_log(SMALL)
    assert read_again == [segment_name(offset // 4 * 4) for offset in with_id]
    assert again.producers.images() == log.producers.images()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_damaged_snapshots_are_reported_and_the_log_is_read_instead(
    open_log: OpenLog, caplog: pytest.LogCaptureFixture, is_clean: bool, damaged: int
) -> None:
    log = filled(open_log, 10)
    log.close(0)
    for path in sorted(log.folder.glob("*.snapshot"))[-damaged:]:
        flip_bits(path, -1)
    with caplog.at_level(logging.WARNING):
        again = open_log(SMALL, is_clean=is_clean, recovery_point=10)
    assert caplog.text.count("a damaged snapshot") == damaged
    assert [append(again, sequence) for sequence in range(5, 11)] == list(range(5, 11))


def test_a_snapshot_beyond_the_end_after_a_power_cut_is_not_used(open_log: OpenLog) -> None:
    log = filled(open_log, 10)
    log.close(0)
    last = log.segments[-1].file.path
    os.truncate(last, last.stat().st_size - 1)
    again = open_log(SMALL)
    assert (again.log_end_offset, snapshots(again)) == (9, [4, 8])
    assert append(again, 8) == 8
    assert append(again, 9) == 9


def test_a_log_without_snapshots_accepts_any_sequence(open_log: OpenLog) -> None:
    log = filled(open_log, 10)
    log.close(0)
    for path in log.folder.glob("*.snapshot"):
        path.unlink()
    assert append(open_log(SMALL, is_clean=True), 5) == 10


def test_producers_of_deleted_segments_are_still_known_after_a_crash(open_log: OpenLog) -> None:
    config = log_config(segment_bytes=4 * SIZE, retention_bytes=0)
    log = filled(open_log, 6, config)
    for sequence in range(8):
        append(log, sequence, producer_id=8)
    assert log.delete_old_segments(0, 14) == 4
    assert snapshots(log) == [14]
    assert append(log, 5) == 5
    log.abandon()
    again = open_log(config, log_start_offset=14, recovery_point=14)
    assert [append(again, sequence) for sequence in range(1, 6)] == [1, 2, 3, 4, 5]
    assert refusal(again, 7) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(again, 8, producer_id=8) == 14


def test_after_a_truncation_no_batch_that_it_took_is_a_duplicate_although_the_log_cannot_be_read(
    open_log: OpenLog,
) -> None:
    """Its producer would take the answer for an acknowledgement of records that are gone."""
    log = filled(open_log, 30)
    path = log.segments[3].file.path
    assert log.segments[3].base_offset == 12
    data = bytearray(path.read_bytes())
    data[8:12] = bytes(4)
    path.write_bytes(data)
    with refused(ErrorCode.CORRUPT_MESSAGE):
        log.truncate_to(14)
    assert log.log_end_offset == 14
    assert append(log, 29) == 14


def test_a_log_start_beyond_the_end_drops_all_producers(open_log: OpenLog) -> None:
    filled(open_log, 6).close(0)
    again = open_log(SMALL, log_start_offset=50)
    assert (again.log_start_offset, again.log_end_offset, again.size_bytes) == (50, 50, 0)
    assert snapshots(again) == []
    assert append(again, 3) == 50


@pytest.mark.parametrize("is_clean", [True, False])
def test_after_a_restart_only_producers_outside_the_active_segment_expire_by_timestamp(
    open_log: OpenLog, is_clean: bool
) -> None:
    log = open_log(SMALL)
    append(log, 0, producer_id=1, timestamp_ms=5)
    for sequence in range(4):
        append(log, sequence, producer_id=2, timestamp_ms=5)
    log.close(0) if is_clean else log.abandon()
    again = Log.open(log.topic_partition, LogLoader(log.folder, SMALL, now_ms=1_000_000, is_clean=is_clean))
    assert again.producers.expire(1_000_500, 1_000) == 1
    assert append(again, 3, producer_id=2) == 4
    again.abandon()


def test_snapshots_are_on_disk_before_the_recovery_point_passes_them(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(open_log, 6)
    synced = spy(monkeypatch, FileSystem, "fsync")
    log.flush(0, sealed_only=True)
    assert log.recovery_point == 4
    assert {path.name for path in synced} >= {"00000000000000000004.snapshot"}
    log.flush(0)
    for sequence in range(6, 9):
        append(log, sequence)
    synced.clear()
    log.close(0)
    names = {"00000000000000000008.snapshot", "00000000000000000009.snapshot"}
    assert {path.name for path in synced if path.suffix == ".snapshot"} == names


def test_retention_waits_for_the_snapshot_of_the_producers_that_it_deletes(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_snapshots, "_MANY", 0)
    log = filled(open_log, 9, log_config(segment_bytes=4 * SIZE, retention_bytes=0))
    assert log.delete_old_segments(0, log.log_end_offset) == 3
    log.abandon()
    again = open_log(log.config, log_start_offset=log.log_start_offset, recovery_point=log.log_start_offset)
    assert [state.recent for state in again.producers] == [state.recent[-5:] for state in log.producers]


@pytest.mark.parametrize("is_written", [True, False])
def test_a_crash_before_a_large_snapshot_is_written_forgets_no_producer(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """A roll only copies the states, because it holds the log's lock."""
    monkeypatch.setattr(producer_snapshots, "_MANY", 1)
    log = open_log(log_config())
    append(log, 0, producer_id=1)
    append(log, 0, producer_id=2)
    append(log, 1, producer_id=1)
    log.roll(0)
    append(log, 0, producer_id=3)
    snapshot = log.folder / "00000000000000000003.snapshot"
    assert not snapshot.exists()
    if is_written:
        log.flush(0, sealed_only=True)
        assert snapshot.exists()
    log.abandon()
    again = open_log(log_config(), recovery_point=log.recovery_point)
    known = {state.producer_id: state.recent for state in again.producers}
    assert known == {state.producer_id: state.recent for state in log.producers}
    assert known.keys() == {1, 2, 3}


def test_the_oldest_producers_above_the_limit_are_evicted(open_log: OpenLog) -> None:
    log = open_log(log_config(max_producer_ids=16))
    for number in range(17):
        append(log, 0, producer_id=1 + number, now_ms=number)
    assert [state.producer_id for state in log.producers] == list(range(3, 18))
    # An evicted producer may continue at any sequence.
    append(log, 7, producer_id=1, now_ms=20)
