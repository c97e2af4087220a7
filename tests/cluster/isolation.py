"""Committed, aborted and open transactions in one partition, and readers of both isolation levels."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Final

from barnabas.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.waiting import until

DEADLINE_S: Final = 60.0
TOPIC: Final = "transactions"
T0: Final = TopicPartition(TOPIC, 0)
DECIDED: Final = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
COMMITTED: Final = [b"b0", b"p0", b"b1", b"a2"]
WRITTEN: Final = [b"a0", b"a1", *COMMITTED, b"c0", b"p1"]


class Writers:
    """A plain producer, and three with transactional ids."""

    def __init__(self, bootstrap: str, wire: str) -> None:
        self.bootstrap = bootstrap
        self._stack = AsyncExitStack()
        settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "wire": wire}
        self.settings = settings
        self.admin = Admin(**settings)
        self.plain = Producer(**settings)
        self.first, self.second, self.third = (
            Producer(**settings, transactional_id=name) for name in ("first", "second", "third")
        )

    async def __aenter__(self) -> Writers:
        for client in (self.admin, self.plain, self.first, self.second, self.third):
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._stack.aclose()


async def write(producer: Producer, *values: bytes) -> None:
    for value in values:
        await producer.send(TOPIC, value, partition=0)
    await producer.flush()


async def wait_for_markers(admin: Admin) -> None:
    """Wait until readers see the end of each decided transaction; a commit returns before that."""

    async def have_markers() -> bool:
        return not await admin.list_transactions(states=DECIDED)

    await until(have_markers, "a decided transaction has no markers")


async def read_to_the_end(bootstrap: str, wire: str, isolation_level: str) -> list[bytes]:
    """The values of the partition up to its present end for this isolation."""
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "wire": wire}
    async with (
        asyncio.timeout(DEADLINE_S),
        Consumer(**settings, isolation_level=isolation_level, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([T0])
        end = (await consumer.end_offsets([T0]))[T0]
        values: list[bytes] = []
        while await consumer.position(T0) < end:
            values += [record.value or b"" for record in await consumer.poll()]
        assert consumer.lag(T0) == 0
        return values


async def read_decided_and_open_transactions(writers: Writers, *wires: str) -> None:
    """Two committed transactions, an aborted one, and one that stays open."""
    admin, plain, bootstrap = writers.admin, writers.plain, writers.bootstrap
    first, second, third = writers.first, writers.second, writers.third
    await admin.create_topics(NewTopic(TOPIC, 1, 3, {"min.insync.replicas": "2"}))
    await first.begin_transaction()
    await second.begin_transaction()
    await write(first, b"a0", b"a1")
    await write(second, b"b0")
    await write(plain, b"p0")
    await write(second, b"b1")
    await first.abort_transaction()
    await second.commit_transaction()
    async with first.transaction():
        await write(first, b"a2")
    await third.begin_transaction()
    await write(third, b"c0")
    await write(plain, b"p1")
    await wait_for_markers(admin)
    for wire in wires:
        assert await read_to_the_end(bootstrap, wire, "read_committed") == COMMITTED
        assert await read_to_the_end(bootstrap, wire, "read_uncommitted") == WRITTEN
    listed = {listing.transactional_id: listing.state for listing in await admin.list_transactions()}
    assert listed["third"] == "Ongoing"
    assert {listed["first"], listed["second"]} == {"CompleteCommit"}
    (producer,) = [
        producer
        for producer in (await admin.describe_producers([T0]))[T0]
        if producer.transaction_start_offset is not None
    ]
    described = (await admin.describe_transactions("third"))["third"]
    assert described.producer_id == producer.producer_id
    assert described.partitions == (T0,)
    assert await admin.find_hanging_transactions([T0], max_transaction_timeout_ms=0) == []
    stable = await admin.list_offsets({T0: "latest"}, isolation_level="read_committed")
    assert stable[T0].offset == producer.transaction_start_offset
