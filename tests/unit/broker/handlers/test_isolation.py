"""Readers with read_committed: Fetch, its sessions and waits, and ListOffsets, over real logs.

Broker 1 leads "topic" with 2 and 3 in sync.
"""

from typing import Any

import pytest

from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_views import Isolation, PartitionRead
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.delete_records import (
    DELETE_TO_HIGH_WATERMARK,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.protocol.messages.list_offsets import (
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.protocol.messages.replicas import DescribeReplicasRequest
from barnabas.protocol.record_batch import iter_batches
from tests.support.building import TP, state
from tests.support.logs import PRODUCER_ID
from tests.support.record_requests import FETCH_VERSIONS, catch_up, fetch, fetched, produce
from tests.support.serving import Connection, Serving, batch
from tests.support.transactions import OTHER_ID, end, write

READ_COMMITTED = 1
_FIRST_WITH_TOPIC_IDS = 13


def partition_of(serving: Serving) -> Partition:
    return serving.managed.manager.partition(TP)


def fetch_committed(serving: Serving, offset: int | None, **fields: Any) -> Connection:
    return fetch(serving, offset, isolation_level=READ_COMMITTED, **fields)


def offsets(connection: Connection) -> list[int]:
    """The base offset of each batch in an answer."""
    return [header.base_offset for _, header in iter_batches(fetched(connection).records)]


def aborted(connection: Connection) -> list[tuple[int, int]] | None:
    listed = fetched(connection).aborted_transactions
    return None if listed is None else [(each.producer_id, each.first_offset) for each in listed]


def write_all(serving: Serving) -> None:
    """0: no transaction; 1, 2: an aborted one; 3: an ongoing one, 4: no transaction."""
    partition = partition_of(serving)
    produce(serving, batch(b"a"))
    write(partition)
    end(partition, committed=False)
    write(partition, producer_id=OTHER_ID)
    produce(serving, batch(b"b"))
    catch_up(serving)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_consumer_reads_up_to_the_last_stable_offset(leading: Serving, version: int | None) -> None:
    write_all(leading)
    if version is not None and version >= _FIRST_WITH_TOPIC_IDS:
        # Topics go by their ids, which this broker does not know.
        return
    committed = fetch_committed(leading, 0, version=version)
    answer = fetched(committed)
    assert (answer.high_watermark, answer.last_stable_offset) == (5, 3)
    assert (offsets(committed), aborted(committed)) == ([0, 1, 2], [(PRODUCER_ID, 1)])
    everything = fetch(leading, 0, version=version)
    assert (offsets(everything), aborted(everything)) == ([0, 1, 2, 3, 4], None)
    assert fetched(everything).last_stable_offset == 3
    at_the_end = fetch_committed(leading, 3, version=version)
    assert (offsets(at_the_end), aborted(at_the_end)) == ([], [])


def test_a_waiting_consumer_is_answered_when_the_last_stable_offset_moves(leading: Serving) -> None:
    write_all(leading)
    partition = partition_of(leading)
    waiting = fetch_committed(leading, 3, max_wait_ms=10_000)
    produce(leading, batch(b"c"))
    catch_up(leading)
    # The high watermark has moved, and nothing is there to be read.
    assert not waiting.is_answered
    end(partition, committed=True, producer_id=OTHER_ID)
    assert not waiting.is_answered
    catch_up(leading)
    assert offsets(waiting) == [3, 4, 5, 6]


def test_only_bytes_below_the_last_stable_offset_count(
    leading: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(leading)
    waiting = fetch_committed(leading, 2, min_bytes=200, max_wait_ms=10_000)
    reads: list[Isolation] = []
    read = Partition.read

    def noted(self: Partition, **named: Any) -> PartitionRead:
        reads.append(named["isolation"])
        return read(self, **named)

    monkeypatch.setattr(Partition, "read", noted)
    produce(leading, batch(b"x" * 500))
    catch_up(leading)
    assert not waiting.is_answered
    assert reads == [Isolation.FOLLOWER] * 2
    end(partition_of(leading), committed=True, producer_id=OTHER_ID)
    catch_up(leading)
    assert offsets(waiting) == [2, 3, 4, 5, 6]
    assert aborted(waiting) == [(PRODUCER_ID, 1)]


def test_a_session_has_the_aborted_transactions_of_its_news(leading: Serving) -> None:
    write_all(leading)
    first = fetch_committed(leading, 3, session_id=0, session_epoch=0)
    session_id = first.response.session_id
    assert (session_id > 0, aborted(first)) == (True, [])
    waiting = fetch_committed(leading, None, session_id=session_id, session_epoch=1, max_wait_ms=10_000)
    produce(leading, batch(b"c"))
    catch_up(leading)
    assert not waiting.is_answered
    end(partition_of(leading), committed=False, producer_id=OTHER_ID)
    catch_up(leading)
    assert (offsets(waiting), aborted(waiting)) == ([3, 4, 5, 6], [(OTHER_ID, 3)])
    leading.managed.pass_time(1)
    drained = fetch_committed(leading, 7, session_id=session_id, session_epoch=2, max_wait_ms=0, min_bytes=0)
    assert drained.response.error_code == ErrorCode.NONE


def test_records_that_a_cleaning_took_are_passed_over_up_to_the_last_stable_offset(leading: Serving) -> None:
    """The aborted transactions are those of the batches that are returned."""
    write_all(leading)
    only_control = fetch_committed(leading, 1, partition_max_bytes=1)
    assert (offsets(only_control), aborted(only_control)) == ([1], [(PRODUCER_ID, 1)])
    marker = fetch_committed(leading, 2, partition_max_bytes=1)
    assert (offsets(marker), aborted(marker)) == ([2], [(PRODUCER_ID, 1)])


# ListOffsets


def latest(serving: Serving, timestamp: int, isolation: int, version: int | None = None) -> tuple[int, int]:
    topic = ListOffsetsTopic(
        name=TP.topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
    )
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[topic])
    answer = serving.call(request, version=version).topics[0].partitions[0]
    return answer.error_code, answer.offset


@pytest.mark.parametrize("version", [None, 2, 8])
def test_the_latest_offset_is_where_the_isolation_ends(leading: Serving, version: int | None) -> None:
    write_all(leading)
    assert latest(leading, LATEST_TIMESTAMP, READ_COMMITTED, version) == (0, 3)
    assert latest(leading, LATEST_TIMESTAMP, 0, version) == (0, 5)


def test_a_lookup_by_time_finds_only_stable_records(leading: Serving) -> None:
    produce(leading, batch(b"a", timestamp_ms=10))
    write(partition_of(leading), timestamp_ms=20)
    produce(leading, batch(b"b", timestamp_ms=30))
    catch_up(leading)
    assert [latest(leading, time, READ_COMMITTED) for time in (5, 15, MAX_TIMESTAMP)] == [
        (0, 0),
        (0, -1),
        (0, -1),
    ]
    assert [latest(leading, time, 0) for time in (5, 15, MAX_TIMESTAMP)] == [(0, 0), (0, 1), (0, 2)]


def test_a_new_leader_does_not_know_the_last_stable_offset_either(leading: Serving) -> None:
    write_all(leading)
    produce(leading, batch(b"c"))
    leading.managed.tell(state(leader=2, epoch=1))
    leading.managed.tell(state(epoch=2))
    assert latest(leading, LATEST_TIMESTAMP, READ_COMMITTED)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    catch_up(leading)
    assert latest(leading, LATEST_TIMESTAMP, READ_COMMITTED) == (0, 3)


# Deletion and description


def described(serving: Serving) -> tuple[int, int, int, int]:
    (topic,) = serving.call(DescribeReplicasRequest(topics=[TP.topic])).topics
    (replica,) = topic.replicas
    return (
        replica.log_start_offset,
        replica.last_stable_offset,
        replica.high_watermark,
        replica.log_end_offset,
    )


def test_deleted_records_take_the_last_stable_offset_along(leading: Serving) -> None:
    """As in Kafka, records up to the high watermark may be deleted, also those of an ongoing transaction."""
    write_all(leading)
    produce(leading, batch(b"c"))
    assert described(leading) == (0, 3, 5, 6)
    waiting = fetch_committed(leading, 3, max_wait_ms=10_000)
    partition = DeleteRecordsPartition(partition_index=0, offset=DELETE_TO_HIGH_WATERMARK)
    topics = [DeleteRecordsTopic(name=TP.topic, partitions=[partition])]
    leading.send(DeleteRecordsRequest(topics=topics, timeout_ms=0))
    assert described(leading) == (5, 5, 5, 6)
    assert fetched(waiting).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    catch_up(leading, log_start_offset=5)
    assert described(leading) == (5, 5, 6, 6)
    end(partition_of(leading), committed=True, producer_id=OTHER_ID)
    catch_up(leading, log_start_offset=5)
    assert described(leading) == (5, 7, 7, 7)
