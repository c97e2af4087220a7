"""Damage below the recovery point: the replica stays offline over all starts, and its files unchanged."""

import itertools
import json
import uuid
from pathlib import Path

import pytest

from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.recovery import LoadedLog, LogLoader
from barnabas.broker.log.storage_errors import CorruptLog
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.record_batch import parse_header
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.errors import refused
from tests.support.logs import TOPIC_ID, append_batches, crash, flip_bits, get_or_create, online

from .conftest import Managers

KEY = TopicPartition("some-topic", 3)
OTHER = TopicPartition("other", 0)
MARK = ".kafka_cleanshutdown"


def stop(managers: Managers, manager: LogManager, kind: str) -> None:
    if kind == "crash":
        crash(manager)
    else:
        # In the order of a broker's stop.
        manager.checkpoint_high_watermarks({OTHER: 3})
        manager.close(0)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def damaged(managers: Managers) -> Path:
    """Two logs of a killed broker; one has a flipped bit below its recovery point."""
    del managers.paths[1:]
    manager = managers.open()
    for key in (KEY, OTHER):
        log = get_or_create(manager, key, TOPIC_ID, 0)
        for _ in range(4):
            append_batches(log, build_batch([(None, b"value")]))
        log.increment_log_start_offset(1)
        log.flush(0)
    manager.checkpoint_pass(0)
    manager.checkpoint_high_watermarks({KEY: 4, OTHER: 3})
    crash(manager)
    (path,) = (managers.paths[0] / str(KEY)).glob("*.log")
    flip_bits(path, 200)
    return path.parent


def test_a_wrong_leader_epoch_below_the_recovery_point_is_damage(managers: Managers) -> None:
    del managers.paths[1:]
    manager = managers.open()
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    starts = [append_batches(log, build_batch([(None, b"value")]), epoch).base_offset for epoch in (2, 3, 3)]
    log.flush(0)
    # Above the recovery point the checkpoint of the epochs may be older than the batches.
    append_batches(log, build_batch([(None, b"value")]), 3)
    manager.checkpoint_pass(0)
    crash(manager)
    (path,) = (managers.paths[0] / str(KEY)).glob("*.log")
    data = bytearray(path.read_bytes())
    # No CRC covers the leader epoch. All batches have the same size.
    size = parse_header(data, 0).size_bytes
    assert parse_header(data, size).base_offset == starts[1]
    data[size + 12] ^= 2
    path.write_bytes(data)
    result = managers.open().offline_partitions.get(KEY)
    assert isinstance(result, CorruptLog)
    assert "leader epoch 33554435, where the checkpoint has 3" in str(result)


@pytest.mark.parametrize("stops", list(itertools.product(["crash", "clean"], repeat=3)), ids="-".join)
def test_a_damaged_log_stays_offline_and_untouched_over_several_starts(
    managers: Managers, damaged: Path, stops: tuple[str, ...]
) -> None:
    before = contents(damaged)
    for kind in stops:
        manager = managers.open()
        reason = manager.offline_partitions.get(KEY)
        assert isinstance(reason, CorruptLog), kind
        assert "offset 2, below the recovery point 4" in str(reason)
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            get_or_create(manager, KEY, TOPIC_ID, 0)
        log = online(manager, OTHER)
        assert (log.log_start_offset, log.log_end_offset) == (1, 4)
        assert manager.load_high_watermarks() == {KEY: 4, OTHER: 3}
        manager.checkpoint_pass(0)
        manager.checkpoint_high_watermarks({OTHER: 3})
        stop(managers, manager, kind)
    managers.open()
    assert contents(damaged) == before


@pytest.mark.parametrize("metadata", [None, "garbage"])
def test_a_damaged_log_is_deleted_with_its_own_topic_alone(
    managers: Managers, damaged: Path, metadata: str | None
) -> None:
    """It may be the log of a topic that was removed by hand, and whose name another topic had."""
    before = contents(damaged)
    manager = managers.open()
    assert not manager.delete(KEY, 0, TopicId(uuid.uuid4()))
    assert contents(damaged) == before
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        get_or_create(manager, KEY, TOPIC_ID, 0)
    if metadata is not None:
        (damaged / "partition.metadata").write_text(metadata)
    assert manager.delete(KEY, 0, TOPIC_ID)
    assert not damaged.exists()


def fill(managers: Managers) -> tuple[LogManager, list[Path]]:
    """Two logs of several segments, all on disk; the segments of the first."""
    del managers.paths[1:]
    managers.configs = {KEY.topic: log_config(segment_bytes=200), OTHER.topic: log_config(segment_bytes=200)}
    manager = managers.open()
    for key in (KEY, OTHER):
        log = get_or_create(manager, key, TOPIC_ID, 0)
        for sequence in range(9):
            builder = RecordBatchBuilder()
            builder.append(None, b"value", None, 0)
            batch = builder.build(producer_id=7, producer_epoch=0, base_sequence=sequence)
            append_batches(log, batch, sequence // 3)
        log.flush(0)
    manager.checkpoint_pass(0)
    return manager, sorted((managers.paths[0] / str(KEY)).glob("*.log"))


@pytest.mark.parametrize(
    ("lost", "kind"),
    [("leader-epoch-checkpoint", "crash"), ("leader-epoch-checkpoint", "clean"), ("*.snapshot", "crash")],
)
def test_a_sealed_segment_that_must_be_read_and_is_damaged_keeps_only_its_log_offline(
    managers: Managers, lost: str, kind: str
) -> None:
    manager, segments = fill(managers)
    stop(managers, manager, kind)
    assert len(segments) > 3
    # A start reads it only because the other file is damaged.
    segments[1].write_bytes(bytes(segments[1].stat().st_size))
    for path in segments[0].parent.glob(lost):
        path.write_bytes(b"garbage")
    # The unused end of the last file is cut off.
    before = {path: path.read_bytes() for path in segments[:-1]}
    for _ in range(2):
        manager = managers.open()
        assert list(manager.offline_partitions) == [KEY]
        other = online(manager, OTHER)
        assert other.log_end_offset == 9
        crash(manager)
    assert {path: path.read_bytes() for path in segments[:-1]} == before


@pytest.mark.parametrize("kind", ["crash", "clean"])
def test_a_log_whose_reader_finds_damage_goes_offline_until_the_next_start(
    managers: Managers, kind: str
) -> None:
    """The start does not read the segments below the recovery point, and must not truncate there."""
    manager, segments = fill(managers)
    log, lost = online(manager, KEY), list[TopicPartition]()
    manager.on_dir_failed = lost.extend
    log.increment_log_start_offset(1)
    flip_bits(segments[1], 70)
    damage = CorruptLog(log.folder, None, 2, log.recovery_point, "CRC")
    for _ in range(2):
        manager.fail_log(damage, log)
    assert lost == [KEY]
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        get_or_create(manager, KEY, TOPIC_ID, 0)
    assert manager.dir_of_offline(KEY) == managers.paths[0]
    assert (manager.get(KEY), manager.get(OTHER) is None) == (None, False)
    # The unused end of the last file is cut off.
    before = [path.read_bytes() for path in segments[:-1]]
    stop(managers, manager, kind)
    manager = managers.open()
    again = online(manager, KEY)
    assert (again.log_start_offset, again.log_end_offset) == (1, 9)
    assert [path.read_bytes() for path in segments[:-1]] == before
    manager.fail_log(damage, again)
    assert manager.delete(KEY, 0)
    assert not log.folder.exists()


def test_an_unforeseen_error_of_one_log_keeps_only_that_log_offline(
    managers: Managers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager, _ = fill(managers)
    crash(manager)

    load = LogLoader.load

    def fail_one(loader: LogLoader) -> LoadedLog:
        if loader.folder.name == str(KEY):
            raise ValueError("a bug")
        return load(loader)

    monkeypatch.setattr(LogLoader, "load", fail_one)
    manager = managers.open()
    assert list(manager.offline_partitions) == [KEY]
    assert [log.topic_partition for log in manager.all_logs()] == [OTHER]
    assert any(record.exc_info for record in caplog.records), "the traceback is logged"


def test_a_log_that_lost_its_last_segment_after_a_clean_stop_is_damaged(managers: Managers) -> None:
    manager, segments = fill(managers)
    stop(managers, manager, "clean")
    segments[-1].unlink()
    for kind in ("clean", "crash", "clean"):
        manager = managers.open()
        assert isinstance(manager.offline_partitions.get(KEY), CorruptLog)
        assert manager.get(OTHER) is not None
        stop(managers, manager, kind)


def test_a_start_beyond_the_end_after_a_clean_stop_deletes_nothing(managers: Managers) -> None:
    manager, segments = fill(managers)
    for key in (KEY, OTHER):
        log = online(manager, key)
        log.increment_log_start_offset(1)
    stop(managers, manager, "clean")
    starts = managers.paths[0] / "log-start-offset-checkpoint"
    starts.write_text(starts.read_text().replace(f"{KEY.topic} 3 1", f"{KEY.topic} 3 91"))
    before = contents(segments[0].parent)
    manager = managers.open()
    assert list(manager.offline_partitions) == [KEY]
    assert contents(segments[0].parent) == before


def test_the_mark_of_a_clean_stop_excludes_the_damaged_log_alone(managers: Managers, damaged: Path) -> None:
    manager = managers.open()
    manager.close(0)
    mark = damaged.parent / MARK
    counted = {"damaged": [str(KEY)], "segments": {str(OTHER): 1}}
    assert json.loads(mark.read_text()) == {"version": 0, "brokerEpoch": "-1", **counted}
    (sound,) = (damaged.parent / str(OTHER)).glob("*.log")
    # Only reading all batches would find this, and a cleanly closed log is not read.
    flip_bits(sound, 70)
    again = managers.open()
    assert again.get(OTHER) is not None
    assert isinstance(again.offline_partitions[KEY], CorruptLog)


@pytest.mark.parametrize("stop_kind", ["clean", "crash"])
@pytest.mark.parametrize("lost", [1, -3, -2])
def test_a_log_that_lost_a_middle_segment_is_damaged(managers: Managers, lost: int, stop_kind: str) -> None:
    manager, segments = fill(managers)
    stop(managers, manager, stop_kind)
    segments[lost].unlink()
    del segments[lost]
    before = [path.read_bytes() for path in segments]
    manager = managers.open()
    reason = manager.offline_partitions.get(KEY)
    assert isinstance(reason, CorruptLog)
    assert "the next begins at" in str(reason)
    assert manager.get(OTHER) is not None
    assert [path.read_bytes() for path in segments] == before


def test_a_log_whose_oldest_segments_were_removed_by_hand_begins_later(managers: Managers) -> None:
    manager, segments = fill(managers)
    stop(managers, manager, "clean")
    for path in segments[:2]:
        path.unlink()
    log = online(managers.open(), KEY)
    assert (log.log_start_offset, log.log_end_offset) == (int(segments[2].stem), 9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 0, "damaged": 3}',
        '{"version": 0, "segments": {"t-0": "3"}}',
        "\ufffd",
    ],
)
def test_a_mark_that_cannot_be_read_is_no_mark(managers: Managers, damaged: Path, text: str) -> None:
    manager = managers.open()
    manager.close(0)
    (damaged.parent / MARK).write_text(text)
    assert isinstance(managers.open().offline_partitions[KEY], CorruptLog)


def test_a_log_created_after_the_deletion_of_a_damaged_one_inherits_nothing(
    managers: Managers, damaged: Path
) -> None:
    manager = managers.open()
    assert manager.delete(KEY, 0)
    append_batches(get_or_create(manager, KEY, TopicId(uuid.uuid4()), 0), build_batch([(None, b"v")]))
    manager.checkpoint_pass(0)
    manager.checkpoint_high_watermarks({OTHER: 3})
    crash(manager)
    again = managers.open()
    result = online(again, KEY)
    assert (result.log_start_offset, result.log_end_offset) == (0, 1)
    assert again.load_high_watermarks() == {OTHER: 3}


def test_a_high_watermark_counts_only_in_the_dir_that_holds_the_log(managers: Managers) -> None:
    manager = managers.open()
    first = get_or_create(manager, KEY, TOPIC_ID, 0)
    append_batches(first, build_batch([(None, b"v")] * 9))
    manager.checkpoint_high_watermarks({KEY: 9})
    manager.delete(KEY, 0)
    second = get_or_create(manager, OTHER, TOPIC_ID, 0)
    assert second.folder.parent == first.folder.parent
    anew = get_or_create(manager, KEY, TopicId(uuid.uuid4()), 0)
    assert anew.folder.parent != first.folder.parent
    crash(manager)
    assert managers.open().load_high_watermarks() == {}
