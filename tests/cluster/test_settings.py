"""Changed settings, added partitions and topics created on demand, while real brokers run and restart."""

import functools
from collections.abc import Mapping
from typing import Any

import pytest

from barnabas.client import ConfigResource, NewTopic
from barnabas.client.admin.admin import Append, Subtract
from barnabas.client.blocking import Consumer, Producer
from barnabas.client.errors import DeliveryTimedOut, ErrorCode, TopicErrors
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.configs import ConfigSource
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.waiting import wait_for

from .raw_client import RawClient
from .tools import ClusterView, knows_topic


def alter(cluster: LocalCluster, resource: ConfigResource, **changes: Any) -> None:
    named = {name.replace("_", "."): value for name, value in changes.items()}
    with ClusterView(cluster).admin() as admin:
        admin.alter_configs({resource: named})


def values(cluster: LocalCluster, resource: ConfigResource) -> Mapping[str, tuple[str | None, ConfigSource]]:
    with ClusterView(cluster).admin() as admin:
        found = admin.describe_configs(resource)[resource]
    return {name: (entry.value, entry.source) for name, entry in found.items()}


def segments(cluster: LocalCluster, broker_id: int, topic: str) -> int:
    """The number of segments of a broker's replica of partition 0."""
    broker = cluster.broker(broker_id)
    return len(list((broker.log_dirs[0] / f"{topic}-0").glob("*.log")))


def write(cluster: LocalCluster, topic: str, count: int, partition: int = 0) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all", batch_size=1) as producer:
        for _ in range(count):
            producer.send(topic, b"x" * 500, partition=partition).result(20)


@pytest.mark.brokers(settings={"log.retention.check.interval.ms": "100"})
def test_a_change_takes_effect_on_every_replica_also_on_one_that_was_down(
    cluster: LocalCluster,
) -> None:
    view = ClusterView(cluster)
    view.create_topic("t", 1, 3)
    topic = ConfigResource.topic("t")
    away = next(
        number for number in cluster.broker_ids if number not in (view.controller(), view.leader("t"))
    )
    cluster.stop_broker(away)
    alter(cluster, topic, segment_bytes="1000", file_delete_delay_ms="0")
    wait_for(lambda: values(cluster, topic)["segment.bytes"][0] == "1000", "the change does not show")

    def rolls() -> bool:
        write(cluster, "t", 1)
        return all(segments(cluster, number, "t") > 3 for number in cluster.broker_ids if number != away)

    wait_for(rolls, "segments are not rolled on every replica")
    cluster.start_broker(away)
    wait_for(lambda: segments(cluster, away, "t") > 3, "the replica that was away rolls no segments")

    alter(cluster, topic, retention_bytes="1500")
    for number in cluster.broker_ids:
        wait_for(
            lambda number=number: segments(cluster, number, "t") <= 4,
            lambda number=number: f"broker {number} keeps {segments(cluster, number, 't')} segments",
        )
    alter(cluster, topic, retention_bytes=None, max_message_bytes="200")

    def is_refused() -> bool:
        try:
            write(cluster, "t", 1)
        except ApiError as error:
            return error.code is ErrorCode.MESSAGE_TOO_LARGE
        return False

    wait_for(is_refused, "a record above max.message.bytes is still taken")


def test_defaults_of_all_brokers_and_of_one_are_changed_while_they_run(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    view.create_topic("t", 1, 3)
    topic, everybody = ConfigResource.topic("t"), ConfigResource.all_brokers()
    alter(cluster, everybody, min_insync_replicas="2")
    alter(cluster, everybody, log_cleanup_policy=Append("compact"))
    assert values(cluster, everybody) == {
        "min.insync.replicas": ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        "log.cleanup.policy": ("delete,compact", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    }
    alter(cluster, everybody, log_cleanup_policy=Subtract("compact"))
    assert values(cluster, topic)["min.insync.replicas"][0] == "2"
    leader = view.leader("t")
    own = ConfigResource.broker(leader)
    assert values(cluster, own)["min.insync.replicas"] == ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    # No more replicas are demanded than the partition has, so one of them must be out of sync.
    cluster.kill(next(broker for broker in (1, 2, 3) if broker not in (leader, view.controller())))
    view.wait_isr("t", 2)
    alter(cluster, own, min_insync_replicas="3")

    def outcome() -> ErrorCode | None:
        # A record that is written just before the change waits for the third replica.
        soon = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 2_000}
        with Producer(bootstrap_servers=cluster.bootstrap, acks="all", retries=0, **soon) as producer:
            try:
                producer.send_and_wait("t", b"x")
            except DeliveryTimedOut:
                return None
            except ApiError as error:
                return error.code
        return ErrorCode.NONE

    wait_for(lambda: outcome() is ErrorCode.NOT_ENOUGH_REPLICAS, "the leader does not ask for 3 replicas")
    assert values(cluster, own)["min.insync.replicas"] == ("3", ConfigSource.DYNAMIC_BROKER_CONFIG)
    alter(cluster, own, min_insync_replicas=None)
    wait_for(lambda: outcome() is ErrorCode.NONE, "the leader still asks for 3 replicas")
    with view.admin() as admin, pytest.raises(TopicErrors) as caught:
        admin.alter_configs(
            {
                own: {"num.io.threads": "2"},
                topic: {"retention.ms": "soon"},
                ConfigResource.topic("nosuch"): {"retention.ms": "1"},
            }
        )
    assert {name: error.code for name, error in caught.value.errors.items()} == {
        f"broker {leader}": ErrorCode.INVALID_REQUEST,
        "topic t": ErrorCode.INVALID_CONFIG,
        "topic nosuch": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.brokers(brokers=1)
def test_the_limit_of_connections_is_lowered_while_the_broker_runs(cluster: LocalCluster) -> None:
    [broker] = cluster.brokers
    with RawClient(broker.endpoint) as early:
        alter(cluster, ConfigResource.broker(broker.id), max_connections_per_ip="1")

        def is_refused() -> bool:
            with RawClient(broker.endpoint) as late:
                try:
                    late.ask(MetadataRequest(topics=[]))
                except ConnectionError:
                    return True
            return False

        wait_for(is_refused, "a second connection is still let in")
        assert early.ask(MetadataRequest(topics=[])).brokers


def test_added_partitions_can_be_written_also_after_a_controller_failover(
    cluster: LocalCluster,
) -> None:
    view = ClusterView(cluster)
    view.create_topic("t", 2, 3)
    with view.admin() as admin:
        admin.create_partitions({"t": 3}, validate_only=True)
        assert len(admin.describe_topics("t")["t"].partitions) == 2
        admin.create_partitions({"t": 5})
        with pytest.raises(ApiError, match="has 5 partitions already"):
            admin.create_partitions({"t": 5})
    view.wait_agreed("t", 5)
    found = view.partitions("t")
    assert [one.partition for one in found] == [0, 1, 2, 3, 4]
    assert all(len(one.replicas) == 3 and one.leader >= 0 for one in found)
    first = view.controller()
    cluster.kill(first)
    cluster.start_broker(first)
    with view.admin() as admin:
        admin.create_partitions({"t": 7})
    view.wait_agreed("t", 7)
    for number in range(7):
        write(cluster, "t", 1, partition=number)
    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        ends = consumer.end_offsets([TopicPartition("t", number) for number in range(7)])
    assert set(ends.values()) == {1}


@pytest.mark.brokers(settings={"num.partitions": "3", "default.replication.factor": "2"})
def test_writing_creates_a_topic_and_describing_does_not(
    cluster: LocalCluster,
) -> None:
    view = ClusterView(cluster)
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        producer.send("fresh", b"x").result(20)
    # Its leaders know it; the other brokers learn of it a moment later.
    for broker in cluster.brokers:
        knows = functools.partial(knows_topic, broker.endpoint, "fresh")
        wait_for(knows, f"broker {broker.id} does not know it")
    found = view.partitions("fresh")
    assert [len(one.replicas) for one in found] == [2, 2, 2]
    with view.admin() as admin:
        with pytest.raises(ApiError, match="there is no topic 'frsh'; did you mean fresh"):
            admin.describe_topics("frsh")
        assert admin.list_topics() == ["fresh"]
    # Any broker has it created, once, however many requests ask for it.
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="other"), MetadataRequestTopic(name="a b")])
    for broker in cluster.brokers * 3:
        with RawClient(broker.endpoint) as client:
            other, bad = client.ask(asked).topics
            assert other.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
            assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    for broker in cluster.brokers:
        knows = functools.partial(knows_topic, broker.endpoint, "other")
        wait_for(knows, "the topic is not made")
    assert len(view.partitions("other")) == 3
    with view.admin() as admin:
        admin.create_topics(NewTopic("made", configs={"retention.ms": "5"}))
        assert admin.list_topics() == ["fresh", "made", "other"]
        entry = admin.describe_configs(ConfigResource.topic("made"), ["retention.ms"])[
            ConfigResource.topic("made")
        ]["retention.ms"]
    assert (entry.value, entry.source) == ("5", ConfigSource.DYNAMIC_TOPIC_CONFIG)
