"""The compose file: read by every compose there is here, accepted by the broker, and up on a real engine.

Without a compose command, or without an engine that answers, the tests that need one are skipped and say so.
``BARNABAS_TEST_BASE_IMAGE`` names a local base image for machines that can pull none.
"""

import json

import pytest
import yaml

from barnabas.broker.config.load import load_config
from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.producer.producer import Producer
from barnabas.protocol.ids import TopicPartition

from .conftest import StartContainers
from .container_cluster import COMPOSE_FILE, run_command

_EXTERNAL = ["localhost:19092", "localhost:29092", "localhost:39092"]


def test_a_broker_accepts_the_settings_of_each_service(compose_commands: list[list[str]]) -> None:
    for command in compose_commands:
        named = yaml.safe_load(run_command([*command, "-f", str(COMPOSE_FILE), "config"]))["services"]
        # docker-compose 1.29 also names the services of profiles that are off.
        services = {name: service for name, service in named.items() if "profiles" not in service}
        assert sorted(services) == ["broker-1", "broker-2", "broker-3", "zookeeper"]
        brokers = [service for name, service in services.items() if name.startswith("broker-")]
        configs = [load_config(environment=broker["environment"]) for broker in brokers]
        assert sorted(config.broker_id for config in configs) == [1, 2, 3]
        external = [config.advertised_listeners[1] for config in configs]
        assert sorted(f"{listener.host}:{listener.port}" for listener in external) == _EXTERNAL
        assert {config.inter_broker_listener_name for config in configs} == {"INTERNAL"}


@pytest.mark.timeout(1200)
async def test_a_cluster_from_the_compose_file_takes_records_from_the_host_and_between_containers(
    start_containers: StartContainers,
) -> None:
    cluster = start_containers()
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topics(NewTopic("compose", num_partitions=3, replication_factor=3))
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for partition in range(3):
                await producer.send_and_wait("compose", b"value", partition=partition)
        offsets = await admin.list_offsets({TopicPartition("compose", p): "latest" for p in range(3)})
    assert [listed.offset for listed in offsets.values()] == [1, 1, 1]

    # From inside the network the advertised names are the internal ones; all three must be reachable.
    said = cluster.compose(
        "exec", "-T", "broker-2", "barnabas", "status", "--json", "--bootstrap", "broker-1:9092"
    )
    status = json.loads(said)
    assert [broker["host"] for broker in status["brokers"]] == ["broker-1", "broker-2", "broker-3"]
    assert status["problems"] == []
