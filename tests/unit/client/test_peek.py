"""What lies at some offsets: waiting for records, and the sizes of batches, on several leaders."""

import asyncio
import time

import pytest

from barnabas.client.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.schema import ApiKey
from tests.support.admins import quick_admin
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import until

from .test_consumer import fill

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LONG_MS = 60_000


async def test_a_record_of_any_partition_ends_the_wait(pair: FakeCluster) -> None:
    pair.add_topic("t", 2, leaders=[1, 2])
    fill(pair.partition("t", 0), 0, 10)
    async with quick_admin(pair) as admin:
        await admin.watch_topics("t")
        await admin.list_offsets({T0: "latest", T1: "latest"})
        assert await admin.wait_for_records({T0: 10, T1: 0}, timeout_ms=5) is False
        waiting = asyncio.create_task(admin.wait_for_records({T0: 10, T1: 0}, timeout_ms=LONG_MS))
        await until(lambda: len(pair.requests(ApiKey.FETCH)) >= 4, "a fetch at each leader")
        fill(pair.partition("t", 1), 0, 10)
        assert await waiting is True
        assert await admin.wait_for_records({T0: 10, T1: 5}, timeout_ms=LONG_MS) is True, "it is there"


async def test_a_wait_that_a_leader_does_not_serve_ends_without_an_answer(pair: FakeCluster) -> None:
    fill(pair.partition("t"), 0, 10)
    async with quick_admin(pair) as admin:
        assert await admin.wait_for_records({T0: 0}, timeout_ms=10) is None, "the topic is not watched"
        await admin.watch_topics("t")
        await admin.list_offsets({T0: "latest"})
        began = time.monotonic()
        assert await admin.wait_for_records({T0: 99}, timeout_ms=LONG_MS) is None, "out of range"
        assert await admin.wait_for_records({}, timeout_ms=1) is False
        assert time.monotonic() - began < LONG_MS / 1000


async def test_watched_topics_need_no_metadata(pair: FakeCluster) -> None:
    fill(pair.partition("t"), 0, 10)
    async with quick_admin(pair) as admin:
        await admin.watch_topics("t")
        await admin.list_offsets({T0: "latest"})
        before = len(pair.requests(ApiKey.METADATA))
        assert (await admin.list_offsets({T0: "latest"}))[T0].offset == 10
        assert len(pair.requests(ApiKey.METADATA)) == before


async def test_sizes_are_those_of_whole_batches(pair: FakeCluster) -> None:
    pair.add_topic("t", 2, leaders=[1, 2])
    for index in range(2):
        fill(pair.partition("t", index), 0, 100)
    sizes = [len(batch) for batch in pair.partition("t", 0).batches]
    async with quick_admin(pair) as admin:
        found = await admin.batch_sizes({T0: 25, T1: 100}, max_bytes=2 * sizes[0] + 70)
        assert found[T1] == []
        assert found[T0][0] == (20, 30, sizes[2]), "from the batch that has the offset"
        assert [entry.base_offset for entry in found[T0]][:2] == [20, 30]
        assert {entry.size_bytes for entry in found[T0]} <= set(sizes)
        with pytest.raises(ApiError) as raised:
            await admin.batch_sizes({T0: 101}, max_bytes=1)
        assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_sizes_come_from_the_next_leader(pair: FakeCluster) -> None:
    fill(pair.partition("t"), 0, 10)
    async with quick_admin(pair) as admin:
        await admin.watch_topics("t")
        await admin.batch_sizes({T0: 0}, max_bytes=100)
        pair.move_leader("t", 0, 2)
        assert [entry.next_offset for entry in (await admin.batch_sizes({T0: 0}, max_bytes=100))[T0]] == [10]
