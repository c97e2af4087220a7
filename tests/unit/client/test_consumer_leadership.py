"""The consumer while leaders change, hang and lose records."""

import logging
from typing import Any

import pytest

from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.partition_state import Verdict, judge
from barnabas.client.errors import ApiError, ErrorCode, LogTruncated
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from barnabas.protocol.messages.log_offsets import LeaderEpochEndOffset
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import until

from .test_consumer import EARLIEST, T0, fill, read, reading, values

T1 = TopicPartition("t", 1)


def answer_with(code: int) -> Any:
    """A scripted answer: this error for every partition of the fetch."""

    def answer(body: Any) -> FetchResponse:
        return FetchResponse(
            responses=[
                FetchTopicResponse(
                    topic=topic.topic,
                    partitions=[
                        FetchPartitionResponse(partition_index=fetched.partition, error_code=code)
                        for fetched in topic.partitions
                    ],
                )
                for topic in body.topics
            ]
        )

    return answer


def hang(cluster: FakeCluster, node_id: int) -> None:
    for api in (ApiKey.FETCH, ApiKey.METADATA, ApiKey.OFFSET_FOR_LEADER_EPOCH):
        cluster.brokers[node_id].gate(api)


@pytest.mark.usefixtures("quick_hedges")
async def test_a_hanging_fetch_is_left_when_another_broker_leads_and_its_late_answer_dropped(
    pair: FakeCluster,
) -> None:
    partition = pair.partition("t")
    fill(partition, 0, 10)
    async with reading(pair) as consumer:
        assert await read(consumer, 10) == values(0, 10)
        hang(pair, 1)
        await until(lambda: pair.brokers[1].received[-1][0] == ApiKey.FETCH)
        # The broker stays among the live ones: only the leader is another.
        pair.move_leader("t", 0, 2)
        fill(partition, 10, 20)
        assert await read(consumer, 10) == values(10, 20)
        for gate in pair.brokers[1].gates.values():
            gate.set()
        fill(partition, 20, 30)
        assert await read(consumer, 10) == values(20, 30)


async def test_a_broker_that_hangs_does_not_take_the_memory_of_the_others() -> None:
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", 2, leaders=[1, 2])
        fill(cluster.partition("t", 1), 0, 10)
        hang(cluster, 1)
        settings = {"fetch_max_bytes": 1_000, "max_partition_fetch_bytes": 1_000, "auto_offset_reset": "none"}
        async with reading(cluster, **settings) as consumer:
            consumer.seek(T0, 0)
            await until(lambda: cluster.requests(ApiKey.FETCH))
            consumer.assign([T0, T1])
            consumer.seek(T1, 0)
            assert await read(consumer, 10) == values(0, 10)


async def test_paused_partitions_do_not_keep_the_memory_that_others_need(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 2)
    fill(cluster.partition("t", 0), 0, 100)
    fill(cluster.partition("t", 1), 0, 100)
    settings = {"fetch_max_bytes": 500, "max_partition_fetch_bytes": 500, **EARLIEST}
    async with reading(cluster, **settings) as consumer:
        first = await consumer.poll(10_000, 5)
        await until(lambda: consumer._assignment.states[T0].buffered_bytes >= 500)
        consumer.pause(T0)
        consumer.assign([T0, T1])
        assert await read(consumer, 100) == values(0, 100)
        consumer.pause(T1)
        consumer.resume(T0)
        assert [record.value for record in first] == values(0, 5)
        assert await read(consumer, 95) == values(5, 100)


async def test_an_unexpected_error_of_the_broker_is_waited_out(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(cluster.partition("t"), 0, 10)
    nothing = FetchResponse(responses=[])
    cluster.brokers[1].script(ApiKey.FETCH, answer_with(ErrorCode.UNKNOWN_SERVER_ERROR), lambda body: nothing)
    async with reading(cluster) as consumer:
        assert await read(consumer, 10) == values(0, 10)
    assert "t-0 could not be fetched" in caplog.text
    assert "did not answer for t-0" in caplog.text


async def test_a_throttled_consumer_reads_on_in_silence(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(cluster.partition("t"), 0, 10)
    throttled = FetchResponse(responses=[], throttle_time_ms=5)
    cluster.brokers[1].script(ApiKey.FETCH, *[lambda body: throttled] * 3)
    async with reading(cluster) as consumer:
        assert await read(consumer, 10) == values(0, 10)
    assert caplog.text == ""


async def test_the_error_of_a_partition_comes_out_though_others_have_records_all_the_time() -> None:
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", 2, leaders=[1, 2])
        fill(cluster.partition("t", 1), 0, 1_000)
        cluster.brokers[1].script(ApiKey.FETCH, answer_with(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        async with Consumer(bootstrap_servers=cluster.bootstrap, **EARLIEST) as consumer:
            consumer.assign([T0, T1])
            await until(lambda: consumer._assignment.states[T0].error is not None)
            received: list[bytes | None] = []
            codes = set()
            while len(received) < 1_000:
                try:
                    received += [record.value for record in await consumer.poll(10_000, 10)]
                except ApiError as error:
                    codes.add(error.code)
            assert received == values(0, 1_000)
            assert codes == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


# A new leader that has lost records


def lose(cluster: FakeCluster, end: int, grow_to: int) -> None:
    """An unclean election: broker 2 leads, has nothing from an offset on, and goes on with other records."""
    partition = cluster.partition("t")
    partition.truncate(end)
    cluster.move_leader("t", 0, 2)
    fill(partition, 1_000 + end, 1_000 + grow_to)


@pytest.mark.parametrize("grow_to", [10, 20, 40])
async def test_after_an_unclean_election_reading_goes_on_where_the_histories_diverge(
    grow_to: int, caplog: pytest.LogCaptureFixture, pair: FakeCluster
) -> None:
    fill(pair.partition("t"), 0, 30)
    async with reading(pair) as consumer:
        assert await read(consumer, 30) == values(0, 30)
        lose(pair, 10, grow_to)
        await until(lambda: "diverges at offset 10" in caplog.text)
        fill(pair.partition("t"), 2_000, 2_010)
        expected = values(1_010, 1_000 + grow_to) + values(2_000, 2_010)
        assert await read(consumer, len(expected)) == expected


async def test_without_a_reset_a_truncation_is_an_error_until_a_seek(pair: FakeCluster) -> None:
    fill(pair.partition("t"), 0, 30)
    settings = {**EARLIEST, "auto_offset_reset": "none"}
    async with reading(pair, **settings) as consumer:
        consumer.seek(T0, 0)
        assert await read(consumer, 30) == values(0, 30)
        lose(pair, 10, 40)
        with pytest.raises(LogTruncated, match="read to offset 30 in leader epoch 0") as truncation:
            await consumer.poll(10_000)
        assert truncation.value.divergent_offset == 10
        assert await consumer.position(T0) == 30
        consumer.seek(T0, 10)
        assert await read(consumer, 30) == values(1_010, 1_040)


async def test_truncated_records_that_were_only_fetched_ahead_are_replaced_silently(
    caplog: pytest.LogCaptureFixture, pair: FakeCluster
) -> None:
    fill(pair.partition("t"), 0, 30)
    settings = {**EARLIEST, "auto_offset_reset": "none"}
    async with reading(pair, **settings) as consumer:
        consumer.seek(T0, 0)
        await until(lambda: consumer._assignment.states[T0].fetch_offset == 30)
        assert [record.value for record in await consumer.poll(10_000, 10)] == values(0, 10)
        lose(pair, 20, 40)
        await until(lambda: consumer._assignment.states[T0].checked_epoch == 1)
        assert await read(consumer, 30) == values(10, 20) + values(1_020, 1_040)
    assert "diverges" not in caplog.text


async def test_records_handed_out_one_by_one_are_not_lost_by_a_later_truncation(pair: FakeCluster) -> None:
    fill(pair.partition("t"), 0, 30)
    async with reading(pair) as consumer:
        await until(lambda: consumer._assignment.states[T0].fetch_offset == 30)
        received = [(await consumer.getone()).value for _ in range(5)]
        lose(pair, 10, 40)
        await until(lambda: consumer._assignment.states[T0].checked_epoch == 1)
        received += [(await consumer.getone()).value for _ in range(35)]
        assert received == values(0, 10) + values(1_010, 1_040)


async def test_a_leader_change_without_loss_costs_one_question_and_no_record(
    caplog: pytest.LogCaptureFixture, pair: FakeCluster
) -> None:
    caplog.set_level(logging.WARNING)
    fill(pair.partition("t"), 0, 10)
    async with reading(pair) as consumer:
        assert await read(consumer, 10) == values(0, 10)
        for step, leader in enumerate((2, 1, 1, 2), start=1):
            pair.move_leader("t", 0, leader)
            fill(pair.partition("t"), step * 10, step * 10 + 10)
            assert await read(consumer, 10) == values(step * 10, step * 10 + 10)
    assert len(pair.requests(ApiKey.OFFSET_FOR_LEADER_EPOCH)) == 4
    assert not caplog.text


# A topic that is deleted and made again


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("epoch", [0, 2], ids=["the same epochs", "higher epochs before"])
async def test_a_topic_that_is_made_again_is_read_from_its_start(
    pair: FakeCluster, caplog: pytest.LogCaptureFixture, reset: str, epoch: int
) -> None:
    """No record of the new topic is older than the consumer, so that `latest` skips none."""
    for _ in range(epoch):
        pair.move_leader("t", 0, 1)
    fill(pair.partition("t"), 0, 30)
    async with reading(pair, auto_offset_reset=reset) as consumer:
        consumer.seek(T0, 0)
        assert await read(consumer, 20, 20) == values(0, 20)
        pair.add_topic("t", 1, leaders=[1])
        fill(pair.partition("t"), 1_000, 1_060)
        assert (await read(consumer, 60))[-60:] == values(1_000, 1_060)
        assert await consumer.position(T0) == 60
    warnings = [record.message for record in caplog.records if "deleted and made again" in record.message]
    assert len(warnings) == 1
    assert "t-0 was read to offset" in warnings[0]


async def test_without_a_reset_a_topic_that_is_made_again_is_an_error_until_a_seek(
    cluster: FakeCluster,
) -> None:
    fill(cluster.partition("t"), 0, 30)
    async with reading(cluster, auto_offset_reset="none") as consumer:
        consumer.seek(T0, 0)
        assert await read(consumer, 30) == values(0, 30)
        cluster.add_topic("t")
        fill(cluster.partition("t"), 1_000, 1_060)
        with pytest.raises(LogTruncated, match="deleted and made again") as truncation:
            await consumer.poll(10_000)
        assert truncation.value.divergent_offset is None
        consumer.seek(T0, 50)
        assert await read(consumer, 10) == values(1_050, 1_060)


async def test_a_late_answer_does_not_bring_a_former_topic_back(cluster: FakeCluster) -> None:
    """A broker that has not heard of the change must not send the consumer back to the start."""
    fill(cluster.partition("t"), 0, 30)
    async with reading(cluster) as consumer:
        assert await read(consumer, 30) == values(0, 30)
        before = await consumer._parts()[0].ask_any(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
        cluster.add_topic("t")
        fill(cluster.partition("t"), 1_000, 1_060)
        assert await read(consumer, 60) == values(1_000, 1_060)
        cache = consumer._parts()[0].cache
        cache.update(before)
        assert cache.is_stale
        assert cache.topic_id("t") == cluster.topic_ids["t"]


async def test_a_position_that_is_given_back_after_a_topic_was_made_again_skips_nothing(
    cluster: FakeCluster,
) -> None:
    """The blocking facade gives back records that it has not handed out, here those of the former topic."""
    fill(cluster.partition("t"), 0, 30)
    async with reading(cluster) as consumer:
        assert await read(consumer, 30) == values(0, 30)
        cluster.add_topic("t")
        fill(cluster.partition("t"), 1_000, 1_060)
        assert await read(consumer, 10, 10) == values(1_000, 1_010)
        consumer._assignment.rewind({T0: 25})
        consumer._polls.wake()
        assert await read(consumer, 50) == values(1_010, 1_060)


@pytest.mark.parametrize(
    ("epoch", "end", "verdict"),
    [
        (3, 50, Verdict.HOLDS),
        (3, 40, Verdict.HOLDS),
        (2, 39, Verdict.FETCHED_AHEAD),
        (2, 30, Verdict.FETCHED_AHEAD),
        (2, 29, Verdict.TRUNCATED),
        (-1, -1, Verdict.NO_COMMON_HISTORY),
    ],
)
def test_the_verdict_on_a_position(epoch: int, end: int, verdict: Verdict) -> None:
    answer = LeaderEpochEndOffset(error_code=0, partition=0, leader_epoch=epoch, end_offset=end)
    assert judge(40, 30, answer) is verdict
