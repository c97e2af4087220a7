"""The table of faults, on processes and proxies without a cluster behind them."""

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.deploy import faults
from barnabas.deploy.faults import DELAY_MS, FAULTS, Aim, TargetKind, has_full_disk, inject
from barnabas.deploy.links import CLIENT
from barnabas.deploy.private_files import exclusively
from barnabas.deploy.process import DeployError, ProcessId
from barnabas.deploy.running_cluster import STOP_TIMEOUT_S, RunningCluster
from barnabas.deploy.state import write_record
from tests.support.idle_cluster import idle_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with idle_cluster(tmp_path) as cluster:
        yield cluster


def test_every_ending_is_an_entry_of_the_table_for_the_same_kind_of_target() -> None:
    for fault in FAULTS.values():
        if fault.ended_by is not None:
            assert FAULTS[fault.ended_by].kind is fault.kind


def test_a_server_is_paused_resumed_and_killed_once(cluster: RunningCluster) -> None:
    one = Aim(target="1")
    assert inject(cluster, "pause", one) == "broker 1 was paused"
    assert cluster.broker(1).state == "paused"
    assert inject(cluster, "resume", one) == "broker 1 continues"
    assert cluster.broker(1).state == "running"
    inject(cluster, "pause", one)
    assert inject(cluster, "kill", one) == "broker 1 was killed"
    with pytest.raises(DeployError, match="broker 1 is not running"):
        inject(cluster, "kill", one)
    with pytest.raises(DeployError, match="broker 2 is not running"):
        inject(cluster, "fill-disk", Aim(target="2"))


def test_a_full_disk_is_that_of_the_process_alone(cluster: RunningCluster, tmp_path: Path) -> None:
    assert not has_full_disk(cluster, 1)
    assert inject(cluster, "fill-disk", Aim(target="1")) == "the disk of broker 1 is full"
    assert has_full_disk(cluster, 1)
    assert not has_full_disk(cluster, 2)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("name", "aim", "said"),
    [
        ("explode", Aim(target="1"), "there is no fault 'explode'; there are kill, stop, "),
        ("kill", Aim(target="7"), "target '7': expected 1, 2, zookeeper, links"),
        ("drain", Aim(target="zookeeper"), "target 'zookeeper': expected 1, 2$"),
        ("cut", Aim(target="1", other="1"), "other '1': expected 2, zookeeper, client"),
        (
            "cut",
            Aim(target="1", other="2"),
            "the process of the links is down: `barnabas restart links",
        ),
    ],
)
def test_a_fault_that_cannot_be_is_refused(cluster: RunningCluster, name: str, aim: Aim, said: str) -> None:
    with pytest.raises(DeployError, match=said):
        inject(cluster, name, aim)


def test_links_are_broken_and_mended_and_without_proxies_the_remedy_is_said(cluster: RunningCluster) -> None:
    cluster.link_server.launch()
    cluster.link_server.wait_ready(30.0)
    assert inject(cluster, "cut", Aim(target="1", other="2")) == "nothing gets from broker 1 to broker 2"
    assert inject(cluster, "slow", Aim(target=CLIENT, other="1")) == (
        f"bytes from the clients to broker 1 take {DELAY_MS:g} ms longer"
    )
    inject(cluster, "sever", Aim(target="2", other="zookeeper"))
    assert len(cluster.links.rules()) == 4
    inject(cluster, "mend", Aim(target="2", other="1"))
    assert [rule.source for rule in cluster.links.rules()] == [CLIENT, "2", "zookeeper"]
    assert inject(cluster, "mend-all", Aim()) == "all links work again"
    assert cluster.links.rules() == []
    cluster.record.links = None
    write_record(cluster.record)
    bare = RunningCluster.open(cluster.directory)
    for fault in FAULTS.values():
        if fault.kind in (TargetKind.PAIR, TargetKind.ALL_LINKS):
            with pytest.raises(DeployError, match="start it with them: `barnabas up --links --dir"):
                inject(bare, fault.name, Aim(target="1", other="2"))


def test_without_proxies_that_run_all_links_are_broken_and_the_remedy_is_said(
    cluster: RunningCluster,
) -> None:
    assert cluster.has_broken_links()
    cluster.link_server.launch()
    cluster.link_server.wait_ready(30.0)
    assert not cluster.has_broken_links()
    assert cluster.stop_timeout_s == STOP_TIMEOUT_S
    inject(cluster, "cut", Aim(target="1", other="2"))
    assert cluster.has_broken_links()
    assert cluster.stop_timeout_s < STOP_TIMEOUT_S, "a broker without its controller does not stop by itself"
    inject(cluster, "mend-all", Aim())
    inject(cluster, "pause", Aim(target="links"))
    assert cluster.has_broken_links()
    with pytest.raises(DeployError, match="the process of the links is paused: `barnabas resume links --dir"):
        inject(cluster, "mend-all", Aim())


@pytest.mark.parametrize(
    ("name", "broker", "said"),
    [
        ("restart", "1", "broker 1 was started again, and serves; whether it reaches the others was not"),
        ("give-room", "1", "was started again, and serves; "),
        ("restart", "2", "broker 2 was started again, and has ended: see `barnabas logs 2`"),
    ],
)
def test_while_links_are_broken_a_restart_says_how_the_broker_came_up(
    cluster: RunningCluster, name: str, broker: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunningCluster, "restart_server", lambda *_: None)
    monkeypatch.setattr(faults, "_SERVE_TIMEOUT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster.record.brokers[0].port = server.getsockname()[1]
        write_record(cluster.record)
        assert said in inject(RunningCluster.open(cluster.directory), name, Aim(target=broker))
    if broker == "1":
        assert "0 s later it does not serve" in inject(cluster, name, Aim(target=broker))
        cluster.record.links = None
        write_record(cluster.record)
        assert inject(cluster, name, Aim(target=broker)).endswith("was started again")


def test_only_the_owner_that_takes_requests_restarts_its_servers(cluster: RunningCluster) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        cluster.record.owner = ProcessId.of(owner.pid)
        with pytest.raises(DeployError, match=f"belongs to the program with pid {owner.pid}, and only that"):
            inject(cluster, "restart", Aim(target="1"))
        owner.communicate(b"\n")
    assert cluster.broker(1).state == "running"


def test_a_restart_keeps_what_another_program_has_started_meanwhile(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunningCluster, "restart_server", lambda self, name: self.write_record())
    other = RunningCluster.open(cluster.directory)
    other.broker(2).process = other.broker(1).process
    other.write_record()
    faults.restart_server(cluster, "1")
    assert RunningCluster.open(cluster.directory).broker(2).is_alive

    monkeypatch.setattr(faults, "_RESTART_TIMEOUT_S", 0.01)
    with exclusively(cluster.directory), pytest.raises(DeployError, match="another program changes files"):
        faults.restart_server(cluster, "1")
    cluster.kill_all()
    with pytest.raises(DeployError, match="has been stopped"):
        faults.restart_server(cluster, "1")
