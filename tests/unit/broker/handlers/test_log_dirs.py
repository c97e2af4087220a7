"""DescribeLogDirs and AlterReplicaLogDirs, and the moves between two log dirs of a broker that serves."""

import errno
import heapq
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.partitions import TopicPartitions
from barnabas.protocol.messages.replicas import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
)
from tests.support.building import ME, TP, TWO, led_by, state
from tests.support.defaults import log_config
from tests.support.logs import open_dirs
from tests.support.record_requests import catch_up, fetch, fetched, produce, produced, set_topic
from tests.support.serving import Serving, batch
from tests.support.waiting import wait_for


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in "abc"]


@pytest.fixture
def serving(tmp_path: Path, dirs: list[Path]) -> Iterator[Serving]:
    serving = Serving(tmp_path, logs=open_dirs(*dirs, config=log_config(), broker_id=ME))
    yield serving
    serving.close()


def alter(serving: Serving, path: Path, index: int = TP.partition, *, topic: str = TP.topic) -> ErrorCode:
    topics = [AlterReplicaLogDirTopic(name=topic, partitions=[index])]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(path), topics=topics)])
    (result,) = serving.call(request).results
    (partition,) = result.partitions
    assert (result.topic_name, partition.partition_index) == (topic, index)
    return ErrorCode(partition.error_code)


def replicas_in(serving: Serving, path: Path) -> list[DescribeLogDirsPartition]:
    answer = serving.call(DescribeLogDirsRequest(topics=None))
    (of_dir,) = [result for result in answer.results if result.log_dir == str(path)]
    return [partition for topic in of_dir.topics for partition in topic.partitions]


def folder_of(serving: Serving) -> Path:
    return serving.managed.manager.partition(TP).log.folder.parent


def work_off(serving: Serving) -> None:
    """Do the work of the moves that is due, without their threads."""
    waiting = serving.log_dir_moves._workers._waiting
    while waiting and waiting[0][0] <= time.monotonic():
        heapq.heappop(waiting)[2]()


# DescribeLogDirs


@pytest.mark.parametrize("version", range(5))
def test_log_dirs_and_their_logs(leading: Serving, version: int) -> None:
    sent = batch(b"a" * 100)
    produce(leading, sent)
    log_dir, *_ = leading.call(DescribeLogDirsRequest(topics=None), version=version).results
    log = leading.managed.manager.partition(TP).log
    assert (log_dir.error_code, log_dir.log_dir) == (0, str(log.folder.parent))
    (topic,) = log_dir.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == TP
    assert (partition.partition_size, partition.offset_lag, partition.is_future_key) == (len(sent), 0, False)
    if version >= 4:
        assert 0 < log_dir.usable_bytes <= log_dir.total_bytes
    other = TopicPartitions(topic=TP.topic, partitions=[5])
    log_dir, *_ = leading.call(DescribeLogDirsRequest(topics=[other]), version=version).results
    assert log_dir.topics == []


def test_a_failed_log_dir_has_an_error(leading: Serving) -> None:
    log = leading.managed.manager.partition(TP).log
    leading.logs.fail_dir(LogDirFailure(log.folder, OSError("broken")))
    log_dir, *_ = leading.call(DescribeLogDirsRequest(topics=None), version=4).results
    assert (log_dir.error_code, log_dir.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


def test_a_replica_that_moves_is_in_both_dirs(leading: Serving, dirs: list[Path]) -> None:
    produce(leading, batch(b"a" * 100, b"b"))
    alter(leading, dirs[1])
    (here,), (there,) = replicas_in(leading, dirs[0]), replicas_in(leading, dirs[1])
    assert (here.is_future_key, here.offset_lag) == (False, 0)
    assert (there.is_future_key, there.partition_size, there.offset_lag) == (True, 0, 2)
    work_off(leading)
    assert replicas_in(leading, dirs[0]) == []
    (there,) = replicas_in(leading, dirs[1])
    assert (there.is_future_key, there.partition_size) == (False, here.partition_size)


# AlterReplicaLogDirs


def test_a_replica_moves_while_it_serves(leading: Serving, dirs: list[Path]) -> None:
    produce(leading, batch(b"first"))
    partition = leading.managed.manager.partition(TP)
    assert alter(leading, dirs[1]) == ErrorCode.NONE
    waiting = produce(leading, batch(b"second"), acks=-1)
    work_off(leading)
    assert folder_of(leading) == dirs[1]
    assert partition is leading.managed.manager.partition(TP), "the move changes no role"
    assert not waiting.is_answered
    after = produce(leading, batch(b"third"), acks=-1)
    catch_up(leading)
    for connection, offset in ((waiting, 1), (after, 2)):
        assert (produced(connection).error_code, produced(connection).base_offset) == (0, offset)
    answer = fetched(fetch(leading, 0))
    assert (answer.error_code, answer.high_watermark) == (0, 3)
    assert [record in bytes(answer.records) for record in (b"first", b"second", b"third")] == [True] * 3
    assert alter(leading, dirs[0]) == ErrorCode.NONE
    work_off(leading)
    assert folder_of(leading) == dirs[0]


def test_the_last_request_decides(leading: Serving, dirs: list[Path]) -> None:
    produce(leading, batch(b"value"))
    for path in (dirs[0], dirs[1], dirs[1], dirs[2]):
        assert alter(leading, path) == ErrorCode.NONE
    assert [len(replicas_in(leading, path)) for path in dirs] == [1, 0, 1]
    assert alter(leading, dirs[0]) == ErrorCode.NONE
    assert [len(replicas_in(leading, path)) for path in dirs] == [1, 0, 0]
    work_off(leading)
    assert folder_of(leading) == dirs[0]
    assert alter(leading, dirs[2]) == ErrorCode.NONE
    work_off(leading)
    assert [len(replicas_in(leading, path)) for path in dirs] == [0, 0, 1]
    assert leading.logs.remove_deleted(1 << 60) == 3
    assert [len(list(path.glob("*-0*"))) for path in dirs] == [0, 0, 1]


def test_a_replica_that_is_created_later_is_created_in_the_requested_dir(
    leading: Serving, dirs: list[Path]
) -> None:
    assert alter(leading, dirs[1], 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    leading.managed.know({1: 0, 2: 5, 3: 5}, led_by(TWO, index=1))
    assert alter(leading, dirs[2], 1) == ErrorCode.REPLICA_NOT_AVAILABLE
    assert leading.managed.tell(state(index=1)) == []
    assert [partition.partition_index for partition in replicas_in(leading, dirs[2])] == [1]


def test_refused_moves_have_the_codes_of_kafka(leading: Serving, dirs: list[Path], tmp_path: Path) -> None:
    for path in (tmp_path / "other", Path("a"), dirs[0] / "topic-0"):
        assert alter(leading, path) == ErrorCode.LOG_DIR_NOT_FOUND
    assert alter(leading, dirs[1], topic="t" * 230) == ErrorCode.INVALID_TOPIC_EXCEPTION
    leading.logs.fail_dir(LogDirFailure(dirs[1], OSError(errno.EIO, "broken")))
    assert alter(leading, dirs[1]) == ErrorCode.KAFKA_STORAGE_ERROR
    leading.logs.fail_dir(LogDirFailure(dirs[0], OSError(errno.EIO, "broken")))
    assert alter(leading, dirs[2]) == ErrorCode.KAFKA_STORAGE_ERROR


def test_several_replicas_are_moved_by_one_request(leading: Serving, dirs: list[Path]) -> None:
    leading.managed.tell(*[state(index=index) for index in range(4)])
    wanted = [
        AlterReplicaLogDir(
            path=str(path), topics=[AlterReplicaLogDirTopic(name=TP.topic, partitions=partitions)]
        )
        for path, partitions in ((dirs[1], [0]), (dirs[2], [0, 1]), (dirs[0], [2, 9]))
    ]
    (result,) = leading.call(AlterReplicaLogDirsRequest(dirs=wanted), version=2).results
    codes = {each.partition_index: each.error_code for each in result.partitions}
    assert codes == {0: 0, 1: 0, 2: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert list(dirs[1].glob("*-delete")) == [], "the last dir counts, and no move to another has begun"
    work_off(leading)
    found = [sorted(each.partition_index for each in replicas_in(leading, path)) for path in dirs]
    assert found == [[2, 3], [], [0, 1]]


def test_many_refused_moves_are_logged_in_one_line(
    leading: Serving, dirs: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    topics = [AlterReplicaLogDirTopic(name="other", partitions=list(range(1_000)))]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(dirs[1]), topics=topics)])
    (result,) = leading.call(request).results
    assert {each.error_code for each in result.partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    (line,) = caplog.messages
    assert line.startswith("1000 replicas are not moved; the first is other-0: ")


# Failures


def test_a_target_that_fails_ends_the_move_and_keeps_the_replica(
    leading: Serving, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(leading, batch(b"first"))
    assert alter(leading, dirs[1]) == ErrorCode.NONE
    real = FileSystem.write_all

    def fail(files: FileSystem, descriptor: int, data: Any, position: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(dirs[1]):
            raise OSError(errno.ENOSPC, "full")
        real(files, descriptor, data, position)

    monkeypatch.setattr(FileSystem, "write_all", fail)
    work_off(leading)
    leading.managed.manager.disk_failures.work_off()
    assert dirs[1] in leading.logs.offline_dirs
    assert folder_of(leading) == dirs[0]
    catch_up(leading)
    connection = produce(leading, batch(b"second"), acks=-1)
    catch_up(leading)
    assert produced(connection).error_code == ErrorCode.NONE


def test_damage_in_the_current_log_delays_the_move_and_nothing_else(
    leading: Serving, dirs: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    produce(leading, batch(b"first" * 20))
    log = leading.managed.manager.partition(TP).log
    path = log.folder / "00000000000000000000.log"
    with path.open("r+b") as file:
        file.seek(80)
        file.write(b"x")
    assert alter(leading, dirs[1]) == ErrorCode.NONE
    work_off(leading)
    assert "tried again in 10 s" in caplog.text
    assert folder_of(leading) == dirs[0]
    (moving,) = replicas_in(leading, dirs[1])
    assert (moving.is_future_key, moving.offset_lag) == (True, 1)
    assert produced(produce(leading, batch(b"second"))).error_code == ErrorCode.NONE


def test_a_move_that_has_ended_gets_no_further_turn(
    leading: Serving, dirs: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    produce(leading, batch(b"first"))
    assert alter(leading, dirs[1]) == ErrorCode.NONE
    assert alter(leading, dirs[0]) == ErrorCode.NONE
    work_off(leading)
    assert alter(leading, dirs[1]) == ErrorCode.NONE
    work_off(leading)
    assert folder_of(leading) == dirs[1]
    assert leading.log_dir_moves._workers._waiting == []
    assert "tried again" not in caplog.text


def test_a_throttled_move_waits_until_the_rate_is_raised(leading: Serving, dirs: list[Path]) -> None:
    set_topic(leading, segment_bytes=100_000)
    for _ in range(8):
        produce(leading, batch(b"a" * 90_000))
    moves = leading.log_dir_moves
    moves.throttle.set_rate(0)
    moves.start()
    try:
        assert alter(leading, dirs[1]) == ErrorCode.NONE
        wait_for(lambda: math.isinf(moves.throttle.wait_s()), "nothing is copied")
        for _ in range(3):
            assert replicas_in(leading, dirs[1])[0].offset_lag == 7
        moves.throttle.set_rate(1 << 40)
        wait_for(lambda: folder_of(leading) == dirs[1], "the move does not go on")
    finally:
        moves.stop()
