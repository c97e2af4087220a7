"""A disk that fails or is full, on a replica manager over two real log dirs."""

import errno
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.handlers import replicas
from barnabas.broker.handlers.fault_table import FaultTable
from barnabas.broker.log import segment
from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import LogDirFailure, StorageCallFailed
from barnabas.broker.replication.delayed_fetch import FetchResult
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from barnabas.protocol.messages.produce import PartitionProduceResponse
from barnabas.protocol.messages.replicas import DescribeReplicasRequest, DescribeReplicasResponse
from barnabas.protocol.schema import replace
from barnabas.zookeeper.errors import ZooKeeperUnavailable
from tests.support.batches import build_batch
from tests.support.building import ME, TWO, Managed, NoStore, state
from tests.support.defaults import log_config
from tests.support.logs import open_dirs
from tests.support.waiting import DEADLINE_S

OTHER = TWO
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
ACKS_ALL, ACKS_ONE = -1, 1


def a_batch() -> bytearray:
    return build_batch([(None, b"value")])


class Store(NoStore):
    """Takes notifications, after raising `errors`."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.notified: list[BrokerId] = []
        self.was_notified = threading.Event()

    def notify_log_dir_failure(self, broker: BrokerId) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.notified.append(broker)
        self.was_notified.set()


class Broker(Managed):
    """Leads t-0 and t-2 in the first log dir and t-1 in the second; broker 2 is in sync."""

    def __init__(self, folder: Path) -> None:
        self.dirs = [folder / "first", folder / "second"]
        self.full: set[Path] = set()
        self.store = Store()
        logs: Any = open_dirs(*self.dirs, config=log_config(), broker_id=ME)
        super().__init__(logs, self.store)
        self.replicas = self.manager
        self.epoch = -1
        assert self.lead(T0, T1, T2) == []
        assert [self.dir_of(name) for name in (T0, T1, T2)] == [self.dirs[0], self.dirs[1], self.dirs[0]]

    def dir_of(self, name: TopicPartition) -> Path:
        return self.replicas.partition(name).log.folder.parent

    def lead(self, *names: TopicPartition, leader: int = ME, is_new: bool = True) -> list[ErrorCode]:
        """LeaderAndIsr of the next leader epoch."""
        self.epoch += 1
        role = state(leader, self.epoch, (ME, OTHER), (ME, OTHER), self.epoch)
        states = [replace(role, partition_index=name.partition, is_new=is_new) for name in names]
        return self.tell(*states, topic="t")

    def delete(self, name: TopicPartition) -> list[ErrorCode]:
        return self.stop_replica(-2, delete=True, name=name)

    def append(self, name: TopicPartition, acks: int = ACKS_ONE) -> list[PartitionProduceResponse]:
        """The responses so far: empty while the produce waits."""
        responses: list[PartitionProduceResponse] = []
        self.replicas.append(acks, 30_000, [(name, parse_produced(a_batch()))], responses.extend)
        return responses

    def lose_first_dir(self) -> None:
        """An append finds its disk full."""
        self.full.add(self.dirs[0])
        self.append(T2)
        assert self.replicas.disk_failures.work_off()

    def read(self, name: TopicPartition, *, follower: int = -1) -> list[FetchResult]:
        """A fetch that may wait."""
        return self.fetch(0, replica=follower, max_wait_ms=30_000, broker_epoch=-1, partitions=[name])

    def error_of(self, name: TopicPartition) -> ErrorCode | None:
        try:
            self.replicas.partition(name)
        except ApiError as error:
            return error.code
        return None


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """Its disks take bytes unless the test says ``broker.full.add(dir)``."""
    made = Broker(tmp_path)

    def pwrite(descriptor: int, data: Any, position: int) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if any(path.is_relative_to(full) for full in made.full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(descriptor, data, position)

    monkeypatch.setattr(FileSystem, "pwrite", staticmethod(pwrite))
    yield made
    made.full.clear()
    made.logs.close(0)


def test_a_full_disk_loses_its_own_partitions_and_no_others(broker: Broker) -> None:
    assert broker.append(T0)[0].base_offset == 0
    broker.full.add(broker.dirs[0])
    [outcome] = broker.append(T0)
    assert (outcome.error_code, outcome.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert "No space left" in str(outcome.error_message)
    assert broker.replicas.disk_failures.work_off()
    assert [broker.error_of(name) for name in (T0, T1, T2)] == [
        ErrorCode.KAFKA_STORAGE_ERROR,
        None,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ]
    assert broker.append(T2)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.read(T2)[0].outcomes[0].read.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.append(T1)[0].base_offset == 0
    assert broker.store.notified == [ME]
    assert list(broker.logs.offline_dirs) == [broker.dirs[0]]
    # The controller asks about all replicas.
    assert broker.lead(T0, T1, T2, is_new=False) == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert broker.replicas.partition(T1).leader_epoch == broker.epoch


def test_requests_that_wait_for_a_lost_partition_are_answered(broker: Broker) -> None:
    waiting = broker.append(T0, ACKS_ALL)
    followed = broker.read(T2, follower=OTHER)
    consumed = broker.read(T2)
    assert (waiting, followed, consumed) == ([], [], [])
    broker.lose_first_dir()
    assert [outcome.error_code for outcome in waiting] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert [result.outcomes[0].read.error for result in (*followed, *consumed)] == [
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ]


def test_a_lost_follower_is_not_fetched_and_has_no_role(broker: Broker) -> None:
    assert broker.lead(T0, T1, leader=OTHER) == []
    assert set(broker.fetchers.followed) == {T0, T1}
    partition = broker.replicas.partition(T0)
    broker.lose_first_dir()
    assert set(broker.fetchers.followed) == {T1}
    with pytest.raises(ApiError) as caught:
        partition.follower_position(LeaderEpoch(broker.epoch))
    assert caught.value.code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_replica_that_cannot_be_created_is_offline_until_a_restart(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = TopicPartition("t", 3)

    def refuse(path: Path, files: FileSystem) -> None:
        raise LogDirFailure(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    with monkeypatch.context() as patch:
        patch.setattr(segment, "create_segment_file", refuse)
        [error] = broker.lead(fresh)
    assert error is ErrorCode.KAFKA_STORAGE_ERROR
    broker.replicas.disk_failures.work_off()
    assert broker.error_of(fresh) == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(broker.logs.offline_dirs) == 1
    # Not in the other dir either: at the next start it would lie in both.
    [error] = broker.lead(fresh)
    assert error is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_role_refused_for_lack_of_descriptors_is_requested_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller counts the replica as offline; without a new request it would stay so until a
    restart."""

    def refuse(partition: Partition, *_: Any) -> bool:
        raise StorageCallFailed(partition.log.folder, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "make_leader", refuse)
        [error] = broker.lead(T0, is_new=False)
    assert error is ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.logs.offline_dirs == {}
    broker.replicas.shrink_isrs()
    assert broker.replicas.disk_failures.work_off()
    assert broker.store.notified == [ME]
    assert broker.lead(T0, is_new=False) == []
    broker.replicas.shrink_isrs()
    assert broker.replicas.disk_failures.work_off()
    assert broker.store.notified == [ME]


def test_a_log_that_opens_late_takes_no_role_of_a_later_topic_of_its_name(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topic was deleted while the broker was down and could not open the log at start."""
    broker.append(T1)
    broker.logs.close(0)

    def refuse(*_: object, **__: object) -> None:
        raise StorageCallFailed(Path("log"), OSError(errno.EMFILE, os.strerror(errno.EMFILE)))

    with monkeypatch.context() as patch:
        patch.setattr(Log, "open", refuse)
        logs: Any = open_dirs(*broker.dirs, config=log_config(), broker_id=ME)
    broker.logs = logs
    restarted = Managed(logs, broker.store)
    role = replace(state(ME, 9, (ME, OTHER), (ME, OTHER), 9), partition_index=T1.partition)
    other_id = TopicId(uuid.uuid4())
    assert restarted.tell(role, topic="t", topic_id=other_id) == []
    assert restarted.manager.partition(T1).log.log_end_offset == 0
    (stray,) = [stray for stray in logs.strays.all() if stray.partition == T1]
    assert stray.topic_id != other_id


def test_a_lost_replica_cannot_be_deleted(broker: Broker) -> None:
    broker.lose_first_dir()
    [error] = broker.delete(T0)
    assert error is ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.delete(T1) == []


@pytest.mark.parametrize("error", [ZooKeeperUnavailable("no connection"), ZeroDivisionError("a bug")])
def test_a_notification_that_fails_is_retried(
    broker: Broker, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    broker.store.errors = [error, error]
    broker.full.add(broker.dirs[0])
    broker.append(T0)
    for _ in range(2):
        assert not broker.replicas.disk_failures.work_off()
        assert broker.error_of(T0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert "a failed log dir" in caplog.text
    for _ in range(2):
        assert broker.replicas.disk_failures.work_off()
    assert broker.store.notified == [ME]


def test_the_thread_takes_the_dir_offline_and_notifies(broker: Broker) -> None:
    broker.replicas.disk_failures.start()
    broker.full.add(broker.dirs[0])
    assert broker.append(T0)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.store.was_notified.wait(DEADLINE_S)
    assert broker.error_of(T2) == ErrorCode.KAFKA_STORAGE_ERROR
    # A role is refused; the log manager itself finds the other dir lost.
    broker.store.was_notified.clear()
    broker.replicas.disk_failures.note_refused_role()
    broker.replicas.shrink_isrs()
    assert broker.store.was_notified.wait(DEADLINE_S)
    broker.store.was_notified.clear()
    broker.logs.fail_dir(LogDirFailure(broker.dirs[1] / "checkpoint", OSError(errno.ENOSPC, "full")))
    assert broker.store.was_notified.wait(DEADLINE_S)
    assert broker.error_of(T1) == ErrorCode.KAFKA_STORAGE_ERROR
    broker.replicas.disk_failures.stop()


def test_without_any_disk_the_broker_still_answers(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.full |= set(broker.dirs)
    broker.append(T0)
    broker.append(T1)
    broker.replicas.disk_failures.work_off()
    assert "no log dir is left" in caplog.text
    assert [broker.append(name)[0].error_code for name in (T0, T1, T2)] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    [error] = broker.lead(TopicPartition("t", 5))
    assert error is ErrorCode.KAFKA_STORAGE_ERROR
    broker.replicas.checkpoint_high_watermarks()
    broker.replicas.shrink_isrs()
    broker.replicas.retain(0)


def test_described_replicas_include_offline_ones_and_their_dirs(broker: Broker) -> None:
    broker.lose_first_dir()
    answers: list[DescribeReplicasResponse] = []
    services: Any = SimpleNamespace(
        replicas=broker.replicas, config=SimpleNamespace(broker_id=ME), cleaner=None, faults=FaultTable()
    )
    request: Any = SimpleNamespace(body=DescribeReplicasRequest(topics=["t"]), respond=answers.append)
    replicas.handle_describe_replicas(services, request)
    [topic] = answers[0].topics
    described: dict[int, tuple[bool, str]] = {
        replica.partition_index: (replica.is_offline, replica.log_dir) for replica in topic.replicas
    }
    assert described == {
        0: (True, str(broker.dirs[0])),
        1: (False, str(broker.dirs[1])),
        2: (True, str(broker.dirs[0])),
    }
    reasons = {replica.partition_index: replica.failure for replica in topic.replicas}
    assert reasons[1] == ""
    assert reasons[0] == reasons[2], "one failure took both offline"
    assert reasons[0].startswith(str(broker.dirs[0]))
    assert reasons[0].endswith(": No space left on device")
