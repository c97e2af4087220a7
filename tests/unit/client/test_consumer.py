"""The consumer against brokers that fail on command."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from barnabas.client.consumer import fetcher
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.partition_state import FetchedFrame, PartitionState
from barnabas.client.errors import (
    ApiError,
    ClientClosed,
    NotAssigned,
    OffsetUnknown,
    RequestTimedOutLocally,
)
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from barnabas.protocol.frames import Frame
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.fetch import FetchPartitionResponse
from barnabas.protocol.record_batch import TimestampType
from barnabas.protocol.schema import ApiKey
from tests.support.batches import build_batch
from tests.support.fake_broker import FakeCluster, FakePartition
from tests.support.waiting import DEADLINE_S, until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
EARLIEST = {"auto_offset_reset": "earliest", "retry_backoff_ms": 5, "fetch_max_wait_ms": 20}


def fill(partition: FakePartition, start: int, end: int, per_batch: int = 10, **batch: Any) -> None:
    """Append the numbers of a range as values, in batches."""
    for first in range(start, end, per_batch):
        records = [(None, b"%d" % number) for number in range(first, min(end, first + per_batch))]
        partition.append(memoryview(build_batch(records, **batch)))


def values(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


async def read(consumer: Consumer, count: int, max_records: int | None = None) -> list[bytes | None]:
    received: list[bytes | None] = []
    while len(received) < count:
        records = await consumer.poll(10_000, max_records)
        assert records, f"only {len(received)} of {count} records came"
        received += [record.value for record in records]
    return received


@asynccontextmanager
async def reading(cluster: FakeCluster, **settings: Any) -> AsyncIterator[Consumer]:
    """A consumer of the first partition, from its start unless the settings say otherwise."""
    async with Consumer(bootstrap_servers=cluster.bootstrap, **{**EARLIEST, **settings}) as consumer:
        consumer.assign([T0])
        yield consumer


async def test_the_first_question_about_a_topic_does_not_wait_for_the_back_off(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 1)
    settings = {"auto_offset_reset": "earliest", "retry_backoff_ms": 3_600_000}
    async with reading(cluster, **settings) as consumer:
        async with asyncio.timeout(DEADLINE_S):
            assert (await consumer.getone()).value == b"0"


async def test_a_consumer_that_has_nothing_to_read_does_not_wait(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 1)
    async with Consumer(bootstrap_servers=cluster.bootstrap, **EARLIEST) as consumer:
        async with asyncio.timeout(DEADLINE_S):
            for reads in (consumer.poll, consumer.getmany, consumer.getone, consumer.__anext__):
                with pytest.raises(NotAssigned, match="reads nothing: call `subscribe` or `assign` first"):
                    await reads()
            consumer.subscribe("t")
            assert [record.value for record in await consumer.poll(10_000)] == [b"0"]
            await consumer.unsubscribe()
            with pytest.raises(NotAssigned):
                await consumer.poll(10_000)


async def test_records_come_in_order_with_all_their_fields(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 25, timestamp_ms=777, compression=Compression.ZSTD)
    async with reading(cluster) as consumer:
        records = await consumer.poll(10_000)
        while len(records) < 25:
            records += await consumer.poll(10_000)
        builder = RecordBatchBuilder()
        builder.append(None, b"25", None, 777)
        cluster.partition("t").append(builder.build(timestamp_type=TimestampType.LOG_APPEND_TIME))
        records.append(await consumer.getone())
    assert [record.offset for record in records] == list(range(26))
    assert [record.value for record in records] == values(0, 26)
    assert {record.timestamp_ms for record in records} == {777}
    assert records[0].topic == "t"
    assert records[0].partition == 0
    assert records[0].headers == ()
    assert records[0].timestamp_type is TimestampType.CREATE_TIME
    assert records[25].timestamp_type is TimestampType.LOG_APPEND_TIME


async def test_latest_starts_at_the_high_watermark_and_reads_new_records(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 10)
    async with reading(cluster, auto_offset_reset="latest") as consumer:
        assert await consumer.position(T0) == 10
        fill(cluster.partition("t"), 10, 15)
        assert await read(consumer, 5) == values(10, 15)


async def test_nothing_above_the_high_watermark_is_seen(pair: FakeCluster) -> None:
    partition = pair.partition("t")
    pair.set_isr("t", 0, [1, 2])
    fill(partition, 0, 20)
    partition.follow(2, 10)
    async with reading(pair) as consumer:
        assert await read(consumer, 10) == values(0, 10)
        assert await consumer.poll(0) == []
        assert consumer.high_watermark(T0) == 10
        partition.follow(2, 20)
        assert await read(consumer, 10) == values(10, 20)


async def test_seek_into_the_middle_of_a_batch_drops_the_records_before(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 30)
    async with reading(cluster) as consumer:
        consumer.seek(T0, 17)
        assert await read(consumer, 13) == values(17, 30)
        consumer.seek(T0, 4)
        assert await consumer.position(T0) == 4
        assert (await consumer.poll(10_000, 1))[0].offset == 4
        assert await consumer.position(T0) == 5
        consumer.seek_to_beginning(T0)
        assert (await consumer.poll(10_000, 3))[0].offset == 0
        consumer.seek_to_end()
        assert await consumer.position(T0) == 30
        assert consumer.lag(T0) == 0


async def test_an_answer_from_before_a_seek_is_dropped(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 30)
    gate = cluster.brokers[1].gate(ApiKey.FETCH)
    async with reading(cluster) as consumer:
        consumer.seek(T0, 0)
        await until(lambda: cluster.requests(ApiKey.FETCH))
        consumer.seek(T0, 20)
        gate.set()
        assert await read(consumer, 10) == values(20, 30)


@pytest.mark.parametrize("fate", ["hangs", "is dead"])
async def test_no_partition_waits_for_the_start_offset_of_another_leader(fate: str) -> None:
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", 2, leaders=[1, 2])
        fill(cluster.partition("t", 0), 0, 1)
        alive, other = cluster.brokers.values()
        async with Consumer(bootstrap_servers=f"127.0.0.1:{alive.port}", **EARLIEST) as consumer:
            gate = other.gate(ApiKey.LIST_OFFSETS)
            if fate == "is dead":
                await other.stop()
            consumer.assign([T0, TopicPartition("t", 1)])
            async with asyncio.timeout(DEADLINE_S):
                assert (await consumer.getone()).value == b"0"
            gate.set()


@pytest.mark.parametrize(("reset", "first"), [("earliest", 10), ("latest", 30)])
async def test_an_offset_out_of_range_is_reset(cluster: FakeCluster, reset: str, first: int) -> None:
    partition = cluster.partition("t")
    fill(partition, 0, 30)
    partition.delete_records(10)
    async with reading(cluster, auto_offset_reset=reset) as consumer:
        consumer.seek(T0, 3)
        await until(lambda: len(cluster.requests(ApiKey.FETCH)) > 1)
        assert await consumer.position(T0) >= first
        fill(partition, 30, 40)
        assert (await read(consumer, 1))[0] == b"%d" % first


async def test_an_offset_out_of_range_without_a_reset_is_an_error_until_a_seek(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 10)
    async with reading(cluster, auto_offset_reset="none") as consumer:
        with pytest.raises(OffsetUnknown, match="t-0 has no position"):
            await consumer.poll(10_000)
        consumer.seek(T0, 99)
        for _ in range(2):
            with pytest.raises(ApiError, match="offset 99 of t-0 is outside the log, which starts at 0"):
                await consumer.poll(10_000)
        consumer.seek(T0, 8)
        assert await read(consumer, 2) == values(8, 10)


async def test_a_damaged_batch_is_an_error_after_the_records_before_it(cluster: FakeCluster) -> None:
    partition = cluster.partition("t")
    fill(partition, 0, 30)
    partition.damage(1)
    async with reading(cluster) as consumer:
        assert await read(consumer, 10) == values(0, 10)
        with pytest.raises(ApiError, match="CORRUPT_MESSAGE"):
            await consumer.poll(10_000)
        assert await consumer.position(T0) == 10
        consumer.seek(T0, 20)
        assert await read(consumer, 10) == values(20, 30)


async def test_damaged_batches_are_skipped_by_name_if_wanted(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    partition = cluster.partition("t")
    fill(partition, 0, 30)
    partition.damage(1)
    async with reading(cluster, skip_damaged_batches=True, **EARLIEST) as consumer:
        assert await read(consumer, 20) == [*values(0, 10), *values(20, 30)]
        assert await consumer.position(T0) == 30
    assert "offsets 10 to 19 of t-0 are skipped" in caplog.text


async def test_prefetch_stops_at_its_bound_and_goes_on_when_there_is_room(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 1_000, per_batch=10)
    size = len(cluster.partition("t").batches[0])
    settings = {"max_partition_fetch_bytes": 3 * size, "fetch_max_bytes": 100 * size, **EARLIEST}
    async with reading(cluster, **settings) as consumer:
        state = consumer._assignment.states[T0]
        await until(lambda: state.buffered_bytes >= 3 * size)
        for _ in range(5):
            await consumer.end_offsets([T0])
        assert state.buffered_bytes <= 6 * size
        assert len(cluster.requests(ApiKey.FETCH)) <= 2
        assert await read(consumer, 1_000, 7) == values(0, 1_000)


async def test_all_partitions_together_stay_within_fetch_max_bytes() -> None:
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", 4)
        for partition in cluster.topics["t"]:
            fill(partition, 0, 500)
        settings = {"fetch_max_bytes": 4_000, **EARLIEST}
        async with Consumer(bootstrap_servers=cluster.bootstrap, **settings) as consumer:
            consumer.assign([("t", partition) for partition in range(4)])
            received = await read(consumer, 2_000)
            assert sorted(received) == sorted(values(0, 500) * 4)
        limits = [request.max_bytes for request in cluster.requests(ApiKey.FETCH)]
        assert max(limits) <= 4_000


async def test_paused_partitions_give_nothing_until_resumed(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 2)
    for partition in cluster.topics["t"]:
        fill(partition, 0, 20)
    async with Consumer(bootstrap_servers=cluster.bootstrap, **EARLIEST) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        consumer.pause(T0)
        assert consumer.paused() == {T0}
        assert await read(consumer, 20) == values(0, 20)
        assert await consumer.poll(0) == []
        consumer.pause(("t", 1))
        consumer.resume(T0)
        assert await read(consumer, 20) == values(0, 20)
        assert await consumer.position(T0) == 20


async def test_the_position_while_iterating_counts_only_handed_out_records(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 40)
    async with reading(cluster) as consumer:
        seen = []
        async for record in consumer:
            seen.append(record.value)
            assert await consumer.position(T0) == record.offset + 1
            if len(seen) == 13:
                break
        assert (await consumer.getone()).offset == 13
        assert [record.offset for record in await consumer.poll(10_000, 2)] == [14, 15]
        assert await consumer.position(T0) == 16
        assert (await consumer.getone()).offset == 16
        consumer.pause(T0)
        assert await consumer.poll(0) == []
        consumer.resume(T0)
        assert (await consumer.getone()).offset == 17
        consumer.seek(T0, 30)
        assert (await consumer.getone()).offset == 30
        rest = await read(consumer, 9)
    assert seen == values(0, 13)
    assert rest == values(31, 40)


async def test_partitions_take_turns(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 2)
    for partition in cluster.topics["t"]:
        fill(partition, 0, 100)
    async with Consumer(bootstrap_servers=cluster.bootstrap, **EARLIEST) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        await until(lambda: all(state.has_data for state in consumer._assignment.states.values()))
        polled = [{record.partition for record in await consumer.poll(10_000, 10)} for _ in range(4)]
    assert polled == [{0}, {1}, {0}, {1}]


async def test_records_of_chosen_partitions_leave_others_where_they_are(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 2)
    for partition in cluster.topics["t"]:
        fill(partition, 0, 30)
    both = [T0, T1]
    async with Consumer(bootstrap_servers=cluster.bootstrap, **EARLIEST) as consumer:
        consumer.assign(both)
        await until(lambda: all(state.has_data for state in consumer._assignment.states.values()))
        iterated = await consumer.getone()
        other = both[1 - both.index(iterated.tp)]
        for start in (0, 10):
            lists = await consumer.getmany(other, timeout_ms=10_000, max_records=10)
            assert [record.offset for record in lists.pop(other)] == list(range(start, start + 10))
            assert lists == {}
        assert (await consumer.getone(other)).offset == 20
        assert await consumer.position(iterated.tp) == 1
        assert (await consumer.getone(iterated.tp)).offset == 1
        lists = await consumer.getmany(timeout_ms=10_000)
        assert {tp: (of_one[0].offset, len(of_one)) for tp, of_one in lists.items()} == {
            iterated.tp: (2, 28),
            other: (21, 9),
        }
        assert await consumer.getmany(timeout_ms=0) == {}
        with pytest.raises(NotAssigned, match="t-7 is not assigned"):
            await consumer.getmany(T0, ("t", 7))


async def test_errors_of_partitions_that_are_not_asked_for_wait(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 2)
    for partition in cluster.topics["t"]:
        fill(partition, 0, 10)
    cluster.partition("t", 0).damage(0)
    async with Consumer(bootstrap_servers=cluster.bootstrap, **EARLIEST) as consumer:
        consumer.assign([T0, T1])
        # The error is found, and due with the next poll.
        await until(lambda: all(state.has_data for state in consumer._assignment.states.values()))
        assert len(await consumer.poll(10_000)) == 10
        assert consumer._assignment.states[T0].error is not None
        assert await consumer.getmany(T1, timeout_ms=0) == {}
        for partitions in ([T0], []):
            with pytest.raises(ApiError, match="CORRUPT_MESSAGE"):
                await consumer.getmany(*partitions, timeout_ms=10_000)


async def test_a_new_assignment_keeps_the_positions_of_those_that_stay(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 3)
    for partition in cluster.topics["t"]:
        fill(partition, 0, 10)
    async with Consumer(bootstrap_servers=cluster.bootstrap, **EARLIEST) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        await read(consumer, 20)
        consumer.assign([("t", 1), ("t", 2)])
        assert consumer.assignment() == {("t", 1), ("t", 2)}
        assert await consumer.position(("t", 1)) == 10
        assert [record.partition for record in await consumer.poll(10_000)] == [2] * 10
        with pytest.raises(NotAssigned, match="t-0 is not assigned"):
            consumer.seek(T0, 0)


async def test_offsets_are_listed_by_position_and_time() -> None:
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", 2)
        fill(cluster.partition("t", 0), 0, 10, timestamp_ms=1_000)
        fill(cluster.partition("t", 0), 10, 20, timestamp_ms=2_000)
        both = [T0, TopicPartition("t", 1)]
        async with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
            assert await consumer.beginning_offsets(both) == {both[0]: 0, both[1]: 0}
            assert await consumer.end_offsets(both) == {both[0]: 20, both[1]: 0}
            listed = await consumer.offsets_for_times({both[0]: 1_500, both[1]: 0})
            assert listed[both[0]] is not None
            assert listed[both[0]][:2] == (10, 2_000)
            assert listed[both[1]] is None
            cluster.move_leader("t", 0, 2)
            assert (await consumer.end_offsets([T0]))[T0] == 20


async def test_an_unknown_topic_is_logged_and_read_when_it_appears(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster() as cluster:
        async with Consumer(bootstrap_servers=cluster.bootstrap, **EARLIEST) as consumer:
            consumer.assign([("late", 0)])
            with pytest.raises(RequestTimedOutLocally, match="position of late-0"):
                await consumer.position(("late", 0), timeout_ms=50)
            await until(lambda: "topic 'late' cannot be read" in caplog.text)
            cluster.add_topic("late")
            fill(cluster.partition("late"), 0, 5)
            assert await read(consumer, 5) == values(0, 5)


async def test_the_offsets_of_a_partition_that_the_metadata_is_too_old_to_have(cluster: FakeCluster) -> None:
    async with reading(cluster) as consumer:
        consumer.assign([T0])
        assert await consumer.end_offsets([T0]) == {T0: 0}
        cluster.grow_topic("t", 3)
        fill(cluster.partition("t", 2), 0, 4)
        assert await consumer.end_offsets([("t", 2)]) == {TopicPartition("t", 2): 4}
        with pytest.raises(ApiError, match="has 3 partitions, there is no 3"):
            await consumer.end_offsets([("t", 3)])


@pytest.mark.parametrize("appears", [True, False])
async def test_a_partition_that_does_not_exist_is_logged_and_then_an_error(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, appears: bool
) -> None:
    fill(cluster.partition("t"), 0, 10)
    limit_ms = 60_000 if appears else 100
    async with reading(cluster, retry_backoff_ms=5, default_api_timeout_ms=limit_ms) as consumer:
        consumer.assign([T0, ("t", 2)])
        assert await read(consumer, 10) == values(0, 10)
        await until(lambda: "topic 't' has 1 partitions, there is no 2; retrying" in caplog.text)
        if appears:
            cluster.grow_topic("t", 3)
            fill(cluster.partition("t", 2), 0, 10)
        else:
            with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION: topic 't' has 1 partitions"):
                await consumer.poll(60_000)
            consumer.assign([T0])
            fill(cluster.partition("t"), 10, 20)
        assert sorted(await read(consumer, 10)) == sorted(values(0, 10) if appears else values(10, 20))


@pytest.mark.parametrize("is_at_work", [True, False])
async def test_closing_ends_an_iteration_and_refuses_a_new_one(
    cluster: FakeCluster, is_at_work: bool
) -> None:
    """As in the handler of a signal; the body may finish the record that it is working on."""
    fill(cluster.partition("t"), 0, 10)
    async with reading(cluster) as consumer:
        seen = []

        async def work() -> None:
            async for record in consumer:
                seen.append(record.offset)
                if is_at_work and len(seen) == 5:
                    await consumer.close()

        working = asyncio.create_task(work())
        await until(lambda: len(seen) == (5 if is_at_work else 10))
        await consumer.close()
        await working
        assert len(seen) == (5 if is_at_work else 10)
        with pytest.raises(ClientClosed, match="closed"):
            async for _ in consumer:
                pass
        with pytest.raises(ClientClosed, match="closed"):
            await consumer.getone()


async def test_stopping_ends_waiting_calls_with_nothing(cluster: FakeCluster) -> None:
    async with reading(cluster) as consumer:
        calls = (consumer.poll(60_000), consumer.getmany(T0, timeout_ms=60_000))
        for call, nothing in zip(calls, ([], {}), strict=True):
            consumer._polls.is_stopped = consumer._polls._has_returned_stop = False
            waiting = asyncio.create_task(call)
            await until(lambda: cluster.requests(ApiKey.FETCH))
            await asyncio.to_thread(consumer.stop)
            assert await waiting == nothing
            assert consumer.is_stopped
        fill(cluster.partition("t"), 0, 10)
        # A loop that does not look at `is_stopped` must not spin.
        for later in (consumer.poll(), consumer.getmany(), consumer.getone(), consumer.getone(T0)):
            with pytest.raises(ClientClosed, match="stopped"):
                await later
        assert await consumer.position(T0) == 0


async def test_a_poll_that_finds_the_consumer_stopped_returns_nothing_once(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 10)
    async with reading(cluster) as consumer:
        await until(lambda: consumer._assignment.states[T0].has_data)
        consumer.stop()
        assert await consumer.poll() == []
        with pytest.raises(ClientClosed, match="stopped"):
            await consumer.poll()


async def test_awaiting_the_stop_closes_too_and_ends_calls_of_other_tasks(cluster: FakeCluster) -> None:
    async with reading(cluster) as consumer:
        polling = asyncio.create_task(consumer.poll(60_000))
        await until(lambda: cluster.requests(ApiKey.FETCH))
        async with asyncio.timeout(DEADLINE_S):
            await consumer.stop()
            assert await polling == []
        with pytest.raises(ClientClosed, match="closed"):
            consumer.assign([T0])
        await consumer.stop()
    consumer = Consumer(bootstrap_servers=cluster.bootstrap)
    consumer.stop()
    async with consumer:
        consumer.assign([T0])
        assert [record async for record in consumer] == []


async def test_closing_ends_a_waiting_poll_and_later_calls(cluster: FakeCluster) -> None:
    consumer = Consumer(bootstrap_servers=cluster.bootstrap)
    with pytest.raises(ClientClosed, match="not started"):
        consumer.assign([T0])
    await consumer.start()
    consumer.assign([T0])
    waiting = asyncio.create_task(consumer.getone())
    await until(lambda: cluster.requests(ApiKey.FETCH))
    await consumer.close()
    await consumer.close()
    with pytest.raises(ClientClosed, match="closed"):
        await waiting
    with pytest.raises(ClientClosed, match="closed"):
        await consumer.poll()
    for seek in (consumer.seek_to_beginning, consumer.seek_to_end):
        with pytest.raises(ClientClosed, match="closed"):
            seek()


@pytest.mark.parametrize("wrong", ["orders", [("t", "0")], [("t",)], [5], [("t", 0, 0)]])
async def test_a_wrong_partition_is_refused_by_name(cluster: FakeCluster, wrong: Any) -> None:
    async with reading(cluster) as consumer:
        with pytest.raises(TypeError, match=r"partition .*: expected a topic and a number, such as \("):
            consumer.assign(wrong)
        assert consumer.assignment() == {T0}


@pytest.mark.parametrize("offset", [-1, 1.5, "0", None, 2**63])
async def test_a_wrong_offset_is_refused(cluster: FakeCluster, offset: Any) -> None:
    async with reading(cluster) as consumer:
        with pytest.raises(ValueError, match="expected 0 or more"):
            consumer.seek(T0, offset)


class LentFrame:
    is_released = False

    def release(self) -> None:
        self.is_released = True


def test_a_frame_is_released_when_the_last_of_its_partitions_is_read_or_dropped() -> None:
    lent, unused = LentFrame(), LentFrame()
    frame = FetchedFrame(lent)
    batch = build_batch([(None, b"v")])
    first, second = (PartitionState(T0, check_crcs=True) for _ in range(2))
    for state in (first, second):
        state.seek(0, None)
        state.add(FetchPartitionResponse(partition_index=0, error_code=0, records=batch), frame)
    frame.done()
    assert [record.value for record in first.take(1)] == [b"v"]
    assert not lent.is_released
    second.seek(0, None)
    assert lent.is_released
    part = FetchPartitionResponse(partition_index=0, error_code=0, records=batch[:20])
    with pytest.raises(ApiError, match="20 bytes of t-0 hold no whole batch at or after offset 0"):
        second.add(part, FetchedFrame(unused))
    FetchedFrame(unused).done()
    assert unused.is_released


async def test_the_frames_of_all_answers_are_released_once_their_records_are_read(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[FetchedFrame] = []

    def keep(frame: Frame) -> FetchedFrame:
        frames.append(FetchedFrame(frame))
        return frames[-1]

    monkeypatch.setattr(fetcher, "FetchedFrame", keep)
    fill(cluster.partition("t"), 0, 30)
    async with reading(cluster) as consumer:
        await read(consumer, 30)
        # Answers without records come as well.
        await until(lambda: len(frames) > 2)
        assert [frame._users for frame in frames] == [0] * len(frames)


LONG_WAIT = {"fetch_max_wait_ms": 300_000, "request_timeout_ms": 600_000}


async def waiting(cluster: FakeCluster, consumer: Consumer, count: int) -> None:
    """Read the records, and wait until the next fetch waits for more."""
    await read(consumer, count)
    await until(lambda: cluster.requests(ApiKey.FETCH)[-1].topics[0].partitions[0].fetch_offset == count)


async def test_a_sought_position_is_fetched_while_an_earlier_fetch_waits(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 30)
    async with asyncio.timeout(DEADLINE_S), reading(cluster, **LONG_WAIT) as consumer:
        await waiting(cluster, consumer, 30)
        for first in (20, 0):
            consumer.seek(T0, first)
            assert await read(consumer, 30 - first) == values(first, 30)
        consumer.seek_to_beginning()
        # The answer to the waiting fetch has other records, which are not those at this position.
        assert await read(consumer, 10, 10) == values(0, 10)
        fill(cluster.partition("t"), 30, 50)
        assert await read(consumer, 40) == values(10, 50)
        fill(cluster.partition("t"), 50, 60)
        assert await read(consumer, 10) == values(50, 60)


async def test_an_assigned_partition_is_fetched_while_the_fetch_of_others_waits(cluster: FakeCluster) -> None:
    cluster.grow_topic("t", 2)
    for number in (0, 1):
        fill(cluster.partition("t", number), 0, 30)
    settings = {**LONG_WAIT, "max_partition_fetch_bytes": 200}
    async with asyncio.timeout(DEADLINE_S), reading(cluster, **settings) as consumer:
        await waiting(cluster, consumer, 30)
        consumer.assign([T0, T1])
        # In several fetches.
        assert await read(consumer, 30, 10) == values(0, 30)
        fill(cluster.partition("t"), 30, 40)
        fill(cluster.partition("t", 1), 30, 40)
        assert sorted(await read(consumer, 20)) == sorted(values(30, 40) * 2)


async def test_however_often_it_seeks_a_consumer_has_two_fetches_in_flight(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 30)
    async with asyncio.timeout(DEADLINE_S), reading(cluster, **LONG_WAIT) as consumer:
        await waiting(cluster, consumer, 30)
        gate = cluster.brokers[1].gate(ApiKey.FETCH)
        before = len(cluster.requests(ApiKey.FETCH))
        for first in range(20):
            consumer.seek(T0, first)
            assert await consumer.poll(1) == []
        assert len(cluster.requests(ApiKey.FETCH)) == before + 1
        gate.set()
        assert await read(consumer, 11) == values(19, 30)
