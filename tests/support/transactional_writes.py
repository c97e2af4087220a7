"""Settings, writes and checks for the tests of transactional producers, on a cluster with the topic "t"."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from barnabas.client.errors import BarnabasError
from barnabas.client.producer.producer import Producer
from barnabas.client.producer.transactions import PreparedTransaction
from barnabas.protocol.ids import TopicPartition
from tests.support.fake_broker import FakeCluster
from tests.support.producer_transactions import FakeTransactions

_QUICK: Final = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 20, "reconnect_backoff_ms": 1}
T0: Final = TopicPartition("t", 0)


def settings(cluster: FakeCluster, **changes: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap, "transactional_id": "x", **_QUICK, **changes}


async def write(producer: Producer, *values: bytes) -> None:
    """Send each value to both partitions in turn."""
    for number, value in enumerate(values):
        await producer.send("t", value, partition=number % 2)


async def begin(producer: Producer, *values: bytes) -> None:
    """Begin a transaction and write the values."""
    await producer.begin_transaction()
    await write(producer, *values)


async def prepare(cluster: FakeCluster) -> PreparedTransaction:
    """Prepare a transaction with the record "1", and close its producer."""
    async with Producer(**settings(cluster)) as producer:
        await begin(producer, b"1")
        return await producer.prepare_transaction()


async def check_usable(producer: Producer, transactions: FakeTransactions) -> None:
    """The producer can commit another transaction."""
    async with producer.transaction():
        await write(producer, b"again 1", b"again 2")
    assert transactions.of("x").committed[-1] == {b"again 1", b"again 2"}


async def check_unusable(producer: Producer, kind: type[BarnabasError]) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send("t", b"v"),
        lambda: producer.send_offsets_to_transaction({T0: 1}, "g"),
    ]
    for call in calls:
        with pytest.raises(kind):
            await call()


async def use_every_api(producer: Producer) -> None:
    async with producer.transaction():
        await write(producer, b"1", b"2")
        await producer.flush()
        await producer.send_offsets_to_transaction({T0: 7}, "g")
