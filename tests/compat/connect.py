"""A worker of Kafka Connect in distributed mode: its process, and requests to it through REST.

The worker keeps configurations, offsets and states in three compacted topics of the cluster. It runs from the
archives of Kafka's tools, and from the file connectors, a separate archive of Maven. One thread. All calls
are bounded.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from barnabas.deploy.maven import FetchFailed, fetch, read_pinned
from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.process import DeployError, ManagedProcess, tail
from barnabas.deploy.zookeeper import find_java
from benchmarks.peers.apache_kafka import VERSION, archives
from benchmarks.peers.processes import PeerError
from tests.support.waiting import wait_for

from .clients import LIGHT, Unavailable

GROUP: Final = "connect"
CONFIGS: Final = "connect-configs"
OFFSETS: Final = "connect-offsets"
STATUS: Final = "connect-status"
_MAIN: Final = "org.apache.kafka.connect.cli.ConnectDistributed"
_LOG4J: Final = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c %m%n
"""
_SETTINGS: Final = {
    "group.id": GROUP,
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "plugin.discovery": "service_load",
    "config.storage.topic": CONFIGS,
    "offset.storage.topic": OFFSETS,
    "status.storage.topic": STATUS,
    "offset.storage.partitions": "2",
    "status.storage.partitions": "2",
}
_PINNED: Final = Path(__file__).with_name("connect_file.sha256")
_REQUEST_TIMEOUT_S: Final = 20.0
_STOP_TIMEOUT_S: Final = 30.0


class Worker:
    """One worker, with the same settings and REST port after each restart. The context manager kills it."""

    def __init__(self, folder: Path, bootstrap: str, settings: Mapping[str, str]) -> None:
        """Raises Unavailable without Java, or if the archives cannot be fetched."""
        try:
            plugins = fetch(f"kafka-connect-file-{VERSION}", read_pinned(_PINNED.read_text(encoding="utf-8")))
            paths = f"{archives()}/*:{plugins}/*"
            self._java = find_java()
        except (FetchFailed, PeerError, DeployError) as error:
            raise Unavailable(str(error)) from error
        self.log_file = folder / "connect.log"
        self._reserved = ReservedPort.pick()
        self._url = f"http://127.0.0.1:{self._reserved.port}"
        self._process: ManagedProcess | None = None
        properties, log4j = folder / "connect.properties", folder / "log4j.properties"
        log4j.write_text(_LOG4J)
        own = {"bootstrap.servers": bootstrap, "listeners": self._url}
        lines = (f"{name}={value}\n" for name, value in (_SETTINGS | own | dict(settings)).items())
        properties.write_text("".join(lines))
        logging = f"-Dlog4j.configuration=file:{log4j}"
        self._command = [self._java, *LIGHT, logging, "-cp", paths, _MAIN, str(properties)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(tail(self.log_file, 40))
        self.kill()
        self._reserved.close()

    def start(self) -> None:
        """Start the worker, and wait until it has read its topics."""
        self._process = ManagedProcess.spawn("connect", self._command, log_file=self.log_file)
        wait_for(self._serves, lambda: f"the worker does not serve: {tail(self.log_file)}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """Stop cleanly: the worker commits the offsets of all records that were acknowledged."""
        assert self._process is not None
        assert self._process.terminate(_STOP_TIMEOUT_S), "the worker does not stop"

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The answer's JSON, None if it is empty. Raises OSError, also for an error status.

        Asks again while a rebalance is expected, which the worker answers with 409.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)

        def ask() -> list[bytes]:
            try:
                with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as answer:
                    return [answer.read()]
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.CONFLICT:
                    raise
                error.close()
                return []

        [text] = wait_for(ask, f"{method} {path}: the rebalance does not end")
        return json.loads(text) if text else None

    def configure(self, connector: str, config: Mapping[str, str]) -> None:
        """Create or change a connector."""
        self.request("PUT", f"/connectors/{connector}/config", dict(config))

    def is_running(self, connector: str) -> bool:
        """Whether the connector and its one task run."""
        try:
            status = self.request("GET", f"/connectors/{connector}/status")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        return states == ["RUNNING", "RUNNING"]

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.is_alive, f"the worker ended: {tail(self.log_file, 40)}"
        try:
            return bool(self.request("GET", "/health")["status"] == "healthy")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False
