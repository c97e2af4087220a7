"""The compose file: read by every compose there is here, accepted by the broker, and up on a real engine.

Without a compose command, or without an engine that answers, the tests that need one are skipped and say so.
``BARNABAS_TEST_BASE_IMAGE`` names a local base image for machines that can pull none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from barnabas.broker.config.load import load_config
from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.producer.producer import Producer
from barnabas.deploy.health import wait_ready_async
from barnabas.deploy.ports import ReservedPort
from barnabas.protocol.ids import BrokerId, Endpoint, TopicPartition

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "deploy" / "docker-compose.yml"
_UP_TIMEOUT_S = 900
_EXTERNAL = ["localhost:19092", "localhost:29092", "localhost:39092"]


def _failure(*command: str) -> str | None:
    """The reason why a command fails, or None."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command)}` does not answer within 60 s"
    if done.returncode == 0:
        return None
    return f"`{' '.join(command)}` fails: {(done.stderr or done.stdout).strip()[-200:]}"


@pytest.fixture(scope="module")
def compose_commands() -> list[list[str]]:
    commands = [["docker", "compose"], ["docker-compose"]]
    failures = [_failure(*command, "version") for command in commands]
    if all(failures):
        pytest.skip(f"no Docker Compose: {'; '.join(filter(None, failures))}")
    return [command for command, failure in zip(commands, failures, strict=True) if failure is None]


@pytest.fixture(scope="module")
def engine() -> None:
    if failure := _failure("docker", "info"):
        pytest.skip(f"no container engine: {failure}")


def _run(command: list[str], timeout_s: int = 120, **environment: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_broker_accepts_the_settings_of_each_service(compose_commands: list[list[str]]) -> None:
    for command in compose_commands:
        services = yaml.safe_load(_run([*command, "-f", str(COMPOSE_FILE), "config"]))["services"]
        assert sorted(services) == ["broker-1", "broker-2", "broker-3", "zookeeper"]
        brokers = [service for service in services.values() if "environment" in service]
        configs = [load_config(environment=broker["environment"]) for broker in brokers]
        assert sorted(config.broker_id for config in configs) == [1, 2, 3]
        external = [config.advertised_listeners[1] for config in configs]
        assert sorted(f"{listener.host}:{listener.port}" for listener in external) == _EXTERNAL
        assert {config.inter_broker_listener_name for config in configs} == {"INTERNAL"}


class Running(NamedTuple):
    """A running project: its compose command, its environment, and its addresses."""

    command: list[str]
    settings: dict[str, str]
    ports: list[int]


@pytest.fixture
def running(compose_commands: list[list[str]], engine: None) -> Iterator[Running]:
    """A project with ports and an image of its own; removed with volumes and image after the test."""
    project = f"barnabas-test-{uuid.uuid4().hex[:8]}"
    command = [*compose_commands[0], "-p", project, "-f", str(COMPOSE_FILE)]
    reserved = [ReservedPort.pick() for _ in range(3)]
    ports = [port.port for port in reserved]
    for port in reserved:
        port.close()
    settings = {f"PORT_{number}": str(port) for number, port in enumerate(ports, 1)}
    settings["IMAGE"] = f"{project}:local"
    if "BARNABAS_TEST_BASE_IMAGE" in os.environ:
        settings["BASE_IMAGE"] = os.environ["BARNABAS_TEST_BASE_IMAGE"]
    try:
        _run([*command, "up", "-d", "--build"], _UP_TIMEOUT_S, **settings)
        yield Running(command, settings, ports)
    finally:
        environment = {**os.environ, **settings}
        for end in ([*command, "down", "-v", "-t", "5"], ["docker", "rmi", settings["IMAGE"]]):
            subprocess.run(end, capture_output=True, timeout=180, check=False, env=environment)


@pytest.mark.timeout(1200)
async def test_a_cluster_from_the_compose_file_takes_records_from_the_host_and_between_containers(
    running: Running,
) -> None:
    # `up -d` of docker-compose 1.29 does not wait for the last services to be healthy.
    endpoints = {
        BrokerId(number): Endpoint("localhost", port) for number, port in enumerate(running.ports, 1)
    }
    bootstrap = ",".join(map(str, endpoints.values()))
    await wait_ready_async(endpoints, 120)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(NewTopic("compose", num_partitions=3, replication_factor=3))
        async with Producer(bootstrap_servers=bootstrap) as producer:
            for partition in range(3):
                await producer.send_and_wait("compose", b"value", partition=partition)
        offsets = await admin.list_offsets({TopicPartition("compose", p): "latest" for p in range(3)})
    assert [listed.offset for listed in offsets.values()] == [1, 1, 1]

    # From inside the network the advertised names are the internal ones; all three must be reachable.
    command = ["barnabas", "status", "--json", "--bootstrap", "broker-1:9092"]
    said = _run([*running.command, "exec", "-T", "broker-2", *command], **running.settings)
    status = json.loads(said)
    assert [broker["host"] for broker in status["brokers"]] == ["broker-1", "broker-2", "broker-3"]
    assert status["problems"] == []
