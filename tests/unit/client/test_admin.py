"""The admin client, and the controller that moves."""

import asyncio
import re
from typing import Any

import pytest

from barnabas.client.admin import topics
from barnabas.client.admin.admin import Admin, Append, ConfigResource, NewPartitions, NewTopic, Subtract
from barnabas.client.errors import (
    ApiError,
    ClientClosed,
    ConnectionClosed,
    ErrorCode,
    RequestTimedOutLocally,
    TopicErrors,
)
from barnabas.protocol.errors import Unencodable
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.configs import ConfigResourceType, ConfigSource
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.protocol.schema import ApiKey
from barnabas.zookeeper.configs import Entity
from tests.support.admins import quick_admin
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.waiting import DEADLINE_S, until

from .test_consumer import fill


async def test_a_mute_by_a_quota_prolongs_no_call_of_the_user() -> None:
    async with FakeCluster(1) as cluster, quick_admin(cluster) as admin:
        throttled = CreateTopicsResponse(
            topics=[CreatableTopicResult(name="t", error_code=0)], throttle_time_ms=60_000
        )
        cluster.brokers[1].script(ApiKey.CREATE_TOPICS, lambda _: throttled)
        await admin.create_topics(NewTopic("t"))
        cluster.brokers[1].gates[ApiKey.CREATE_TOPICS] = asyncio.Event()
        async with asyncio.timeout(DEADLINE_S / 2):
            with pytest.raises(RequestTimedOutLocally, match=r"no answer in time; a quota.* 200 ms"):
                await admin.create_topics(NewTopic("u"), timeout_ms=200)
        # The broker would not mute another connection.
        assert len(cluster.brokers[1].connections) <= 2


async def test_a_topic_is_made_listed_described_and_deleted() -> None:
    async with FakeCluster(3) as cluster:
        async with quick_admin(cluster) as admin:
            wanted = NewTopic("flights", 6, 3, {"min.insync.replicas": "2"})
            await admin.create_topics(wanted, validate_only=True)
            assert not cluster.topics
            made = await admin.create_topics(wanted)
            assert made["flights"].num_partitions == 6
            assert made["flights"].replication_factor == 3
            _, request = cluster.requests(ApiKey.CREATE_TOPICS)
            assert [(c.name, c.value) for c in request.topics[0].configs] == [("min.insync.replicas", "2")]
            assert await admin.list_topics() == ["flights"]
            described = (await admin.describe_topics("flights"))["flights"]
            assert [partition.partition for partition in described.partitions] == list(range(6))
            assert described.partitions[1].leader == 2
            assert described.partitions[1].isr == (1, 2, 3)
            await admin.delete_topics("flights")
            assert await admin.list_topics() == []
            await admin.create_topics(NewTopic("t", 9, 9, replica_assignment={0: [1, 2], 1: [2, 1]}))
        (topic,) = cluster.requests(ApiKey.CREATE_TOPICS)[-1].topics
        assert (topic.num_partitions, topic.replication_factor) == (-1, -1), "the assignment says both"
        assert [(a.partition_index, a.broker_ids) for a in topic.assignments] == [(0, [1, 2]), (1, [2, 1])]


async def test_the_controller_is_followed_when_it_moves() -> None:
    async with FakeCluster(3) as cluster:
        async with quick_admin(cluster) as admin:
            described = await admin.describe_cluster()
            assert (described.cluster_id, described.controller_id) == ("cluster", 1)
            ports = [node.endpoint.port for node in described.nodes]
            assert ports == [broker.port for broker in cluster.brokers.values()]
            cluster.set_controller(2)
            await admin.create_topics(NewTopic("t", 1, 1))
            await cluster.brokers[2].stop()
            cluster.set_controller(3)
            await admin.delete_topics(["t"])
        assert [body.topics[0].name for api, body in cluster.brokers[3].received if api == 20] == ["t"]


async def test_a_change_is_done_when_every_broker_knows_of_it() -> None:
    async with FakeCluster(3) as cluster:
        late: list[str] = []

        def as_before(body: Any) -> Any:
            """A broker that does not know of the change yet."""
            late.append(body.topics[0].name)
            return before

        async with quick_admin(cluster) as admin:
            for change in (
                lambda: admin.create_topics(NewTopic("t", 1, 1)),
                lambda: admin.create_partitions({"t": 3}),
                lambda: admin.delete_topics("t"),
            ):
                before = cluster.brokers[1].call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
                for broker in cluster.brokers.values():
                    broker.script(ApiKey.METADATA, as_before)
                await change()
        assert late == ["t"] * 9


async def test_a_controller_that_hangs_or_is_missing_is_not_waited_for_beyond_the_time() -> None:
    async with FakeCluster() as cluster:
        cluster.brokers[1].gate(ApiKey.CREATE_TOPICS)
        async with quick_admin(cluster) as admin:
            with pytest.raises(RequestTimedOutLocally):
                await admin.create_topics(NewTopic("t"), timeout_ms=100)
        cluster.set_controller(-1)
        async with quick_admin(cluster) as admin:
            with pytest.raises(ConnectionClosed, match="broker -1 is not among the live brokers"):
                await admin.create_topics(NewTopic("t"), timeout_ms=50)


async def test_an_error_after_the_time_names_this_time_and_the_last_answer() -> None:
    """The last attempt had a millisecond, and its time-out was all that was said."""

    def refuse(body: Any) -> Any:
        return CreateTopicsResponse(
            topics=[CreatableTopicResult(name="t", error_code=ErrorCode.NOT_CONTROLLER)]
        )

    calls: list[tuple[ApiKey, Any]] = [
        (ApiKey.CREATE_TOPICS, lambda admin: admin.create_topics(NewTopic("t"), timeout_ms=300)),
        (ApiKey.DELETE_TOPICS, lambda admin: admin.delete_topics("t", timeout_ms=300)),
        (
            ApiKey.DESCRIBE_CONFIGS,
            lambda admin: admin.describe_configs(ConfigResource.topic("t"), timeout_ms=300),
        ),
        (
            ApiKey.LIST_OFFSETS,
            lambda admin: admin.list_offsets({TopicPartition("t", 0): "latest"}, timeout_ms=300),
        ),
    ]
    for api, call in calls:
        async with FakeCluster() as cluster:
            broker = cluster.brokers[1]
            cluster.add_topic("t")

            def fall_silent(body: Any, broker: FakeBroker = broker, api: ApiKey = api) -> Any:
                """End this connection, and answer no later request."""
                for silent in (api, ApiKey.METADATA):
                    broker.gate(silent)
                return drop_the_connection(body)

            async with quick_admin(cluster) as admin:
                await admin.describe_topics("t")
                broker.script(api, fall_silent)
                said = r"closed by the peer, before it answered: .*\(asked for 300 ms\)$"
                with pytest.raises((ConnectionClosed, RequestTimedOutLocally), match=said):
                    await call(admin)
    async with FakeCluster() as cluster:
        async with quick_admin(cluster) as admin:
            for _ in range(200):
                cluster.brokers[1].script(ApiKey.CREATE_TOPICS, refuse)
            # The last attempt may have had a millisecond, and then it names the answer before.
            with pytest.raises(
                (ApiError, RequestTimedOutLocally), match=r"NOT_CONTROLLER: .* \(asked for 100 ms\)"
            ):
                await admin.create_topics(NewTopic("t"), timeout_ms=100)


async def test_a_cluster_that_is_briefly_unreachable_is_waited_for(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    broker = cluster.brokers[1]
    async with Admin(bootstrap_servers=cluster.bootstrap, retry_backoff_ms=5) as admin:
        await broker.stop()
        offsets = asyncio.create_task(admin.list_offsets({TopicPartition("t", 0): "latest"}))
        deletion = asyncio.create_task(admin.delete_topics("gone"))
        await until(lambda: "metadata could not be refreshed" in caplog.text)
        await broker.start()
        assert (await offsets)[TopicPartition("t", 0)].offset == 0
        # The first attempt may have succeeded: the topic is gone, as requested.
        await deletion


async def test_one_topic_fails_with_its_own_error_and_several_with_all_of_theirs() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("old")
        async with quick_admin(cluster) as admin:
            with pytest.raises(ApiError, match="TOPIC_ALREADY_EXISTS: topic 'old' exists"):
                await admin.create_topics([NewTopic("old")])
            with pytest.raises(TopicErrors) as failure:
                await admin.create_topics([NewTopic("old"), NewTopic("new", 2)])
            assert failure.value.errors["old"].code == ErrorCode.TOPIC_ALREADY_EXISTS
            assert set(failure.value.results) == {"new"}
            with pytest.raises(TopicErrors, match="nothing: UNKNOWN_TOPIC") as failure:
                await admin.delete_topics(["new", "nothing"])
            assert set(failure.value.results) == {"new"}


async def test_a_topic_may_be_made_again_as_soon_as_it_is_deleted() -> None:
    """The controller forgets it later than the metadata of the brokers does."""
    async with FakeCluster() as cluster:
        refusals = 0

        def create(broker: FakeBroker, body: Any) -> Any:
            nonlocal refusals
            names = [topic.name for topic in body.topics]
            if "t" not in names or refusals >= 3:
                return None
            refusals += 1
            refused = broker.call(CreateTopicsRequest(topics=[t for t in body.topics if t.name != "t"]))
            code = ErrorCode.TOPIC_ALREADY_EXISTS
            return CreateTopicsResponse(
                topics=[*refused.topics, CreatableTopicResult(name="t", error_code=code)]
            )

        cluster.intercept[ApiKey.CREATE_TOPICS] = create
        cluster.add_topic("old")
        async with quick_admin(cluster) as admin:
            with pytest.raises(TopicErrors) as failure:
                await admin.create_topics([NewTopic("t", 2), NewTopic("old"), NewTopic("new")])
            assert set(failure.value.errors) == {"old"}
            assert set(failure.value.results) == {"t", "new"}
            assert len(cluster.topics["t"]) == 2
        assert refusals == 3
        assert [len(body.topics) for body in cluster.requests(ApiKey.CREATE_TOPICS)] == [3, 1, 1, 1]


async def test_a_deletion_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_DELETION_S", 0.1)
    async with FakeCluster() as cluster:

        def refuse(broker: FakeBroker, body: Any) -> Any:
            text = "topic 't' already exists: it is still being deleted"
            result = CreatableTopicResult(
                name="t", error_code=ErrorCode.TOPIC_ALREADY_EXISTS, error_message=text
            )
            return CreateTopicsResponse(topics=[result])

        cluster.intercept[ApiKey.CREATE_TOPICS] = refuse
        async with quick_admin(cluster) as admin:
            with pytest.raises(ApiError, match="still being deleted"):
                await admin.create_topics(NewTopic("t"))


def lost_after(broker: FakeBroker, api: ApiKey) -> None:
    """Have the next request of this kind carried out, and its answer lost."""

    def lose(body: Any) -> Any:
        broker.call(body)
        raise ConnectionResetError

    broker.script(api, lose)


async def test_a_retry_after_a_lost_answer_succeeds_if_the_change_was_made() -> None:
    async with FakeCluster(3) as cluster:
        broker = cluster.brokers[1]
        async with quick_admin(cluster) as admin:
            lost_after(broker, ApiKey.CREATE_TOPICS)
            made = await admin.create_topics(NewTopic("t", 2, 3))
            assert made["t"].topic_id == cluster.topic_ids["t"]
            assert (made["t"].num_partitions, made["t"].replication_factor) == (2, 3)
            lost_after(broker, ApiKey.CREATE_PARTITIONS)
            await admin.create_partitions({"t": 5})
            assert len(cluster.topics["t"]) == 5
            lost_after(broker, ApiKey.DELETE_TOPICS)
            await admin.delete_topics("t")
            assert not cluster.topics


@pytest.mark.parametrize(
    "wanted", [NewTopic("t", 3, 3), NewTopic("t", 2, 1), NewTopic("t", 2, 3, {"retention.ms": "1"})]
)
async def test_a_topic_that_is_not_as_it_was_asked_for_was_made_by_somebody_else(wanted: NewTopic) -> None:
    async with FakeCluster(3) as cluster:

        def somebody_else(body: Any) -> Any:
            cluster.add_topic("t", 2)
            raise ConnectionResetError

        cluster.brokers[1].script(ApiKey.CREATE_TOPICS, somebody_else)
        async with quick_admin(cluster) as admin:
            with pytest.raises(ApiError, match="TOPIC_ALREADY_EXISTS"):
                await admin.create_topics(wanted)


@pytest.mark.parametrize("wire", ["native", "kafka"])
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a: a.create_topics(NewTopic("t", "3")), "topics[0].num_partitions='3': expected int32"),
        (lambda a: a.create_topics(NewTopic("t", 1.5)), "topics[0].num_partitions=1.5: expected int32"),
        (
            lambda a: a.create_topics(NewTopic("t", 2**40)),
            f".num_partitions={2**40}: expected int32",
        ),
        (lambda a: a.create_topics(NewTopic("t", 1, 2**70)), f".replication_factor={2**70}: expected int16"),
        (lambda a: a.create_topics(NewTopic(7)), "topics[0].name=7: expected string"),
        (
            lambda a: a.create_topics(NewTopic("t", configs={"retention.ms": 5})),
            "topics[0].configs[0].value=5: expected string",
        ),
        (
            lambda a: a.create_topics(NewTopic("t", replica_assignment={0: [1, "2"]})),
            "topics[0].assignments[0].broker_ids[1]='2': expected int32",
        ),
        (lambda a: a.create_topics(NewTopic(object)), "topics[0].name=<class 'object'>: expected string"),
        (lambda a: a.create_partitions({"t": "3"}), "topics[0].count='3': expected int32"),
        (lambda a: a.delete_topics([7]), "topics[0].name=7: expected string"),
        (
            lambda a: a.alter_configs({ConfigResource.topic("t"): {"retention.ms": 5}}),
            "resources[0].configs[0].value=5: expected string",
        ),
    ],
)
async def test_a_value_of_a_wrong_type_is_named_at_once(wire: str, call: Any, said: str) -> None:
    async with FakeCluster() as cluster:
        async with quick_admin(cluster, wire=wire) as admin:
            with pytest.raises(Unencodable, match=re.escape(said)):
                await call(admin)
            await admin.create_topics(NewTopic("t"))


async def test_partitions_are_added_and_refused_by_topic(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 2)
    async with quick_admin(cluster) as admin:
        await admin.create_partitions({"t": NewPartitions(4, [[1], [1]])})
        (topic,) = cluster.requests(ApiKey.CREATE_PARTITIONS)[0].topics
        assert (topic.count, [one.broker_ids for one in topic.assignments]) == (4, [[1], [1]])
        with pytest.raises(ApiError, match="INVALID_PARTITIONS: topic 't' has 4"):
            await admin.create_partitions({"t": 4})
        with pytest.raises(TopicErrors) as failure:
            await admin.create_partitions({"t": 5, "x": 5})
        assert failure.value.errors["x"].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert set(failure.value.results) == {"t"}


async def test_settings_are_asked_of_the_broker_that_has_them() -> None:
    async with FakeCluster(3) as cluster:
        cluster.add_topic("t")
        cluster.configs[Entity.topic("t")] = {"retention.ms": "5"}
        topic, broker = ConfigResource.topic("t"), ConfigResource.broker(2)
        async with quick_admin(cluster) as admin:
            described = await admin.describe_configs([topic, broker, ConfigResource.all_brokers()])
            entry = described[topic]["retention.ms"]
            assert (entry.value, entry.source, entry.is_default) == (
                "5",
                ConfigSource.DYNAMIC_TOPIC_CONFIG,
                False,
            )
            resources_by_node = {
                node: [
                    one.resource_name for key, body in fake.received if key == 32 for one in body.resources
                ]
                for node, fake in cluster.brokers.items()
            }
            assert resources_by_node[2] == ["2"]
            assert sorted(resources_by_node[1] + resources_by_node[3]) == ["", "t"]
            with pytest.raises(ApiError, match="UNKNOWN_TOPIC"):
                await admin.describe_configs(ConfigResource.topic("x"))
            with pytest.raises(TopicErrors) as failure:
                await admin.describe_configs([ConfigResource.topic("x"), topic])
            assert set(failure.value.errors) == {"topic x"}
            assert set(failure.value.results) == {"topic t"}
            with pytest.raises(ValueError, match="expected the id of a broker"):
                await admin.describe_configs(ConfigResource(ConfigResourceType.BROKER, "one"))


async def test_settings_of_a_topic_are_asked_of_another_broker_if_one_hangs(pair: FakeCluster) -> None:
    pair.brokers[1].gate(ApiKey.DESCRIBE_CONFIGS)
    topic = ConfigResource.topic("t")
    async with quick_admin(pair, request_timeout_ms=100) as admin:
        assert (await admin.describe_configs(topic))[topic]["retention.ms"].value
    assert [api for api, _ in pair.brokers[2].received if api == ApiKey.DESCRIBE_CONFIGS]


async def test_offsets_are_asked_for_again_after_a_lost_connection(pair: FakeCluster) -> None:
    fill(pair.partition("t"), 0, 10)

    def lose(body: Any) -> Any:
        pair.brokers[1].drop_connections()
        return pair.brokers[1].call(body)

    pair.brokers[1].script(ApiKey.LIST_OFFSETS, lose)
    async with quick_admin(pair) as admin:
        assert (await admin.list_offsets({("t", 0): "latest"}))[TopicPartition("t", 0)].offset == 10
    assert len(pair.requests(ApiKey.LIST_OFFSETS)) == 2


async def test_settings_are_changed_one_by_one() -> None:
    async with FakeCluster() as cluster:
        topic = ConfigResource.topic("t")
        cluster.add_topic("t")
        async with quick_admin(cluster) as admin:
            cluster.brokers[1].script(ApiKey.INCREMENTAL_ALTER_CONFIGS, drop_the_connection)
            stored = Entity.topic("t")
            cluster.configs[stored] = {"retention.ms": "5", "segment.ms": "6", "cleanup.policy": "delete"}
            changes = {"retention.ms": "7", "segment.ms": None, "cleanup.policy": Append("compact")}
            await admin.alter_configs({topic: changes}, validate_only=True)
            assert cluster.configs[stored]["retention.ms"] == "5"
            await admin.alter_configs({topic: changes})
            assert cluster.configs[stored] == {"retention.ms": "7", "cleanup.policy": "delete,compact"}
            await admin.alter_configs({topic: {"cleanup.policy": Subtract("delete")}})
            assert cluster.configs[stored] == {"retention.ms": "7", "cleanup.policy": "compact"}
            with pytest.raises(TopicErrors, match="UNKNOWN_TOPIC") as failure:
                await admin.alter_configs({ConfigResource.topic(name): {"segment.ms": "1"} for name in "tx"})
            assert (set(failure.value.errors), set(failure.value.results)) == ({"topic x"}, {"topic t"})


def drop_the_connection(body: Any) -> Any:
    raise ConnectionResetError


async def test_an_unknown_topic_is_refused_with_names_that_are_near() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("flights")
        cluster.creates_topics = True
        admin = quick_admin(cluster)
        with pytest.raises(ClientClosed, match="not started"):
            await admin.list_topics()
        async with admin:
            with pytest.raises(ApiError, match=r"there is no topic 'flight'; did you mean flights\?"):
                await admin.describe_topics("flight")
            assert set(await admin.describe_topics()) == {"flights"}
        assert set(cluster.topics) == {"flights"}, "no question creates a topic"


async def test_internal_topics_are_listed_for_those_who_ask(cluster: FakeCluster) -> None:
    def mark(broker: FakeBroker, body: Any) -> Any:
        answer = broker.call(body)
        for topic in answer.topics:
            topic.is_internal = topic.name.startswith("__")
        return answer

    cluster.add_topic("__state")
    cluster.intercept[ApiKey.METADATA] = mark
    async with quick_admin(cluster) as admin:
        assert await admin.list_topics() == ["t"]
        assert await admin.list_topics(include_internal=True) == ["__state", "t"]


async def test_offsets_are_listed_by_name_and_time_and_nothing_else(cluster: FakeCluster) -> None:
    fill(cluster.partition("t"), 0, 9)
    cluster.partition("t").delete_records(3)
    tp = TopicPartition("t", 0)
    async with quick_admin(cluster) as admin:
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
