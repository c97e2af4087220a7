"""How to test code that uses confluent-kafka: a topic for each test, and brokers that die."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from pytest_barnabas import Cluster


def write(servers: str, topic: str, values: list[bytes]) -> list[KafkaError]:
    """Write the values. Returns an error for each value that was not acknowledged."""
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, on_delivery=delivered)
    assert producer.flush(60) == 0
    return errors


def read(servers: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    while len(values) < count and (message := consumer.poll(30)) is not None:
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    return values


ORDERS = [b"order %d" % number for number in range(1_000)]


def test_every_order_is_read_back(barnabas_cluster: Cluster, barnabas_topic: str) -> None:
    assert write(barnabas_cluster.bootstrap_servers, barnabas_topic, ORDERS) == []
    assert sorted(read(barnabas_cluster.bootstrap_servers, barnabas_topic, 1_000)) == sorted(ORDERS)


@pytest.mark.barnabas_topic(partitions=1)
def test_orders_survive_the_death_of_the_leader(barnabas_cluster: Cluster, barnabas_topic: str) -> None:
    servers = barnabas_cluster.bootstrap_servers
    assert write(servers, barnabas_topic, ORDERS[:500]) == []
    with barnabas_cluster.killed(barnabas_cluster.leader_of(barnabas_topic)):
        assert write(servers, barnabas_topic, ORDERS[500:]) == []
    assert read(servers, barnabas_topic, 1_000) == ORDERS


@pytest.mark.barnabas(brokers=1)
def test_one_broker_is_enough_for_a_topic_with_one_replica(
    barnabas_cluster: Cluster, barnabas_topic: str
) -> None:
    assert barnabas_cluster.broker_ids == [1]
    with pytest.raises(TimeoutError), barnabas_cluster.stopped(1):
        raise TimeoutError("raised within the block: the broker runs again all the same")
    assert read(barnabas_cluster.bootstrap_servers, barnabas_topic, 0) == []
