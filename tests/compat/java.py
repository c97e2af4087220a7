"""Kafka's own command-line tools (and its Java clients with them), fetched from Maven."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from barnabas.deploy.process import DeployError
from barnabas.deploy.zookeeper import find_java
from benchmarks.peers.apache_kafka import VERSION, archives
from benchmarks.peers.processes import PeerError

from .clients import LIGHT, Unavailable, compile_java, fetch_list

NAME = f"Java {VERSION}"
"""The column of the Java clients in the table of versions."""
NEWER: Final = "4.3.1"
"""The release of Java clients that use `transaction.version` 2; of Kafka 4.4 there are no tools yet."""
_NEWER_ARCHIVES: Final = Path(__file__).with_name("kafka_clients_4.sha256")
_NEWER_TOOLS_ARCHIVES: Final = Path(__file__).with_name("kafka_tools_4.sha256")
"""The parts of the broker that kafka-configs and kafka-reassign-partitions need."""
_STREAMS_ARCHIVES: Final = {
    VERSION: Path(__file__).with_name("kafka_streams.sha256"),
    NEWER: Path(__file__).with_name("kafka_streams_4.sha256"),
}
_TIMEOUT_S = 120.0

COPIER: Final = "org.apache.kafka.tools.TransactionalMessageCopier"
CONSOLE_CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONFIG_COMMAND: Final = "kafka.admin.ConfigCommand"
TOPIC_COMMAND: Final = "org.apache.kafka.tools.TopicCommand"
TRANSACTIONS: Final = "org.apache.kafka.tools.TransactionsCommand"
GROUPS: Final = ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--timeout", "60000")
"""The tool for groups gives up after five seconds by itself, the start of its clients included."""


class Tool:
    """Runs a tool by its class and arguments. Raises AssertionError with its output if it fails."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def __call__(self, name: str, *arguments: str, stdin: str = "") -> str:
        """Run to the end; returns the output."""
        done = subprocess.run(
            [*self._command, name, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
        # Some tools end well and print the exception.
        assert "Exception" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done.stdout

    def until(self, text: str, name: str, *arguments: str) -> str:
        """Run an endless tool until it prints a line with a text; returns the output."""
        with subprocess.Popen(
            [*self._command, name, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as running:
            late = threading.Timer(_TIMEOUT_S, running.kill)
            late.start()
            said = ""
            assert running.stdout is not None
            try:
                for line in running.stdout:
                    said += line
                    if text in line:
                        return said
            finally:
                late.cancel()
                running.kill()
        raise AssertionError(f"{name} {' '.join(arguments)} did not print {text!r}: {said}")


def java_tools(version: str = VERSION) -> Tool:
    """Kafka's tools. Raises Unavailable."""
    if version == VERSION:
        return Tool(java_command())
    parts = fetch_list(f"kafka-tools-{version}", _NEWER_TOOLS_ARCHIVES)
    return Tool(java_command(version, [f"{parts}/*"]))


def java_command(version: str = VERSION, more_paths: Sequence[Path | str] = ()) -> list[str]:
    """A command that needs a class and its arguments, with the clients of a release. Raises Unavailable."""
    folder = _clients(version)
    try:
        return [find_java(), *LIGHT, "-cp", ":".join([*map(str, more_paths), f"{folder}/*"])]
    except DeployError as error:
        raise Unavailable(str(error)) from error


def compiled(program: str, folder: Path, version: str = VERSION) -> list[str]:
    """A command that runs a program of `drivers/` with the clients and the Kafka Streams of a release.

    It is compiled into a folder. Raises Unavailable.
    """
    jars = fetch_list(f"kafka-streams-{version}", _STREAMS_ARCHIVES[version])
    command = java_command(version, [folder, f"{jars}/*"])
    clients = _clients(version)
    paths = [*jars.glob("kafka-*"), *clients.glob("kafka-clients-*"), *clients.glob("slf4j-api-*")]
    compile_java([Path(__file__).parent / "drivers" / f"{program}.java"], jars, paths, folder)
    return [*command, program]


def _clients(version: str) -> Path:
    """The folder of the archives with the clients of a release. Raises Unavailable."""
    if version != VERSION:
        return fetch_list(f"kafka-clients-{version}", _NEWER_ARCHIVES)
    try:
        return archives()
    except PeerError as error:
        raise Unavailable(str(error)) from error
