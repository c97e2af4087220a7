"""The finalised features of a real cluster: changed by commands, known to every broker."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.cli import exit_codes
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from barnabas.protocol.messages.features import TRANSACTION_VERSION as NAME
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from .test_broker_start import refusal
from .tools import ClusterView, ZooKeeperClient, call_command, running
from .transaction_level import set_level, wait_for_level

PATH = "/feature"


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """At level 0."""
    with ClusterView(shared_cluster).zookeeper() as zookeeper:
        before, _ = zookeeper.get(PATH)
        level = set_level(shared_cluster, 0)
        yield shared_cluster
        # A test may leave a node that no broker accepts.
        zookeeper.set(PATH, before)
        # The next test asks a broker for the level, which must not be that of this test.
        wait_for_level(shared_cluster, level)


def features(cluster: LocalCluster, *words: str) -> str:
    done = call_command("features", *words, "--json", BARNABAS_BOOTSTRAP=cluster.bootstrap)
    assert done.returncode == exit_codes.OK, done.stderr
    return done.stdout


def test_a_new_cluster_has_the_highest_level(shared_cluster: LocalCluster) -> None:
    wait_for_level(shared_cluster, 2)
    [described] = json.loads(features(shared_cluster, "describe"))["features"]
    assert described == {"feature": NAME, "supported_from": 0, "supported_to": 2, "finalized": 2}


def test_a_cluster_of_an_older_version_keeps_level_0_until_it_is_upgraded(
    tmp_path: Path, zookeeper: ZooKeeper | ExistingZooKeeper
) -> None:
    """A version without features has made its znodes, and has no topic yet."""
    chroot = fresh_name("/older")
    with ZooKeeperClient(zookeeper.connect) as client:
        client.create(f"{chroot}/cluster/id", b'{"version":"1","id":"wyRe5D2JQPy7cU1cN0kLnA"}', makepath=True)
    cluster = LocalCluster(tmp_path / "cluster", brokers=1, zookeeper=f"{zookeeper.connect}{chroot}")
    with running(cluster):
        wait_for_level(cluster, 0)
        features(cluster, "upgrade", f"{NAME}=2")
        wait_for_level(cluster, 2)


def test_a_level_is_raised_and_lowered_on_every_broker(cluster: LocalCluster) -> None:
    described = json.loads(features(cluster, "describe"))
    assert described["features"] == [
        {"feature": NAME, "supported_from": 0, "supported_to": 2, "finalized": 0}
    ]
    features(cluster, "upgrade", f"{NAME}=2", "--validate-only")
    assert json.loads(features(cluster, "describe")) == described
    features(cluster, "upgrade", f"{NAME}=2")
    wait_for_level(cluster, 2)
    with ClusterView(cluster).zookeeper() as zookeeper:
        stored = json.loads(zookeeper.get(PATH)[0])
    assert stored == {"version": 2, "status": 1, "features": {NAME: {"max_version_level": 2}}}
    features(cluster, "downgrade", f"{NAME}=0")
    wait_for_level(cluster, 0)
    assert json.loads(features(cluster, "describe"))["epoch"] == described["epoch"] + 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["upgrade", f"{NAME}=3"], exit_codes.FAILED, "this broker supports 0 to 2"),
        (["upgrade", "transaction.versoin=1"], exit_codes.NOT_FOUND, f"did you mean {NAME}"),
        (["upgrade", f"{NAME}=x"], exit_codes.USAGE, "expected a level from 0"),
        (["downgrade", f"{NAME}=1"], exit_codes.FAILED, "a downgrade to a higher one was requested"),
    ],
)
def test_an_impossible_change_says_why(cluster: LocalCluster, words: list[str], code: int, said: str) -> None:
    done = call_command("features", *words, BARNABAS_BOOTSTRAP=cluster.bootstrap)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_an_older_broker_keeps_the_level_low(cluster: LocalCluster) -> None:
    """Until a broker runs the new version, its registration names no features."""
    with ClusterView(cluster).zookeeper() as zookeeper:
        registration = zookeeper.get("/brokers/ids/1")[0]
        named = json.loads(registration) | {"features": {}}
        zookeeper.create("/brokers/ids/9", json.dumps(named).encode(), ephemeral=True)
        done = call_command("features", "upgrade", f"{NAME}=2", BARNABAS_BOOTSTRAP=cluster.bootstrap)
        zookeeper.delete("/brokers/ids/9")
    assert (done.returncode, "broker 9 supports 0 to 0" in done.stderr) == (exit_codes.FAILED, True)
    features(cluster, "upgrade", f"{NAME}=2")


def test_a_broker_does_not_start_below_the_level_of_its_cluster(
    tmp_path: Path, cluster: LocalCluster
) -> None:
    features(cluster, "upgrade", f"{NAME}=2")
    wait_for_level(cluster, 2)
    with ClusterView(cluster).zookeeper() as zookeeper:
        zookeeper.set(
            PATH,
            json.dumps({"version": 2, "status": 1, "features": {NAME: {"max_version_level": 3}}}).encode(),
        )
        said = refusal(
            tmp_path,
            {
                "broker.id": "4",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(tmp_path / "data"),
                "zookeeper.connect": cluster.zookeeper_connect,
            },
        )
        assert f"uses the feature {NAME} at level 3; this broker supports levels 0 to 2" in said
        # The brokers that run already keep the former level, and garbage does not end them either.
        zookeeper.set(PATH, b"garbage")
        log = cluster.broker(1).log_file
        wait_for(
            lambda: "/feature holds b'garbage'" in log.read_text(), "broker 1 did not report the garbage"
        )
    wait_for_level(cluster, 2)
