"""How to test rights: users of a test, on brokers with TLS and SCRAM, with confluent-kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, Producer

from pytest_barnabas import Cluster
from pytest_barnabas.plugin import MakeUser


@pytest.mark.barnabas(brokers=1, settings={"min.insync.replicas": 1}, security="scram+tls")
def test_orders_are_written_by_their_owner_alone(
    barnabas_cluster: Cluster, barnabas_topic: str, barnabas_user: MakeUser
) -> None:
    owner = barnabas_user(f"write,describe topic:{barnabas_topic}")
    stranger = barnabas_user()
    for user, is_written in (owner, True), (stranger, False):
        errors: list[KafkaError | None] = []
        producer = Producer(barnabas_cluster.client_settings("confluent", user=user))
        producer.produce(barnabas_topic, b"order", callback=lambda error, _, to=errors: to.append(error))
        producer.flush(30)
        assert (errors[0] is None) == is_written
