"""The proxies of links are a process of their own, which any other one tells what to do."""

import errno
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from barnabas.deploy.links import CLIENT, HOST, LinkServer, Rule, RuleKind
from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.process import DeployError
from barnabas.deploy.wall import address_of
from barnabas.protocol.ids import Endpoint
from tests.support.waiting import wait_for

TIMEOUT_S = 30.0
_CHUNK = bytes(1 << 20)
_MORE_THAN_IS_HELD_BYTES = 200 << 20
"""By the proxy and the buffers of both connections."""


class Link:
    """A connection of broker 1 to broker 2 through the proxy of the latter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listening = socket.create_server((HOST, 0))
        self.target = Endpoint(*self.listening.getsockname())
        reserved = {name: ReservedPort.pick(HOST) for name in ("1", "2")}
        ports = {name: port.port for name, port in reserved.items()}
        # Nothing connects to broker 1.
        targets = {"1": Endpoint(HOST, 1), "2": self.target}
        self.server = LinkServer(folder, ports, targets, reserved=reserved.values())
        self.server.launch()
        self.server.wait_ready(TIMEOUT_S)
        self.links = self.server.links
        self.proxy = Endpoint(HOST, ports["2"])
        self.source = self.connect(1)
        self.end, _ = self.listening.accept()
        self.end.settimeout(TIMEOUT_S)

    def connect(self, broker: int | None = None) -> socket.socket:
        own = None if broker is None else (address_of(broker), 0)
        return socket.create_connection(self.proxy, TIMEOUT_S, own)

    def is_refused(self) -> bool:
        try:
            self.connect().close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            # The proxy's port was being closed.
            return False
        return False

    def close(self) -> None:
        for connection in (self.source, self.end, self.listening):
            connection.close()
        if self.server.is_alive:
            self.server.kill()
        self.server.release_ports()


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    # A longer path than a unix socket may have.
    with closing(Link(tmp_path / ("links-of-a-cluster-" * 8))) as link:
        yield link


def test_a_delayed_link_delivers_later_and_in_order(link: Link) -> None:
    link.links.delay(1, 2, 100, 100)
    began_s = time.monotonic()
    sent = b"".join(b"%02d" % number for number in range(50))
    for at in range(0, len(sent), 2):
        link.source.sendall(sent[at : at + 2])
    received = link.end.recv(1)
    assert time.monotonic() - began_s >= 0.1
    while len(received) < len(sent):
        received += link.end.recv(len(sent))
    assert received == sent
    # The other direction is another link.
    link.links.delay(1, 2, 2 * TIMEOUT_S * 1000)
    link.end.sendall(b"back")
    assert link.source.recv(4) == b"back"


def test_a_cut_link_holds_bytes_and_the_end_until_it_is_mended(link: Link) -> None:
    link.links.cut(1, 2)
    assert link.links.rules() == [Rule(kind=RuleKind.CUT, source="1", target="2")]
    with link.connect(1):
        # It is open, and silent.
        link.source.sendall(b"held")
        link.source.shutdown(socket.SHUT_WR)
        link.end.sendall(b"back")
        assert link.source.recv(4) == b"back"
        link.end.settimeout(0.05)
        with pytest.raises(TimeoutError):
            link.end.recv(1)
        link.end.settimeout(TIMEOUT_S)
        link.links.mend_pair(2, 1)
        received = b""
        while part := link.end.recv(100):
            received += part
        assert received == b"held"
        # The half that is open still carries bytes.
        link.end.sendall(b"more")
        assert link.source.recv(4) == b"more"
        link.listening.settimeout(TIMEOUT_S)
        link.listening.accept()[0].close()


def test_a_rule_that_takes_the_place_of_an_equal_one_lets_no_byte_pass(link: Link) -> None:
    cut = Rule(kind=RuleKind.CUT, source="1", target="2")
    link.links.change(added=[cut])
    link.links.delay(2, 1, 1.0)
    link.source.sendall(b"held")
    link.links.change(removed=[cut], added=[cut])
    link.end.settimeout(0.05)
    with pytest.raises(TimeoutError):
        link.end.recv(4)
    link.end.settimeout(TIMEOUT_S)
    link.links.change(removed=[cut])
    assert link.end.recv(4) == b"held"
    # Another kind of rule and the other direction stay.
    assert [rule.kind for rule in link.links.rules()] == [RuleKind.DELAY]


def test_a_proxy_that_may_not_send_reads_no_more_than_it_holds(link: Link) -> None:
    link.links.cut(1, 2)
    link.source.settimeout(0.3)
    sent = 0
    with suppress(TimeoutError):
        while sent < _MORE_THAN_IS_HELD_BYTES:
            sent += link.source.send(_CHUNK)
    assert sent < _MORE_THAN_IS_HELD_BYTES
    link.source.settimeout(TIMEOUT_S)
    link.links.mend()
    received = 0
    while received < sent:
        received += len(link.end.recv(1 << 20))


def test_a_rejected_source_is_reset_and_walled_off_alone(link: Link) -> None:
    link.links.reject(1, 2, errno.EHOSTUNREACH)
    with pytest.raises(ConnectionResetError):
        link.source.recv(1)
    with pytest.raises(ConnectionResetError):
        link.end.recv(1)
    words = "import pathlib, socket, sys; from barnabas.deploy.wall import build_wall; "
    words += "build_wall(1, pathlib.Path(sys.argv[1])); "
    words += "socket.create_connection(('127.0.0.1', int(sys.argv[2]))).recv(1)"
    command = [sys.executable, "-c", words, str(link.folder), str(link.proxy.port)]
    walled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "No route to host" in walled.stderr
    link.connect().close()
    link.links.mend()
    assert (link.folder / "wall-1").read_text() == ""
    # Its own address is one that the proxy knows.
    link.links.reject(CLIENT, 2)
    link.listening.settimeout(TIMEOUT_S)
    link.listening.accept()[0].close()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as source:
        end, peer = link.listening.accept()
        end.close()
        assert peer[0] == HOST
        assert source.wait(TIMEOUT_S) == 0


def test_the_proxy_of_an_ended_target_refuses_until_it_listens_again(link: Link) -> None:
    assert not link.is_refused()
    link.listening.close()
    wait_for(link.is_refused, "the proxy accepts connections to a port that refuses")
    link.listening = socket.create_server(link.target)
    wait_for(lambda: not link.is_refused(), "the proxy does not see that its target listens again")
    link.links.refuse(2)
    assert link.is_refused()
    link.links.mend()
    wait_for(lambda: not link.is_refused(), "the port still refuses")


def test_rules_end_with_the_process_and_their_names_are_checked(link: Link) -> None:
    with pytest.raises(DeployError, match="'7' is no end of a link; expected 1, 2, client"):
        link.links.cut(1, 7)
    with pytest.raises(DeployError, match="delay_ms"):
        link.links.delay(1, 2, -1)
    with pytest.raises(DeployError, match="'client' has no port; expected 1, 2"):
        link.links.refuse(CLIENT)
    link.links.sever(1, 2)
    link.links.reject(1, 2)
    link.server.running_process.send(signal.SIGKILL)
    wait_for(lambda: not link.server.is_alive, "the process is still there")
    with pytest.raises(DeployError, match="do not answer"):
        link.links.rules()
    link.server.launch()
    link.server.wait_ready(TIMEOUT_S)
    assert link.links.rules() == []
    assert not (link.folder / "wall-1").exists()
