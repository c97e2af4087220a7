"""The tools of Kafka 3.9 and 4 that operate a cluster: reassignments, elections, topics and listeners."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from barnabas.client import NewTopic
from barnabas.deploy.ports import ReservedPort
from barnabas.protocol.ids import TopicPartition
from benchmarks.peers.apache_kafka import VERSION
from tests.support.waiting import wait_for

from ..cluster.tools import ClusterView, StartCluster
from .conftest import EXTERNAL, UNHARMED, tool_of
from .java import CONFIG_COMMAND, NEWER, TOPIC_COMMAND, Tool

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(EXTERNAL), reason="moves partitions between four brokers of its own cluster"),
]
RECORDS = [b"value %d" % number for number in range(100)]
_REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
_ELECT = "org.apache.kafka.tools.LeaderElectionCommand"


@pytest.fixture(params=[VERSION, NEWER], ids=["Kafka 3.9", "Kafka 4"])
def tool(request: pytest.FixtureRequest) -> Tool:
    return tool_of(request.param)


@pytest.fixture
def view(start_cluster: StartCluster) -> ClusterView:
    """Four brokers; topic t is on brokers 1 and 2."""
    # A new controller would move leaders back by itself after five seconds.
    settings = {**UNHARMED, "auto.leader.rebalance.enable": "false"}
    view = ClusterView(start_cluster(brokers=4, settings=settings))
    with view.admin() as admin:
        admin.create_topics(NewTopic("t", replica_assignment={0: [1, 2], 1: [2, 1]}))
    view.write("t", RECORDS)
    return view


def replicas(view: ClusterView) -> list[tuple[int, ...]]:
    return [partition.replicas for partition in view.partitions("t")]


def leaders(view: ClusterView) -> list[int]:
    return [partition.leader for partition in view.partitions("t")]


def written(path: Path, targets: Sequence[Sequence[int]]) -> Path:
    partitions = [
        {"topic": "t", "partition": index, "replicas": list(target), "log_dirs": ["any"] * len(target)}
        for index, target in enumerate(targets)
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return path


def test_the_tool_for_reassignments_moves_partitions(tool: Tool, view: ClusterView, tmp_path: Path) -> None:
    server = ("--bootstrap-server", view.cluster.bootstrap)
    topics = tmp_path / "topics.json"
    topics.write_text('{"version": 1, "topics": [{"topic": "t"}]}')
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
    assert "Successfully started partition reassignments for t-0,t-1" in said
    verified: list[str] = []

    def is_done() -> bool:
        verified.append(tool(_REASSIGN, *server, *plan, "--verify"))
        return verified[-1].count("is completed.") == 2

    wait_for(is_done, lambda: verified[-1], timeout_s=120)
    assert replicas(view) == targets
    assert "Clearing broker-level throttles on brokers 1,2,3,4" in verified[-1]
    assert "Clearing topic-level throttles on topic t" in verified[-1]
    assert "No partition reassignments found." in tool(_REASSIGN, *server, "--list")
    assert sorted(map(bytes, filter(None, view.read("t", 2)))) == sorted(RECORDS)


def test_the_tool_for_reassignments_lists_and_cancels(tool: Tool, view: ClusterView, tmp_path: Path) -> None:
    server = ("--bootstrap-server", view.cluster.bootstrap)
    slow = next(broker for broker in (3, 4) if broker != view.controller())
    plan = ("--reassignment-json-file", str(written(tmp_path / "plan.json", [[1, slow], [2, 1]])))
    before = replicas(view)
    # Paused before it can copy a record, and dead afterwards, so that the tools do not wait for it.
    view.cluster.pause(slow)
    with view.admin() as admin:
        outcomes = admin.alter_partition_reassignments({TopicPartition("t", 0): [1, slow]})
    assert set(outcomes.values()) == {None}
    view.cluster.kill(slow)
    wait_for(lambda: slow not in view.live_brokers(), f"broker {slow} counts as alive")
    listed = tool(_REASSIGN, *server, "--list")
    assert f"t-0: replicas: 1,{slow},2. adding: {slow}. removing: 2." in listed
    # Else the tool would change the settings of the dead broker, too.
    cancelled = tool(_REASSIGN, *server, *plan, "--cancel", "--preserve-throttles")
    assert "Successfully cancelled partition reassignment for: t-0" in cancelled
    assert "No partition reassignments found." in tool(_REASSIGN, *server, "--list")
    wait_for(lambda: replicas(view) == before, lambda: f"t has {replicas(view)}")


def test_the_tool_for_elections_lets_the_preferred_replicas_lead(
    tool: Tool, view: ClusterView, tmp_path: Path
) -> None:
    server = ("--bootstrap-server", view.cluster.bootstrap)
    view.cluster.restart(1)
    view.wait_isr("t", 2)
    assert leaders(view) == [2, 2]
    path = tmp_path / "partitions.json"
    path.write_text('{"partitions": [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 1}]}')
    named = ("--path-to-json-file", str(path))
    said = tool(_ELECT, *server, "--election-type", "preferred", *named)
    assert "Successfully completed leader election (PREFERRED) for partitions t-0" in said
    assert "Valid replica already elected for partitions t-1" in said
    assert leaders(view) == [1, 2]
    view.cluster.restart(2)
    view.wait_isr("t", 2)
    said = tool(_ELECT, *server, "--election-type", "preferred", "--all-topic-partitions")
    assert "t-1" in said
    assert leaders(view) == [1, 2]
    said = tool(_ELECT, *server, "--election-type", "unclean", "--topic", "t", "--partition", "0")
    assert "Valid replica already elected for partitions t-0" in said


def test_the_tool_for_topics_creates_grows_and_deletes(tool: Tool, view: ClusterView) -> None:
    server = ("--bootstrap-server", view.cluster.bootstrap)
    named = (*server, "--topic", "u")
    created = ("--create", "--replica-assignment", "3:4,4:3", "--config", "segment.ms=60000")
    said = tool(TOPIC_COMMAND, *named, *created)
    assert "Created topic u." in said
    tool(TOPIC_COMMAND, *named, "--alter", "--partitions", "3", "--replica-assignment", "3:4,4:3,1:2")
    described = tool(TOPIC_COMMAND, *named, "--describe")
    assert "PartitionCount: 3\tReplicationFactor: 2\tConfigs: segment.ms=60000" in described
    assert [line.split("\t")[4] for line in described.splitlines() if line.startswith("\t")] == [
        "Replicas: 3,4",
        "Replicas: 4,3",
        "Replicas: 1,2",
    ]
    tool(TOPIC_COMMAND, *named, "--delete")
    assert tool(TOPIC_COMMAND, *server, "--list").split() == ["t"]
    view.cluster.kill(2)
    view.wait_isr("t", 1)
    ill = tool(TOPIC_COMMAND, *server, "--describe", "--under-replicated-partitions")
    assert ill.count("Topic: t\t") == 2


def test_the_tool_for_settings_adds_and_removes_a_listener(tool: Tool, view: ClusterView) -> None:
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
    described = tool(CONFIG_COMMAND, *broker, "--describe")
    assert all(f"  {name}={value} sensitive=false" in described for name, value in names.items())
    assert "t" in tool(TOPIC_COMMAND, "--bootstrap-server", added, "--list").split()
    tool(CONFIG_COMMAND, *broker, "--alter", "--delete-config", ",".join(names))
    wait_for(lambda: not is_open(added), f"broker 2 listens on {added}")


def is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True
