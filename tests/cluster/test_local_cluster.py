"""A local cluster of real brokers: writable when started, whole after restarts, gone when stopped."""

import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.deploy.health import main as health
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import DeployError
from barnabas.deploy.running_cluster import RunningCluster
from tests.support.waiting import wait_for

from .tools import ClusterView

MAX_IDLE_THREADS = 20


def test_a_stopped_cluster_starts_again_with_its_ports_and_data(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as first:
        bootstrap = first.bootstrap
        view = ClusterView(first)
        view.create_topic("t", 1, 3)
        view.write("t", [b"kept"])
    assert not first.is_running
    with LocalCluster(tmp_path) as second:
        assert second.bootstrap == bootstrap
        assert ClusterView(second).read("t", 1) == [b"kept"]


def test_a_health_check_fails_for_a_dead_broker_alone(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = str(cluster.broker(1).endpoint)
    # A container engine repeats its checks too: one check on a busy machine proves nothing.
    wait_for(lambda: health(["broker", endpoint]) == 0)
    wait_for(lambda: health(["zookeeper", cluster.zookeeper_connect.partition("/")[0]]) == 0)
    capsys.readouterr()
    cluster.kill(1)
    assert health(["broker", endpoint]) == 1
    assert health(["zookeeper", endpoint]) == 1
    assert endpoint in capsys.readouterr().err


def test_an_idle_broker_has_few_threads(shared_cluster: LocalCluster) -> None:
    """Threads exist while there is work for them; 20 are enough for what waits."""

    def most_threads() -> int:
        processes = [shared_cluster.broker(broker).running_process for broker in (1, 2, 3)]
        return max(len(list(Path(f"/proc/{process.pid}/task").iterdir())) for process in processes if process)

    wait_for(lambda: most_threads() <= MAX_IDLE_THREADS, "the end of idle threads")


def test_a_setting_that_a_broker_refuses_fails_the_start_by_name(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, settings={"num.io.thread": "3"})
    try:
        with pytest.raises(DeployError, match=r"num\.io\.thread=.*did you mean num\.io\.threads"):
            cluster.start()
        assert not cluster.is_running
    finally:
        cluster.close()


_STARTER = """
import sys
from barnabas.deploy.local import LocalCluster
LocalCluster(sys.argv[1], detach=True).start()
"""


def test_a_detached_cluster_is_restarted_and_stopped_by_another_program(tmp_path: Path) -> None:
    # On ports of its own: `barnabas up` of another test may take 9092 while the broker is down.
    subprocess.run([sys.executable, "-c", _STARTER, str(tmp_path)], check=True, timeout=90)
    cluster = RunningCluster.open(tmp_path)
    try:
        assert cluster.record.owner is None
        assert [broker.state for broker in cluster.brokers] == ["running"] * 3
        cluster.restart(1)
        assert RunningCluster.open(tmp_path).broker(1).state == "running"
    finally:
        cluster.stop()
    assert not RunningCluster.open(tmp_path).is_running
