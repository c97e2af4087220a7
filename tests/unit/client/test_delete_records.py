"""Records are deleted from the start of logs, by the leader of each partition."""

import asyncio
from typing import Any

import pytest

from barnabas.client import blocking
from barnabas.client.errors import ErrorCode, OffsetOutOfRangeError, PartitionErrors
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.log_offsets import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from barnabas.protocol.schema import ApiKey
from tests.support.admins import quick_admin
from tests.support.fake_broker import FakeBroker, FakeCluster

from .test_blocking import ThreadedCluster
from .test_consumer import fill

P = [TopicPartition("t", number) for number in range(4)]


def fill_topic(cluster: FakeCluster) -> None:
    """Four partitions on two leaders, with 30 records each; the follower follows after a request."""
    cluster.add_topic("t", 4)
    for partition in cluster.topics["t"]:
        fill(partition, 0, 30)

    def follow(body: Any) -> None:
        for partition in (cluster.partition("t", number) for number in numbers_in(body)):
            partition.follow(3 - partition.leader, 30)

    def follow_later(broker: FakeBroker, body: Any) -> None:
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, follow, body)

    cluster.intercept[ApiKey.DELETE_RECORDS] = follow_later


def numbers_in(body: Any) -> list[int]:
    return [partition.partition_index for topic in body.topics for partition in topic.partitions]


def timed_out(body: Any) -> DeleteRecordsResponse:
    code = int(ErrorCode.REQUEST_TIMED_OUT)
    results = [DeleteRecordsPartitionResult(partition_index=n, error_code=code) for n in numbers_in(body)]
    return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name="t", partitions=results)])


@pytest.mark.parametrize("wire", ["native", "kafka"])
async def test_the_logs_begin_at_the_offsets_or_at_the_high_watermark(wire: str) -> None:
    async with FakeCluster(2) as cluster, quick_admin(cluster, wire=wire) as admin:
        fill_topic(cluster)
        assert await admin.delete_records({P[1]: 7, P[0]: -1, ("t", 3): 0}) == {P[1]: 7, P[0]: 30, P[3]: 0}
        starts = await admin.list_offsets(dict.fromkeys(P, "earliest"))
        assert [starts[tp].offset for tp in P] == [30, 7, 0, 0]
        # The start never goes back.
        assert await admin.delete_records({P[1]: 3}) == {P[1]: 7}
        for request in cluster.requests(ApiKey.DELETE_RECORDS):
            assert 0 < request.timeout_ms < 5_000


async def test_a_repeated_request_does_not_delete_what_was_written_meanwhile(cluster: FakeCluster) -> None:
    partition = cluster.partition("t")
    fill(partition, 0, 10)

    def late(body: Any) -> Any:
        fill(partition, 10, 20)
        return timed_out(body)

    cluster.brokers[1].script(ApiKey.DELETE_RECORDS, late)
    async with quick_admin(cluster) as admin:
        assert await admin.delete_records({P[0]: -1}) == {P[0]: 10}


async def test_a_leader_that_has_moved_is_asked_again() -> None:
    async with FakeCluster(2) as cluster, quick_admin(cluster) as admin:
        fill_topic(cluster)
        await admin.list_offsets({P[0]: "latest"})
        cluster.move_leader("t", 0, 2)
        cluster.partition("t", 0).replica.advance_high_watermark(0)
        assert await admin.delete_records({P[0]: 7, P[1]: 8}) == {P[0]: 7, P[1]: 8}


async def test_what_fails_in_one_partition_does_not_stop_the_others() -> None:
    async with FakeCluster(2) as cluster, quick_admin(cluster) as admin:
        fill_topic(cluster)
        with pytest.raises(OffsetOutOfRangeError, match="of t-0 before offset 31 were not deleted"):
            await admin.delete_records({P[0]: 31})
        missing = TopicPartition("nowhere", 0)
        with pytest.raises(PartitionErrors, match=r"nowhere-0: .*; t-0: OFFSET_OUT_OF_RANGE") as some:
            await admin.delete_records({P[1]: 5, missing: -1, P[0]: 31, P[2]: 6}, timeout_ms=200)
        assert {tp: getattr(error, "code", None) for tp, error in some.value.errors.items()} == {
            missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            P[0]: ErrorCode.OFFSET_OUT_OF_RANGE,
        }
        assert some.value.results == {P[1]: 5, P[2]: 6}


async def test_a_follower_that_does_not_follow_is_a_time_out_of_its_partition() -> None:
    async with FakeCluster(2) as cluster, quick_admin(cluster) as admin:
        fill_topic(cluster)
        usual = cluster.intercept[ApiKey.DELETE_RECORDS]
        cluster.intercept[ApiKey.DELETE_RECORDS] = lambda broker, body: (
            timed_out(body) if 0 in numbers_in(body) else usual(broker, body)
        )
        with pytest.raises(PartitionErrors) as some:
            await admin.delete_records({P[0]: 5, P[1]: 5}, timeout_ms=200)
        assert (list(some.value.errors), some.value.results) == ([P[0]], {P[1]: 5})


def test_threads_have_it_too() -> None:
    cluster = ThreadedCluster()
    try:
        cluster.do(lambda: fill_topic(cluster.fake))
        with blocking.Admin(bootstrap_servers=cluster.bootstrap) as admin:
            assert admin.delete_records({("t", 0): 4}) == {("t", 0): 4}
    finally:
        cluster.stop()
