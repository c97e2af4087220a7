"""The bundled ZooKeeper: up, down, killed, paused, refused, and ended with its starter."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from barnabas.deploy.process import DeployError, ProcessId
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper, is_serving
from barnabas.protocol.ids import Endpoint
from tests.support.waiting import wait_for


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeper]:
    server = ZooKeeper(tmp_path / "zookeeper")
    server.start()
    yield server
    if server.is_alive:
        server.kill()


def serves(endpoint: Endpoint) -> None:
    """A server that runs may still be slow to say so."""
    wait_for(lambda: is_serving(endpoint), f"no ZooKeeper answers at {endpoint}")


def _write_and_read(connect: str, path: str, value: bytes | None) -> bytes:
    client = KazooClient(connect, timeout=30.0)
    client.start(timeout=30)
    try:
        if value is not None:
            client.create(path, value)
        found: bytes = client.get(path)[0]
        return found
    finally:
        client.stop()
        client.close()


def test_a_started_server_takes_requests_at_once(server: ZooKeeper) -> None:
    assert _write_and_read(server.connect, "/hello", b"world") == b"world"


def test_data_and_port_survive_kill_and_restart(server: ZooKeeper) -> None:
    _write_and_read(server.connect, "/kept", b"value")
    connect = server.connect
    server.kill()
    assert not is_serving(server.endpoint)

    server.restart()

    assert server.connect == connect
    assert _write_and_read(connect, "/kept", None) == b"value"


def test_a_paused_server_is_silent_until_resumed(server: ZooKeeper) -> None:
    server.pause()
    assert not is_serving(server.endpoint)

    server.resume()

    serves(server.endpoint)


def test_stop_ends_a_paused_server_too(server: ZooKeeper) -> None:
    server.pause()
    server.stop()
    assert not server.is_alive


def test_a_given_port_that_is_taken_is_refused_by_name(server: ZooKeeper, tmp_path: Path) -> None:
    second = ZooKeeper(tmp_path / "second", port=server.endpoint.port)
    with pytest.raises(DeployError, match=rf"{server.connect}: the port is in use"):
        second.start()
    serves(server.endpoint)


def test_the_error_of_a_server_that_ends_at_start_has_its_last_words(tmp_path: Path) -> None:
    server = ZooKeeper(tmp_path / "zookeeper")
    (tmp_path / "zookeeper" / "data").mkdir(parents=True)
    (tmp_path / "zookeeper" / "data" / "version-2").write_text("in the way")
    with pytest.raises(DeployError, match="Not a directory"):
        server.start()
    assert not server.is_alive


def test_its_own_log_can_be_turned_on(tmp_path: Path) -> None:
    server = ZooKeeper(tmp_path / "zookeeper", log_level="info")
    server.start()
    server.stop()
    assert "binding to port" in server.log_file.read_text()


def test_an_existing_server_is_waited_for_and_not_touched(server: ZooKeeper) -> None:
    existing = ExistingZooKeeper(f"{server.connect}/some/chroot")
    existing.wait_ready(20)
    server.kill()
    with pytest.raises(DeployError, match=rf"no ZooKeeper answers `srvr` at {server.connect}/some/chroot"):
        existing.wait_ready(0.2)


_OWNER = """
import os, pathlib, sys, threading
from barnabas.deploy.zookeeper import ZooKeeper
server = ZooKeeper(pathlib.Path(sys.argv[1]))
# Started from a thread that ends at once: the server must not end with it.
starter = threading.Thread(target=server.start)
starter.start()
starter.join()
print(server.running_process.pid, server.connect, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, None], ids=["SIGKILL", "SIGTERM", "exit"])
def test_no_server_outlives_the_program_that_started_it(
    tmp_path: Path, ending: signal.Signals | None
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        pid, connect = owner.stdout.readline().split()
        child = ProcessId.of(int(pid))
        assert child is not None
        serves(Endpoint.parse(connect))
        if ending is not None:
            owner.send_signal(ending)
    finally:
        owner.communicate(timeout=20)
    wait_for(lambda: child.state == "gone")
