"""Java's clients and Kafka's own tools in transactions, which are killed or hang."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from barnabas.broker.coordinators.transactions.verification import VERIFICATION
from barnabas.client import ConfigResource
from barnabas.client.blocking import Producer
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import ManagedProcess, tail
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from benchmarks.peers.apache_kafka import VERSION
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from ..cluster.tools import ClusterView
from ..cluster.transaction_client import TransactionalClient
from ..cluster.transaction_level import finalised, set_level
from .clients import Driver, Unavailable
from .conftest import StartDriver
from .java import CONSOLE_CONSUMER, COPIER, NEWER, TRANSACTIONS, Tool, java_command

pytestmark = pytest.mark.timeout(600)
RECORDS, TRANSACTION_RECORDS = 3_000, 20
FENCED = "ProducerFencedException", "InvalidProducerEpochException", "has been claimed by another process"
"""After a time-out has fenced the copier, its output holds one of these texts, depending on the request."""


class Copier:
    """Kafka's `TransactionalMessageCopier`: its reports say how much it has copied.

    While the test waits, it starts the copier again if a time-out has fenced it, because all processes may
    stand still for seconds on a busy machine.
    """

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._logs: list[Path] = []
        self._start()

    @property
    def starts(self) -> int:
        return len(self._logs)

    def wait_copied(self, count: int) -> None:
        """Wait until it has copied so many records."""
        wait_for(lambda: self._reached(count), lambda: f"{count} are not copied: {tail(self._logs[-1])}")

    def wait_end(self) -> int:
        """Wait until it has ended without error, and return how many records it copied."""
        wait_for(lambda: not self._runs(), lambda: f"the copier runs on: {tail(self._logs[-1])}")
        assert self._process.exit_code == 0, tail(self._logs[-1], 40)
        return self._copied()

    def kill(self) -> None:
        self._process.kill()

    def _start(self) -> None:
        log = self._folder / f"copier-{uuid.uuid4().hex[:8]}.log"
        self._process = ManagedProcess.spawn("copier", self._command, log_file=log)
        self._logs.append(log)

    def _reached(self, count: int) -> bool:
        assert self._runs(), f"the copier ended: {tail(self._logs[-1], 40)}"
        return self._copied() >= count

    def _runs(self) -> bool:
        """Whether it runs; a fenced copier is started again."""
        if not self._process.is_alive and self._is_fenced():
            self._start()
        return self._process.is_alive

    def _is_fenced(self) -> bool:
        said = self._logs[-1].read_text()
        return any(text in said for text in FENCED)

    def _copied(self) -> int:
        return sum(self._reported(log) for log in self._logs)

    def _reported(self, log: Path) -> int:
        lines = log.read_text().splitlines(keepends=True)
        reports = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return int(reports[-1]["totalProcessed"]) if reports else 0


def committed(reference: Driver, cluster: LocalCluster, topic: str, count: int) -> list[str]:
    """The committed values of partition 0, read by another client."""
    found = reference.ask(
        "fetch",
        bootstrap=cluster.bootstrap,
        topic=topic,
        partition=0,
        offset=0,
        count=count,
        isolation="read_committed",
    )
    return [record["value"] for record in found]


@pytest.mark.parametrize("version", [VERSION, NEWER], ids=["Java 3.9", "Java 4"])
def test_a_killed_copier_copies_every_record_once(
    compat_cluster: LocalCluster, driver_of: StartDriver, tmp_path: Path, version: str
) -> None:
    """Its successor finds a cluster that was raised to level 2, which Java 3.9 does not know."""
    try:
        java = java_command(version)
    except Unavailable as error:
        pytest.skip(str(error))
    name = fresh_name("copy")
    view = ClusterView(compat_cluster)
    for topic in (f"{name}-in", f"{name}-out"):
        view.create_topic(topic, 1, 3)
    with Producer(bootstrap_servers=compat_cluster.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(f"{name}-in", b"%d" % number)
        producer.flush()
    command = [*java, COPIER, "--broker-list", compat_cluster.bootstrap]
    command += ["--input-topic", f"{name}-in", "--input-partition", "0", "--output-topic", f"{name}-out"]
    command += ["--consumer-group", name, "--transactional-id", name, "--use-group-metadata"]
    command += ["--transaction-size", f"{TRANSACTION_RECORDS}", "--transaction-timeout", "3000"]
    with finalised(compat_cluster, 0):
        copier = Copier(command, tmp_path)
        try:
            copier.wait_copied(RECORDS // 3)
        finally:
            copier.kill()
        set_level(compat_cluster, 2)
        # It asks for the group's offsets before it aborts the transaction that the kill left open, and waits
        # until the time-out has aborted it.
        successor = Copier(command, tmp_path)
        try:
            copied = successor.wait_end()
        finally:
            successor.kill()
        assert copied <= RECORDS - RECORDS // 3
        reference = driver_of("confluent-kafka")
        found = committed(reference, compat_cluster, f"{name}-out", RECORDS)
        assert found == committed(reference, compat_cluster, f"{name}-in", RECORDS)
        ends = reference.ask(
            "group_offsets", bootstrap=compat_cluster.bootstrap, group=name, topic=f"{name}-in"
        )
        assert ends == {"0": RECORDS}
        described = TransactionalClient(compat_cluster, name).describe()
    assert described.transaction_state == "CompleteCommit"
    # The newer protocol raises it in every transaction, the former one after each time-out and restart.
    transactions, most = copied // TRANSACTION_RECORDS, 2 * (copier.starts + successor.starts) - 1
    assert described.producer_epoch >= transactions if version == NEWER else described.producer_epoch <= most


@contextmanager
def without_verification(cluster: LocalCluster) -> Iterator[None]:
    """Let brokers append transactional records without asking the coordinator, as Kafka did before 3.6."""

    def set_enabled(value: str | None) -> None:
        with ClusterView(cluster).admin() as admin:
            admin.alter_configs({ConfigResource.all_brokers(): {VERIFICATION: value}})

    set_enabled("false")
    try:
        yield
    finally:
        set_enabled(None)


def rows(said: str) -> list[dict[str, str]]:
    """The table that the tool prints."""
    head, *lines = [line.split("\t") for line in said.splitlines() if "\t" in line]
    names = [name.strip() for name in head]
    return [dict(zip(names, map(str.strip, line), strict=False)) for line in lines]


def test_kafkas_tool_lists_describes_and_aborts_transactions(
    tool: Tool, compat_cluster: LocalCluster, driver_of: StartDriver
) -> None:
    name = fresh_name("open")
    view = ClusterView(compat_cluster)
    view.create_topic(name, 2, 3)
    known, unknown = TopicPartition(name, 0), TopicPartition(name, 1)
    producer = TransactionalClient(compat_cluster, name, 9)
    producer.init()
    producer.add(known)
    producer.write(b"open", known)
    hanging = TransactionalClient(compat_cluster, f"{name}-hanging", 9)
    hanging.init()
    with without_verification(compat_cluster):
        wait_for(lambda: hanging.produce(unknown, 0) is ErrorCode.NONE, "verification stays on")

    at = (TRANSACTIONS, "--bootstrap-server", compat_cluster.bootstrap)
    states = {row["TransactionalId"]: row for row in rows(tool(*at, "list"))}
    assert states[name]["TransactionState"] == "Ongoing"
    assert states[name]["Coordinator"] == str(producer.coordinator)
    assert states[f"{name}-hanging"]["TransactionState"] == "Empty"
    [described] = rows(tool(*at, "describe", "--transactional-id", name))
    assert described["TopicPartitions"] == f"{name}-0"
    assert described["ProducerId"] == str(producer.producer_id)
    [written] = rows(tool(*at, "describe-producers", "--topic", name, "--partition", "0"))
    assert written["CurrentTransactionStartOffset"] == "0"
    assert written["ProducerId"] == str(producer.producer_id)

    # No transaction is too young, and only one of the two is unknown to its coordinator.
    [found] = rows(tool(*at, "find-hanging", "--topic", name, "--max-transaction-timeout", "0"))
    assert (found["Topic"], found["Partition"], found["StartOffset"]) == (name, "1", "0")
    tool(*at, "abort", "--topic", name, "--partition", "1", "--start-offset", "0")
    assert hanging.produce(unknown, 1) is not ErrorCode.NONE
    producer.end(committed=True)
    with Producer(bootstrap_servers=compat_cluster.bootstrap) as plain:
        for partition in (known, unknown):
            plain.send(name, b"after", partition=partition.partition)
        plain.flush()
    said = tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", compat_cluster.bootstrap, "--topic", name, "--from-beginning"),
        *("--isolation-level", "read_committed", "--max-messages", "3", "--timeout-ms", "30000"),
    )
    assert sorted(said.split()) == ["after", "after", "open"]
