"""Requests of operators about groups, with real coordinators."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from barnabas.client import blocking
from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.errors import ErrorCode
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.errors import refused
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

DEADLINE_S = 30.0


@pytest.fixture
async def admin(shared_cluster: LocalCluster) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=shared_cluster.bootstrap) as made:
        yield made


@pytest.fixture
async def topic(admin: Admin) -> str:
    name = fresh_name("t")
    await admin.create_topics(NewTopic(name, 3, 3))
    return name


@asynccontextmanager
async def member(cluster: LocalCluster, topic: str, **settings: str) -> AsyncIterator[Consumer]:
    """A consumer that holds all partitions and has committed 5 of the first."""
    consumer = Consumer(
        bootstrap_servers=cluster.bootstrap,
        group_id=f"g-{topic}",
        client_id="tester",
        enable_auto_commit=False,
        **settings,
    )
    async with consumer, asyncio.timeout(DEADLINE_S):
        consumer.subscribe([topic])
        while len(consumer.assignment()) < 3:
            await consumer.poll(50)
        await consumer.commit({TopicPartition(topic, 0): (5, "note")})
        yield consumer


async def test_a_group_is_listed_and_described(
    shared_cluster: LocalCluster, admin: Admin, topic: str
) -> None:
    group_id = f"g-{topic}"
    async with member(shared_cluster, topic, group_instance_id="i"):
        assert (group_id, "consumer", "Stable") in [
            (group.group_id, group.protocol_type, group.state) for group in await admin.list_groups()
        ]
        assert group_id not in [group.group_id for group in await admin.list_groups(states=["Empty"])]
        found = (await admin.describe_groups(group_id))[group_id]
        assert (found.state, found.protocol, len(found.members)) == ("Stable", "range", 1)
        (only,) = found.members
        assert (only.group_instance_id, only.client_id, only.topics) == ("i", "tester", (topic,))
        assert only.assignment == tuple(TopicPartition(topic, number) for number in range(3))
        with refused(ErrorCode.NON_EMPTY_GROUP):
            await admin.delete_groups(group_id)
    # A static member stays until it is removed.
    await admin.remove_members(group_id, ["i"])
    assert (await admin.describe_groups(group_id))[group_id].state == "Empty"
    await admin.delete_groups(group_id)
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        await admin.describe_groups(group_id)
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        await admin.delete_groups(group_id)


async def test_offsets_are_listed_altered_and_deleted(
    shared_cluster: LocalCluster, admin: Admin, topic: str
) -> None:
    group_id = f"g-{topic}"
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with member(shared_cluster, topic):
        found = await admin.group_offsets(group_id)
        assert {tp: one.offset for tp, one in found.items() if one is not None} == {first: 5}
        with refused(ErrorCode.NON_EMPTY_GROUP):
            await admin.alter_group_offsets(group_id, {first: 1})
        with refused(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
            await admin.delete_group_offsets(group_id, [first])
    await admin.alter_group_offsets(group_id, {first: 1, second: 2})
    found = await admin.group_offsets(group_id, [first, second, TopicPartition(topic, 2)])
    assert [one and one.offset for one in found.values()] == [1, 2, None]
    await admin.delete_group_offsets(group_id, [first])
    assert list(await admin.group_offsets(group_id)) == [second]


def test_the_blocking_admin_manages_groups(shared_cluster: LocalCluster) -> None:
    topic, group_id = fresh_name("t"), fresh_name("g")
    tp = TopicPartition(topic, 0)
    with blocking.Admin(bootstrap_servers=shared_cluster.bootstrap) as admin:
        admin.create_topics(NewTopic(topic, 1, 1))
        admin.alter_group_offsets(group_id, {tp: 7})
        assert (found := admin.group_offsets(group_id)[tp]) is not None
        assert found.offset == 7
        assert group_id in [group.group_id for group in admin.list_groups(states=["empty"])]
        assert admin.describe_groups(group_id)[group_id].members == ()
        admin.delete_group_offsets(group_id, [tp])
        assert admin.group_offsets(group_id, [tp]) == {tp: None}


def test_groups_work_after_the_offsets_topic_was_deleted(
    cluster: LocalCluster,
) -> None:
    tp = TopicPartition("t", 0)
    with blocking.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics(NewTopic("t", 1, 1))
        admin.alter_group_offsets("g", {tp: 7})
        admin.delete_topics(OFFSETS_TOPIC)
        assert OFFSETS_TOPIC not in admin.list_topics(include_internal=True)
        assert admin.group_offsets("g") == {}
        admin.alter_group_offsets("g", {tp: 8})
        found = admin.group_offsets("g")[tp]
        assert found is not None
        assert found.offset == 8
        wait_for(lambda: OFFSETS_TOPIC in admin.list_topics(include_internal=True), "it is not created again")
