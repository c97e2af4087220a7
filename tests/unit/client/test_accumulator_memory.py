"""Several appenders that wait for `buffer_memory`: served in order, reserved before they wake, never lost."""

import asyncio
import threading

import pytest

from barnabas.client.config import ProducerConfig
from barnabas.client.errors import ApiError, BufferExhausted, ClientClosed
from barnabas.client.metadata import PartitionInfo, TopicInfo
from barnabas.client.producer.accumulator import Accumulator, PartitionQueue
from barnabas.client.producer.batch import ProducerBatch
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ConnectionClosed
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerId, LeaderEpoch
from tests.support.waiting import until

_BUFFER_MEMORY = 1_000
_LONG_S = 60.0


class Sending:
    """One partition's queue, with ways to take and free memory."""

    def __init__(self) -> None:
        self.accumulator = Accumulator(
            _config(_LONG_S),
            partitioner=None,
            has_leader=lambda tp: True,
            wake_sender=lambda: None,
        )
        broker = BrokerId(1)
        partition = PartitionInfo("t", 0, broker, LeaderEpoch(0), (broker,), (broker,), ())
        topic = self.accumulator.add_topic(TopicInfo("t", NO_TOPIC_ID, False, (partition,)))
        self.queue: PartitionQueue = topic.by_partition[0]

    async def send(self, size: int, timeout_s: float = _LONG_S) -> ProducerBatch:
        self.accumulator.config = _config(timeout_s)
        return await self.accumulator.when_free(
            lambda: self.accumulator.add_encoded(self.queue, _encoded(size))
        )

    def waiting(self, size: int) -> asyncio.Task[ProducerBatch]:
        return asyncio.create_task(self.send(size))

    def free(self, batch: ProducerBatch) -> None:
        with self.accumulator.lock:
            self.accumulator.failed(
                self.queue, batch, ConnectionClosed("the test gives it up"), may_be_written=False
            )

    async def until_waiting(self, count: int) -> None:
        await until(lambda: len(self.accumulator._waiters) == count)


def _config(max_block_s: float) -> ProducerConfig:
    settings = {"buffer_memory": _BUFFER_MEMORY, "batch_size": 100, "max_block_ms": int(max_block_s * 1000)}
    return ProducerConfig.of({"bootstrap_servers": "localhost:9092", **settings})


def _encoded(size: int) -> bytes:
    """A batch of exactly `size` bytes."""
    for value_size in range(size, 0, -1):
        builder = RecordBatchBuilder(max_bytes=1 << 20)
        builder.append(None, bytes(value_size), None, 0)
        encoded = bytes(builder.build())
        if len(encoded) == size:
            return encoded
    raise AssertionError(f"no batch has {size} bytes")


@pytest.fixture
def sending() -> Sending:
    return Sending()


async def test_waiters_are_served_in_order_and_no_later_append_overtakes_them(sending: Sending) -> None:
    first = await sending.send(_BUFFER_MEMORY)
    a, b = sending.waiting(600), sending.waiting(600)
    await sending.until_waiting(2)
    sending.free(first)
    # Reserved at once: no other appender can take it before the waiter runs.
    assert sending.accumulator.available_bytes == 400
    with pytest.raises(BufferExhausted):
        await sending.send(300, timeout_s=0.01)
    async with asyncio.timeout(_LONG_S):
        batch = await a
        assert not b.done()
        sending.free(batch)
        sending.free(await b)
    assert sending.accumulator.available_bytes == _BUFFER_MEMORY


async def test_a_batch_that_never_fits_is_refused_and_does_not_wait(sending: Sending) -> None:
    with pytest.raises(ApiError, match=r"1100 bytes for t-0 exceed buffer_memory \(1000\)"):
        await sending.send(1_100, timeout_s=0.0)


async def test_a_waiter_cancelled_just_after_its_wake_up_passes_its_memory_on(sending: Sending) -> None:
    first = await sending.send(_BUFFER_MEMORY)
    a, b = sending.waiting(900), sending.waiting(900)
    await sending.until_waiting(2)
    sending.free(first)
    a.cancel()
    with pytest.raises(asyncio.CancelledError):
        await a
    async with asyncio.timeout(_LONG_S):
        sending.free(await b)
    assert sending.accumulator.available_bytes == _BUFFER_MEMORY


async def test_a_waiter_that_gives_up_lets_those_after_it_through(sending: Sending) -> None:
    await sending.send(500)
    large, small = asyncio.create_task(sending.send(900, timeout_s=0.01)), sending.waiting(400)
    with pytest.raises(BufferExhausted):
        await large
    async with asyncio.timeout(_LONG_S):
        await small


async def test_granted_memory_that_is_not_needed_is_released(sending: Sending) -> None:
    first = await sending.send(_BUFFER_MEMORY)
    attempts = iter((lambda: 800, lambda: sending.accumulator.add_encoded(sending.queue, _encoded(300))))
    waiting = asyncio.create_task(sending.accumulator.when_free(lambda: next(attempts)()))
    await sending.until_waiting(1)
    sending.free(first)
    assert isinstance(await waiting, ProducerBatch)
    assert sending.accumulator.available_bytes == _BUFFER_MEMORY - 300


async def test_memory_that_another_thread_gives_back_wakes_a_waiter(sending: Sending) -> None:
    await sending.send(600)
    batch = await sending.send(400)
    waiting = sending.waiting(400)
    await sending.until_waiting(1)
    thread = threading.Thread(target=sending.free, args=(batch,))
    thread.start()
    async with asyncio.timeout(_LONG_S):
        await waiting
    thread.join()
    assert sending.accumulator.available_bytes == 0


async def test_waiters_get_an_error_when_the_producer_closes(sending: Sending) -> None:
    await sending.send(_BUFFER_MEMORY)
    waiting = sending.waiting(100)
    await sending.until_waiting(1)
    with sending.accumulator.lock:
        sending.accumulator.close("closed by the test")
    with pytest.raises(ClientClosed, match="closed by the test"):
        await waiting


async def test_ctrl_c_before_a_batch_is_queued_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Accumulator, queue: PartitionQueue, batch: ProducerBatch) -> None:
        raise KeyboardInterrupt

    sending = Sending()
    monkeypatch.setattr(Accumulator, "_enqueue", interrupted)
    with pytest.raises(KeyboardInterrupt):
        await sending.send(100)
    assert sending.accumulator.available_bytes == _BUFFER_MEMORY
