"""Kafka's tools and kafka-python move replicas between the log dirs of a broker and see them there."""

import json
from pathlib import Path
from typing import Any

import pytest

from barnabas.deploy.local import LocalCluster
from tests.support.waiting import wait_for

from ..cluster.tools import UNHARMED, ClusterView, StartCluster
from .conftest import EXTERNAL
from .java import Tool

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(EXTERNAL), reason="needs a cluster with two log dirs for each broker"),
]
RECORDS = [b"value %d" % number for number in range(100)]
_REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


@pytest.fixture
def view(start_cluster: StartCluster) -> ClusterView:
    """Two brokers with two log dirs each; topic t has two partitions with two replicas."""
    view = ClusterView(start_cluster(brokers=2, log_dirs=2, settings=UNHARMED))
    view.create_topic("t", 2, 2)
    view.write("t", RECORDS)
    return view


def second_dirs(cluster: LocalCluster) -> dict[int, str]:
    return {int(broker.id): str(broker.log_dirs[1]) for broker in cluster.brokers}


def plan(view: ClusterView, path: Path, replicas: dict[int, list[int]]) -> Path:
    """Every replica in the second log dir of its broker."""
    dirs = second_dirs(view.cluster)
    partitions = [
        {"topic": "t", "partition": index, "replicas": ids, "log_dirs": [dirs[id] for id in ids]}
        for index, ids in replicas.items()
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return path


def test_the_tool_for_reassignments_moves_replicas_between_log_dirs(
    tool: Tool, view: ClusterView, tmp_path: Path
) -> None:
    server = ("--bootstrap-server", view.cluster.bootstrap)
    replicas = {partition.partition: list(partition.replicas) for partition in view.partitions("t")}
    wish = ("--reassignment-json-file", str(plan(view, tmp_path / "wish.json", replicas)))
    throttle = ("--replica-alter-log-dirs-throttle", "50000000")
    said = tool(_REASSIGN, *server, *wish, *throttle, "--execute")
    assert said.count("Successfully started moving log directory to") == 4
    verified: list[str] = []

    def is_done() -> bool:
        verified.append(tool(_REASSIGN, *server, *wish, "--verify"))
        return verified[-1].count("completed successfully") == 4

    wait_for(is_done, lambda: verified[-1], timeout_s=120)
    assert "Clearing broker-level throttles" in verified[-1]
    assert "No partition reassignments found." in tool(_REASSIGN, *server, "--list")
    listing = tool("org.apache.kafka.tools.LogDirsCommand", *server, "--describe", "--topic-list", "t")
    described = json.loads(listing.splitlines()[-1])
    found = {
        (broker["broker"], log_dir["logDir"]): sorted(each["partition"] for each in log_dir["partitions"])
        for broker in described["brokers"]
        for log_dir in broker["logDirs"]
        if log_dir["partitions"]
    }
    assert found == {place: ["t-0", "t-1"] for place in second_dirs(view.cluster).items()}
    assert sorted(map(bytes, filter(None, view.read("t", 2)))) == sorted(RECORDS)


def test_the_admin_client_of_kafka_python_moves_replicas(view: ClusterView) -> None:
    kafka = pytest.importorskip("kafka")
    dirs = second_dirs(view.cluster)
    admin = kafka.KafkaAdminClient(bootstrap_servers=view.cluster.bootstrap)
    try:
        wish = {("t", index, broker): dirs[broker] for index in (0, 1) for broker in dirs}
        errors = admin.alter_replica_log_dirs(wish | {("missing", 0, 1): dirs[1], ("t", 0, 2): dirs[2]})
        codes = {tuple(replica): error.errno for replica, error in errors.items()}
        assert codes == {**dict.fromkeys(wish, 0), ("missing", 0, 1): 3}
        (refused,) = admin.alter_replica_log_dirs({("t", 0, 1): "/nowhere"}).values()
        assert refused.errno == 57

        def places() -> list[tuple[int, str, bool]]:
            return sorted(
                (broker["broker"], log_dir["log_dir"], partition["is_future_key"])
                for broker in admin.describe_log_dirs()
                for log_dir in broker["log_dirs"]
                for topic in log_dir["topics"]
                for partition in topic["partitions"]
                if topic["name"] == "t"
            )

        expected: list[Any] = [(broker, path, False) for broker, path in dirs.items() for _ in (0, 1)]
        wait_for(lambda: places() == expected, lambda: f"the replicas are in {places()}")
    finally:
        admin.close()
