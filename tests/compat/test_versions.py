"""The version of each API that a client chooses; the table in docs/compatibility.md must show it.

The only broker advertises the address of a relay, which notes the head of every request on its way.
"""

import contextlib
import json
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.client import NewTopic
from barnabas.client.blocking import Admin, Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.schema import ApiKey
from tests.support.names import fresh_name
from tests.support.relay import relay
from tests.support.waiting import wait_for

from ..cluster.transaction_level import finalised
from . import table
from .clients import CLIENTS, Driver, Unavailable, Unsupported
from .conftest import Shared, ToolOf, tool_or_skip
from .features import record
from .java import CONFIG_COMMAND, COPIER, GROUPS, NAME, NEWER, TRANSACTIONS, VERSION, Tool
from .wire import API_VERSIONS, Connection, have_offsets_topic_made, wait_led

pytestmark = pytest.mark.timeout(600)
API_NAMES = {int(key): key.name.title().replace("_", "") for key in ApiKey}


class Relay(socketserver.ThreadingTCPServer):
    """Passes connections on to a broker, and notes (API key, version) of every request."""

    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.target: tuple[str, int] = ("", 0)
        self._seen: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """When the broker has ended, and all connections with it."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def seen(self) -> set[tuple[int, int]]:
        """A copy of the requests noted since `forget`, because connections add to them."""
        with self._lock:
            return set(self._seen)

    def forget(self) -> None:
        with self._lock:
            self._seen.clear()

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server_address)

    def note(self, waiting: bytearray) -> None:
        """Take whole frames off the front."""
        while len(waiting) >= 8:
            (size,) = struct.unpack_from(">i", waiting)
            if len(waiting) < 4 + size:
                return
            # The broker's own requests to itself are in the native format, which begins with no zero.
            if waiting[4] == 0:
                with self._lock:
                    self._seen.add(struct.unpack_from(">hh", waiting, 4))
            del waiting[: 4 + size]


class _Passing(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        waiting = bytearray()

        def note(data: bytes) -> None:
            waiting.extend(data)
            self.server.note(waiting)

        with contextlib.suppress(OSError), socket.create_connection(self.server.target) as broker:
            relay(self.request, broker, note)


@pytest.fixture(scope="module")
def relayed_cluster(shared: Shared) -> Iterator[tuple[Relay, LocalCluster]]:
    """A relay before a cluster of one broker, which is only reached through it."""
    with Relay() as relay, shared("versions", brokers=1) as cluster:
        relay.target = (cluster.brokers[0].host, cluster.brokers[0].port)
        cluster.change_settings(1, {"advertised.listeners": f"PLAINTEXT://{relay.address}"})
        cluster.start()
        have_offsets_topic_made(relay.address)
        yield relay, cluster


@pytest.fixture(scope="module")
def relayed(relayed_cluster: tuple[Relay, LocalCluster]) -> Relay:
    return relayed_cluster[0]


def tour(relayed: Relay, driver: Driver) -> None:
    """All commands of the client's driver."""
    bootstrap = relayed.address
    topic = fresh_name("tour")

    def ask(command: str, **arguments: object) -> None:
        with contextlib.suppress(Unsupported):
            driver.ask(command, bootstrap=bootstrap, topic=topic, **arguments)

    def produce(count: int, **config: object) -> None:
        driver.ask(
            "produce", bootstrap=bootstrap, records=[record(topic, "v") for _ in range(count)], **config
        )

    ask("create_topic", partitions=1, replicas=1)
    # A client without that function makes it by writing to it.
    produce(1)
    wait_led(bootstrap, topic, 1)
    produce(20, idempotent=True)
    ask("fetch", partition=0, offset=0, count=21)
    for at in ("earliest", "latest", 1_600_000_000_000):
        ask("offsets", partitions=[0], at=at)
    ask("describe_topic")
    for command in ("list_topics", "describe_cluster"):
        driver.ask(command, bootstrap=bootstrap)
    ask("describe_configs")
    ask("alter_configs", configs={"retention.ms": "3600000"})
    ask("create_partitions", total=2)
    ask("delete_records", partition=0, before=3)
    group_tour(relayed, driver, bootstrap, topic)
    transaction_tour(driver, bootstrap, topic)
    ask("delete_topic")


def group_tour(relayed: Relay, driver: Driver, bootstrap: str, topic: str) -> None:
    """All group requests of the client."""

    def ask(command: str, **arguments: object) -> None:
        with contextlib.suppress(Unsupported):
            driver.ask(command, bootstrap=bootstrap, group=topic, **arguments)

    def has_beaten() -> bool:
        return any(key == ApiKey.HEARTBEAT for key, _ in relayed.seen)

    driver.ask("member_start", bootstrap=bootstrap, group=topic, topics=[topic], auto_commit=True)
    wait_for(lambda: len(driver.ask("member_status")["read"]) >= 18)
    wait_for(has_beaten)
    driver.ask("member_stop")
    ask("describe_group")
    ask("group_offsets", topic=topic)
    ask("set_group_offsets", topic=topic, offsets={"0": 4})
    ask("delete_group_offsets", topic=topic, partitions=[0])
    ask("delete_group")
    with contextlib.suppress(Unsupported):
        driver.ask("list_groups", bootstrap=bootstrap)


def transaction_tour(driver: Driver, bootstrap: str, topic: str) -> None:
    """A transaction with offsets that is committed, and one that is aborted."""

    def ask(command: str, **arguments: object) -> None:
        with contextlib.suppress(Unsupported):
            answer = driver.ask(command, **arguments)
            assert not any("error" in place for place in answer or []), answer

    ask("txn_start", bootstrap=bootstrap, transactional_id=topic)
    for end in ("txn_commit", "txn_abort"):
        ask("txn_begin")
        ask("txn_send", records=[record(topic, end, key=end)])
        ask("txn_offsets", group=f"{topic}-transactions", topic=topic, offsets={"0": 1})
        ask(end)
    ask("txn_close")


def copy(tool: Tool, bootstrap: str, topic: str) -> None:
    """Copy the records of a partition in transactions."""
    places = ("--input-topic", topic, "--input-partition", "0", "--output-topic", f"{topic}-copy")
    ids = ("--transactional-id", topic, "--consumer-group", f"{topic}-copier", "--use-group-metadata")
    tool(COPIER, "--broker-list", bootstrap, *places, *ids, "--transaction-size", "4")


def java_tour(tool: Tool, bootstrap: str, folder: Path) -> None:
    """The same with Kafka's own tools."""
    topic = fresh_name("tour")
    server = ("--bootstrap-server", bootstrap)
    of_topic = (*server, "--topic", topic)
    entity = (*server, "--entity-type", "topics", "--entity-name", topic)
    wish = folder / "delete.json"
    records = [{"topic": topic, "partition": 0, "offset": 3}]
    wish.write_text(json.dumps({"version": 1, "partitions": records}))
    tools = "org.apache.kafka.tools"
    tool(f"{tools}.TopicCommand", *of_topic, "--create")
    tool("kafka.tools.ConsoleProducer", *of_topic, stdin="".join(f"{number}\n" for number in range(20)))
    first = ("--partition", "0", "--offset", "earliest", "--max-messages", "20", "--timeout-ms", "30000")
    tool(f"{tools}.consumer.ConsoleConsumer", *of_topic, *first)
    tool(f"{tools}.GetOffsetShell", *of_topic, "--time", "latest")
    tool(f"{tools}.TopicCommand", *of_topic, "--describe")
    tool(f"{tools}.TopicCommand", *of_topic, "--alter", "--partitions", "2")
    tool(CONFIG_COMMAND, *entity, "--alter", "--add-config", "retention.ms=3600000")
    tool(f"{tools}.DeleteRecordsCommand", *server, "--offset-json-file", str(wish))
    tool(f"{tools}.LogDirsCommand", *server, "--describe")
    in_group = ("--group", topic, "--max-messages", "16", "--from-beginning", "--timeout-ms", "30000")
    tool(f"{tools}.consumer.ConsoleConsumer", *of_topic, *in_group)
    groups = (*GROUPS, *server)
    tool(*groups, "--list")
    tool(*groups, "--describe", "--group", topic)
    tool(*groups, "--delete-offsets", "--group", topic, "--topic", f"{topic}:1")
    tool(*groups, "--delete", "--group", topic)
    copy(tool, bootstrap, topic)
    transactions = (TRANSACTIONS, *server)
    tool(*transactions, "list")
    tool(*transactions, "describe", "--transactional-id", topic)
    tool(*transactions, "describe-producers", "--topic", f"{topic}-copy", "--partition", "0")
    tool(f"{tools}.ClusterTool", "cluster-id", *server)
    tool(f"{tools}.TopicCommand", *of_topic, "--delete")


@pytest.mark.parametrize("name", [*CLIENTS, NAME])
def test_the_versions_that_a_client_chooses(
    relayed: Relay, name: str, tool_of: ToolOf, tmp_path: Path
) -> None:
    with Connection(relayed.address) as broker:
        offered = broker.api_versions()
    relayed.forget()
    try:
        if name == NAME:
            java_tour(tool_of(VERSION), relayed.address, tmp_path)
            version = name.split()[1]
        else:
            # A process of its own: a client may leave threads whose requests count as the next client's.
            with CLIENTS[name].start() as driver:
                tour(relayed, driver)
                version = driver.ask("hello")["version"]
    except Unavailable as error:
        pytest.skip(f"{name}: {error}")
    # The looks of this test itself are Metadata 4 and ApiVersions 0; each client asks for more of its own.
    chosen: dict[int, int] = {}
    for key, sent in relayed.seen:
        chosen[key] = max(sent, chosen.get(key, -1))
    assert {0, 1, 2, 3} <= chosen.keys()
    for key, highest in chosen.items():
        assert key in offered, f"{name} asks for API {key}, which is not advertised"
        low, high = offered[key]
        # A first guess at ApiVersions may be too high: it is answered with the range.
        assert low <= highest <= high or key == API_VERSIONS, f"{name} sends {API_NAMES[key]} {highest}"
    said = table.read(table.PAGE.read_text(encoding="utf-8"), table.VERSIONS)
    if name == "kcat" and not table.is_being_made() and said["version"][name] != version:
        pytest.skip(f"kcat is that of the distribution, {version}, and the page says {said['version'][name]}")
    table.check(table.VERSIONS, "version", name, version)
    for key, (low, high) in offered.items():
        row = f"{key} {API_NAMES[key]} {low} to {high}"
        table.check(table.VERSIONS, row, name, str(chosen.get(key, table.NOT_THERE)))


def test_java_4_lets_the_brokers_add_partitions_in_version_2(
    relayed_cluster: tuple[Relay, LocalCluster], tool_of: ToolOf
) -> None:
    relayed, cluster = relayed_cluster
    tool = tool_or_skip(tool_of, NEWER)
    topic = fresh_name("tour")
    with Admin(bootstrap_servers=relayed.address) as admin:
        admin.create_topics([NewTopic(topic, 1, 1), NewTopic(f"{topic}-copy", 1, 1)])
    with Producer(bootstrap_servers=relayed.address) as producer:
        for _ in range(8):
            producer.send(topic, b"v")
        producer.flush()
    with finalised(cluster, 2):
        relayed.forget()
        copy(tool, relayed.address, topic)
        sent = relayed.seen
    assert {(ApiKey.PRODUCE, 12), (ApiKey.TXN_OFFSET_COMMIT, 5), (ApiKey.END_TXN, 5)} <= sent
    assert not {ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN} & {key for key, _ in sent}
