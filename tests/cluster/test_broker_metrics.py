"""Kafka's metrics of real brokers: replicas, the controller, and the traffic of topics and APIs."""

from collections.abc import Callable

import pytest

from barnabas.client import blocking
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.metadata import (
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from tests.support.metrics_page import fetch_pages, total
from tests.support.waiting import wait_for

from .raw_client import RawClient
from .tools import KILLED, SESSION_TIMEOUT_MS, ClusterView

CONTROLLER = "kafka_controller_kafkacontroller_"
REPLICAS = "kafka_server_replicamanager_"
TOPICS = "kafka_server_brokertopicmetrics_"
PATIENT = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "replica.lag.time.max.ms": "4000",
    "offsets.topic.num.partitions": "1",
}
"""A paused broker keeps its session, but leaves the ISRs."""


def wait_total(
    cluster: LocalCluster, name: str, expected: Callable[[float], bool] | float, **labels: str
) -> float:
    """Wait until the sum over the running brokers is as expected; returns it."""
    seen: list[float] = []

    def is_so() -> bool:
        seen.append(total(cluster, name, **labels))
        return expected(seen[-1]) if callable(expected) else seen[-1] == expected

    wait_for(is_so, lambda: f"{name} is {seen[-1]}")
    return seen[-1]


@pytest.mark.brokers(metrics=True, settings=PATIENT)
def test_a_paused_follower_is_under_replicated_until_it_is_back(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    view.create_topic("t", 1, min_insync_replicas="2")
    view.wait_isr("t", 3)
    leader = view.leader("t")
    paused = next(broker for broker in cluster.broker_ids if broker not in (leader, view.controller()))
    partition = {"topic": "t", "partition": "0"}

    def shown(name: str, **labels: str) -> float:
        return fetch_pages(cluster, [leader])[leader].value(name, **labels)

    assert shown(REPLICAS + "underreplicatedpartitions") == shown(REPLICAS + "isrshrinks_total") == 0
    assert shown("kafka_cluster_partition_insyncreplicascount", **partition) == 3
    cluster.pause(paused)
    # A follower that lacks nothing stays in sync.
    view.write("t", [b"missing"])
    wait_for(
        lambda: shown(REPLICAS + "underreplicatedpartitions") == 1, "the partition to be under-replicated"
    )
    assert shown(REPLICAS + "isrshrinks_total") == 1
    assert shown(REPLICAS + "atminisrpartitioncount") == 1
    assert shown(REPLICAS + "underminisrpartitioncount") == 0
    assert shown("kafka_cluster_partition_underreplicated", **partition) == 1
    assert shown("kafka_cluster_partition_insyncreplicascount", **partition) == 2
    expands = shown(REPLICAS + "isrexpands_total")
    cluster.resume(paused)
    wait_for(lambda: shown(REPLICAS + "underreplicatedpartitions") == 0, "the follower to be back")
    assert shown(REPLICAS + "isrexpands_total") == expands + 1


@pytest.mark.brokers(metrics=True, settings=KILLED)
def test_the_cluster_has_one_controller_which_counts_offline_partitions(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    view.create_topic("single", 3, replicas=1)
    wait_total(cluster, CONTROLLER + "activecontrollercount", 1)
    wait_total(cluster, CONTROLLER + "globalpartitioncount", 3)
    assert total(cluster, CONTROLLER + "activebrokercount") == 3
    assert total(cluster, CONTROLLER + "offlinepartitionscount") == 0
    killed = view.controller()
    cluster.kill(killed)
    wait_total(cluster, CONTROLLER + "offlinepartitionscount", 1)
    wait_total(cluster, CONTROLLER + "activecontrollercount", 1)
    wait_total(cluster, CONTROLLER + "activebrokercount", 2)
    cluster.start_broker(killed)
    wait_total(cluster, CONTROLLER + "offlinepartitionscount", 0)
    wait_total(cluster, CONTROLLER + "activecontrollercount", 1)


@pytest.mark.brokers(metrics=True, settings=PATIENT)
def test_the_bytes_and_records_of_a_topic_are_those_that_were_sent(cluster: LocalCluster) -> None:
    ClusterView(cluster).create_topic("t", 3)
    with blocking.Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for number in range(900):
            producer.send("t", b"x" * number, partition=number % 3)
        producer.flush()
    sizes = {
        int(sample.labels["partition"]): sample.value
        for page in fetch_pages(cluster).values()
        for sample in page.samples
        if sample.name == "kafka_log_log_size" and sample.labels["topic"] == "t"
    }
    assert total(cluster, TOPICS + "messagesin_total", topic="t") == 900
    assert total(cluster, TOPICS + "bytesin_total", topic="t") == sum(sizes.values()) > 900 * 450
    with blocking.Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", partition) for partition in range(3)])
        consumed = 0
        while consumed < 900:
            consumed += len(consumer.poll(1_000))
    wait_total(cluster, TOPICS + "bytesout_total", lambda seen: seen >= sum(sizes.values()), topic="t")
    # Each of two followers has fetched everything.
    wait_total(cluster, TOPICS + "replicationbytesin_total", lambda seen: seen >= 2 * sum(sizes.values()))
    wait_total(
        cluster,
        TOPICS + "replicationbytesout_total",
        lambda seen: seen == total(cluster, TOPICS + "replicationbytesin_total"),
    )


@pytest.mark.parametrize(("version", "label"), [(None, "native"), (0, "0")])
@pytest.mark.brokers(metrics=True, brokers=1, settings=PATIENT)
def test_requests_are_counted_by_api_and_version(
    cluster: LocalCluster, version: int | None, label: str
) -> None:
    (broker,) = cluster.brokers
    with RawClient(broker.endpoint) as client:
        for _ in range(7):
            client.ask(DescribeClusterRequest(), version)
    requests = "kafka_network_requestmetrics_"
    # The client may have the last answer before it is counted.
    wait_total(cluster, requests + "requests_total", 7, request="DescribeCluster", version=label)
    (page,) = fetch_pages(cluster).values()
    assert page.value(requests + "totaltimems_count", request="DescribeCluster") == 7
    buckets = [
        page.value(requests + "totaltimems_bucket", request="DescribeCluster", le=le) for le in ("1", "+Inf")
    ]
    assert buckets[0] <= buckets[1] == 7
    assert page.value("barnabas_connections") >= 1
    assert page.value(requests + "requestbytes_count", request="DescribeCluster") == 7
    assert 0 < page.value(requests + "requestbytes_sum", request="DescribeCluster") < 7_000
    assert page.value(requests + "errors_total", request="DescribeCluster", error="NONE") == 7


@pytest.mark.parametrize("version", [None, 12])
@pytest.mark.brokers(metrics=True, brokers=1, settings=PATIENT)
def test_errors_in_answers_are_counted_by_code(cluster: LocalCluster, version: int | None) -> None:
    (broker,) = cluster.brokers
    with RawClient(broker.endpoint) as client:
        for name in ("a", "b", "c"):
            topics = [MetadataRequestTopic(name=name)]
            client.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False), version)
    wait_total(
        cluster,
        "kafka_network_requestmetrics_errors_total",
        3,
        request="Metadata",
        error="UNKNOWN_TOPIC_OR_PARTITION",
    )
