"""All logs of a broker: opening, creating, deleting, the passes, and dirs that are not ours or fail."""

import contextlib
import errno
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.broker.log.file_system import FileSystem, parse_partition_name
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_dir import LogDir, folds_case
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.storage_errors import LogDirFailure, LogGone, StorageCallFailed
from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration
from barnabas.protocol.ids import TopicId, TopicPartition
from tests.support.defaults import log_config
from tests.support.errors import refused
from tests.support.logs import TOPIC_ID, append_batches, batch, crash, failing, get_or_create, online, spy

from .conftest import Managers

KEY = TopicPartition("some-topic", 3)
OTHER = TopicPartition("other", 0)


def test_logs_are_found_again_after_a_clean_stop(managers: Managers, manager: LogManager) -> None:
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    append_batches(log, batch(5), 2)
    log.increment_log_start_offset(2)
    manager.close(0)
    assert all((path / ".kafka_cleanshutdown").exists() for path in managers.paths)
    again = managers.open()
    assert not any((path / ".kafka_cleanshutdown").exists() for path in managers.paths)
    result = online(again, KEY)
    assert (result.log_start_offset, result.log_end_offset, result.topic_id) == (2, 5, TOPIC_ID)
    assert result.recovery_point == 5
    assert result.epoch_cache.entries == ((2, 2),)
    assert again.get(OTHER) is None


def test_a_deleted_log_is_gone_at_once_and_its_folder_after_the_delay(managers: Managers) -> None:
    managers.configs[KEY.topic] = log_config(file_delete_delay_ms=1000)
    manager = managers.open()
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    append_batches(log, batch())
    view = log.read(0, 100).records
    copy = bytes(view)
    assert manager.delete(KEY, 0)
    assert not manager.delete(KEY, 0)
    assert manager.get(KEY) is None
    (doomed,) = [path for root in managers.paths for path in root.iterdir() if path.name.endswith("-delete")]
    assert doomed.name.startswith("some-topic-3.")
    assert manager.remove_deleted(999) == 0
    assert manager.remove_deleted(1000) == 1
    assert not doomed.exists()
    assert bytes(view) == copy, "a view outlives the deletion"
    assert get_or_create(manager, KEY, TopicId(uuid.uuid4()), 0).log_end_offset == 0


def strays(managers: Managers) -> list[Path]:
    return [folder for path in managers.paths for folder in path.glob("*-stray")]


@pytest.mark.parametrize("restarts", [False, True])
def test_only_the_same_topic_reopens_a_log_that_was_set_aside(managers: Managers, restarts: bool) -> None:
    manager = managers.open()
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    append_batches(log, batch(5), 2)
    log.increment_log_start_offset(2)
    manager.set_aside(KEY, 0)
    assert manager.get(KEY) is None
    (folder,) = strays(managers)
    assert folder.name.startswith("some-topic-3.")
    if restarts:
        crash(manager)
        manager = managers.open()
        assert manager.get(KEY) is None
    assert [stray.folder for stray in manager.strays.all()] == [folder]
    another = get_or_create(manager, KEY, TopicId(uuid.uuid4()), 0)
    assert (another.log_start_offset, another.log_end_offset) == (0, 0)
    manager.remove_deleted(1 << 60)
    assert strays(managers) == [folder]
    manager.delete(KEY, 0, another.topic_id)
    result = get_or_create(manager, KEY, TOPIC_ID, 0)
    assert (result.log_start_offset, result.log_end_offset) == (2, 5)
    assert result.epoch_cache.entries == ((2, 2),)
    assert strays(managers) == []
    assert manager.strays.all() == []
    manager.close(0)
    again = online(managers.open(), KEY)
    assert (again.log_start_offset, again.log_end_offset) == (2, 5)


@pytest.mark.parametrize(("owner", "call"), [(FileSystem, "rename"), (FileSystem, "fsync"), (Log, "open")])
def test_a_stray_that_could_not_be_reopened_is_reopened_the_next_time(
    managers: Managers, monkeypatch: pytest.MonkeyPatch, owner: type, call: str, manager: LogManager
) -> None:
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    append_batches(log, batch(5), 2)
    log.increment_log_start_offset(2)
    manager.set_aside(KEY, 0)

    def refuse(*_: object, **__: object) -> None:
        error = OSError(errno.EMFILE, "Too many open files")
        raise error if owner is FileSystem else StorageCallFailed(Path("log"), error)

    with monkeypatch.context() as patch:
        patch.setattr(owner, call, refuse)
        with pytest.raises(StorageCallFailed):
            get_or_create(manager, KEY, TOPIC_ID, 0)
    # An empty log in its place would join an ISR with nothing, or lead.
    result = get_or_create(manager, KEY, TOPIC_ID, 0)
    assert (result.log_start_offset, result.log_end_offset) == (2, 5)
    assert strays(managers) == []
    assert manager.strays.all() == []


@pytest.mark.parametrize("call", ["write_atomically", "rename", "fsync"])
@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_log_that_could_not_be_set_aside_is_not_forgotten(
    managers: Managers, monkeypatch: pytest.MonkeyPatch, call: str, is_deleted: bool
) -> None:
    manager = managers.open()
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    append_batches(log, batch(5), 2)
    log.increment_log_start_offset(2)
    log.flush(0)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, call, failing(errno.EMFILE))
        with contextlib.suppress(StorageCallFailed):
            manager.set_aside(KEY, 0)
    assert manager.get(KEY) is None
    if is_deleted:
        assert manager.delete(KEY, 0, TOPIC_ID)
        assert not log.folder.exists()
        assert strays(managers) == []
    else:
        result = get_or_create(manager, KEY, TOPIC_ID, 0)
        assert (result.log_start_offset, result.log_end_offset) == (2, 5)
        assert manager.offline_partitions == {}


def test_strays_with_and_without_a_topic_id_are_listed_together(manager: LogManager) -> None:
    for topic_id in (TOPIC_ID, None):
        get_or_create(manager, KEY, topic_id, 0)
        manager.set_aside(KEY, 0)
    assert [stray.partition for stray in manager.strays.all()] == [KEY, KEY]


def test_a_reader_of_a_log_that_is_set_aside_gets_an_error(managers: Managers) -> None:
    # The reader must not look for its files in the folder of a new log of that name: they would seem lost.
    managers.configs[KEY.topic] = log_config(segment_bytes=100)
    manager = managers.open()
    old = get_or_create(manager, KEY, TOPIC_ID, 0)
    for _ in range(3):
        append_batches(old, batch(1))
    manager.set_aside(KEY, 0)
    get_or_create(manager, KEY, TopicId(uuid.uuid4()), 0)
    for offset in range(3):
        with pytest.raises(LogGone):
            old.read(offset, 100)


def test_a_log_that_was_set_aside_is_deleted_when_its_topic_is(
    managers: Managers, manager: LogManager
) -> None:
    append_batches(get_or_create(manager, KEY, TOPIC_ID, 0), batch(5))
    manager.set_aside(KEY, 0)
    other_id = TopicId(uuid.uuid4())
    append_batches(get_or_create(manager, KEY, other_id, 0), batch(3))
    assert manager.delete(KEY, 0, TOPIC_ID)
    assert strays(managers) == []
    assert not manager.delete(KEY, 0, TOPIC_ID)
    result = online(manager, KEY)
    assert (result.topic_id, result.log_end_offset) == (other_id, 3)


def test_a_topic_with_the_longest_name_is_set_aside_and_reopened(managers: Managers) -> None:
    key = TopicPartition("x" * 249, 17)
    manager = managers.open()
    append_batches(get_or_create(manager, key, TOPIC_ID, 0), batch(5))
    manager.set_aside(key, 0)
    crash(manager)
    manager = managers.open()
    assert get_or_create(manager, key, TOPIC_ID, 0).log_end_offset == 5


def test_folders_whose_removal_a_crash_interrupted_are_removed_after_the_start(
    managers: Managers, manager: LogManager
) -> None:
    get_or_create(manager, KEY, TOPIC_ID, 0)
    manager.delete(KEY, 0)
    crash(manager)
    again = managers.open()
    assert again.get(KEY) is None
    assert again.remove_deleted(0) == 1


def test_a_dir_in_use_is_refused_until_it_is_released(managers: Managers) -> None:
    manager = managers.open(paths=managers.paths[1:])
    with pytest.raises(InvalidConfiguration, match=r"b is in use by another process"):
        managers.open()
    manager.close(0)
    managers.open()


def test_a_foreign_dir_is_refused_by_name(managers: Managers) -> None:
    managers.open().close(0)
    with pytest.raises(InvalidConfiguration, match=r"broker.id=1, this broker has broker.id=2"):
        managers.open(broker_id=2)
    with pytest.raises(InvalidConfiguration, match=r"cluster.id=cluster, this broker has cluster.id=else"):
        managers.open(cluster_id="else")
    managers.open()


def test_each_log_dir_has_an_id_of_its_own_that_stays(managers: Managers) -> None:
    manager = managers.open()
    ids = manager.directory_ids
    assert len(set(ids)) == len(managers.paths)
    manager.close(0)
    meta = managers.paths[0] / "meta.properties"
    assert meta.read_text() == f"broker.id=1\ncluster.id=cluster\ndirectory.id={ids[0]}\nversion=0\n"
    # As written by a broker without directory ids, and by one with further keys.
    meta.write_text("#once\nversion=0\nbroker.id=1\ncluster.id=cluster\nsaid=more\n")
    manager = managers.open()
    first, second = manager.directory_ids
    assert first != ids[0]
    assert second == ids[1]
    manager.close(0)
    assert f"directory.id={first}\nsaid=more\n" in meta.read_text()
    assert managers.open().directory_ids == (first, second)


def test_one_partition_in_two_dirs_is_refused(managers: Managers) -> None:
    managers.open().close(0)
    for path in managers.paths:
        (path / str(KEY)).mkdir()
    with pytest.raises(InvalidConfiguration, match="lies in two log dirs"):
        managers.open()


def test_a_dir_whose_disk_fails_goes_offline_with_its_logs_alone(
    monkeypatch: pytest.MonkeyPatch, manager: LogManager
) -> None:
    first = get_or_create(manager, KEY, TOPIC_ID, 0)
    second = get_or_create(manager, OTHER, TOPIC_ID, 0)

    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "pwrite", staticmethod(failing(errno.EIO)))
        with pytest.raises(LogDirFailure) as caught:
            append_batches(first, batch())
    assert manager.fail_dir(caught.value) == [KEY]
    assert manager.fail_dir(caught.value) == []
    assert manager.get(KEY) is None
    assert manager.offline_partitions == {KEY: caught.value}
    assert append_batches(second, batch()).base_offset == 0
    assert manager.has_online_dir
    with pytest.raises(ApiError, match="failed disk"):
        get_or_create(manager, TopicPartition("unknown", 0), TOPIC_ID, 0)
    fresh = get_or_create(manager, TopicPartition("new", 0), TOPIC_ID, 0, is_new=True)
    assert fresh.folder.parent == second.folder.parent
    manager.close(0)
    assert not (first.folder.parent / ".kafka_cleanshutdown").exists()
    assert (second.folder.parent / ".kafka_cleanshutdown").exists()


def test_a_file_that_cannot_be_read_takes_its_dir_offline_and_not_the_broker(managers: Managers) -> None:
    managers.open().close(0)
    (managers.paths[0] / "recovery-point-offset-checkpoint").unlink()
    (managers.paths[0] / "recovery-point-offset-checkpoint").mkdir()
    assert list(managers.open().offline_dirs) == [managers.paths[0]]


@pytest.mark.parametrize("attempt", [LogManager.delete, get_or_create])
def test_a_log_that_may_be_in_a_dir_that_was_not_read_is_neither_deleted_nor_created_elsewhere(
    managers: Managers, attempt: Callable[..., object]
) -> None:
    manager = managers.open()
    lost = get_or_create(manager, KEY, TOPIC_ID, 0).folder
    other_id = TopicId(uuid.uuid4())
    assert get_or_create(manager, OTHER, other_id, 0).folder.parent != lost.parent
    manager.close(0)
    checkpoint = lost.parent / "recovery-point-offset-checkpoint"
    checkpoint.unlink()
    checkpoint.mkdir()
    manager = managers.open()
    # It would confirm a deletion that it cannot carry out, or there would be two logs after the repair.
    with pytest.raises(ApiError, match="may lie on a failed disk"):
        attempt(manager, KEY, topic_id=TOPIC_ID, now_ms=0)
    with pytest.raises(ApiError, match="failed disk"):
        get_or_create(manager, KEY, TOPIC_ID, 0, is_new=True)
    stray, stray_id = TopicPartition("stray", 0), TopicId(uuid.uuid4())
    get_or_create(manager, stray, stray_id, 0, is_new=True)
    manager.set_aside(stray, 0)
    for name, topic_id in ((OTHER, other_id), (stray, stray_id)):
        manager.delete(name, 0, topic_id)
        # The answer to the first request was lost.
        assert not manager.delete(name, 0, topic_id)
    crash(manager)
    checkpoint.rmdir()
    manager = managers.open()
    assert manager.delete(KEY, 0, TOPIC_ID)
    assert not lost.exists()


def test_a_broker_whose_only_disk_fails_while_logs_are_opened_does_not_start(
    managers: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = paths = managers.paths[:1]
    manager = managers.open(paths=paths)
    append_batches(get_or_create(manager, KEY, TOPIC_ID, 0), batch())
    crash(manager)

    with monkeypatch.context() as patch:
        patch.setattr(os, "truncate", failing(errno.ENOSPC))
        with pytest.raises(InvalidConfiguration, match=f"no folder is left.*{path}.*No space left"):
            managers.open(paths=paths)
    again = online(managers.open(paths=paths), KEY)
    assert again.log_end_offset == 1


def test_a_broker_without_a_usable_dir_does_not_start(managers: Managers, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    with pytest.raises(InvalidConfiguration, match="no usable folder"):
        managers.open(paths=[file / "x"])
    manager = managers.open(paths=[file / "x", managers.paths[0]])
    assert list(manager.offline_dirs) == [file / "x"]


def test_the_checkpoint_pass_saves_recovery_points_of_sealed_segments(managers: Managers) -> None:
    managers.configs[KEY.topic] = log_config(segment_bytes=2 * len(batch()))
    manager = managers.open()
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    for _ in range(5):
        append_batches(log, batch())
    manager.checkpoint_pass(0)
    text = (log.folder.parent / "recovery-point-offset-checkpoint").read_text()
    assert text == "0\n1\nsome-topic 3 4\n"
    crash(manager)
    result = online(managers.open(), KEY)
    assert (result.recovery_point, result.log_end_offset) == (4, 5)


def test_the_retention_pass_needs_a_high_watermark(managers: Managers) -> None:
    managers.configs |= dict.fromkeys((KEY.topic, OTHER.topic), log_config(retention_ms=0))
    manager = managers.open()
    for key in (KEY, OTHER):
        append_batches(get_or_create(manager, key, TOPIC_ID, 0), batch())
    assert manager.retention_pass(10_000, {KEY: 1}.get) == 1
    starts = {log.topic_partition: log.log_start_offset for log in manager.all_logs()}
    assert starts == {KEY: 1, OTHER: 0}


def test_the_flush_pass_flushes_only_due_logs(managers: Managers) -> None:
    managers.configs[KEY.topic] = log_config(flush_ms=100)
    manager = managers.open()
    for key in (KEY, OTHER):
        append_batches(get_or_create(manager, key, TOPIC_ID, 0), batch())
    manager.flush_pass(100)
    points = {log.topic_partition: log.recovery_point for log in manager.all_logs()}
    assert points == {KEY: 1, OTHER: 0}


def test_high_watermarks_are_saved_in_the_dir_of_their_log(managers: Managers, manager: LogManager) -> None:
    for key in (KEY, OTHER):
        get_or_create(manager, key, TOPIC_ID, 0)
    manager.checkpoint_high_watermarks({KEY: 7, OTHER: 9, TopicPartition("gone", 0): 1})
    crash(manager)
    again = managers.open()
    assert again.load_high_watermarks() == {KEY: 7, OTHER: 9}
    log = online(again, KEY)
    (log.folder.parent / "replication-offset-checkpoint").write_text("nonsense")
    assert again.load_high_watermarks() == {OTHER: 9}
    get_or_create(again, TopicPartition("new", 0), TOPIC_ID, 0)
    get_or_create(again, TopicPartition("new", 1), TOPIC_ID, 0)
    assert again.load_high_watermarks() == {OTHER: 9}


def test_a_truncation_writes_a_checkpoint_only_if_one_names_a_higher_offset(
    monkeypatch: pytest.MonkeyPatch, manager: LogManager
) -> None:
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    for _ in range(3):
        append_batches(log, batch())
    log.flush(0)
    manager.checkpoint_pass(0)
    append_batches(log, batch())
    log.flush(0)
    written = spy(monkeypatch, FileSystem, "write_atomically")
    log.truncate_to(3)
    assert (log.recovery_point, written) == (3, [])
    log.truncate_to(2)
    assert [path.name for path in written] == ["recovery-point-offset-checkpoint"]
    written.clear()
    log.truncate_to(2)
    assert written == []


def test_a_new_configuration_reaches_the_logs(managers: Managers, manager: LogManager) -> None:
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    managers.configs[KEY.topic] = log_config(max_message_bytes=80)
    manager.update_config([KEY.topic])
    with refused(ErrorCode.MESSAGE_TOO_LARGE):
        append_batches(log, batch(20))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-0", ("a", 0)),
        ("a-b-12", ("a-b", 12)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
        ("a", None),
        ("-1", None),
        ("a-", None),
        ("a-x", None),
        ("a b-1", None),
    ],
)
def test_only_names_of_partitions_are_parsed(name: str, expected: tuple[str, int] | None) -> None:
    assert parse_partition_name(name) == expected


@pytest.mark.parametrize("is_crash_between", [True, False])
def test_a_topic_created_again_inherits_no_checkpoint(managers: Managers, is_crash_between: bool) -> None:
    manager = managers.open()
    log = get_or_create(manager, KEY, TOPIC_ID, 0)
    append_batches(log, batch(6))
    append_batches(log, batch(6))
    log.increment_log_start_offset(6)
    log.flush(0)
    log.bounds.raise_first_dirty(9, log.bounds.cuts)
    manager.checkpoint_pass(0)
    manager.checkpoint_high_watermarks({KEY: 12})
    manager.delete(KEY, 0)
    if is_crash_between:
        crash(manager)
        manager = managers.open()
    append_batches(get_or_create(manager, KEY, TopicId(uuid.uuid4()), 0), batch(10))
    crash(manager)
    again = managers.open()
    result = online(again, KEY)
    assert (result.log_start_offset, result.first_dirty_offset, result.log_end_offset) == (0, 0, 10)
    assert again.load_high_watermarks() == {}


def test_truncations_checkpoints_and_creations_at_once_neither_stall_nor_tear(managers: Managers) -> None:
    manager = managers.open(paths=managers.paths[:1])
    faults: list[BaseException] = []

    def work(key: TopicPartition) -> None:
        try:
            log = get_or_create(manager, key, TOPIC_ID, 0)
            for _ in range(10):
                append_batches(log, batch())
                log.flush(0)
                log.truncate_to(log.log_end_offset - 1)
                manager.checkpoint_pass(0)
                get_or_create(manager, key, TOPIC_ID, 0)
                append_batches(log, batch())
        except BaseException as error:
            faults.append(error)
            raise

    keys = [TopicPartition("t", partition) for partition in range(4)]
    threads = [threading.Thread(target=work, args=(key,), daemon=True) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert faults == []
    crash(manager)
    again = managers.open(paths=managers.paths[:1])
    assert {log.topic_partition: log.log_end_offset for log in again.all_logs()} == dict.fromkeys(keys, 10)


def test_a_file_system_that_takes_upper_and_lower_case_for_the_same_is_noticed(tmp_path: Path) -> None:
    acquired = LogDir.acquire(tmp_path)
    assert not folds_case(tmp_path)
    # There, the lock is found by this name too.
    (tmp_path / ".LOCK").touch()
    assert folds_case(tmp_path)
    acquired.release()
    # The system refuses to look at it, as at a failing disk.
    assert not folds_case(tmp_path / ("x" * 300))
