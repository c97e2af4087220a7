"""Kafka's own command-line tools (and its Java clients with them), fetched from Maven."""

import base64
import subprocess
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Self

from barnabas.deploy.process import DeployError
from barnabas.deploy.zookeeper import find_java
from benchmarks.peers.apache_kafka import VERSION, archives
from benchmarks.peers.processes import PeerError

from .clients import LIGHT, Driver, Unavailable, compiled, fetch_list

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

ACL_COMMAND: Final = "kafka.admin.AclCommand"
COPIER: Final = "org.apache.kafka.tools.TransactionalMessageCopier"
CONSOLE_CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONFIG_COMMAND: Final = "kafka.admin.ConfigCommand"
DUMP: Final = "kafka.tools.DumpLogSegments"
TOPIC_COMMAND: Final = "org.apache.kafka.tools.TopicCommand"
TRANSACTIONS: Final = "org.apache.kafka.tools.TransactionsCommand"
GROUPS: Final = ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--timeout", "60000")
"""The tool for groups gives up after five seconds by itself, the start of its clients included."""


class Tool:
    """Runs a tool by its class and arguments. Raises AssertionError with its output if it fails.

    The runs to an end are in one JVM, one after the other. Any thread; a context manager that ends the JVM.
    """

    def __init__(self, command: list[str], resident: list[str]) -> None:
        """`command` runs a class that is appended with its arguments; `resident` runs `Toolbox`."""
        self._command, self._resident = command, resident
        self._jvm: Driver | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._jvm is not None:
            self._jvm.__exit__()

    def __call__(self, name: str, *arguments: str, stdin: str = "") -> str:
        """Run to the end; returns the output."""
        code, said, complaints = self.run(name, *arguments, stdin=stdin)
        assert code == 0, f"{name} {' '.join(arguments)}: {said}\n{complaints}"
        # Some tools end well and print the exception.
        assert "Exception" not in said + complaints, said + complaints
        return said

    def run(self, name: str, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        """The exit code, the output, and what it wrote to stderr."""
        words = [base64.b64encode(word.encode()).decode() for word in (name, stdin, *arguments)]
        with self._lock:
            if self._jvm is not None and not self._jvm.is_usable:
                self._jvm.__exit__()
                self._jvm = None
            if self._jvm is None:
                self._jvm = Driver("Kafka's tools", self._resident, {})
            code, *texts = self._jvm.ask("run", words=" ".join(words))
        said, complaints = (base64.b64decode(text).decode() for text in texts)
        return code, said, complaints

    def until(self, text: str, name: str, *arguments: str) -> str:
        """Run an endless tool until it prints a line with a text; returns the output."""
        with subprocess.Popen(
            [*self._command, name, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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
    parts = [] if version == VERSION else [f"{fetch_list(f'kafka-tools-{version}', _NEWER_TOOLS_ARCHIVES)}/*"]
    toolbox = _program("Toolbox", _clients(version).glob("kafka-clients-*"))
    return Tool(java_command(version, parts), [*java_command(version, [toolbox, *parts]), "Toolbox"])


def java_command(version: str = VERSION, more_paths: Sequence[Path | str] = ()) -> list[str]:
    """A command that needs a class and its arguments, with the clients of a release. Raises Unavailable."""
    folder = _clients(version)
    try:
        return [find_java(), *LIGHT, "-cp", ":".join([*map(str, more_paths), f"{folder}/*"])]
    except DeployError as error:
        raise Unavailable(str(error)) from error


def streams_command(program: str, version: str = VERSION) -> list[str]:
    """A command that runs a program of `drivers/` with the clients and the Kafka Streams of a release.

    Raises Unavailable.
    """
    jars = fetch_list(f"kafka-streams-{version}", _STREAMS_ARCHIVES[version])
    clients = _clients(version)
    libraries = [*jars.glob("kafka-*"), *clients.glob("kafka-clients-*"), *clients.glob("slf4j-api-*")]
    return [*java_command(version, [_program(program, libraries), f"{jars}/*"]), program]


def _program(name: str, libraries: Iterable[Path]) -> Path:
    return compiled(name, [Path(__file__).parent / "drivers" / f"{name}.java"], libraries)


def _clients(version: str) -> Path:
    """The folder of the archives with the clients of a release. Raises Unavailable."""
    if version != VERSION:
        return fetch_list(f"kafka-clients-{version}", _NEWER_ARCHIVES)
    try:
        return archives()
    except PeerError as error:
        raise Unavailable(str(error)) from error
