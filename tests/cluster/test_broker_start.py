"""A broker that must not start names the reason in one line, in bounded time, and harms no other broker."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from barnabas.common.properties import to_properties
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.ports import ReservedPort

from .tools import ClusterView

DEADLINE_S = 60.0


def refusal(directory: Path, settings: Mapping[str, str], **overrides: str) -> str:
    """The output of a broker that ends by itself with an error; the test fails if it keeps running."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "server.properties"
    named = {name.replace("_", "."): value for name, value in overrides.items()}
    path.write_text(to_properties({**settings, **named}))
    process = subprocess.Popen(
        [sys.executable, "-m", "barnabas.cli.main", "broker", "--config", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "Traceback" not in said
    return said


@pytest.fixture
def settings(tmp_path: Path, shared_cluster: LocalCluster) -> dict[str, str]:
    """Valid settings of a fourth broker."""
    return {
        "broker.id": "4",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        "zookeeper.connect": shared_cluster.zookeeper_connect,
        "zookeeper.session.timeout.ms": "10000",
    }


def test_without_zookeeper_it_names_the_address_and_ends(tmp_path: Path, settings: dict[str, str]) -> None:
    port = ReservedPort.pick()
    try:
        said = refusal(
            tmp_path,
            settings,
            zookeeper_connect=f"127.0.0.1:{port.port}/test",
            zookeeper_connection_timeout_ms="800",
        )
    finally:
        port.close()
    assert f"no ZooKeeper answers at 127.0.0.1:{port.port}/test within 800 ms" in said


def test_a_broker_id_that_is_taken_is_refused_and_its_owner_stays(
    tmp_path: Path, settings: dict[str, str], shared_cluster: LocalCluster
) -> None:
    said = refusal(tmp_path, settings, broker_id="2")
    assert "broker id 2" in said
    assert ClusterView(shared_cluster).live_brokers() == {1, 2, 3}


def test_a_log_dir_that_another_process_has_locked_is_refused_by_name(
    tmp_path: Path, settings: dict[str, str], shared_cluster: LocalCluster
) -> None:
    taken = str(shared_cluster.broker(1).log_dirs[0])
    said = refusal(tmp_path, settings, log_dirs=taken)
    assert taken in said
    assert "in use by another process" in said


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("broker.id=7\n", "broker.id"),
        ("broker.id=4\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n", "cluster.id"),
        ("rubbish", "meta.properties"),
    ],
    ids=["another broker's", "another cluster's", "unreadable"],
)
def test_a_foreign_meta_properties_is_refused_and_left_as_it_is(
    tmp_path: Path, settings: dict[str, str], line: str, expected: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "meta.properties"
    content = line if line == "rubbish" else f"version=0\n{line}"
    path.write_text(content)
    said = refusal(tmp_path, settings)
    assert str(path) in said
    assert expected in said
    assert path.read_text() == content


def test_a_port_that_is_taken_is_refused_by_name(
    tmp_path: Path, settings: dict[str, str], shared_cluster: LocalCluster
) -> None:
    taken = shared_cluster.broker(1).endpoint
    said = refusal(tmp_path, settings, listeners=f"PLAINTEXT://{taken}")
    assert str(taken) in said


def test_a_log_dir_that_is_a_file_is_refused_by_name(tmp_path: Path, settings: dict[str, str]) -> None:
    (tmp_path / "data").write_text("in the way")
    said = refusal(tmp_path, settings)
    assert str(tmp_path / "data") in said
