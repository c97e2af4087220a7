"""The admin client, and the controller that moves."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.errors import ApiError, ClientClosed, ErrorCode, RequestTimedOutLocally, TopicErrors
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.schema import ApiKey

from .fake_broker import FakeCluster
from .waiting import until

QUICK = {"retry_backoff_ms": 5, "default_api_timeout_ms": 5_000}


async def test_a_topic_is_made_listed_described_and_deleted() -> None:
    async with FakeCluster(3) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap, **QUICK) as admin:
            made = await admin.create_topics(NewTopic("flights", 6, 3, {"min.insync.replicas": "2"}))
            assert made["flights"].num_partitions == 6
            assert made["flights"].replication_factor == 3
            (request,) = cluster.requests(ApiKey.CREATE_TOPICS)
            assert [(c.name, c.value) for c in request.topics[0].configs] == [("min.insync.replicas", "2")]
            assert await admin.list_topics() == ["flights"]
            described = (await admin.describe_topics("flights"))["flights"]
            assert [partition.partition for partition in described.partitions] == list(range(6))
            assert described.partitions[1].leader == 2
            assert described.partitions[1].isr == (1, 2, 3)
            await admin.delete_topics("flights")
            assert await admin.list_topics() == []


async def test_the_controller_is_followed_when_it_moves() -> None:
    async with FakeCluster(3) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap, **QUICK) as admin:
            cluster.controller_id = 2
            await admin.create_topics(NewTopic("t", 1, 1))
            await cluster.brokers[2].stop()
            cluster.controller_id = 3
            await admin.delete_topics(["t"])
        assert [body.topics[0].name for api, body in cluster.brokers[3].received if api == 20] == ["t"]


async def test_without_a_controller_the_attempt_ends_with_the_time() -> None:
    async with FakeCluster() as cluster:
        cluster.controller_id = -1
        async with Admin(bootstrap_servers=cluster.bootstrap, **QUICK) as admin:
            with pytest.raises(Exception, match="broker -1 is not among the live brokers"):
                await admin.create_topics(NewTopic("t", 1, 1), timeout_ms=50)


async def test_a_controller_that_hangs_is_not_waited_for_beyond_the_time() -> None:
    async with FakeCluster() as cluster:
        cluster.brokers[1].gate(ApiKey.CREATE_TOPICS)
        async with Admin(bootstrap_servers=cluster.bootstrap, retry_backoff_ms=5) as admin:
            with pytest.raises(RequestTimedOutLocally):
                await admin.create_topics(NewTopic("t"), timeout_ms=100)


async def test_a_cluster_that_is_gone_for_a_moment_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        broker = cluster.brokers[1]
        async with Admin(bootstrap_servers=cluster.bootstrap, retry_backoff_ms=5) as admin:
            await broker.stop()
            offsets = asyncio.create_task(admin.list_offsets({TopicPartition("t", 0): "latest"}))
            deletion = asyncio.create_task(admin.delete_topics("gone"))
            await until(lambda: "metadata could not be refreshed" in caplog.text)
            await broker.start()
            assert (await offsets)[TopicPartition("t", 0)].offset == 0
            with pytest.raises(ApiError, match="UNKNOWN_TOPIC"):
                await deletion


async def test_one_topic_fails_with_its_own_error_and_several_with_all_of_theirs() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("old")
        async with Admin(bootstrap_servers=cluster.bootstrap, **QUICK) as admin:
            with pytest.raises(ApiError, match="TOPIC_ALREADY_EXISTS: topic 'old' exists"):
                await admin.create_topics([NewTopic("old")])
            with pytest.raises(TopicErrors) as failure:
                await admin.create_topics([NewTopic("old"), NewTopic("new", 2)])
            assert failure.value.errors["old"].code == ErrorCode.TOPIC_ALREADY_EXISTS
            assert set(failure.value.results) == {"new"}
            with pytest.raises(TopicErrors, match="nothing: UNKNOWN_TOPIC"):
                await admin.delete_topics(["new", "nothing"])


async def test_validate_only_makes_nothing() -> None:
    async with FakeCluster() as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topics(NewTopic("t", 1, 1), validate_only=True)
        assert not cluster.topics


async def test_an_assignment_replaces_the_counts() -> None:
    async with FakeCluster() as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topics(NewTopic("t", 9, 9, replica_assignment={0: [1, 2], 1: [2, 1]}))
        (topic,) = cluster.requests(ApiKey.CREATE_TOPICS)[0].topics
        assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
        assert [(a.partition_index, a.broker_ids) for a in topic.assignments] == [(0, [1, 2]), (1, [2, 1])]


async def test_an_unknown_topic_is_refused_with_names_that_are_near() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("flights")
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            with pytest.raises(ApiError, match=r"there is no topic 'flight'; did you mean flights\?"):
                await admin.describe_topics("flight")
            assert set(await admin.describe_topics()) == {"flights"}


async def test_the_cluster_is_described() -> None:
    async with FakeCluster(3) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            found = await admin.describe_cluster()
        assert (found.cluster_id, found.controller_id) == ("fake", 1)
        assert [node.endpoint.port for node in found.nodes] == [b.port for b in cluster.brokers.values()]


async def test_offsets_are_listed_by_name_and_time_and_nothing_else() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        cluster.partition("t").log_start_offset = 3
        cluster.partition("t").log_end_offset = 9
        tp = TopicPartition("t", 0)
        async with Admin(bootstrap_servers=cluster.bootstrap, **QUICK) as admin:
            assert (await admin.list_offsets({tp: "earliest"}))[tp].offset == 3
            assert (await admin.list_offsets({tp: "latest"}))[tp].offset == 9
            assert (await admin.list_offsets({tp: 5}))[tp].offset == -1
            with pytest.raises(ValueError, match="expected earliest, latest or a timestamp"):
                await admin.list_offsets({tp: "newest"})
            with pytest.raises(ApiError, match="has 1 partitions, there is no 7"):
                await admin.list_offsets({TopicPartition("t", 7): "latest"})
            cluster.move_leader("t", 0, -1)
            await admin._open().refresh()
            with pytest.raises(ApiError, match="LEADER_NOT_AVAILABLE"):
                await admin.list_offsets({tp: "latest"}, timeout_ms=50)


async def test_before_the_start_every_call_is_refused() -> None:
    with pytest.raises(ClientClosed, match="not started"):
        await Admin().list_topics()
