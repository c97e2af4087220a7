"""Fixtures that need Docker Compose or a container engine; without it a test is skipped with the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from barnabas.deploy.ports import ReservedPort

from .container_cluster import ContainerCluster

if TYPE_CHECKING:
    from docker import DockerClient

_TIMEOUT_S = 120
StartContainers = Callable[..., ContainerCluster]


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


@pytest.fixture(scope="session")
def compose_commands() -> list[list[str]]:
    commands = [["docker", "compose"], ["docker-compose"]]
    failures = [_failure(*command, "version") for command in commands]
    if all(failures):
        pytest.skip(f"no Docker Compose: {'; '.join(filter(None, failures))}")
    return [command for command, failure in zip(commands, failures, strict=True) if failure is None]


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerClient]:
    if failure := _failure("docker", "info"):
        pytest.skip(f"no container engine: {failure}")
    docker = pytest.importorskip("docker", reason="Docker's SDK for Python is not installed")
    client = docker.from_env(timeout=_TIMEOUT_S)
    yield client
    client.close()


@pytest.fixture(scope="session")
def image(engine: DockerClient) -> Iterator[str]:
    """The name of the session's image, which the first project builds."""
    name = f"barnabas-test-{uuid.uuid4().hex[:8]}:local"
    yield name
    if engine.images.list(name):
        engine.images.remove(name)


@pytest.fixture
def start_containers(
    compose_commands: list[list[str]], engine: DockerClient, image: str, tmp_path: Path
) -> Iterator[StartContainers]:
    """Starts projects with ports of their own; removed with their volumes after the test.

    ``settings`` are the brokers' settings, for instance ``zookeeper_session_timeout_ms``.
    """
    environment = {"IMAGE": image}
    if "BARNABAS_TEST_BASE_IMAGE" in os.environ:
        environment["BASE_IMAGE"] = os.environ["BARNABAS_TEST_BASE_IMAGE"]
    with ExitStack() as stack:

        def start(**settings: str) -> ContainerCluster:
            reserved = [ReservedPort.pick() for _ in range(3)]
            ports = [port.port for port in reserved]
            for port in reserved:
                port.close()
            project = f"barnabas-test-{uuid.uuid4().hex[:8]}"
            overrides = [_override(tmp_path / f"{project}.yml", settings)] if settings else []
            cluster = ContainerCluster(
                engine, compose_commands[0], project, environment, ports, tmp_path / project, overrides
            )
            stack.callback(cluster.down)
            cluster.up()
            return cluster

        yield start


def _override(path: Path, settings: dict[str, str]) -> Path:
    """A compose file that adds settings to every broker."""
    variables = {f"BARNABAS_{name.upper()}": value for name, value in settings.items()}
    services = {f"broker-{number}": {"environment": variables} for number in (1, 2, 3)}
    path.write_text(yaml.safe_dump({"services": services}))
    return path
