"""Clients survive each kind of fault at the protocol: ours, and librdkafka unmodified."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest

from barnabas.client import FaultRule, NewTopic, TopicPartition
from barnabas.client.blocking import Admin, Consumer, Producer
from barnabas.deploy.cluster_view import VIEW_SETTINGS
from barnabas.deploy.local import LocalCluster
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

CLIENT = "under-test"


def produce_ours(bootstrap: str, topic: str) -> int:
    with Producer(bootstrap_servers=bootstrap, client_id=CLIENT) as producer:
        return producer.send(topic, b"v").result().offset


def produce_confluent(bootstrap: str, topic: str) -> int:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "client.id": CLIENT, "enable.idempotence": True, "linger.ms": 0}
    )
    written: list[Any] = []
    producer.produce(topic, b"v", on_delivery=lambda error, message: written.append((error, message)))
    assert producer.flush(30) == 0
    ((error, message),) = written
    assert error is None
    offset: int = message.offset()
    return offset


def consume_ours(bootstrap: str, topic: str) -> bytes | None:
    settings: dict[str, Any] = {"client_id": CLIENT, "auto_offset_reset": "earliest"}
    with Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return next(iter(consumer)).value


def consume_confluent(bootstrap: str, topic: str) -> bytes | None:
    settings = {
        "bootstrap.servers": bootstrap,
        "client.id": CLIENT,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "reconnect.backoff.ms": 10,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    value: bytes = message.value()
    return value


PRODUCE = pytest.mark.parametrize("produce", [produce_ours, produce_confluent])
CONSUME = pytest.mark.parametrize("consume", [consume_ours, consume_confluent])


@pytest.fixture(scope="module")
def admin(shared_cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=shared_cluster.bootstrap) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin) -> str:
    name = fresh_name("faults")
    admin.create_topics([NewTopic(name, 1, 3)])
    return name


@contextmanager
def faults(admin: Admin, **values: Any) -> Iterator[Callable[[], int]]:
    """Under a rule that hits the client; yields how often it did."""
    rule = FaultRule(client_id=CLIENT, **values)
    admin.add_fault_rules(rule)

    def hits() -> int:
        (state,) = [each for each in admin.describe_fault_rules().rules if each.rule == rule]
        return state.hits

    try:
        yield hits
    finally:
        assert admin.remove_fault_rules() == [rule.name]


@PRODUCE
def test_a_producer_tries_again_after_an_error_of_the_partition(
    admin: Admin, topic: str, shared_cluster: LocalCluster, produce: Callable[[str, str], int]
) -> None:
    with faults(admin, api="Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER", times=2) as hits:
        assert produce(shared_cluster.bootstrap, topic) == 0
        assert hits() == 2


@PRODUCE
def test_an_idempotent_record_is_written_once_if_its_answer_is_lost(
    admin: Admin, topic: str, shared_cluster: LocalCluster, produce: Callable[[str, str], int]
) -> None:
    with faults(admin, api="Produce", topic=topic, after=True, times=1, disconnect=True) as hits:
        assert produce(shared_cluster.bootstrap, topic) == 0
        assert hits() == 1
    assert produce(shared_cluster.bootstrap, topic) == 1


@CONSUME
@pytest.mark.parametrize(
    "fault",
    [
        {"api": "Fetch", "truncate": True, "times": 1},
        {"api": ["Metadata", "ListOffsets"], "error": "LEADER_NOT_AVAILABLE", "times": 1},
    ],
    ids=lambda fault: f"{fault['api']}",
)
def test_a_consumer_reads_on(
    admin: Admin,
    topic: str,
    shared_cluster: LocalCluster,
    consume: Callable[[str, str], bytes | None],
    fault: dict[str, Any],
) -> None:
    produce_ours(shared_cluster.bootstrap, topic)
    with faults(admin, **fault) as hits:
        assert consume(shared_cluster.bootstrap, topic) == b"v"
        assert hits() >= 1


@PRODUCE
def test_the_clients_of_a_stalled_connection_go_on_when_its_rule_is_removed(
    admin: Admin, topic: str, shared_cluster: LocalCluster, produce: Callable[[str, str], int]
) -> None:
    with faults(admin, api="Produce", topic=topic, drop=True) as hits:
        offsets: list[int] = []
        writing = threading.Thread(target=lambda: offsets.append(produce(shared_cluster.bootstrap, topic)))
        writing.start()
        wait_for(lambda: hits() == 1)
    writing.join(30)
    assert offsets == [0]


def test_a_rule_that_hits_all_requests_can_be_removed_and_hides_nothing(
    admin: Admin, shared_cluster: LocalCluster
) -> None:
    rule = FaultRule(drop=True)
    admin.add_fault_rules(rule)
    with Admin(bootstrap_servers=shared_cluster.bootstrap, **VIEW_SETTINGS) as view:
        assert [replicas.fault_rules for replicas in view.describe_replicas()] == [1] * 3
    assert admin.remove_fault_rules() == [rule.name]
    assert len(admin.describe_cluster().nodes) == 3
