"""Brokers and users who are told apart by certificates of their own (mutual TLS), without SASL."""

import asyncio
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.common.channel import Channel
from barnabas.deploy.client_settings import client_settings
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.security import ClusterSecurity
from barnabas.deploy.state import SecurityConfiguration
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from barnabas.protocol.errors import ConnectionClosed, ErrorCode
from barnabas.protocol.messages.inter_broker import StopReplicaRequest
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from .tools import KILLED, call_command, running

ORDER = StopReplicaRequest(controller_id=1, controller_epoch=2**31 - 1, broker_epoch=2**62, topic_states=[])


def security_of(cluster: LocalCluster) -> ClusterSecurity:
    assert cluster.security is not None
    return cluster.security


def settings(cluster: LocalCluster, user: str = "admin") -> dict[str, Any]:
    return client_settings("confluent", security_of(cluster).access(cluster.bootstrap, user))


async def order_is_refused(cluster: LocalCluster, user: str) -> bool:
    """Whether a broker refuses a user who sends an order of controllers."""
    security = security_of(cluster).channel_security(cluster.bootstrap, user)
    channel = Channel(cluster.broker(1).endpoint, client_id="mallory", security=security)
    try:
        answer = await channel.request(ORDER)
    except ConnectionClosed:
        return True
    finally:
        channel.close()
    return answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def write(cluster: LocalCluster, topic: str, user: str = "admin") -> confluent_kafka.KafkaError | None:
    """Write a record to all replicas; returns librdkafka's error, or None."""
    reports: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer(settings(cluster, user) | {"acks": "all", "log_level": 0})
    producer.produce(topic, b"x", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(30) == 0
    return reports[0]


def test_brokers_with_certificates_of_their_own_need_no_super_users(
    tmp_path: Path, zookeeper: ZooKeeper | ExistingZooKeeper
) -> None:
    """As with Kafka: the topic is created, replicated, and led by another broker when one is killed."""
    cluster = LocalCluster(
        tmp_path,
        brokers=3,
        zookeeper=fresh_name(f"{zookeeper.connect}/certificates"),
        settings=KILLED | {"ssl.client.auth": "required"},
        security=SecurityConfiguration(tls=True),
        users={"alice": None},
    )
    with running(cluster):
        admin = AdminClient(settings(cluster) | {"log_level": 0})

        def partition() -> Any:
            return admin.list_topics("t", timeout=5).topics["t"].partitions.get(0)

        controller = admin.list_topics(timeout=5).controller_id
        replicas = [controller, *(id for id in cluster.broker_ids if id != controller)]
        admin.create_topics([NewTopic("t", 1, replica_assignment=[replicas])])["t"].result(30)
        assert write(cluster, "t") is None
        assert sorted(partition().isrs) == [1, 2, 3]
        cluster.kill(controller)
        wait_for(lambda: partition().leader not in (-1, controller), "another leader", 30)
        assert write(cluster, "t") is None
        cluster.start_broker(controller)
        wait_for(lambda: len(partition().isrs) == 3, "all replicas in sync", 30)

        def reported() -> set[str]:
            lines = "".join(broker.server_log.read_text() for broker in cluster.brokers).splitlines()
            return {line.split("] ")[1].split(" at ")[0] for line in lines if "no registered broker" in line}

        assert asyncio.run(order_is_refused(cluster, "alice"))
        wait_for(reported, "a report of the refusal")
        # Brokers were refused for a moment at most, and are not reported.
        assert reported() == {"User:CN=alice,OU=local cluster,O=Barnabas"}


def test_acls_of_users_with_certificates(tmp_path: Path, zookeeper: ZooKeeper | ExistingZooKeeper) -> None:
    cluster = LocalCluster(
        tmp_path,
        brokers=2,
        zookeeper=fresh_name(f"{zookeeper.connect}/certificates"),
        security=SecurityConfiguration(tls=True, acl=True),
        users={"alice": None, "bob": None},
    )
    with running(cluster):
        directory = {"BARNABAS_DIR": str(cluster.directory)}
        for words in ("topics create t --replication-factor 2", "acls grant alice write topic:t"):
            assert call_command(*words.split(), **directory).returncode == 0, words
        assert write(cluster, "t", "alice") is None
        denied = write(cluster, "t", "bob")
        assert denied is not None
        assert denied.code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert asyncio.run(order_is_refused(cluster, "alice"))
