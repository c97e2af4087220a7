"""Apache Kafka 3.9.1 on this machine: its own ZooKeeper and 1 or more brokers, in a temporary directory.

    python -m benchmarks.peers.apache_kafka --brokers 3

prints one line of JSON (``bootstrap``, ``pids`` by broker id, ``zookeeper``, ``directory``) once the cluster
can be written, and runs it until SIGTERM, SIGINT or SIGHUP.

What it is for: the reference beside Barnabas, for measuring and for asking how Kafka itself answers. It runs
as its stock scripts would run it (their heap and garbage collector), with stock settings but for those in
`_SETTINGS`, and logs warnings alone.

Guarantees. `start` returns when every broker sees all brokers and a controller. No process outlives this
program, SIGKILL included; the directory is removed, unless it was given or this program was killed. The
archives come from a Maven repository and are kept for the next time.

Any one thread at a time; calls block and are bounded.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, NoReturn, Self

from kazoo.client import KazooClient

from barnabas.common.properties import to_properties
from barnabas.common.security.scram import ScramMechanism, make_credential
from barnabas.deploy.maven import FetchFailed, fetch, read_pinned
from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.process import DeployError, ManagedProcess, tail, wait_until
from barnabas.deploy.security import ClusterSecurity
from barnabas.deploy.zookeeper import find_java, is_serving
from barnabas.protocol.ids import Endpoint
from benchmarks.peers.processes import PeerError

VERSION: Final = "3.9.1"
START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 20.0
_HOST: Final = "127.0.0.1"
_PINNED: Final = Path(__file__).with_name("apache_kafka.sha256")
# As in Kafka's own kafka-server-start.sh, zookeeper-server-start.sh and kafka-run-class.sh.
_JVM_FLAGS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
_BROKER_HEAP: Final = ("-Xmx1G", "-Xms1G")
_ZOOKEEPER_HEAP: Final = ("-Xmx512M", "-Xms512M")
_LOG4J: Final = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c %m%n
"""
_SETTINGS: Final[Mapping[str, str]] = {"group.initial.rebalance.delay.ms": "0"}
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_REPLICATED: Final = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")


class ClusterView(NamedTuple):
    """A broker's answer to Metadata: the live brokers, and the controller's id (-1: none)."""

    brokers: frozenset[int]
    controller_id: int


class KafkaBroker:
    """One broker process; its folder, port and data stay over kill and restart."""

    def __init__(self, broker_id: int, directory: Path) -> None:
        self.id = broker_id
        self.directory = directory
        self.process: ManagedProcess | None = None
        self._reserved = ReservedPort.pick(_HOST)
        self._reserved_open = ReservedPort.pick(_HOST)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(_HOST, self._reserved.port)

    @property
    def open_endpoint(self) -> Endpoint:
        """Of a secured broker's second listener, which tells without security whether it is ready."""
        return Endpoint(_HOST, self._reserved_open.port)

    @property
    def log_dir(self) -> Path:
        """The folder of its partitions' logs."""
        return self.directory / "data"

    @property
    def log_file(self) -> Path:
        return self.directory / "broker.log"

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.is_alive

    @property
    def running_process(self) -> ManagedProcess:
        """The process; raises DeployError when there is none."""
        if self.process is None or not self.process.is_alive:
            raise DeployError(f"Apache Kafka's broker {self.id} is not running")
        return self.process

    def check_alive(self) -> None:
        """Raise DeployError with the end of the broker's output when its process has ended."""
        if not self.is_alive:
            raise DeployError(
                f"Apache Kafka's broker {self.id} ended; {self.log_file} says:\n{tail(self.log_file)}"
            )

    def release_ports(self) -> None:
        self._reserved.close()
        self._reserved_open.close()


class ApacheKafka:
    """A cluster of Apache Kafka that this program runs; a context manager that starts and ends it."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        security: ClusterSecurity | None = None,
    ) -> None:
        """A cluster that is not started; broker ids count from 1.

        `settings`: of all brokers, in Kafka's names. `directory`: where its files go and stay; without it a
        temporary one. `security`: the certificates and users, as a local cluster of ours has them. Raises
        PeerError when the archives cannot be had, DeployError without Java.
        """
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: expected at least 1")
        self._jars = archives()
        self._java = find_java()
        self._removes_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._settings = {**_SETTINGS, **dict.fromkeys(_REPLICATED, str(min(3, brokers))), **(settings or {})}
        self._settings.setdefault("transaction.state.log.min.isr", str(min(2, brokers)))
        self._security = security
        self._brokers = {
            number: KafkaBroker(number, self.directory / f"broker-{number}")
            for number in range(1, brokers + 1)
        }
        self._zookeeper_port = ReservedPort.pick(_HOST)
        self._zookeeper: ManagedProcess | None = None

    # -- looking at it -------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """``host:port,…`` of all brokers, running or not."""
        return ",".join(str(broker.endpoint) for broker in self._brokers.values())

    @property
    def zookeeper_connect(self) -> str:
        return f"{_HOST}:{self._zookeeper_port.port}"

    @property
    def broker_ids(self) -> list[int]:
        return list(self._brokers)

    @property
    def pids(self) -> dict[int, int]:
        """The pid of each running broker, by its id; not that of ZooKeeper."""
        return {
            number: broker.running_process.pid for number, broker in self._brokers.items() if broker.is_alive
        }

    def broker(self, broker_id: int) -> KafkaBroker:
        """Raises DeployError when there is no such broker."""
        if broker_id not in self._brokers:
            raise DeployError(f"no broker {broker_id}; there are {', '.join(map(str, self._brokers))}")
        return self._brokers[broker_id]

    def tool(self, main_class: str, *arguments: str, timeout_s: float = 60.0) -> str:
        """Run one of Kafka's command-line tools by its class, such as ``kafka.tools.DumpLogSegments``.

        Returns what it prints; raises PeerError with that when it fails or does not end in time.
        """
        command = [*self._java_command("-Xmx256M", "-XX:TieredStopAtLevel=1"), main_class, *arguments]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"{main_class} did not end within {timeout_s:g} s") from error
        if said.returncode:
            raise PeerError(
                f"{main_class} failed with exit code {said.returncode}:\n{said.stdout}{said.stderr}"
            )
        return said.stdout

    # -- running it ----------------------------------------------------------------------------------------

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start ZooKeeper, then all brokers at once, and wait until each of them sees the whole cluster.

        Raises DeployError saying what failed; nothing of the cluster runs then.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._start_zookeeper(deadline)
            if self._security is not None:
                self._security.prepare(self.broker_ids, {}, datetime.datetime.now(datetime.UTC))
                self._write_users(self._security)
            for broker_id in self._brokers:
                self.launch_broker(broker_id)
            self.wait_ready(deadline - time.monotonic())
        except BaseException:
            self.kill_all()
            raise

    def launch_broker(self, broker_id: int) -> None:
        """Start a broker that is down, without waiting for it."""
        broker = self.broker(broker_id)
        if broker.is_alive:
            raise DeployError(f"Apache Kafka's broker {broker_id} is already running")
        broker.log_dir.mkdir(parents=True, exist_ok=True)
        own = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{broker.endpoint}",
            "log.dirs": str(broker.log_dir),
            "zookeeper.connect": self.zookeeper_connect,
        }
        if self._security is not None:
            protocol = self._security.configuration.protocol
            own |= self._security.broker_settings(broker_id)
            own["listeners"] = f"{protocol}://{broker.endpoint},PLAINTEXT://{broker.open_endpoint}"
        properties = broker.directory / "server.properties"
        properties.write_text(to_properties({**self._settings, **own}))
        command = [*self._java_command(*_BROKER_HEAP, *_JVM_FLAGS), "kafka.Kafka", str(properties)]
        broker.process = ManagedProcess.spawn(
            f"Apache Kafka's broker {broker_id}", command, log_file=broker.log_file
        )

    def start_broker(self, broker_id: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start a broker that is down, and wait until it sees every broker that runs.

        After a kill that takes until ZooKeeper gives up the old session (``zookeeper.session.timeout.ms``,
        18 s by default): a broker of Apache Kafka ends at start when its id is still registered.
        """
        deadline = time.monotonic() + timeout_s
        self._wait_unregistered(self.broker(broker_id), timeout_s)
        self.launch_broker(broker_id)
        self.wait_ready(deadline - time.monotonic())

    def kill(self, broker_id: int) -> None:
        """SIGKILL a broker, and wait until it is gone."""
        self.broker(broker_id).running_process.kill()

    def stop_broker(self, broker_id: int, timeout_s: float = _STOP_TIMEOUT_S) -> bool:
        """SIGTERM: a controlled shutdown; False when SIGKILL was needed after `timeout_s`."""
        return self.broker(broker_id).running_process.terminate(timeout_s)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every running broker sees all running ones and a controller among them."""
        running = [broker for broker in self._brokers.values() if broker.is_alive]
        expected = {broker.id for broker in running}

        def ready() -> bool:
            for broker in running:
                broker.check_alive()
                seen = view_of(broker.endpoint if self._security is None else broker.open_endpoint)
                if seen is None or seen.brokers != expected or seen.controller_id not in expected:
                    return False
            return True

        if not wait_until(ready, timeout_s, 0.02):
            raise DeployError(f"Apache Kafka in {self.directory} was not ready within {timeout_s:g} s")

    def kill_all(self) -> None:
        """SIGKILL everything: brokers first, so that none complains of a lost ZooKeeper."""
        for broker in self._brokers.values():
            if broker.process is not None:
                broker.process.send(signal.SIGKILL)
        for broker in self._brokers.values():
            if broker.process is not None:
                broker.process.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    def close(self) -> None:
        """Release the ports, and remove the directory where it is a temporary one."""
        for broker in self._brokers.values():
            broker.release_ports()
        self._zookeeper_port.close()
        if self._removes_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.kill_all()
        finally:
            self.close()

    def _write_users(self, security: ClusterSecurity) -> None:
        """Give the users their credentials, as kafka-configs does before the first broker starts."""
        mechanism = security.login_mechanism
        if mechanism is None or not mechanism.startswith("SCRAM"):
            return
        client = KazooClient(self.zookeeper_connect)
        client.start(_STOP_TIMEOUT_S)
        try:
            for user, password in security.users.items():
                credential = make_credential(ScramMechanism(mechanism), password)
                config = {"version": 1, "config": {mechanism: credential.text}}
                client.create(f"/config/users/{user}", json.dumps(config).encode(), makepath=True)
        finally:
            client.stop()
            client.close()

    def _wait_unregistered(self, broker: KafkaBroker, timeout_s: float) -> None:
        client = KazooClient(self.zookeeper_connect, read_only=True)
        client.start(timeout_s)
        try:
            node = f"/brokers/ids/{broker.id}"
            if not wait_until(lambda: client.exists(node) is None, timeout_s, 0.05):
                raise DeployError(f"{node} was still in Apache Kafka's ZooKeeper after {timeout_s:g} s")
        finally:
            client.stop()
            client.close()

    def _start_zookeeper(self, deadline: float) -> None:
        folder = self.directory / "zookeeper"
        folder.mkdir(exist_ok=True)
        settings = {
            "dataDir": str(folder / "data"),
            "clientPort": str(self._zookeeper_port.port),
            "clientPortAddress": _HOST,
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        configuration = folder / "zoo.cfg"
        configuration.write_text(to_properties(settings))
        log = folder / "zookeeper.log"
        main_class = "org.apache.zookeeper.server.ZooKeeperServerMain"
        command = [*self._java_command(*_ZOOKEEPER_HEAP, *_JVM_FLAGS), main_class, str(configuration)]
        process = self._zookeeper = ManagedProcess.spawn("Apache Kafka's ZooKeeper", command, log_file=log)
        endpoint = Endpoint(_HOST, self._zookeeper_port.port)
        wait_until(lambda: not process.is_alive or is_serving(endpoint), deadline - time.monotonic())
        if not process.is_alive or not is_serving(endpoint):
            raise DeployError(
                f"Apache Kafka's ZooKeeper does not serve at {endpoint}; {log} says:\n{tail(log)}"
            )

    def _java_command(self, *flags: str) -> list[str]:
        log4j = self.directory / "log4j.properties"
        if not log4j.exists():
            log4j.write_text(_LOG4J)
        return [self._java, *flags, f"-Dlog4j.configuration=file:{log4j}", "-cp", f"{self._jars}/*"]


def archives() -> Path:
    """The folder of Kafka's Java archives, fetched when it is not there yet; raises PeerError."""
    try:
        return fetch(f"apache-kafka-{VERSION}", read_pinned(_PINNED.read_text(encoding="utf-8")))
    except FetchFailed as error:
        raise PeerError(f"Apache Kafka {VERSION} cannot be had: {error}") from error


# -- asking a broker over the Kafka wire -------------------------------------------------------------------


def view_of(endpoint: tuple[str, int], timeout_s: float = 2.0) -> ClusterView | None:
    """The cluster by a broker's Metadata v1; None while it does not answer.

    Kafka's protocol guide, Metadata: request v1 with no topics, response v1.
    """
    request = struct.pack(">hhih4si", 3, 1, 1, 4, b"peer", 0)
    try:
        with socket.create_connection(endpoint, timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as answer:
                (length,) = struct.unpack(">i", answer.read(4))
                return cluster_view(answer.read(length))
    except (OSError, struct.error):
        return None


def cluster_view(answer: bytes) -> ClusterView:
    """Read the head of a Metadata v1 response (correlation id first); raises struct.error when it is cut."""
    brokers = []
    (count,) = struct.unpack_from(">i", answer, 4)
    position = 8
    for _ in range(count):
        node_id, host_length = struct.unpack_from(">ih", answer, position)
        position += 6 + host_length + 4
        (rack_length,) = struct.unpack_from(">h", answer, position)
        position += 2 + max(0, rack_length)
        brokers.append(node_id)
    (controller_id,) = struct.unpack_from(">i", answer, position)
    return ClusterView(frozenset(brokers), controller_id)


# -- command line ------------------------------------------------------------------------------------------


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="how many brokers (default: 1)")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="keep the files there (default: a temporary folder)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all brokers"
    )
    parser.add_argument(
        "--fetch-only", action="store_true", help="fetch the archives, print their folder and end"
    )
    return parser.parse_args(arguments)


def _end(number: int, _frame: object) -> NoReturn:
    # Once is enough: a second signal must not interrupt the clean-up that the first one began.
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parsed(arguments)
    settings = dict(text.partition("=")[::2] for text in chosen.set)
    for number in _ENDING:
        signal.signal(number, _end)
    try:
        if chosen.fetch_only:
            print(archives())
            return 0
        with ApacheKafka(chosen.brokers, directory=chosen.dir, settings=settings) as kafka:
            described = {
                "bootstrap": kafka.bootstrap,
                "pids": kafka.pids,
                "zookeeper": kafka.zookeeper_connect,
                "directory": str(kafka.directory),
            }
            print(json.dumps(described), flush=True)
            while True:
                time.sleep(0.5)
                for broker_id in kafka.broker_ids:
                    kafka.broker(broker_id).check_alive()
    except (PeerError, DeployError) as error:
        print(f"benchmarks.peers.apache_kafka: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
