"""Topics made, refused, deleted, and deleted while a broker is away."""

import functools
import time
from pathlib import Path

import pytest

from barnabas.client import NewTopic
from barnabas.client.admin.quotas import ClientQuotaEntity
from barnabas.client.blocking import Producer
from barnabas.client.errors import DeliveryTimedOut, TopicErrors
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.names import fresh_name
from tests.support.record_requests import fetch_request
from tests.support.waiting import wait_for

from .raw_client import RawClient, batch_of, encoded, produce_request
from .tools import ClusterView, knows_topic


def folders(cluster: LocalCluster, topic: str) -> list[Path]:
    """The partition folders of a topic on all brokers, those marked for deletion included."""
    return [
        found
        for broker in cluster.brokers
        for found in broker.log_dirs[0].iterdir()
        if found.is_dir() and found.name.startswith(f"{topic}-")
    ]


def names(metadata: MetadataResponse) -> list[str | None]:
    return [topic.name for topic in metadata.topics]


def refusal(cluster: LocalCluster, topic: NewTopic) -> ApiError:
    with ClusterView(cluster).admin() as admin, pytest.raises(ApiError) as caught:
        admin.create_topics(topic)
    return caught.value


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "with\nline"])
def test_a_name_that_no_topic_can_have_is_refused(shared_cluster: LocalCluster, name: str) -> None:
    assert refusal(shared_cluster, NewTopic(name, 1, 1)).code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_is_made_once_and_names_may_not_differ_by_dots_alone(shared_cluster: LocalCluster) -> None:
    name = fresh_name("one.topic")
    ClusterView(shared_cluster).create_topic(name, 2, 2)
    again = refusal(shared_cluster, NewTopic(name, 2, 2))
    assert again.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert name in str(again)
    other = name.replace(".", "_")
    assert refusal(shared_cluster, NewTopic(other, 2, 2)).code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_more_replicas_than_brokers_are_refused_with_both_numbers(shared_cluster: LocalCluster) -> None:
    error = refusal(shared_cluster, NewTopic("wide", 1, 4))
    assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "4" in str(error)
    assert "3" in str(error)


@pytest.mark.parametrize("partitions", [0, -2, 10_001, 2**31 - 1])
def test_a_number_of_partitions_out_of_range_is_refused(
    shared_cluster: LocalCluster, partitions: int
) -> None:
    assert refusal(shared_cluster, NewTopic("odd", partitions, 1)).code is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize(
    "configs", [{"min.insync.replicas": "none"}, {"retention.ms": "-2"}, {"no.such.setting": "1"}], ids=str
)
def test_a_wrong_override_is_refused_by_name(shared_cluster: LocalCluster, configs: dict[str, str]) -> None:
    error = refusal(shared_cluster, NewTopic("odd", 1, 1, configs))
    assert error.code is ErrorCode.INVALID_CONFIG
    assert next(iter(configs)) in str(error)


def test_good_topics_are_created_although_others_of_the_request_are_bad(shared_cluster: LocalCluster) -> None:
    good = [fresh_name("good"), fresh_name("good")]
    wanted = [
        NewTopic(good[0], 1, 3),
        NewTopic("bad/1", 1, 1),
        NewTopic(good[1], 2, 1),
        NewTopic("b", 1, 9),
    ]
    with ClusterView(shared_cluster).admin() as admin, pytest.raises(TopicErrors) as caught:
        admin.create_topics(wanted)
    assert set(caught.value.errors) == {"bad/1", "b"}
    for broker in shared_cluster.brokers:
        for name in good:
            knows = functools.partial(knows_topic, broker.endpoint, name)
            wait_for(knows, f"broker {broker.id} does not know {name}")


def test_the_error_of_an_unknown_topic_names_similar_topics(shared_cluster: LocalCluster) -> None:
    name = fresh_name("departures")
    ClusterView(shared_cluster).create_topic(name, 1, 1)
    with ClusterView(shared_cluster).admin() as admin:
        with pytest.raises(ApiError, match=f"did you mean {name}") as caught:
            admin.describe_topics(name[:-1])
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(ApiError) as caught:
            admin.delete_topics(name[:-1])
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_metadata_behind_a_fetch_that_waits_is_new_when_it_leaves(shared_cluster: LocalCluster) -> None:
    view, topic, later = ClusterView(shared_cluster), fresh_name("topic"), fresh_name("later")
    view.create_topic(topic, 1)
    endpoint = shared_cluster.broker(view.leader(topic)).endpoint
    fetch, metadata = fetch_request(0, topic=topic, max_wait_ms=60_000), MetadataRequest(topics=None)
    with RawClient(endpoint) as waiting, RawClient(endpoint) as client:
        waiting.send(encoded(fetch) + encoded(metadata))
        view.create_topic(later, 1)
        wait_for(lambda: later in names(client.ask(metadata)), "the new topic is unknown")
        client.ask(produce_request([(0, bytes(batch_of(b"end of the wait")))], topic=topic))
        assert waiting.answer_to(fetch).responses[0].partitions[0].high_watermark == 1
        assert later in names(waiting.answer_to(metadata))


def test_too_few_in_sync_replicas_refuse_acks_all(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    view.create_topic("strict", 1, 3, min_insync_replicas="3")
    cluster.kill(
        next(broker for broker in (1, 2, 3) if broker not in (view.leader("strict"), view.controller()))
    )
    view.wait_isr("strict", 2)
    errors: list[str] = []

    def is_refused() -> bool:
        """Within so short a time there may be no answer, but never a good one."""
        with Producer(
            bootstrap_servers=cluster.bootstrap,
            acks="all",
            delivery_timeout_ms=1_500,
            request_timeout_ms=1_000,
        ) as producer:
            with pytest.raises(DeliveryTimedOut) as caught:
                producer.send_and_wait("strict", b"x")
        errors.append(str(caught.value))
        return "NOT_ENOUGH_REPLICAS" in errors[-1]

    wait_for(is_refused, lambda: f"the reason is not named: {errors}")
    with Producer(bootstrap_servers=cluster.bootstrap, acks=1) as producer:
        assert producer.send_and_wait("strict", b"x").offset == 0


def test_no_more_replicas_are_demanded_than_the_partition_has(shared_cluster: LocalCluster) -> None:
    """As in Kafka."""
    name = fresh_name("alone")
    ClusterView(shared_cluster).create_topic(name, 1, 1, min_insync_replicas="2")
    with Producer(bootstrap_servers=shared_cluster.bootstrap, acks="all") as producer:
        assert producer.send_and_wait(name, b"x").offset == 0


def test_a_deleted_topic_is_gone_everywhere_and_its_name_is_free(shared_cluster: LocalCluster) -> None:
    view, name = ClusterView(shared_cluster), fresh_name("short")
    view.create_topic(name, 3, 3)
    view.write(name, [b"old"] * 30)
    first = view.partitions(name)
    assert len(first) == 3
    with view.admin() as admin:
        admin.delete_topics(name)
    for broker in shared_cluster.brokers:
        wait_for(lambda broker=broker: not knows_topic(broker.endpoint, name), f"{broker.id} knows it")
    with view.zookeeper() as zookeeper:
        for path in (f"/brokers/topics/{name}", f"/admin/delete_topics/{name}", f"/config/topics/{name}"):
            wait_for(lambda path=path: zookeeper.exists(path) is None, f"{path} is still there")
    view.create_topic(name, 1, 3)
    view.write(name, [b"new"])
    assert set(view.read(name, 1)) == {b"new"}


@pytest.mark.brokers(settings={"log.segment.delete.delay.ms": "100"})
def test_deleted_files_are_removed_from_the_disk(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    view.create_topic("short", 3, 3)
    view.write("short", [b"old"] * 30)
    wait_for(lambda: len(folders(cluster, "short")) == 9, lambda: str(folders(cluster, "short")))
    with view.admin() as admin:
        admin.delete_topics("short")
    wait_for(lambda: not folders(cluster, "short"), lambda: f"left: {folders(cluster, 'short')}")


@pytest.mark.brokers(settings={"log.segment.delete.delay.ms": "100"})
def test_a_deletion_waits_for_a_broker_that_is_away_and_then_leaves_nothing(
    cluster: LocalCluster,
) -> None:
    view = ClusterView(cluster)
    view.create_topic("short", 3, 3)
    view.write("short", [b"old"] * 30)
    away = next(broker for broker in cluster.broker_ids if broker != view.controller())
    cluster.stop_broker(away)

    # As in Apache Kafka 3.9.1, the others forget the topic and delete their replicas at once.
    with view.admin() as admin:
        admin.delete_topics("short")
    log_dir = cluster.broker(away).log_dirs[0]
    wait_for(
        lambda: {folder.parent for folder in folders(cluster, "short")} == {log_dir},
        lambda: f"left: {folders(cluster, 'short')}",
    )
    assert refusal(cluster, NewTopic("short", 1, 2)).code is ErrorCode.TOPIC_ALREADY_EXISTS
    cluster.start_broker(away)
    with view.zookeeper() as zookeeper:
        wait_for(lambda: zookeeper.exists("/brokers/topics/short") is None, "the topic's znode is there")
        wait_for(lambda: zookeeper.exists("/admin/delete_topics/short") is None, "the request is there")
    wait_for(lambda: not folders(cluster, "short"), lambda: str(folders(cluster, "short")))
    view.create_topic("short", 3, 3)
    view.write("short", [b"new"] * 9)
    view.wait_isr("short", 3)
    assert set(view.read("short", 3)) == {b"new"}


@pytest.mark.brokers(settings={"delete.topic.enable": "false"})
def test_deletion_that_is_switched_off_is_refused_and_a_request_by_hand_cleared(
    cluster: LocalCluster,
) -> None:
    view = ClusterView(cluster)
    view.create_topic("kept", 1, 3)
    view.write("kept", [b"kept"])
    with view.admin() as admin, pytest.raises(ApiError) as caught:
        admin.delete_topics("kept")
    assert caught.value.code is ErrorCode.TOPIC_DELETION_DISABLED
    with view.zookeeper() as zookeeper:
        zookeeper.create("/admin/delete_topics/kept")
        wait_for(lambda: zookeeper.exists("/admin/delete_topics/kept") is None, "it is not cleared")
        assert zookeeper.exists("/brokers/topics/kept") is not None
    assert set(view.read("kept", 1)) == {b"kept"}


def test_a_quota_holds_on_every_broker_and_mutes_one_connection(shared_cluster: LocalCluster) -> None:
    """Of the client id of `RawClient`; requests name no topic here, but they change settings as topics do."""
    client = ClientQuotaEntity(client_id="raw")

    def limit(percentage: float | None) -> None:
        with ClusterView(shared_cluster).admin() as admin:
            admin.alter_client_quotas({client: {"request_percentage": percentage}})

    def throttle_ms(number: int) -> int:
        with RawClient(shared_cluster.broker(number).endpoint) as raw:
            answer: MetadataResponse = raw.ask(MetadataRequest(topics=[]), version=9)
            return answer.throttle_time_ms

    limit(0.0)
    for number in shared_cluster.broker_ids:
        wait_for(lambda number=number: throttle_ms(number) == 1_000, "the quota does not hold")
    with RawClient(shared_cluster.broker(1).endpoint) as muted:
        began = time.monotonic()
        muted.send(encoded(MetadataRequest(topics=[])) * 2)
        assert muted.answer_to(MetadataRequest(topics=[])).throttle_time_ms == 1_000
        # Another connection of the client.
        assert throttle_ms(1) == 1_000
        # The end of a quota does not end a mute.
        limit(None)
        muted.answer_to(MetadataRequest(topics=[]))
        assert time.monotonic() - began >= 1
    for number in shared_cluster.broker_ids:
        wait_for(lambda number=number: throttle_ms(number) == 0, "the quota still holds")
