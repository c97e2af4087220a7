"""The tools of Kafka 3.9 and 4 that operate a cluster: reassignments, elections, topics and listeners."""

import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from barnabas.client import NewTopic
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.ports import ReservedPort
from barnabas.protocol.ids import TopicPartition
from benchmarks.peers.apache_kafka import VERSION
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from ..cluster.tools import ClusterView
from .conftest import Shared, ToolOf, tool_or_skip
from .java import CONFIG_COMMAND, NEWER, TOPIC_COMMAND, Tool
from .wire import wait_led

pytestmark = pytest.mark.timeout(600)
RECORDS = [b"value %d" % number for number in range(100)]
_REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
_ELECT = "org.apache.kafka.tools.LeaderElectionCommand"


@pytest.fixture(params=[VERSION, NEWER], ids=["Kafka 3.9", "Kafka 4"])
def tool(request: pytest.FixtureRequest, tool_of: ToolOf) -> Tool:
    return tool_or_skip(tool_of, request.param)


@pytest.fixture(scope="module")
def cluster(shared: Shared) -> Iterator[LocalCluster]:
    """Four brokers. A new controller would move leaders back by itself after five seconds."""
    with shared("placement", {"auto.leader.rebalance.enable": "false"}, brokers=4) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def view(cluster: LocalCluster) -> Iterator[ClusterView]:
    """All of them run, before and after the test."""
    view = ClusterView(cluster)
    yield view
    for broker in cluster.brokers:
        if not broker.is_alive:
            cluster.start_broker(broker.id)
    wait_for(lambda: len(view.live_brokers()) == 4, lambda: f"only {view.live_brokers()} are alive")


@pytest.fixture
def topic(view: ClusterView) -> str:
    """A topic on brokers 1 and 2, with records."""
    name = fresh_name("t")
    with view.admin() as admin:
        admin.create_topics(NewTopic(name, replica_assignment={0: [1, 2], 1: [2, 1]}))
    view.write(name, RECORDS)
    return name


def replicas(view: ClusterView, topic: str) -> list[tuple[int, ...]]:
    return [partition.replicas for partition in view.partitions(topic)]


def wait_leaders(view: ClusterView, topic: str, expected: list[int]) -> None:
    """Wait until the view's broker knows these leaders; it learns of an election after the controller."""

    def leaders() -> list[int]:
        return [partition.leader for partition in view.partitions(topic)]

    wait_for(lambda: leaders() == expected, lambda: f"{topic} has the leaders {leaders()}")


def written(path: Path, topic: str, targets: Sequence[Sequence[int]]) -> Path:
    partitions = [
        {"topic": topic, "partition": index, "replicas": list(target), "log_dirs": ["any"] * len(target)}
        for index, target in enumerate(targets)
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return path


def test_the_tool_for_reassignments_moves_partitions(
    tool: Tool, view: ClusterView, topic: str, tmp_path: Path
) -> None:
    server = ("--bootstrap-server", view.cluster.bootstrap)
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    brokers = ("--broker-list", "3,4")
    generated = tool(_REASSIGN, *server, "--topics-to-move-json-file", str(topics), *brokers, "--generate")
    current, proposed = (line for line in generated.splitlines() if line.startswith("{"))
    assert json.loads(current)["partitions"][0]["replicas"] == [1, 2]
    wish = tmp_path / "wish.json"
    wish.write_text(proposed)
    targets = [tuple(entry["replicas"]) for entry in json.loads(proposed)["partitions"]]
    assert {broker for target in targets for broker in target} == {3, 4}
    plan = ("--reassignment-json-file", str(wish))
    said = tool(_REASSIGN, *server, *plan, "--throttle", "50000000", "--execute")
    assert "The inter-broker throttle limit was set to 50000000 B/s" in said
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in said
    verified: list[str] = []

    def is_done() -> bool:
        verified.append(tool(_REASSIGN, *server, *plan, "--verify"))
        return verified[-1].count("is completed.") == 2

    wait_for(is_done, lambda: verified[-1], timeout_s=120)
    wait_for(lambda: replicas(view, topic) == targets, lambda: f"{topic} has {replicas(view, topic)}")
    assert "Clearing broker-level throttles on brokers 1,2,3,4" in verified[-1]
    assert f"Clearing topic-level throttles on topic {topic}" in verified[-1]
    assert "No partition reassignments found." in tool(_REASSIGN, *server, "--list")
    assert sorted(map(bytes, filter(None, view.read(topic, 2)))) == sorted(RECORDS)


def test_the_tool_for_reassignments_lists_and_cancels(
    tool: Tool, view: ClusterView, topic: str, tmp_path: Path
) -> None:
    server = ("--bootstrap-server", view.cluster.bootstrap)
    slow = next(broker for broker in (3, 4) if broker != view.controller())
    plan = ("--reassignment-json-file", str(written(tmp_path / "plan.json", topic, [[1, slow], [2, 1]])))
    before = replicas(view, topic)
    # Paused before it can copy a record, and dead afterwards, so that the tools do not wait for it.
    view.cluster.pause(slow)
    with view.admin() as admin:
        outcomes = admin.alter_partition_reassignments({TopicPartition(topic, 0): [1, slow]})
    assert set(outcomes.values()) == {None}
    view.cluster.kill(slow)
    wait_for(lambda: slow not in view.live_brokers(), f"broker {slow} counts as alive")
    listed = tool(_REASSIGN, *server, "--list")
    assert f"{topic}-0: replicas: 1,{slow},2. adding: {slow}. removing: 2." in listed
    # Else the tool would change the settings of the dead broker, too.
    cancelled = tool(_REASSIGN, *server, *plan, "--cancel", "--preserve-throttles")
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in cancelled
    assert "No partition reassignments found." in tool(_REASSIGN, *server, "--list")
    wait_for(lambda: replicas(view, topic) == before, lambda: f"{topic} has {replicas(view, topic)}")


def test_the_tool_for_elections_lets_the_preferred_replicas_lead(
    tool: Tool, view: ClusterView, topic: str, tmp_path: Path
) -> None:
    server = ("--bootstrap-server", view.cluster.bootstrap)
    view.cluster.restart(1)
    view.wait_isr(topic, 2)
    wait_leaders(view, topic, [2, 2])
    path = tmp_path / "partitions.json"
    path.write_text(json.dumps({"partitions": [{"topic": topic, "partition": index} for index in (0, 1)]}))
    named = ("--path-to-json-file", str(path))
    said = tool(_ELECT, *server, "--election-type", "preferred", *named)
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in said
    assert f"Valid replica already elected for partitions {topic}-1" in said
    wait_leaders(view, topic, [1, 2])
    view.cluster.restart(2)
    view.wait_isr(topic, 2)
    said = tool(_ELECT, *server, "--election-type", "preferred", "--all-topic-partitions")
    assert f"{topic}-1" in said
    wait_leaders(view, topic, [1, 2])
    said = tool(_ELECT, *server, "--election-type", "unclean", "--topic", topic, "--partition", "0")
    assert f"Valid replica already elected for partitions {topic}-0" in said


def test_the_tool_for_topics_creates_grows_and_deletes(tool: Tool, view: ClusterView, topic: str) -> None:
    server = ("--bootstrap-server", view.cluster.bootstrap)
    new = f"u-{topic}"
    named = (*server, "--topic", new)
    created = ("--create", "--replica-assignment", "3:4,4:3", "--config", "segment.ms=60000")
    said = tool(TOPIC_COMMAND, *named, *created)
    assert f"Created topic {new}." in said
    wait_led(view.cluster.bootstrap, new, 2)
    tool(TOPIC_COMMAND, *named, "--alter", "--partitions", "3", "--replica-assignment", "3:4,4:3,1:2")
    wait_led(view.cluster.bootstrap, new, 3)
    described = tool(TOPIC_COMMAND, *named, "--describe")
    assert "PartitionCount: 3\tReplicationFactor: 2\tConfigs: segment.ms=60000" in described
    assert [line.split("\t")[4] for line in described.splitlines() if line.startswith("\t")] == [
        "Replicas: 3,4",
        "Replicas: 4,3",
        "Replicas: 1,2",
    ]
    tool(TOPIC_COMMAND, *named, "--delete")
    wait_led(view.cluster.bootstrap, new, 0)
    listed = tool(TOPIC_COMMAND, *server, "--list").split()
    assert topic in listed
    assert new not in listed
    view.cluster.kill(2)
    view.wait_isr(topic, 1)
    ill = tool(TOPIC_COMMAND, *server, "--describe", "--under-replicated-partitions")
    assert ill.count(f"Topic: {topic}\t") == 2


def test_the_tool_for_settings_adds_and_removes_a_listener(tool: Tool, view: ClusterView, topic: str) -> None:
    broker = ("--bootstrap-server", view.cluster.bootstrap, "--entity-type", "brokers", "--entity-name", "2")
    port = ReservedPort.pick()
    added = f"127.0.0.1:{port.port}"
    port.close()
    names = {
        "listeners": f"PLAINTEXT://{view.cluster.broker(2).endpoint},CLIENTS://{added}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT",
    }
    changes = ",".join(f"{name}=[{value}]" for name, value in names.items())
    said = tool(CONFIG_COMMAND, *broker, "--alter", "--add-config", changes)
    assert "Completed updating config for broker 2." in said
    wait_for(lambda: is_open(added), f"broker 2 does not listen on {added}")
    described = tool(CONFIG_COMMAND, *broker, "--describe")
    assert all(f"  {name}={value} sensitive=false" in described for name, value in names.items())
    assert topic in tool(TOPIC_COMMAND, "--bootstrap-server", added, "--list").split()
    tool(CONFIG_COMMAND, *broker, "--alter", "--delete-config", ",".join(names))
    wait_for(lambda: not is_open(added), f"broker 2 listens on {added}")


def is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return False
    return True
