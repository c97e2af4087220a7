"""Recovery of the files that an unclean stop may leave."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import CorruptLog
from barnabas.protocol.record_batch import HEADER_BYTES
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.logs import OpenLog, append_batches, flip_bits, headers_of, index_entries, log_files

CONFIG = log_config(segment_bytes=400, index_interval_bytes=0)


def batch(count: int = 1, timestamp_ms: int = 0) -> bytearray:
    return build_batch([(None, b"v" * 20)] * count, timestamp_ms=timestamp_ms)


SIZE = len(batch())


def filled(open_log: OpenLog, count: int = 10) -> Log:
    """A log of one-record batches, four to a segment, an epoch for every three, left as a crash would."""
    log = open_log(CONFIG)
    for index in range(count):
        append_batches(log, batch(timestamp_ms=index), index // 3)
    return log


def base_offsets(log: Log) -> list[int]:
    return [header.base_offset for header in headers_of(log)]


def described(log: Log) -> list[object]:
    """Everything that recovery has to find again."""
    return [
        [(segment.base_offset, segment.next_offset, segment.size) for segment in log.segments],
        [index_entries(segment.offset_index) for segment in log.segments],
        [segment.largest for segment in log.segments],
        log.epoch_cache.entries,
        base_offsets(log),
    ]


@pytest.fixture
def log(open_log: OpenLog) -> Log:
    return filled(open_log)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_is_found_again_as_it_was_left(open_log: OpenLog, is_clean: bool, log: Log) -> None:
    before = described(log)
    assert before[-1] == list(range(10))
    again = open_log(CONFIG, is_clean=False)
    assert described(again) == before
    again.close(0)
    assert again.segments[-1].file.path.stat().st_size == again.segments[-1].size
    once_more = open_log(CONFIG, is_clean=is_clean)
    assert described(once_more)[2:] == before[2:]
    assert append_batches(once_more, batch(), 9).base_offset == 10


def test_the_unused_end_of_a_file_is_not_reported_in_words_of_loss(
    open_log: OpenLog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log = filled(open_log, 2)
    assert log_files(log)[0].stat().st_size > 2 * SIZE, "a crash leaves the file extended"
    assert open_log(CONFIG).log_end_offset == 2
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "whole up to its last record, offset 1; " in record.message
    assert "unused bytes" in record.message
    assert not any(word in record.message for word in ("drop", "magic", "CORRUPT", "UNSUPPORTED"))


@pytest.mark.parametrize("at", [2 * SIZE, 2 * SIZE + HEADER_BYTES, -100, -1])
def test_bytes_after_the_last_batch_are_cut_with_a_warning(
    open_log: OpenLog, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    path = log_files(filled(open_log, 2))[0]
    flip_bits(path, at)
    assert open_log(CONFIG).log_end_offset == 2
    assert "cut at byte" in caplog.text
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_new_beginning_is_on_disk_before_the_recovery_point_tells_of_it(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(open_log, 3)
    log = open_log(CONFIG)
    synced: list[list[str]] = []

    def noting(files: FileSystem, path: Path) -> None:
        synced.append(sorted(name.name for name in path.glob("*.log")))

    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "fsync", noting)
        log.truncate_fully_and_start_at(100)
    assert synced == [["00000000000000000100.log"]]
    assert log.recovery_point == 100
    log.abandon()
    assert open_log(CONFIG, recovery_point=100, log_start_offset=100).log_end_offset == 100


@pytest.mark.parametrize("bit", range(16 * 8, SIZE * 8, 37))
def test_a_flipped_bit_above_the_recovery_point_truncates_the_log_there(
    open_log: OpenLog, bit: int, log: Log
) -> None:
    path = log_files(log)[1]
    flip_bits(path, SIZE + bit // 8, 1 << (bit % 8))
    again = open_log(CONFIG, recovery_point=5)
    assert (again.log_end_offset, base_offsets(again)) == (5, [0, 1, 2, 3, 4])
    assert [file.name for file in log_files(log)] == [f"{base:020}.log" for base in (0, 4)]
    assert again.epoch_cache.entries == ((0, 0), (1, 3))
    assert append_batches(again, batch(), 7).base_offset == 5


def test_segments_below_the_recovery_point_are_not_read_again(open_log: OpenLog, log: Log) -> None:
    flip_bits(log_files(log)[0], SIZE // 2)
    again = open_log(CONFIG, recovery_point=4)
    assert again.log_end_offset == 10


@pytest.mark.parametrize(("size", "end"), [(None, 4), (3 * SIZE, 7)], ids=["missing", "cut"])
def test_a_gap_ends_the_log_above_the_recovery_point(
    open_log: OpenLog, size: int | None, end: int, log: Log
) -> None:
    path = log_files(log)[1]
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    assert base_offsets(open_log(CONFIG)) == list(range(end))


def test_lost_log_files_below_the_recovery_point_stop_the_replica(open_log: OpenLog, log: Log) -> None:
    log_files(log)[2].unlink()
    log_files(log)[1].unlink()
    with pytest.raises(CorruptLog):
        open_log(CONFIG, recovery_point=9)


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_time_index_has_the_file_of_an_offset_index_beside_it(open_log: OpenLog, rebuilt: bool) -> None:
    """Kafka's tools fail on a time index without it."""
    config = replace(CONFIG, index_interval_bytes=1 << 20)
    log = open_log(config)
    for index in range(10):
        append_batches(log, batch(timestamp_ms=index))
    log.close(0)
    if rebuilt:
        for path in [*log.folder.glob("*.index"), *log.folder.glob("*.timeindex")]:
            path.unlink()
        again = open_log(config, is_clean=True)
        assert again.offset_for_timestamp(9) is not None
        again.close(0)
    times = sorted(log.folder.glob("*.timeindex"))
    assert len(times) == len(log_files(log))
    assert [path.with_suffix(".index").read_bytes() for path in times] == [b""] * len(times)


@pytest.mark.parametrize("damage", ["missing", "odd", "too far"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_damaged_indexes_are_rebuilt_also_after_a_clean_stop(
    open_log: OpenLog, suffix: str, damage: str, log: Log
) -> None:
    open_log(CONFIG).close(0)
    before = described(log)
    for path in log.folder.glob(f"*{suffix}"):
        if damage == "missing" and suffix == ".timeindex":
            path.unlink()
        elif damage == "too far" and suffix == ".index":
            path.write_bytes(path.read_bytes() + (900).to_bytes(4, "big") + (1 << 30).to_bytes(4, "big"))
        else:
            path.write_bytes(path.read_bytes() + b"x")
    again = open_log(CONFIG, is_clean=True)
    assert described(again)[2:] == before[2:]
    for timestamp in range(10):
        result = again.offset_for_timestamp(timestamp)
        assert (result and result.offset) == timestamp
        assert again.read(timestamp, 1).start_offset == timestamp


@pytest.mark.parametrize("damage", ["zeros", "last is zero", "last is cut", "too early", "not here", "empty"])
def test_a_damaged_time_index_lets_retention_delete_nothing(
    open_log: OpenLog, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(CONFIG, retention_ms=1_000)
    log = open_log(config)
    for index in range(10):
        append_batches(log, batch(timestamp_ms=100_000 + index))
    log.close(0)
    entries = {path: path.read_bytes() for path in log.folder.glob("*.timeindex")}
    for path, before in entries.items():
        last = before[-12:]
        after = {
            "zeros": bytes(len(before)),
            "last is zero": before[:-12] + bytes(12),
            "last is cut": before[:-12],
            "too early": before[:-12] + bytes(8) + last[8:],
            "not here": before[:-12] + last[:8] + b"\x00\x00\xff\xff",
            "empty": b"",
        }[damage]
        path.write_bytes(after)
    again = open_log(config, is_clean=True)
    assert again.delete_old_segments(101_003, 10) == 0
    caplog.clear()
    assert again.delete_old_segments(101_006, 10) == 1, "the first segment is due, the second is not"
    assert again.log_start_offset == 4
    assert again.delete_old_segments(200_000, 10) == 2
    assert not any(record.levelno >= logging.ERROR for record in caplog.records)


def test_a_segment_whose_batches_cannot_be_read_is_as_old_as_its_last_write(open_log: OpenLog) -> None:
    config = replace(CONFIG, retention_ms=1_000)
    log = open_log(config)
    for index in range(10):
        append_batches(log, batch(timestamp_ms=index))
    log.close(0)
    path = log_files(log)[0]
    path.write_bytes(path.read_bytes()[: 3 * SIZE] + bytes(SIZE))
    written_ms = path.stat().st_mtime_ns // 1_000_000
    again = open_log(config, is_clean=True)
    assert again.delete_old_segments(written_ms, 10) == 0
    assert again.delete_old_segments(written_ms + 1_001, 10) == 3


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("segment", range(3))
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_the_epochs_stay_when_the_indexes_of_one_segment_are_rebuilt(
    open_log: OpenLog, suffix: str, segment: int, is_clean: bool, log: Log
) -> None:
    open_log(CONFIG).close(0)
    path = sorted(log.folder.glob(f"*{suffix}"))[segment]
    path.write_bytes(path.read_bytes() + b"x")
    for _ in range(2):
        again = open_log(CONFIG, is_clean=is_clean, recovery_point=10)
        assert again.epoch_cache.entries == ((0, 0), (1, 3), (2, 6), (3, 9))
        is_clean = False


@pytest.mark.parametrize("text", [None, "", "0\n0\n", "0\n1\n0 0", "0\n1\nx y\n", "0\n2\n3 9\n1 0\n"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_lost_epochs_are_taken_from_the_batches(
    open_log: OpenLog, text: str | None, is_clean: bool, log: Log
) -> None:
    open_log(CONFIG).close(0)
    path = log.folder / "leader-epoch-checkpoint"
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    again = open_log(CONFIG, is_clean=is_clean, recovery_point=10)
    assert again.epoch_cache.entries == ((0, 0), (1, 3), (2, 6), (3, 9))


def test_epochs_that_the_file_holds_too_much_are_corrected_by_the_batches(
    open_log: OpenLog, log: Log
) -> None:
    (log.folder / "leader-epoch-checkpoint").write_text("0\n3\n0 0\n8 9\n9 40\n")
    assert open_log(CONFIG).epoch_cache.entries == ((0, 0), (1, 3), (2, 6), (3, 9))


@pytest.mark.parametrize("is_clean", [True, False])
def test_leftovers_of_interrupted_work_are_removed(open_log: OpenLog, is_clean: bool, log: Log) -> None:
    log.close(0)
    leftovers = {
        "00000000000000000099.index",
        "00000000000000000099.timeindex",
        "leader-epoch-checkpoint.tmp",
        # Apache Kafka keeps deleted segments for a while.
        "00000000000000000000.log.deleted",
        "00000000000000000000.index.deleted",
        "00000000000000000004.snapshot.deleted",
    }
    for name in leftovers:
        (log.folder / name).write_bytes(b"x")
    again = open_log(CONFIG, is_clean=is_clean)
    assert not leftovers & {path.name for path in log.folder.iterdir()}
    assert again.log_end_offset == 10


@pytest.mark.parametrize("recovery_point", [0, 10])
def test_a_tail_damaged_in_spite_of_a_clean_stop_is_found(
    open_log: OpenLog, recovery_point: int, log: Log
) -> None:
    """A log that was set aside is reopened without its recovery point."""
    open_log(CONFIG).close(0)
    path = log_files(log)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    before = path.read_bytes()
    with pytest.raises(CorruptLog, match="offset 9, after a clean stop"):
        open_log(CONFIG, is_clean=True, recovery_point=recovery_point)
    assert path.read_bytes() == before


def test_a_truncation_during_a_flush_keeps_the_recovery_point_down(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(CONFIG)
    for _ in range(3):
        append_batches(log, batch())
    real_fsync = FileSystem.fsync

    def cut_meanwhile(files: FileSystem, path: Path) -> None:
        monkeypatch.setattr(FileSystem, "fsync", real_fsync)
        files.fsync(path)
        log.truncate_to(1)
        for _ in range(4):
            append_batches(log, batch(), 1)

    monkeypatch.setattr(FileSystem, "fsync", cut_meanwhile)
    log.flush(0)
    assert (log.recovery_point, log.log_end_offset) == (0, 5)
