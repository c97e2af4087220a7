"""Closing a producer while other tasks use it: it ends in time, and every record has an outcome."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from barnabas.client import client as lifecycle
from barnabas.client.errors import BarnabasError, ClientClosed
from barnabas.client.producer.batch import RecordFuture
from barnabas.client.producer.producer import Producer
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.producer_transactions import FakeTransactions
from tests.support.waiting import DEADLINE_S, until


async def send_on(producer: Producer, futures: list[RecordFuture], **place: Any) -> None:
    """Send records until that is refused."""
    while True:
        futures.append(await producer.send("t", bytes(500), **place))


async def is_busy(producer: Producer) -> bool:
    """Whether a send waits for memory, and one for the metadata of a topic."""
    accumulator, cluster = producer._accumulator, producer._cluster
    return bool(accumulator and accumulator._waiters and cluster and cluster._requested_topics["missing"])


@pytest.mark.parametrize("way", ["closed", "cancelled", "shielded"])
@pytest.mark.parametrize("transactional_id", [None, "x"])
async def test_a_close_beside_other_tasks_ends_in_time_and_leaves_no_record_without_an_outcome(
    pair: FakeCluster, monkeypatch: pytest.MonkeyPatch, transactional_id: str | None, way: str
) -> None:
    """No broker answers. The closing task is interrupted once, or again while it closes."""
    monkeypatch.setattr(lifecycle, "_AFTER_ERROR_S", 0.3)
    transactions = FakeTransactions(pair) if transactional_id is not None else None
    producer = Producer(
        bootstrap_servers=pair.bootstrap,
        transactional_id=transactional_id,
        buffer_memory=20_000,
        batch_size=1_000,
    )
    await producer.start()
    if transactions is not None:
        await producer.begin_transaction()
    for broker in pair.brokers.values():
        broker.gate(ApiKey.PRODUCE)
        broker.gate(ApiKey.END_TXN)
    futures: list[RecordFuture] = []
    work: list[Coroutine[Any, Any, Any]] = [
        send_on(producer, futures),
        send_on(producer, futures, partition=0),
        producer.send("missing", b"value"),
        producer.send("missing", b"value", key=b"key"),
        producer.send_and_wait("t", b"value"),
        producer.flush(),
    ]
    tasks = [asyncio.create_task(each) for each in work]
    await until(lambda: is_busy(producer))

    async def program() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closing = producer.close()
            await (asyncio.shield(closing) if way == "shielded" else closing)

    running = asyncio.create_task(program())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if way != "closed":
        running.cancel()
    async with asyncio.timeout(DEADLINE_S / 2):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.wait((running,))
        await until(lambda: producer._accumulator is None)
    assert running.cancelled()
    assert all(isinstance(error, ClientClosed) for error in outcomes[:5]), outcomes
    assert isinstance(outcomes[5], BarnabasError | None), outcomes
    assert futures
    assert all(isinstance(future.exception(), BarnabasError) for future in futures)
    await producer.close()
