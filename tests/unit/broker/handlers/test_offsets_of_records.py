"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords, over real logs.

Version None is the native protocol.
"""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.broker.network.request import Lane
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.log_offsets import (
    DELETE_TO_HIGH_WATERMARK,
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.protocol.topic_names import INTERNAL_TOPICS
from tests.support.building import TP, state
from tests.support.record_requests import catch_up, fetched, follow, produce, set_topic
from tests.support.serving import Connection, Serving, batch

# ListOffsets


def list_offset(
    serving: Serving,
    timestamp: int,
    *,
    version: int | None = None,
    replica: int = -1,
    times: int = 1,
    **fields: int,
) -> Any:
    partition = ListOffsetsPartition(**{"partition_index": 0, "timestamp": timestamp, **fields})
    topic = ListOffsetsTopic(name=TP.topic, partitions=[partition] * times)
    answer = serving.call(ListOffsetsRequest(replica_id=replica, topics=[topic]), version=version)
    return answer.topics[0].partitions[0]


def place(answer: Any) -> tuple[int, int, int]:
    assert answer.error_code == ErrorCode.NONE
    return answer.offset, answer.timestamp, answer.leader_epoch


@pytest.mark.parametrize(
    ("timestamp", "lane"),
    [
        (0, Lane.RECORDS),
        (MAX_TIMESTAMP, Lane.RECORDS),
        (LATEST_TIMESTAMP, Lane.GENERAL),
        (EARLIEST_TIMESTAMP, Lane.GENERAL),
    ],
)
def test_a_lookup_that_may_decompress_a_batch_runs_with_the_checks_of_records(
    leading: Serving, timestamp: int, lane: Lane
) -> None:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = ListOffsetsTopic(name=TP.topic, partitions=[partition])
    connection = Connection.of(ListOffsetsRequest(replica_id=-1, topics=[topic]))
    leading.process(connection.request)
    assert connection.request.lane is lane
    assert connection.is_answered is (lane is Lane.GENERAL)


def test_offsets_by_position_and_by_time(leading: Serving) -> None:
    assert place(list_offset(leading, EARLIEST_TIMESTAMP)) == (0, -1, 0)
    produce(leading, batch(b"a", b"b", b"c", timestamp_ms=1_000))
    produce(leading, batch(b"d", timestamp_ms=500))
    catch_up(leading)
    produce(leading, batch(b"later", timestamp_ms=9_000))
    assert place(list_offset(leading, EARLIEST_TIMESTAMP)) == (0, -1, 0)
    assert place(list_offset(leading, LATEST_TIMESTAMP)) == (4, -1, 0)
    assert place(list_offset(leading, 0)) == (0, 1_000, 0)
    assert place(list_offset(leading, 1_001)) == (1, 1_001, 0)
    leading.managed.manager.partition(TP).log.increment_log_start_offset(1)
    assert place(list_offset(leading, EARLIEST_TIMESTAMP)) == (1, -1, 0)


def test_the_latest_offset_has_no_older_epoch_than_its_records(
    leading: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that validates it against an epoch that ended before takes it for truncated (KIP-320)."""
    latest_offset = Partition.latest_offset

    def in_the_next_epoch(partition: Partition, *asked: Any) -> Any:
        leading.managed.tell(state(epoch=2))
        produce(leading, batch(b"a"))
        catch_up(leading)
        return latest_offset(partition, *asked)

    monkeypatch.setattr(Partition, "latest_offset", in_the_next_epoch)
    assert place(list_offset(leading, LATEST_TIMESTAMP)) == (1, -1, 2)


@pytest.mark.parametrize("version", [None, 11])
@pytest.mark.parametrize("replica", [-2, -1, 2, 7])
def test_uncommitted_records_have_no_offset_whatever_replica_asks(
    leading: Serving, replica: int, version: int | None
) -> None:
    produce(leading, batch(b"a"))
    catch_up(leading)
    produce(leading, batch(b"later", timestamp_ms=9_000))
    assert place(list_offset(leading, LATEST_TIMESTAMP, replica=replica, version=version)) == (1, -1, 0)
    for timestamp in (5_000, MAX_TIMESTAMP):
        assert place(list_offset(leading, timestamp, replica=replica, version=version)) == (-1, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "since", "offset"),
    [
        (LATEST_TIMESTAMP, 1, 2),
        (MAX_TIMESTAMP, 7, 1),
        (EARLIEST_LOCAL_TIMESTAMP, 8, 0),
        # Without tiered storage there is no such offset.
        (LATEST_TIERED_TIMESTAMP, 9, -1),
        (EARLIEST_PENDING_UPLOAD_TIMESTAMP, 11, -1),
        (-9, 12, -1),
    ],
)
def test_special_timestamps_mean_something_since_their_version(
    leading: Serving, timestamp: int, since: int, offset: int
) -> None:
    produce(leading, batch(b"a", b"b", timestamp_ms=10))
    catch_up(leading)
    for version in range(1, 12):
        answer = list_offset(leading, timestamp, version=version)
        expected = (0, offset) if version >= since else (ErrorCode.UNSUPPORTED_VERSION, -1)
        assert (answer.error_code, answer.offset) == expected
        if offset == -1:
            assert (answer.timestamp, answer.leader_epoch) == (-1, -1)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (4, ErrorCode.LEADER_NOT_AVAILABLE),
        (5, ErrorCode.OFFSET_NOT_AVAILABLE),
        (None, ErrorCode.OFFSET_NOT_AVAILABLE),
    ],
)
def test_a_new_leader_answers_only_what_it_knows(
    leading: Serving, version: int | None, code: ErrorCode
) -> None:
    produce(leading, batch(b"a", timestamp_ms=10))
    catch_up(leading)
    produce(leading, batch(b"b", timestamp_ms=20))
    leading.managed.tell(state(leader=2, epoch=1))
    leading.managed.tell(state(epoch=2))
    assert list_offset(leading, LATEST_TIMESTAMP, version=version).error_code == code
    assert list_offset(leading, 15, version=version).error_code == code
    known = list_offset(leading, 5, version=version)
    assert (known.error_code, known.offset, known.timestamp) == (0, 0, 10)
    catch_up(leading)
    assert list_offset(leading, LATEST_TIMESTAMP, version=version).offset == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"current_leader_epoch": 7}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"partition_index": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"times": 2}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_wrong_partition_is_refused(leading: Serving, fields: dict[str, int], code: ErrorCode) -> None:
    for version, timestamp in ((None, EARLIEST_TIMESTAMP), (7, LATEST_TIMESTAMP)):
        assert list_offset(leading, timestamp, version=version, **fields).error_code == code


# OffsetForLeaderEpoch


def test_where_an_epoch_ends(leading: Serving) -> None:
    produce(leading, batch(b"a", b"b"))
    leading.managed.tell(state(epoch=3))
    produce(leading, batch(b"c"))

    def ask(epoch: int, current: int = -1, partition: int = 0) -> tuple[int, int, int]:
        requested = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        topic = OffsetForLeaderTopic(topic=TP.topic, partitions=[requested])
        answer = leading.call(OffsetForLeaderEpochRequest(topics=[topic])).topics[0].partitions[0]
        return answer.error_code, answer.leader_epoch, answer.end_offset

    assert ask(0) == (0, 0, 2)
    assert ask(2, current=3) == (0, 0, 2)
    assert ask(3) == (0, 3, 3)
    assert ask(8) == (0, -1, -1)
    assert ask(0, current=1) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert ask(0, current=4) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert ask(0, partition=9) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


# DeleteRecords


def delete(serving: Serving, offset: int, *, partition: int = 0, topic: str = TP.topic) -> Connection:
    deletion = DeleteRecordsPartition(partition_index=partition, offset=offset)
    topics = [DeleteRecordsTopic(name=topic, partitions=[deletion])]
    return serving.send(DeleteRecordsRequest(topics=topics, timeout_ms=500), version=2)


def deleted(connection: Connection) -> tuple[int, int]:
    (partition,) = connection.response.topics[0].partitions
    return partition.error_code, partition.low_watermark


@pytest.fixture
def filled(leading: Serving) -> Serving:
    """Three records are committed."""
    produce(leading, batch(b"a", b"b", b"c"))
    catch_up(leading)
    return leading


def test_records_are_deleted_when_every_replica_has_done_so(filled: Serving) -> None:
    connection = delete(filled, 2)
    assert filled.managed.manager.partition(TP).log.log_start_offset == 2
    # The followers' next fetches have their log start, and the answers that of the leader.
    answers = catch_up(filled, log_start_offset=0)
    assert [fetched(answer).log_start_offset for answer in answers] == [2, 2]
    assert not connection.is_answered
    catch_up(filled, log_start_offset=2)
    assert deleted(connection) == (0, 2)
    below = fetched(follow(filled, 1))
    assert (below.error_code, below.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)


def test_a_followers_long_poll_ends_when_records_are_deleted(filled: Serving) -> None:
    waiting = follow(filled, 3, max_wait_ms=1_000, log_start_offset=0)
    assert not waiting.is_answered
    delete(filled, 1)
    assert fetched(waiting).log_start_offset == 1


def test_everything_that_is_committed_can_be_deleted_without_dead_followers(filled: Serving) -> None:
    produce(filled, batch(b"not yet"))
    filled.managed.know({1: 0})
    set_topic(filled, cleanup_policy=("compact", "delete"))
    assert deleted(delete(filled, DELETE_TO_HIGH_WATERMARK)) == (0, 3)


def test_a_deletion_waits_for_a_follower_until_the_timeout_or_a_change_of_leadership(filled: Serving) -> None:
    connection = delete(filled, 1)
    filled.managed.pass_time(499)
    assert not connection.is_answered
    filled.managed.pass_time(1)
    assert deleted(connection) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    connection = delete(filled, 1)
    filled.managed.tell(state(leader=2, epoch=1))
    assert deleted(connection) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_deletion_that_is_refused_changes_nothing(filled: Serving) -> None:
    produce(filled, batch(b"not yet"))
    for offset in (4, -2):
        assert deleted(delete(filled, offset)) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert deleted(delete(filled, 0, partition=9)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    set_topic(filled, cleanup_policy=("compact",))
    assert deleted(delete(filled, -1)) == (ErrorCode.POLICY_VIOLATION, -1)
    filled.managed.manager.fence.silent("ZooKeeper is silent")
    assert deleted(delete(filled, -1)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert filled.managed.manager.partition(TP).log.log_start_offset == 0


@pytest.mark.parametrize(
    ("method", "code_of"),
    [
        ("offset_for_timestamp", lambda serving: list_offset(serving, 5).error_code),
        ("increment_log_start_offset", lambda serving: deleted(delete(serving, 1))[0]),
    ],
)
def test_a_disk_that_fails_goes_offline(
    filled: Serving, monkeypatch: pytest.MonkeyPatch, method: str, code_of: Callable[[Serving], int]
) -> None:
    manager = filled.managed.manager
    folder = manager.partition(TP).log.folder.parent

    def fail(*args: Any, **named: Any) -> None:
        raise LogDirFailure(folder, OSError("broken"))

    monkeypatch.setattr(Log, method, fail)
    assert code_of(filled) == ErrorCode.KAFKA_STORAGE_ERROR
    manager.disk_failures.work_off()
    assert folder in filled.logs.offline_dirs


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_only_brokers_delete_records_of_internal_topics(leading: Serving, topic: str) -> None:
    assert leading.managed.tell(state(), topic=topic, topic_id=uuid.UUID(int=9)) == []
    assert deleted(delete(leading, 0, topic=topic)) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
