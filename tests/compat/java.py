"""Kafka's own command-line tools (and its Java clients with them), fetched from Maven."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Final

from barnabas.deploy.process import DeployError
from barnabas.deploy.zookeeper import find_java
from benchmarks.peers.apache_kafka import VERSION, archives
from benchmarks.peers.maven import PeerError

from .clients import Unavailable

NAME = f"Java {VERSION}"
"""The column of the Java clients in the table of versions."""
_TIMEOUT_S = 120.0
_LIGHT = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
Tool = Callable[..., str]

GROUPS: Final = ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--timeout", "60000")
"""The tool for groups gives up after five seconds by itself, the start of its clients included."""


def java_tools() -> Tool:
    """A function that runs a tool by its class and arguments (and ``stdin``), and returns what it prints.

    It raises AssertionError with all that a tool said when that fails; this raises Unavailable.
    """
    try:
        command = [find_java(), *_LIGHT, "-cp", f"{archives()}/*"]
    except (PeerError, DeployError) as error:
        raise Unavailable(str(error)) from error

    def run(name: str, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*command, name, *arguments],
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

    return run
