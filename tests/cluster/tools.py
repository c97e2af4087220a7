"""Commands, and views of a cluster from outside: by its clients and by ZooKeeper."""

from __future__ import annotations

import functools
import io
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import pytest
from kazoo.client import KazooClient

from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.client import NewTopic
from barnabas.client.blocking import Admin, Consumer, Producer
from barnabas.client.errors import NoBrokerReachable
from barnabas.client.metadata import PartitionInfo
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.common.security.jaas import LoginModule, parse_jaas_file
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import wait_until
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.security import ADMIN
from barnabas.protocol.errors import ApiError, BarnabasError, ConnectionClosed, ErrorCode
from barnabas.protocol.ids import Endpoint, TopicPartition
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.zookeeper.security import SessionSecurity
from barnabas.zookeeper.store import ClusterStore
from tests.support.raw_socket import RawSocket
from tests.support.waiting import wait_for

from .raw_client import RawClient

COMMAND: Final = (sys.executable, "-m", "barnabas")
SESSION_TIMEOUT_MS: Final = 30_000
"""Long enough that no stall of a busy machine ends a session; no test waits for it to pass."""
KILLED: Final = {"zookeeper.session.timeout.ms": "2000"}
"""Settings for tests that wait for the end of a killed broker's session."""
UNHARMED: Final = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "log.retention.check.interval.ms": "86400000",
}
"""Settings for a cluster of several tests in which no broker is killed: it lives for minutes, and retention
must not take records that a test has stamped with a time of long ago."""
OpenStore = Callable[..., ClusterStore]
StartCluster = Callable[..., LocalCluster]
_SECRET: Final = 0xB3415C00
_MULTIPLIER: Final = 0x5DEECE66D
_MASK: Final = (1 << 48) - 1
_PASSWORD_BYTES: Final = 16


def run_command(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the `barnabas` command with no other settings in its environment than these."""
    return subprocess.run(
        [*COMMAND, *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=clean_environment(**environment),
    )


def call_command(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """As `run_command`, but in this process, which saves its start."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        patch.setattr(os, "environ", clean_environment(**environment))
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        try:
            code = main(words)
        except SystemExit as ended:
            # Wrong usage.
            code = int(ended.code or 0)
    said, complained = (stream.buffer.getvalue().decode() for stream in (output, errors))
    return subprocess.CompletedProcess(words, code, said, complained)


def show_status(*words: str) -> subprocess.CompletedProcess[str]:
    """`barnabas status`, as soon as a broker answers within the 2 s that the command gives it."""

    def shown() -> subprocess.CompletedProcess[str] | None:
        done = call_command("status", *words)
        return None if done.returncode == exit_codes.NOT_REACHABLE else done

    return wait_for(shown, "no broker answers barnabas status")


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without settings of ours, and with these variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BARNABAS_")} | more


@contextmanager
def running(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Start a cluster; kill it in the end, which is quicker than stopping it."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill_all()
        cluster.close()


def start_all(cluster: RunningCluster) -> None:
    """Start all brokers at once, and wait until each sees all of them."""
    for broker_id in cluster.broker_ids:
        cluster.launch_broker(broker_id)
    cluster.wait_ready(must_run=cluster.broker_ids)


def resident_bytes(pid: int) -> int:
    """The anonymous memory of a process: mappings of log files do not count."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def unforeseen_lines(folder: Path) -> Iterator[str]:
    """The lines of a broker's logs that no peer may cause, each with its file."""
    for log in folder.iterdir():
        for line in log.read_text().splitlines():
            if any(word in line for word in ("its request failed", "Traceback", "CRITICAL", " ERROR ")):
                yield f"{log}: {line}"


def complaint(client: RawSocket, log: Path, data: bytes) -> str:
    """Send bytes for which the broker closes the connection; returns the one line that it logs about them."""
    peer = "{}:{}#".format(*client.socket.getsockname()[:2])
    # An earlier connection may have had the same port.
    before = len(log.read_text())
    client.send(data)
    assert client.is_closed_by_broker()

    def lines() -> list[str]:
        return [line for line in log.read_text()[before:].splitlines() if peer in line]

    wait_for(lambda: len(lines()) > 0, f"no line about {peer}")
    [line] = lines()
    return line


def writes_and_reads(cluster: RunningCluster, topic: str, value: bytes = b"still there") -> bool:
    """Whether a record of our own client goes in and comes out at its offset."""
    clients = client_settings_of(cluster)
    with Producer(**clients, acks="all") as producer:
        where = producer.send_and_wait(topic, value)
    with Consumer(**clients) as consumer:
        consumer.assign([TopicPartition(*where[:2])])
        consumer.seek((where.topic, where.partition), where.offset)
        return consumer.getone().value == value


def client_settings_of(cluster: RunningCluster) -> dict[str, Any]:
    """The settings of our clients, as the super user if the cluster is secured."""
    return cluster.client_settings()


def clients_word(cluster: RunningCluster) -> str:
    """For the command line of a program: the file of these settings, or the bootstrap servers."""
    if cluster.security is None:
        return cluster.bootstrap
    return str(cluster.security.clients_of(ADMIN) / "barnabas.json")


def credentials_of(cluster: RunningCluster) -> dict[str, str]:
    """The environment with which a command reaches a cluster as its super user, if it is secured."""
    file = cluster.command_config
    return {} if file is None else {"BARNABAS_COMMAND_CONFIG": str(file)}


_PASSING: Final = (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.REQUEST_TIMED_OUT)
"""The errors while a broker or ZooKeeper is away for a moment."""


class ClusterView:
    """A cluster as its clients see it. Each call connects again, so that it depends on no single broker."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster

    @functools.cached_property
    def clients(self) -> dict[str, Any]:
        """The settings of clients of the super user."""
        return client_settings_of(self.cluster)

    @functools.cached_property
    def security(self) -> ChannelSecurity:
        return self.cluster.channel_security()

    @contextmanager
    def admin(self, request_timeout_ms: int = 5_000) -> Iterator[Admin]:
        """Connects again until the deadline, since a machine that stands still for a moment fails no test."""
        failed: list[NoBrokerReachable] = []

        def connected() -> Admin | None:
            try:
                return Admin(**self.clients, request_timeout_ms=request_timeout_ms)
            except NoBrokerReachable as error:
                failed.append(error)
                return None

        with wait_for(connected, lambda: str(failed[-1])) as admin:
            yield admin

    def create_topic(self, name: str, partitions: int = 1, replicas: int = 3, **configs: str) -> None:
        """Create a topic, and wait until every broker knows it; configs with underscores for dots."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        refused: list[ErrorCode] = []

        def is_made() -> bool:
            # The controller answers after most of this time if leaders are late.
            with self.admin(request_timeout_ms=20_000) as admin:
                try:
                    admin.create_topics(NewTopic(name, partitions, replicas, named))
                except ApiError as error:
                    refused.append(error.code)
                    # The attempt before may have created it.
                    if error.code is ErrorCode.TOPIC_ALREADY_EXISTS and refused[0] is not error.code:
                        return True
                    if error.code not in _PASSING:
                        raise
                    return False
                return True

        wait_for(is_made, lambda: f"{name} is not made: {refused}")
        for broker in self.cluster.brokers:
            if broker.state == "running":
                knows = functools.partial(knows_topic, broker.endpoint, name, self.security)
                wait_for(knows, f"broker {broker.id} does not know {name}")

    def write(self, topic: str, values: Iterable[bytes]) -> None:
        """Write values to any partitions; all are acknowledged on return."""
        with Producer(**self.clients, acks="all") as producer:
            for future in [producer.send(topic, value) for value in values]:
                future.result(60)

    def read(
        self, topic: str, partitions: int, isolation_level: str = "read_uncommitted"
    ) -> list[bytes | None]:
        """All values up to the present ends."""
        names = [TopicPartition(topic, number) for number in range(partitions)]
        values: list[bytes | None] = []
        with Consumer(
            **self.clients, auto_offset_reset="earliest", isolation_level=isolation_level
        ) as consumer:
            ends = consumer.end_offsets(names)
            consumer.assign(names)
            while any(consumer.position(name) < ends[name] for name in names):
                values += [record.value for record in consumer.poll(timeout_ms=5_000)]
        return values

    def partitions(self, topic: str) -> tuple[PartitionInfo, ...]:
        with self.admin() as admin:
            return admin.describe_topics(topic)[topic].partitions

    def leader(self, topic: str, partition: int = 0) -> int:
        """The leader, after an election if needed."""
        return self._once_known(
            lambda: self.partitions(topic)[partition].leader, f"{topic}-{partition} has no leader"
        )

    def controller(self) -> int:
        """The controller, after an election if needed."""

        def look() -> int:
            with self.admin() as admin:
                return admin.describe_cluster().controller_id

        return self._once_known(look, "there is no controller")

    def _once_known(self, look: Callable[[], int], complaint: str) -> int:
        """The first id that any answering broker names."""
        seen: list[object] = []

        def is_known() -> bool:
            try:
                seen.append(look())
            except BarnabasError as error:
                seen.append(error)
            return isinstance(seen[-1], int) and seen[-1] >= 0

        wait_for(is_known, lambda: f"{complaint}: {seen[-1]!r}")
        found = seen[-1]
        assert isinstance(found, int)
        return found

    def live_brokers(self) -> set[int]:
        with self.admin() as admin:
            return {node.node_id for node in admin.describe_cluster().nodes}

    def wait_isr(self, topic: str, size: int, timeout_s: float = 30.0) -> None:
        """Wait until every partition of a topic has a leader and so many replicas in sync."""
        seen: list[object] = []

        def is_so() -> bool:
            try:
                partitions = self.partitions(topic)
            except BarnabasError as error:
                seen.append(error)
                return False
            seen.append([(p.partition, p.leader, p.isr) for p in partitions])
            return all(len(p.isr) == size and p.leader >= 0 for p in partitions)

        wait_for(is_so, lambda: f"the ISR of {topic} is not {size} strong: {seen[-1]}", timeout_s=timeout_s)

    def wait_agreed(self, topic: str, partitions: int, timeout_s: float = 30.0) -> None:
        """Wait until all running brokers describe a topic alike: so many partitions, led and all in sync.

        A single broker may give an old answer: after a pause it does not know yet what it missed.
        """
        seen: list[object] = []

        def is_so() -> bool:
            try:
                answers = [
                    partitions_seen_by(broker.endpoint, topic, self.security)
                    for broker in self.cluster.brokers
                    if broker.state == "running"
                ]
            except (OSError, ConnectionClosed) as error:
                seen.append(error)
                return False
            seen.append(answers)
            return all(answer == answers[0] for answer in answers) and (
                len(answers[0]) == partitions
                and all(leader >= 0 and isr == replicas for _, leader, _, isr, replicas in answers[0])
            )

        wait_for(is_so, lambda: f"the brokers do not agree on {topic}: {seen[-1]}", timeout_s=timeout_s)

    def zookeeper(self) -> ZooKeeperClient:
        return ZooKeeperClient(self.cluster.zookeeper_connect, self.zookeeper_login())

    def zookeeper_login(self) -> LoginModule | None:
        """The login of the brokers of a secured cluster, also to a ZooKeeper of the test's own."""
        if self.cluster.security is None:
            return None
        return parse_jaas_file(self.cluster.security.jaas_file.read_text())["Client"][0]


def controller_seen_by(endpoint: Endpoint) -> int:
    """The controller as this broker names it; -1 for no controller."""
    with RawClient(endpoint) as client:
        return int(client.ask(MetadataRequest(topics=[])).controller_id)


def knows_topic(endpoint: Endpoint, name: str, security: ChannelSecurity = PLAINTEXT) -> bool:
    """Whether this broker knows a topic."""
    with RawClient(endpoint, security=security) as client:
        asked = [MetadataRequestTopic(name=name)]
        answer = client.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
        return bool(answer.topics[0].error_code == ErrorCode.NONE)


def partitions_seen_by(
    endpoint: Endpoint, topic: str, security: ChannelSecurity = PLAINTEXT
) -> list[tuple[int, int, int, list[int], list[int]]]:
    """Partition, leader, leader epoch, ISR and replicas of each partition, as this broker names them."""
    with RawClient(endpoint, security=security) as client:
        asked = [MetadataRequestTopic(name=topic)]
        answer = client.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    return sorted(
        (
            found.partition_index,
            found.leader_id,
            found.leader_epoch,
            sorted(found.isr_nodes),
            sorted(found.replica_nodes),
        )
        for found in answer.topics[0].partitions
    )


class ZooKeeperClient:
    """Access to a cluster's znodes; a context manager that returns the library's client."""

    def __init__(self, connect: str, login: LoginModule | None = None) -> None:
        self._client = SessionSecurity(login=login).make_client(hosts=connect, timeout=30.0)

    def __enter__(self) -> KazooClient:
        self._client.start(timeout=30)
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.stop()
        self._client.close()


def expire_session(client: KazooClient) -> None:
    """End a client's session, as ZooKeeper would; return when the client has a new one."""
    identity = client.client_id
    if identity is None:
        raise AssertionError("the client is not connected")

    def has_another() -> bool:
        # A disconnected broker has no session id yet; it may reconnect with the former session.
        return client.client_id not in (None, identity)

    for _ in range(10):
        close_session(Endpoint(*client.hosts[0]), *identity)
        # If its owner has taken the session back, the next attempt may succeed.
        if wait_until(has_another, 5):
            return
    raise AssertionError("the session could not be ended")


def close_session(
    server: Endpoint, session_id: int, password: bytes, login: LoginModule | None = None
) -> None:
    """Take over a session and close it in one write, so that its owner has no time to take it back.

    With a login it takes a few round trips, since ZooKeeper does nothing for a peer without one.
    """
    if login is not None:
        security = SessionSecurity(login=login)
        client = security.make_client(hosts=str(server), client_id=(session_id, password), timeout=10.0)
        client.start(timeout=20)
        client.stop()
        client.close()
        return
    take_over = struct.pack(">iqiqi", 0, 0, 10_000, session_id, len(password)) + password + b"\0"
    close = struct.pack(">ii", 1, -11)
    with socket.create_connection(server, timeout=20) as connection:
        connection.sendall(b"".join(struct.pack(">i", len(part)) + part for part in (take_over, close)))
        while connection.recv(4096):
            continue


def session_password(session_id: int) -> bytes:
    """The password of a session, which ZooKeeper derives from the id with Java's random number generator.

    Source: `ZooKeeperServer.generatePasswd` of Apache ZooKeeper; `java.util.Random`.
    """
    state = ((session_id ^ _SECRET) ^ _MULTIPLIER) & _MASK
    password = b""
    while len(password) < _PASSWORD_BYTES:
        state = (state * _MULTIPLIER + 0xB) & _MASK
        password += (state >> 16).to_bytes(4, "little")
    return password
