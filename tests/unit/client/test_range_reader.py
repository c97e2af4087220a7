"""Ranges of raw batches, through changes of the leader."""

import asyncio
from typing import Any

import pytest

from barnabas.client.cluster import Cluster
from barnabas.client.consumer import range_reader
from barnabas.client.consumer.range_reader import read_range
from barnabas.client.errors import ApiError, LogTruncated, RequestTimedOutLocally
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.messages.fetch import FetchResponse
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import DEADLINE_S, until

from .test_cluster import started
from .test_consumer import fill

T0 = TopicPartition("t", 0)


async def ranges(cluster: Cluster, start: int, end: int, **options: Any) -> list[tuple[int, int]]:
    offsets = []
    async for piece in read_range(cluster, T0, start, end, **options):
        batches = list(iter_batches(piece))
        position, last = batches[-1]
        assert position + last.size_bytes == len(piece), "only whole batches are handed out"
        offsets += [(header.base_offset, header.next_offset) for _, header in batches]
    return offsets


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("fetch_max_bytes", [1, 700, 1 << 20])
async def test_every_batch_of_the_range_comes_once_and_in_order(
    fetch_max_bytes: int, reuse: bool, cluster: FakeCluster
) -> None:
    fill(cluster.partition("t"), 0, 200)
    async with started(cluster, retry_backoff_ms=5) as client:
        offsets = await ranges(client, 15, 101, fetch_max_bytes=fetch_max_bytes, reuse_buffers=reuse)
        expected = [(first, first + 10) for first in range(10, 110, 10)]
        assert offsets[: len(expected)] == expected
        assert [start for start, _ in offsets] == sorted({start for start, _ in offsets})
        assert await ranges(client, 50, 50) == []


async def test_a_reader_above_its_quota_waits_for_as_long_as_the_broker_says(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 10)
    throttled = FetchResponse(responses=[], throttle_time_ms=1)
    cluster.brokers[1].script(ApiKey.FETCH, *[lambda body: throttled] * 3)
    async with started(cluster, retry_backoff_ms=5) as client:
        assert await ranges(client, 0, 10) == [(0, 10)]


async def test_the_leader_is_followed(pair: FakeCluster) -> None:
    fill(pair.partition("t"), 0, 100)
    async with started(pair, retry_backoff_ms=5) as client:
        offsets = []
        async for piece in read_range(client, T0, 0, 100, fetch_max_bytes=200):
            offsets += [header.base_offset for _, header in iter_batches(piece)]
            if len(offsets) == 3:
                pair.move_leader("t", 0, 2)
            if len(offsets) == 6:
                pair.brokers[2].drop_connections()
        assert offsets == list(range(0, 100, 10))
        assert any(api == ApiKey.FETCH for api, _ in pair.brokers[2].received)


async def test_a_topic_that_is_made_again_meanwhile_ends_the_range(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 100)
    async with started(cluster, retry_backoff_ms=5) as client:
        pieces = read_range(client, T0, 0, 200, fetch_max_bytes=100)
        await anext(pieces)
        cluster.add_topic("t")
        fill(cluster.partition("t"), 1_000, 1_200)
        with pytest.raises(LogTruncated, match="deleted and made again"):
            # The second one may be in flight already.
            _ = [piece async for piece in pieces]


async def test_a_topic_that_was_made_again_since_it_had_an_id_is_not_read(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 100)
    async with started(cluster, retry_backoff_ms=5) as client:
        former = TopicId(cluster.topic_ids["t"])
        assert await ranges(client, 0, 100, topic_id=former)
        cluster.add_topic("t")
        fill(cluster.partition("t"), 0, 100)
    async with started(cluster, retry_backoff_ms=5) as client:
        with pytest.raises(LogTruncated, match="deleted and made again before offset 0"):
            await ranges(client, 0, 100, topic_id=former)


@pytest.mark.parametrize("partitions", [0, 1])
async def test_a_partition_that_is_gone_ends_the_range_by_its_own_error(
    cluster: FakeCluster, partitions: int
) -> None:
    """Its topic was deleted, or made again with fewer partitions."""
    cluster.add_topic("t", 2)
    fill(cluster.partition("t", 1), 0, 100)
    async with started(cluster, retry_backoff_ms=5) as client:
        pieces = read_range(client, TopicPartition("t", 1), 0, 100, fetch_max_bytes=100, stall_timeout_ms=300)
        await anext(pieces)
        if partitions:
            cluster.add_topic("t", partitions)
        else:
            cluster.delete_topic("t")
        with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            _ = [piece async for piece in pieces]


async def test_a_deleted_topic_is_not_waited_for_as_long_as_a_leader(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It existed when the range was planned, so that every broker knew it."""
    monkeypatch.setattr(range_reader, "_MISSING_TOPIC_MS", 50)
    former = TopicId(cluster.topic_ids["t"])
    cluster.delete_topic("t")
    async with started(cluster, retry_backoff_ms=5) as client:
        async with asyncio.timeout(DEADLINE_S / 2):
            with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await ranges(client, 0, 100, topic_id=former)


async def test_an_offset_below_the_log_start_is_an_error_that_names_it(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 50)
    cluster.partition("t").delete_records(20)
    async with started(cluster, retry_backoff_ms=5) as client:
        with pytest.raises(ApiError, match=r"offset 5 of t-0 is outside the log, which starts at 20"):
            await ranges(client, 5, 50)


async def test_a_range_that_is_not_there_yet_ends_with_the_stall_timeout(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 20)
    async with started(cluster, retry_backoff_ms=5) as client:
        assert len(await ranges(client, 0, 20)) == 2
        with pytest.raises(RequestTimedOutLocally, match="no records of t-0 at offset 20 arrived within"):
            await ranges(client, 20, 30, stall_timeout_ms=60)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4)])
async def test_an_impossible_range_is_refused(start: int, end: int, cluster: FakeCluster) -> None:
    async with started(cluster, retry_backoff_ms=5) as client:
        with pytest.raises(ValueError, match="expected 0 ≤ start ≤ end"):
            await ranges(client, start, end)


@pytest.mark.usefixtures("quick_hedges")
async def test_a_leader_that_hangs_is_left_when_another_leads(pair: FakeCluster) -> None:
    fill(pair.partition("t"), 0, 30)
    async with started(pair, retry_backoff_ms=5) as client:
        for api in (ApiKey.FETCH, ApiKey.METADATA):
            pair.brokers[1].gate(api)
        pieces = read_range(client, T0, 0, 30)
        reading = asyncio.create_task(anext(pieces))
        await until(lambda: pair.requests(ApiKey.FETCH))
        # It stays among the live brokers.
        pair.move_leader("t", 0, 2)
        assert len(await reading)
        await pieces.aclose()
