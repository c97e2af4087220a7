"""Clusters as on macOS: their processes run without what only Linux has (`macos/sitecustomize.py`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from barnabas.deploy.process import ProcessId
from barnabas.deploy.state import read_record
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper, find_java
from tests.support.names import fresh_name
from tests.support.waiting import DEADLINE_S, wait_for

ROOT = Path(__file__).parents[2]
MACOS = Path(__file__).parent / "macos"

SUITE = """
import os, signal, sys
import pytest
from barnabas.deploy.process import DeployError


def test_faults(barnabas_cluster, barnabas_topic):
    assert sys.platform == "darwin" and not os.path.exists("/proc/self")
    leader = barnabas_cluster.leader_of(barnabas_topic)
    other = next(id for id in barnabas_cluster.broker_ids if id != leader)
    with barnabas_cluster.producer() as producer:
        producer.send(barnabas_topic, b"before", partition=0).result()
        with barnabas_cluster.killed(leader):
            producer.send(barnabas_topic, b"during", partition=0).result()
        with barnabas_cluster.slow("client", other, delay_ms=1), barnabas_cluster.paused(leader):
            assert barnabas_cluster._local.broker(leader).state == "paused"
        with pytest.raises(DeployError, match="only Linux can limit"), barnabas_cluster.disk_full(leader):
            pass
    with barnabas_cluster.consumer() as consumer:
        consumer.subscribe([barnabas_topic])
        assert [next(consumer).value for _ in range(2)] == [b"before", b"during"]
    print("passed, and in", barnabas_cluster._local.directory, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""

COMMANDS = """
import sys
from barnabas.cli.main import main

for command in (
    ["up", "--detach", "--brokers", "1"],
    ["pause", "1"],
    ["resume", "1"],
    ["restart", "1"],
    ["status"],
    ["down"],
):
    print(*command, flush=True)
    if main([command[0], "--dir", sys.argv[1], *command[1:]]) != 0:
        sys.exit(f"{command} failed")
"""


def python(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    # The `java` on the path of a Mac may be one that only says that there is none.
    home = Path(find_java()).resolve().parents[1]
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "BARNABAS_"))
    }
    paths = os.pathsep.join(map(str, (MACOS, ROOT / "src")))
    return subprocess.run(
        [sys.executable, *arguments],
        env=kept | {"PYTHONPATH": paths, "JAVA_HOME": str(home)} | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * DEADLINE_S,
    )


def end_all(directory: Path) -> list[int]:
    """The processes of a cluster that still run, by pid: their starts are recorded as `ps` says them."""
    record = read_record(directory)
    recorded = [] if record is None else record.processes()
    left = [process.pid for process in recorded if ProcessId.of(process.pid) is not None]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def test_a_suite_runs_with_the_plugin_and_leaves_no_process_when_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    ran = python("-m", "pytest", "-s", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path))
    assert ran.returncode == -signal.SIGKILL, ran.stdout + ran.stderr
    _, _, folder = ran.stdout.partition("passed, and in ")
    record = read_record(Path(folder.strip()))
    assert record is not None
    pids = [process.pid for process in record.processes()]
    # ZooKeeper, the proxies of the links, and the brokers.
    assert len(pids) == 5
    wait_for(lambda: not any(map(ProcessId.of, pids)), "processes outlive the program that owns them")


def test_a_detached_cluster_is_controlled_by_commands(
    tmp_path: Path, zookeeper: ZooKeeper | ExistingZooKeeper
) -> None:
    connect = fresh_name(f"{zookeeper.connect}/macos")
    try:
        ran = python("-c", COMMANDS, str(tmp_path), BARNABAS_ZOOKEEPER=connect)
    finally:
        left = end_all(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not left
    log = (tmp_path / "broker-1" / "logs" / "server.log").read_text()
    assert "open files: at most 10240, raised from 256" in log
