"""Where reading starts in a group: the committed offset, checked by its leader epoch (KIP-320)."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer import fetcher
from barnabas.client.consumer.assignment import Assignment
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.group_offsets import CommittedOffsets
from barnabas.client.errors import (
    BarnabasError,
    InvalidConfiguration,
    LogTruncated,
    NotAssigned,
    RequestTimedOutLocally,
)
from barnabas.client.offsets import OffsetAndMetadata
from barnabas.protocol.errors import SaslAuthenticationFailed
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.schema import ApiKey
from tests.support.coordinator import Coordinator
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.waiting import DEADLINE_S, until

from .test_consumer import T0, fill, read, values
from .test_consumer_leadership import lose
from .test_group import consumer_of


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    """The topic "t" has 30 records of epoch 0."""
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", 1, leaders=[1])
        fill(cluster.partition("t"), 0, 30)
        yield Coordinator(cluster)


def starting(coordinator: Coordinator, **settings: Any) -> Consumer:
    usual = {"auto_offset_reset": "latest", "enable_auto_commit": False}
    return consumer_of(coordinator, **{**usual, **settings})


@pytest.mark.parametrize("way", ["assigned", "subscribed"])
async def test_reading_does_not_start_at_a_committed_offset_of_a_truncated_history(
    coordinator: Coordinator, way: str
) -> None:
    coordinator.commit("g", 25, leader_epoch=0)
    lose(coordinator.cluster, 10, 40)
    async with starting(coordinator) as consumer:
        if way == "assigned":
            consumer.assign([T0])
        else:
            consumer.subscribe("t")
        assert await read(consumer, 30) == values(1_010, 1_040)


async def test_without_a_reset_the_loss_is_an_error(coordinator: Coordinator) -> None:
    coordinator.commit("g", 25, leader_epoch=0)
    lose(coordinator.cluster, 10, 40)
    async with starting(coordinator, auto_offset_reset="none") as consumer:
        consumer.subscribe("t")
        with pytest.raises(LogTruncated) as lost:
            await read(consumer, 1)
        assert lost.value.divergent_offset == 10


async def test_a_committed_offset_that_the_leader_has_is_kept(coordinator: Coordinator) -> None:
    coordinator.cluster.move_leader("t", 0, 2)
    coordinator.commit("g", 25, leader_epoch=0)
    async with starting(coordinator) as consumer:
        consumer.subscribe("t")
        assert await read(consumer, 5) == values(25, 30)
    assert len(coordinator.cluster.requests(ApiKey.OFFSET_FOR_LEADER_EPOCH)) == 1


@pytest.fixture
async def dated() -> AsyncIterator[Coordinator]:
    """The topic "t" has 10 records of two hours ago, then 10 of a minute ago."""
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        present = int(time.time() * 1000)
        fill(cluster.partition("t"), 0, 10, timestamp_ms=present - 7_200_000)
        fill(cluster.partition("t"), 10, 20, timestamp_ms=present - 60_000)
        yield Coordinator(cluster)


@pytest.mark.parametrize(("duration", "start"), [("P99999D", 0), ("PT1H", 10), ("PT1S", 20)])
async def test_a_reset_by_duration_starts_at_the_first_record_that_is_not_older(
    dated: Coordinator, duration: str, start: int
) -> None:
    async with starting(dated, auto_offset_reset=f"by_duration:{duration}") as consumer:
        consumer.assign([T0])
        # A paused partition has a position as well.
        consumer.pause(T0)
        assert await consumer.position(T0) == start
        assert await consumer.seek_to_committed() == {T0: None}
        assert await consumer.position(T0) == start
        consumer.seek_to_time(0)
        assert await consumer.position(T0) == 0
        consumer.seek_to_time(int(time.time() * 1000) - 3_600_000, T0)
        assert await consumer.position(T0) == 10
        with pytest.raises(NotAssigned, match="t-7"):
            consumer.seek_to_time(0, T0, ("t", 7))


async def test_records_that_arrive_while_a_time_is_looked_up_are_not_skipped(dated: Coordinator) -> None:
    partition = dated.cluster.partition("t")

    def late(broker: FakeBroker, body: Any) -> Any:
        answer, end = broker.call(body), partition.log_end_offset
        fill(partition, end, end + 1, timestamp_ms=int(time.time() * 1000))
        return answer

    dated.cluster.intercept[ApiKey.LIST_OFFSETS] = late
    async with starting(dated, auto_offset_reset="by_duration:PT1S") as consumer:
        consumer.assign([T0])
        assert (await read(consumer, 1))[0] == b"20"


async def test_after_an_aborted_transaction_reading_begins_again_at_the_committed_offsets(
    coordinator: Coordinator,
) -> None:
    coordinator.commit("g", 5, leader_epoch=0)
    async with starting(coordinator) as consumer:
        consumer.assign([T0])
        assert (await consumer.getone()).offset == 5
        await consumer.getone()
        assert await consumer.seek_to_committed(T0) == {T0: OffsetAndMetadata(5, "", 0)}
        # Nothing of the iteration is left.
        assert (await consumer.getone()).offset == 5
        assert await read(consumer, 24) == values(6, 30)
        # The leader epoch counts, as at the start.
        await consumer.commit({T0: OffsetAndMetadata(25, "", 0)})
        consumer.pause(T0)
        lose(coordinator.cluster, 10, 40)
        await consumer.seek_to_committed()
        consumer.resume(T0)
        assert await read(consumer, 30) == values(1_010, 1_040)
        with pytest.raises(NotAssigned, match="t-7"):
            await consumer.seek_to_committed(("t", 7))
    async with starting(coordinator, group_id=None) as consumer:
        consumer.assign([T0])
        with pytest.raises(InvalidConfiguration, match="seeking to committed offsets needs one"):
            await consumer.seek_to_committed()


async def test_an_offset_of_the_current_or_an_unknown_epoch_is_not_checked(
    coordinator: Coordinator,
) -> None:
    for epoch in (0, -1):
        coordinator.commit("g", 25, leader_epoch=epoch)
        async with starting(coordinator) as consumer:
            consumer.subscribe("t")
            assert await read(consumer, 5) == values(25, 30)
    assert not coordinator.cluster.requests(ApiKey.OFFSET_FOR_LEADER_EPOCH)


async def test_a_leader_with_an_epoch_below_the_committed_one_is_not_used(
    coordinator: Coordinator,
) -> None:
    """The first answers come from brokers that have not heard of the election yet."""
    cluster = coordinator.cluster
    late = []

    def metadata(broker: FakeBroker, body: Any) -> Any:
        answer = broker.call(body)
        for topic in answer.topics:
            for partition in topic.partitions:
                if len(late) < 6:
                    partition.leader_id, partition.leader_epoch = 1, 0
        late.append(1)
        return answer

    cluster.move_leader("t", 0, 2)
    fill(cluster.partition("t"), 30, 40)
    cluster.intercept[ApiKey.METADATA] = metadata
    coordinator.commit("g", 35, leader_epoch=1)
    async with starting(coordinator) as consumer:
        consumer.subscribe("t")
        assert await read(consumer, 5) == values(35, 40)
    assert not [api for api, _ in cluster.brokers[1].received if api == ApiKey.FETCH]


async def test_an_epoch_that_never_appears_is_waited_for_and_then_ignored(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.commit("g", 25, leader_epoch=7)
    async with starting(coordinator, retry_backoff_ms=1) as consumer:
        consumer.subscribe("t")
        assert await read(consumer, 5) == values(25, 30)
        await until(lambda: "was read in leader epoch 7" in caplog.text)
        await consumer.commit()
    assert coordinator.group("g").offsets["t", 0] == (30, "", 0)


async def test_a_request_that_fails_at_once_is_retried_after_a_pause() -> None:
    timeouts_ms: list[int] = []

    async def fetch(
        partitions: Collection[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        timeouts_ms.append(timeout_ms)
        await asyncio.sleep(0)
        raise RequestTimedOutLocally("nobody coordinates")

    assignment = Assignment(
        ConsumerConfig(retry_backoff_ms=600_000, retry_backoff_max_ms=600_000, default_api_timeout_ms=1),
        lambda: None,
    )
    assignment.add([T0], fetch)
    for _ in range(100):
        await asyncio.sleep(0)
    assignment.close()
    assert timeouts_ms == [1]


@pytest.mark.parametrize("group_id", [None, "g"])
async def test_a_consumer_that_is_refused_before_it_has_a_position_tries_again(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, group_id: str | None
) -> None:
    """Each failed attempt is raised once."""
    attempts: list[bool] = []
    refusal = SaslAuthenticationFailed("the user is gone")
    ask, fetch = fetcher.ask_for_offsets, CommittedOffsets.fetch

    async def asked(cluster: Any, node_id: Any, timestamps: Any, *more: Any) -> Any:
        attempts.append(len(attempts) < 3)
        return (
            dict.fromkeys(timestamps, refusal)
            if attempts[-1]
            else await ask(cluster, node_id, timestamps, *more)
        )

    async def fetched(self: CommittedOffsets, *arguments: Any) -> Any:
        attempts.append(len(attempts) < 3)
        if attempts[-1]:
            raise refusal
        return await fetch(self, *arguments)

    coordinator.commit("g", 25)
    if group_id is None:
        monkeypatch.setattr(fetcher, "ask_for_offsets", asked)
    else:
        monkeypatch.setattr(CommittedOffsets, "fetch", fetched)
    refused = 0
    async with starting(
        coordinator, group_id=group_id, auto_offset_reset="earliest", retry_backoff_ms=1
    ) as consumer:
        consumer.assign([T0])
        records = []
        while not records:
            try:
                records = await consumer.poll(int(DEADLINE_S * 1000))
            except SaslAuthenticationFailed:
                refused += 1
                assert refused <= 3
    assert (refused, attempts) == (3, [True] * 3 + [False])
    assert records[0].offset == (0 if group_id is None else 25)


async def test_a_bug_in_finding_the_starts_is_raised_by_the_poll_that_waits_for_them(
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(self: CommittedOffsets, *_: Any) -> Any:
        raise KeyError("a bug")

    fill(cluster.partition("t"), 0, 1)
    async with Consumer(bootstrap_servers=cluster.bootstrap, group_id="g") as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(CommittedOffsets, "fetch", broken)
            consumer.assign([T0])
            with pytest.raises(BarnabasError, match="KeyError: 'a bug'"):
                await consumer.poll(int(DEADLINE_S * 1000))
        consumer.seek(T0, 0)
        assert [record.offset for record in await consumer.poll(int(DEADLINE_S * 1000))] == [0]
