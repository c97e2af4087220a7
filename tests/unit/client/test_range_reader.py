"""Ranges of raw batches, through changes of the leader."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.client.cluster import Cluster
from barnabas.client.config import ClientConfig
from barnabas.client.consumer.range_reader import read_range
from barnabas.client.errors import ApiError, RequestTimedOutLocally
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import until

from .test_consumer import fill

T0 = TopicPartition("t", 0)


async def started(fake: FakeCluster) -> Cluster:
    cluster = Cluster(ClientConfig(bootstrap_servers=fake.bootstrap, retry_backoff_ms=5))
    await cluster.start()
    return cluster


async def ranges(cluster: Cluster, start: int, end: int, **options: int | bool) -> list[tuple[int, int]]:
    found = []
    async for piece in read_range(cluster, T0, start, end, **options):
        batches = list(iter_batches(piece))
        position, last = batches[-1]
        assert position + last.size_bytes == len(piece), "only whole batches are handed out"
        found += [(header.base_offset, header.next_offset) for _, header in batches]
    return found


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("fetch_max_bytes", [1, 700, 1 << 20])
async def test_every_batch_of_the_range_comes_once_and_in_order(fetch_max_bytes: int, reuse: bool) -> None:
    async with FakeCluster() as fake:
        fake.add_topic("t")
        fill(fake.partition("t"), 0, 200)
        cluster = await started(fake)
        found = await ranges(cluster, 15, 101, fetch_max_bytes=fetch_max_bytes, reuse_buffers=reuse)
        wanted = [(first, first + 10) for first in range(10, 110, 10)]
        assert found[: len(wanted)] == wanted
        assert [start for start, _ in found] == sorted({start for start, _ in found})
        assert await ranges(cluster, 50, 50) == []
        cluster.close()


async def test_the_leader_is_followed(pair: FakeCluster) -> None:
    fill(pair.partition("t"), 0, 100)
    cluster = await started(pair)
    found = []
    async for piece in read_range(cluster, T0, 0, 100, fetch_max_bytes=200):
        found += [header.base_offset for _, header in iter_batches(piece)]
        if len(found) == 3:
            pair.move_leader("t", 0, 2)
        if len(found) == 6:
            pair.brokers[2].drop_connections()
    assert found == list(range(0, 100, 10))
    assert any(api == ApiKey.FETCH for api, _ in pair.brokers[2].received)
    cluster.close()


async def test_an_offset_below_the_log_start_is_an_error_that_names_it() -> None:
    async with FakeCluster() as fake:
        fake.add_topic("t")
        fill(fake.partition("t"), 0, 50)
        fake.partition("t").delete_records(20)
        cluster = await started(fake)
        with pytest.raises(ApiError, match=r"offset 5 of t-0 is outside the log, which starts at 20"):
            await ranges(cluster, 5, 50)
        cluster.close()


async def test_a_range_that_is_not_there_yet_ends_with_the_stall_timeout() -> None:
    async with FakeCluster() as fake:
        fake.add_topic("t")
        fill(fake.partition("t"), 0, 20)
        cluster = await started(fake)
        assert len(await ranges(cluster, 0, 20)) == 2
        with pytest.raises(RequestTimedOutLocally, match="no records of t-0 at offset 20 arrived within"):
            await ranges(cluster, 20, 30, stall_timeout_ms=60)
        cluster.close()


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4)])
async def test_an_impossible_range_is_refused(start: int, end: int) -> None:
    async with FakeCluster() as fake:
        cluster = await started(fake)
        with pytest.raises(ValueError, match="expected 0 ≤ start ≤ end"):
            await ranges(cluster, start, end)
        cluster.close()


async def test_a_leader_that_hangs_is_left_when_another_leads(pair: FakeCluster) -> None:
    fill(pair.partition("t"), 0, 30)
    client = await started(pair)
    for api in (ApiKey.FETCH, ApiKey.METADATA):
        pair.brokers[1].gate(api)
    pieces = read_range(client, T0, 0, 30)
    reading = asyncio.create_task(anext(pieces))
    await until(lambda: pair.requests(ApiKey.FETCH))
    # It stays among the live brokers.
    pair.move_leader("t", 0, 2)
    assert len(await reading)
    await pieces.aclose()
    client.close()
