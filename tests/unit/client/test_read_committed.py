"""Consumers and range readers of a log with transactions, under both isolation levels."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.partition_state import FetchedFrame, PartitionState
from barnabas.client.consumer.range_reader import read_range
from barnabas.client.errors import ApiError, InvalidConfiguration
from barnabas.client.isolation import AbortedBatches, IsolationLevel, TransactionEnd
from barnabas.protocol.frames import Frame
from barnabas.protocol.messages.fetch import AbortedTransaction, FetchPartitionResponse
from barnabas.protocol.record_batch import iter_batches, parse_header
from barnabas.protocol.records import decode_records
from barnabas.protocol.schema import ApiKey
from tests.support.admins import quick_admin
from tests.support.fake_broker import FakeCluster
from tests.support.transaction_log import TransactionLog
from tests.support.waiting import until

from .test_cluster import started
from .test_consumer import T0, read, reading

COMMITTED = IsolationLevel.READ_COMMITTED
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED

Found = list[tuple[int, bytes]]

PRODUCERS = st.integers(7, 9)
WRITES = st.tuples(st.just("write"), st.none() | PRODUCERS, st.integers(1, 3))
ENDS = st.tuples(st.just("end"), PRODUCERS, st.booleans())
HISTORIES = st.lists(WRITES | ENDS, max_size=25)


def history(steps: list[tuple[str, Any, Any]]) -> TransactionLog:
    log = TransactionLog()
    for kind, producer_id, detail in steps:
        if kind == "end":
            log.end(producer_id, committed=detail)
        else:
            log.write(producer_id, *(b"%d.%d" % (log.end_offset, index) for index in range(detail)))
    return log


def drained(state: PartitionState, limit: int) -> Found:
    found: Found = []
    while records := state.take(limit):
        found += [(record.offset, record.value or b"") for record in records]
    return found


def read_in_fetches(
    log: TransactionLog, isolation: IsolationLevel, start: int, sizes: list[int], limit: int
) -> tuple[Found, PartitionState]:
    """Read to the end in answers of so many batches each, the last size again and again."""
    state = PartitionState(T0, check_crcs=True, isolation=isolation)
    state.seek(start, None)
    found: Found = []
    for number in range(1_000):
        size = sizes[min(number, len(sizes) - 1)]
        offset = state.fetch_offset
        assert offset is not None
        answer = log.fetch(offset, max_batches=size, is_read_committed=isolation is COMMITTED)
        if not state.add(answer, FetchedFrame(Frame(memoryview(b"")))):
            return found, state
        if number % 2:
            # Else two answers are buffered at once.
            found += drained(state, limit)
    raise AssertionError("reading does not end")


@settings(max_examples=150, deadline=None)
@given(
    HISTORIES,
    st.lists(st.integers(1, 6), min_size=1, max_size=10),
    st.integers(1, 5),
    st.floats(0, 1),
)
def test_exactly_the_committed_records_are_read_however_the_fetches_are_cut(
    steps: list[tuple[str, Any, Any]], sizes: list[int], limit: int, where: float
) -> None:
    log = history(steps)
    start = int(where * log.last_stable_offset)
    found, state = read_in_fetches(log, COMMITTED, start, sizes, limit)
    found += drained(state, limit)
    assert found == log.committed(start)
    assert state.position == state.fetch_offset == log.last_stable_offset
    found, state = read_in_fetches(log, UNCOMMITTED, start, sizes, limit)
    found += drained(state, limit)
    assert found == log.written(start)
    assert state.position == state.fetch_offset == log.end_offset


@settings(max_examples=150, deadline=None)
@given(HISTORIES, st.lists(st.tuples(st.integers(), st.integers()), max_size=8), st.data())
def test_a_wrong_list_of_aborted_transactions_hides_nothing_but_its_own_producers(
    steps: list[tuple[str, Any, Any]], wild: list[tuple[int, int]], data: st.DataObject
) -> None:
    log = history(steps)
    near = st.tuples(st.integers(6, 10), st.integers(-2, log.end_offset + 2))
    listed = wild + data.draw(st.lists(near, max_size=8))
    rule = AbortedBatches(
        AbortedTransaction(producer_id=producer_id, first_offset=offset) for producer_id, offset in listed
    )
    for batch in log.batches:
        header = parse_header(batch)
        skipped = rule.skips(header)
        assert rule.skips(header) is skipped, "the same question twice"
        if skipped:
            assert header.is_transactional
            assert not header.is_control
            assert any(
                producer_id == header.producer_id and offset <= header.last_offset
                for producer_id, offset in listed
            )


@pytest.fixture
def log() -> TransactionLog:
    """Committed, aborted and open transactions; the last stable offset is 9, the end 12."""
    log = TransactionLog()
    log.write(7, b"a0", b"a1")
    log.write(8, b"b2")
    log.write(None, b"p3")
    log.end(7, committed=False)
    log.write(7, b"a5")
    log.end(8, committed=True)
    log.end(7, committed=False)
    log.end(7, committed=True)
    log.write(9, b"c9")
    log.write(None, b"p10", b"p11")
    return log


def serve(cluster: FakeCluster, log: TransactionLog) -> None:
    """Have the broker's log hold these batches."""
    cluster.partition("t").append_compacted(log.batches)


async def test_a_committed_reader_gets_the_committed_records_up_to_the_last_stable_offset(
    cluster: FakeCluster, log: TransactionLog
) -> None:
    serve(cluster, log)
    async with reading(cluster, isolation_level="read_committed") as consumer:
        assert await read(consumer, 2) == [b"b2", b"p3"]
        assert consumer.high_watermark(T0) == 12
        while await consumer.position(T0) < 9:
            assert await consumer.poll(10_000) == []
        assert consumer.lag(T0) == 0
        assert consumer.metrics()["records-lag-max"] == 0
        assert await consumer.end_offsets([T0]) == {T0: 9}
        consumer.seek_to_end(T0)
        assert await consumer.position(T0) == 9
    assert {request.isolation_level for request in cluster.requests(ApiKey.FETCH)} == {1}
    assert {request.isolation_level for request in cluster.requests(ApiKey.LIST_OFFSETS)} == {1}


async def test_an_uncommitted_reader_gets_all_records_and_no_markers(
    cluster: FakeCluster, log: TransactionLog
) -> None:
    serve(cluster, log)
    async with reading(cluster) as consumer:
        assert await read(consumer, 8) == [value for _, value in log.written()]
        assert await consumer.end_offsets([T0]) == {T0: 12}
        assert consumer.lag(T0) == 0
    assert {request.isolation_level for request in cluster.requests(ApiKey.FETCH)} == {0}


async def test_iteration_passes_over_aborted_batches(cluster: FakeCluster, log: TransactionLog) -> None:
    serve(cluster, log)
    async with reading(cluster, isolation_level="read_committed") as consumer:
        found = [await consumer.getone() for _ in range(2)]
        assert [record.offset for record in found] == [2, 3]
        following = asyncio.ensure_future(consumer.getone())
        await until(lambda: cluster.requests(ApiKey.FETCH)[-1].topics[0].partitions[0].fetch_offset == 9)
        following.cancel()
        assert await consumer.position(T0) == 9


async def test_poll_returns_as_soon_as_positions_have_passed_batches_without_records(
    cluster: FakeCluster,
) -> None:
    log = TransactionLog()
    log.write(7, b"a0")
    log.end(7, committed=False)
    serve(cluster, log)
    async with reading(cluster, isolation_level="read_committed") as consumer:
        async with asyncio.timeout(5):
            assert await consumer.poll(3_600_000) == []
        assert await consumer.position(T0) == 2


@pytest.mark.parametrize("batch", [0, 1, 2])
async def test_a_damaged_batch_is_an_error_also_if_its_header_says_to_skip_it(
    batch: int, log: TransactionLog
) -> None:
    position = [0, 1, 4][batch]
    answer = log.fetch(0)
    damaged = bytearray(log.batches[position])
    damaged[-1] ^= 1
    batches = [*log.batches[:position], bytes(damaged)]
    answer.records = b"".join(batches)
    for check_crcs in (True, False):
        state = PartitionState(T0, check_crcs=check_crcs, isolation=COMMITTED)
        state.seek(0, None)
        state.add(answer, FetchedFrame(Frame(memoryview(b""))))
        if check_crcs:
            before = parse_header(damaged).base_offset
            with pytest.raises(ApiError, match="CRC"):
                drained(state, 1)
            assert state.position == before
        elif position != 1:
            drained(state, 10)


@pytest.mark.parametrize("reuse", [False, True])
async def test_a_range_leaves_out_aborted_batches(
    reuse: bool, cluster: FakeCluster, log: TransactionLog
) -> None:
    serve(cluster, log)

    async def values(start: int, end: int, isolation: IsolationLevel) -> list[bytes | None]:
        found = []
        async with started(cluster, retry_backoff_ms=5) as client:
            pieces = read_range(
                client, T0, start, end, isolation_level=isolation.name.lower(), reuse_buffers=reuse
            )
            async for piece in pieces:
                for position, header in iter_batches(piece):
                    if not header.is_control:
                        batch = bytes(piece[position : position + header.size_bytes])
                        found += [record.value for record in decode_records(batch)]
        return found

    assert await values(0, 9, COMMITTED) == [b"b2", b"p3"]
    assert await values(1, 2, COMMITTED) == [b"b2", b"p3"]
    assert await values(5, 6, COMMITTED) == []
    assert await values(0, 12, UNCOMMITTED) == [value for _, value in log.written()]


async def test_the_end_of_answers_without_a_last_stable_offset_is_unknown() -> None:
    state = PartitionState(T0, check_crcs=True, isolation=COMMITTED)
    answer = FetchPartitionResponse(partition_index=0, error_code=0, high_watermark=5)
    assert not state.add(answer, FetchedFrame(Frame(memoryview(b""))))
    assert (state.high_watermark, state.end_offset) == (5, -1)


def test_an_unknown_isolation_level_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"isolation_level='serializable'.*read_committed"):
        Consumer(isolation_level="serializable")
    with pytest.raises(ValueError, match="expected read_uncommitted or read_committed"):
        IsolationLevel.parse("committed")


async def test_a_reader_of_all_records_gets_the_end_of_each_transaction(
    cluster: FakeCluster, log: TransactionLog
) -> None:
    serve(cluster, log)
    async with quick_admin(cluster) as admin:
        offset, ends = 0, []
        while batches := (piece := (await admin.read_log({T0: offset}, max_bytes=1 << 20))[T0]).batches:
            ends += [(each.header.base_offset, each.end) for each in batches if not each.header.is_control]
            offset = batches[-1].header.next_offset
        assert (piece.last_stable_offset, piece.high_watermark, offset) == (9, 12, 12)
    aborted, committed, unknown = TransactionEnd.ABORTED, TransactionEnd.COMMITTED, TransactionEnd.UNKNOWN
    assert ends == [(0, aborted), (2, committed), (3, None), (5, aborted), (9, unknown), (10, None)]


async def test_records_that_the_last_stable_offset_has_passed_meanwhile_are_read_again(
    cluster: FakeCluster, log: TransactionLog
) -> None:
    """The answer for all readers does not tell that their transaction was aborted."""
    serve(cluster, log)

    def abort_before_the_answer(_: Any, body: Any) -> None:
        if body.isolation_level == UNCOMMITTED and log.last_stable_offset == 9:
            log.end(9, committed=False)
            cluster.partition("t").append_compacted(log.batches[-1:])

    cluster.intercept[ApiKey.FETCH] = abort_before_the_answer
    async with quick_admin(cluster) as admin:
        (batch, *_) = (await admin.read_log({T0: 9}, max_bytes=1 << 20))[T0].batches
        assert (batch.header.base_offset, batch.end) == (9, TransactionEnd.ABORTED)
