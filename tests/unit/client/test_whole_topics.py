"""Consumers without a group that subscribe to topics."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from barnabas.client.consumer.consumer import Consumer, RebalanceListener
from barnabas.client.errors import ClientClosed, InvalidConfiguration, LocalError, SubscriptionConflict
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import until

from .test_consumer import EARLIEST, T0, T1, fill, read, values
from .test_group import Diary, poll_until

QUICK = {**EARLIEST, "metadata_max_age_ms": 20}


@asynccontextmanager
async def reader(cluster: FakeCluster, **settings: Any) -> AsyncIterator[Consumer]:
    async with Consumer(bootstrap_servers=cluster.bootstrap, **{**QUICK, **settings}) as consumer:
        yield consumer


async def test_all_partitions_are_read_and_added_ones_from_their_start(cluster: FakeCluster) -> None:
    """With `latest`, because the records of a new partition are newer than the subscription."""
    fill(cluster.partition("t"), 0, 10)
    diary = Diary()
    async with reader(cluster, auto_offset_reset="latest") as consumer:
        consumer.subscribe("t", listener=diary)
        await poll_until(lambda: consumer.assignment() == {T0}, consumer)
        assert await consumer.position(T0) == 10
        cluster.grow_topic("t", 3)
        for number in (1, 2):
            fill(cluster.partition("t", number), 0, 10)
        assert sorted(await read(consumer, 20)) == sorted(values(0, 10) * 2)
        assert await consumer.position(T0) == 10
        assert consumer.subscription() == {"t"}
        with pytest.raises(InvalidConfiguration, match="committing needs one"):
            await consumer.commit()
    assert diary.entries[0] == ("assigned", {0})
    assert diary.entries[-1] == ("revoked", {0, 1, 2})
    assert set().union(*(numbers for _, numbers in diary.entries[1:-1])) == {1, 2}
    for api in (ApiKey.JOIN_GROUP, ApiKey.FIND_COORDINATOR, ApiKey.OFFSET_FETCH):
        assert cluster.requests(api) == []


async def test_a_missing_topic_is_waited_for_and_read_from_its_start(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"auto_offset_reset": "latest", "metadata_max_age_ms": 3_600_000}
    with caplog.at_level(logging.WARNING):
        async with reader(cluster, **settings) as consumer:
            consumer.subscribe(["t", "later"])
            await poll_until(lambda: caplog.messages, consumer)
            assert consumer.assignment() == {T0}
            cluster.add_topic("later", 2)
            fill(cluster.partition("later", 1), 0, 10)
            assert await read(consumer, 10) == values(0, 10)
            assert len(consumer.assignment()) == 3
    (warning,) = caplog.messages
    assert warning.startswith("topic 'later' cannot be read: UNKNOWN_TOPIC_OR_PARTITION")


async def test_a_pattern_follows_the_topics_that_match(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 10)
    diary = Diary()
    cluster.creates_topics = True
    async with reader(cluster, auto_offset_reset="latest") as consumer:
        consumer.subscribe(pattern="t.?", listener=diary)
        await poll_until(lambda: consumer.assignment() == {T0}, consumer)
        assert await consumer.position(T0) == 10
        cluster.add_topic("t2")
        cluster.add_topic("other")
        fill(cluster.partition("t2"), 0, 10)
        assert await read(consumer, 10) == values(0, 10)
        assert consumer.subscription() == {"t", "t2"}
        cluster.delete_topic("t")
        await poll_until(lambda: consumer.assignment() == {TopicPartition("t2", 0)}, consumer)
        assert consumer.subscription() == {"t2"}
        assert diary.entries == [("assigned", {0}), ("assigned", {0}), ("revoked", {0})]
    # The brokers create topics, but not those that only a pattern has selected.
    assert "t" not in cluster.topics


async def test_a_named_topic_keeps_its_partitions_while_it_is_missing(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 10)
    async with reader(cluster) as consumer:
        consumer.subscribe("t")
        assert await read(consumer, 10) == values(0, 10)
        cluster.delete_topic("t")
        await until(lambda: "t" not in consumer._parts()[0].cache.topics)
        assert await consumer.poll(20) == []
        assert consumer.assignment() == {T0}
        cluster.add_topic("t")
        fill(cluster.partition("t"), 20, 30)
        assert await read(consumer, 10) == values(20, 30)


async def test_another_subscription_drops_the_partitions_that_it_lacks(cluster: FakeCluster) -> None:
    cluster.add_topic("u", 2)
    fill(cluster.partition("t"), 0, 10)
    diary = Diary()
    async with reader(cluster) as consumer:
        consumer.subscribe(["t", "u"])
        assert await read(consumer, 10) == values(0, 10)
        consumer.subscribe(["t", "u"], listener=diary)
        consumer.subscribe("t", listener=diary)
        await poll_until(lambda: consumer.assignment() == {T0}, consumer)
        assert await consumer.position(T0) == 10
        assert diary.entries == [("revoked", {0, 1})]
        assert consumer._parts()[0]._topics == {"t"}


async def test_a_subscription_excludes_an_assignment_until_it_is_given_up(cluster: FakeCluster) -> None:
    diary = Diary()
    cluster.grow_topic("t", 2)
    async with reader(cluster) as consumer:
        consumer.assign([T0])
        with pytest.raises(SubscriptionConflict, match="by hand"):
            consumer.subscribe("t")
        await consumer.unsubscribe()
        consumer.subscribe("t", listener=diary)
        with pytest.raises(SubscriptionConflict, match="subscribed"):
            consumer.assign([T1])
        await poll_until(lambda: len(consumer.assignment()) == 2, consumer)
        await consumer.unsubscribe()
        assert diary.entries == [("assigned", {0, 1}), ("revoked", {0, 1})]
        assert consumer.assignment() == consumer.subscription() == set()
        consumer.assign([T1])
        fill(cluster.partition("t", 1), 0, 10)
        assert await read(consumer, 10) == values(0, 10)
        assert consumer.assignment() == {T1}


async def test_a_listener_may_seek_and_its_error_is_raised_once_the_change_is_done(
    cluster: FakeCluster,
) -> None:
    fill(cluster.partition("t"), 0, 10)

    class Seeking(RebalanceListener):
        async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            consumer.seek(T0, 7)
            with pytest.raises(LocalError, match="cannot poll"):
                await consumer.poll()
            raise ZeroDivisionError

        def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
            raise OverflowError

    consumer = Consumer(bootstrap_servers=cluster.bootstrap, **QUICK)
    await consumer.start()
    consumer.subscribe("t", listener=Seeking())
    with pytest.raises(ZeroDivisionError):
        await consumer.getone()
    assert await read(consumer, 3) == values(7, 10)
    with pytest.raises(OverflowError):
        await consumer.close()
    with pytest.raises(ClientClosed):
        await consumer.poll()
