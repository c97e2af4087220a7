"""Readers with read_committed: Fetch, its sessions and waits, and ListOffsets, over real logs.

Broker 1 leads "topic" with 2 and 3 in sync.
"""

from typing import Any

import pytest

from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.log_offsets import (
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.protocol.record_batch import iter_batches
from tests.support.building import TP
from tests.support.logs import PRODUCER_ID
from tests.support.record_requests import catch_up, fetch, fetched, produce
from tests.support.serving import Connection, Serving, batch
from tests.support.transactions import OTHER_ID, end, write

READ_COMMITTED = 1


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


@pytest.mark.parametrize("version", [None, 4, 12])
def test_a_consumer_reads_up_to_the_last_stable_offset(leading: Serving, version: int | None) -> None:
    write_all(leading)
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
    times = (5, 15, MAX_TIMESTAMP)
    assert [latest(leading, time, READ_COMMITTED) for time in times] == [(0, 0), (0, -1), (0, -1)]
    assert [latest(leading, time, 0) for time in times] == [(0, 0), (0, 1), (0, 2)]
