"""Limits on connections: in all, per address, and for brokers."""

import errno
import resource
import socket
import time

import pytest

from barnabas.broker.config.load import config_from
from barnabas.broker.network import acceptor as acceptor_module
from barnabas.broker.network.acceptor import Acceptor, ConnectionQuota, connections_within, most_connections
from barnabas.broker.network.server import protected_listener
from barnabas.broker.security.connection_rates import UNLIMITED, ConnectionRates
from barnabas.broker.security.rates import Windows
from barnabas.zookeeper.configs import Entity
from barnabas.zookeeper.znodes import StoredConfig
from tests.support.defaults import REQUIRED
from tests.support.waiting import DEADLINE_S, wait_for


def test_connections_of_brokers_count_and_are_not_refused() -> None:
    quota = ConnectionQuota(2, 3)
    assert quota.enter("a") == quota.enter("b") == ""
    assert "max.connections=2" in quota.enter("c")
    assert quota.enter("c", is_protected=True) == ""
    assert quota.total == 3
    quota.leave("a")
    assert "max.connections=2" in quota.enter("a")
    quota.leave("b")
    assert quota.enter("a") == ""


def test_the_limit_per_address_holds_for_brokers_too_and_for_open_connections_alone() -> None:
    quota = ConnectionQuota(9, 2)
    assert quota.enter("a") == quota.enter("a") == ""
    assert "max.connections.per.ip=2" in quota.enter("a", is_protected=True)
    quota.leave("a")
    assert quota.enter("a") == ""
    assert "max.connections.per.ip=2 are open from a" in quota.enter("a")
    quota.leave("a")
    quota.leave("a")
    assert (quota.total, len(quota._by_host)) == (0, 0), "addresses would fill the memory"


def test_the_limit_of_a_listener_holds_for_brokers_too() -> None:
    quota = ConnectionQuota(9, 9)
    quota.set_limits(9, 9, of_listeners={"INNER": 1})
    assert quota.enter("a", "INNER", is_protected=True) == quota.enter("a", "OUTER") == ""
    refusal = quota.enter("b", "INNER", is_protected=True)
    assert refusal == "listener.name.inner.max.connections=1 are open"
    quota.leave("a", "INNER")
    assert quota.enter("b", "INNER", is_protected=True) == ""


def test_the_limit_of_one_address_replaces_that_of_all(caplog: pytest.LogCaptureFixture) -> None:
    quota = ConnectionQuota(9, 1)
    quota.set_limits(9, 1, of_hosts={"localhost": 2, "10.0.0.1": 0, "no..such.host": 5})
    assert "no..such.host is unknown" in caplog.text
    assert quota.enter("127.0.0.1") == quota.enter("127.0.0.1") == ""
    assert quota.enter("127.0.0.1") == "max.connections.per.ip.overrides=127.0.0.1:2 are open"
    assert "10.0.0.1:0 are open" in quota.enter("10.0.0.1")
    assert quota.enter("10.0.0.2") == ""
    assert "max.connections.per.ip=1 are open from 10.0.0.2" in quota.enter("10.0.0.2")


def test_the_limit_of_a_name_outlasts_a_failure_to_look_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    quota = ConnectionQuota(9, 9)
    quota.set_limits(9, 9, of_hosts={"localhost": 0})
    monkeypatch.delattr("socket.getaddrinfo")
    quota.set_limits(8, 9, of_hosts={"localhost": 0})
    assert "max.connections.per.ip.overrides=127.0.0.1:0" in quota.enter("127.0.0.1")


def test_changed_limits_hold_for_new_connections() -> None:
    quota = ConnectionQuota(1, 9)
    assert quota.enter("a") == ""
    assert "max.connections=1" in quota.enter("a")
    quota.set_limits(9, 2)
    assert quota.enter("a") == ""
    assert "max.connections.per.ip=2" in quota.enter("a")
    quota.set_limits(1, 9)
    assert "max.connections=1" in quota.enter("b")
    assert quota.total == 2


def test_connections_leave_descriptors_for_the_logs() -> None:
    quota = ConnectionQuota(9, 9, 2)
    assert quota.enter("a") == quota.enter("b") == ""
    assert "ulimit -n" in quota.enter("c")
    # Regardless of the settings; but the brokers are accepted.
    quota.set_limits(99, 99)
    assert "ulimit -n" in quota.enter("c")
    assert quota.enter("c", is_protected=True) == ""


def test_connections_get_most_open_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [connections_within(limit) for limit in (100, 256, 1024, 20_000)] == [1, 128, 896, 17_500]
    found = []
    for limit in (1024, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, soft=limit: (soft, soft))
        found.append(most_connections())
    assert found == [896, acceptor_module._UNLIMITED]


def test_a_single_listener_is_not_protected() -> None:
    alone = config_from(REQUIRED | {"listeners": "PLAINTEXT://localhost:0"})
    assert protected_listener(alone, 1) is None
    beside = config_from(
        REQUIRED
        | {
            "listeners": "PLAINTEXT://localhost:0,IN://localhost:0",
            "listener.security.protocol.map": "IN:PLAINTEXT",
            "inter.broker.listener.name": "IN",
        }
    )
    assert protected_listener(beside, 2) == "IN"


class Listening(socket.socket):
    """A listening socket whose first calls of accept() fail."""

    def __init__(self, *errors: OSError) -> None:
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.errors = list(errors)
        self.calls = 0

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        self.calls += 1
        if self.errors:
            raise self.errors.pop()
        return super().accept()


class Accepting:
    """An acceptor that greets connections, unless ``refusals`` are left. Those of brokers are protected."""

    def __init__(self, quota: ConnectionQuota, *refusals: OSError, **listening: Listening) -> None:
        self.listening = listening
        self.refusals = list(refusals)
        self.accepted: list[str] = []
        self.options: set[tuple[int, ...]] = set()
        self.died: list[BaseException] = []
        # Ten per second are one in each window.
        self.rates = ConnectionRates(Windows(2, 100))
        self.acceptor = Acceptor(
            listening.items(),
            quota=quota,
            rates=self.rates,
            protected_listener="BROKERS",
            hand_over=self._hand_over,
            on_fatal=self.died.append,
        )

    def _hand_over(self, sock: socket.socket, host: str, port: int, listener_name: str) -> None:
        if self.refusals:
            raise self.refusals.pop()
        no_delay = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        keep_alive = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        self.options.add((sock.getblocking(), no_delay, keep_alive))
        self.accepted.append(listener_name)
        sock.setblocking(True)
        sock.sendall(b"!")
        sock.close()

    def comes_in(self, listener: str) -> bool:
        address = self.listening[listener].getsockname()
        with socket.create_connection(address, timeout=DEADLINE_S) as client:
            return client.recv(1) == b"!"

    def __enter__(self) -> None:
        self.acceptor.start()

    def __exit__(self, *error: object) -> None:
        assert self.acceptor.stop(DEADLINE_S)
        assert not self.died
        assert {sock.fileno() for sock in self.listening.values()} == {-1}


@pytest.fixture(autouse=True)
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test cannot pass if the acceptor waits where it should go on."""
    monkeypatch.setattr(acceptor_module, "_PAUSE_S", 2 * DEADLINE_S)


def test_clients_that_fill_the_limit_do_not_block_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    accepting = Accepting(ConnectionQuota(1, 9), CLIENTS=Listening(), BROKERS=Listening())
    with accepting:
        found = [accepting.comes_in(name) for name in ("CLIENTS", "CLIENTS", "CLIENTS", "BROKERS")]
        # A client that is gone before it is accepted would block the thread.
        assert not any(sock.getblocking() for sock in accepting.listening.values())
    assert found == [True, False, False, True]
    assert caplog.text.count("on CLIENTS refused: max.connections=1 are open") == 1, "no flood fills it"
    assert accepting.accepted == ["CLIENTS", "BROKERS"]
    assert accepting.options == {(False, 1, 1)}


def test_a_connection_that_cannot_be_handed_over_leaves_its_room() -> None:
    accepting = Accepting(ConnectionQuota(1, 1), OSError("reset"), CLIENTS=Listening())
    with accepting:
        assert [accepting.comes_in("CLIENTS") for _ in range(2)] == [False, True]


def test_a_client_that_is_gone_before_it_is_accepted_delays_no_other() -> None:
    accepting = Accepting(
        ConnectionQuota(9, 9), CLIENTS=Listening(BlockingIOError(), ConnectionAbortedError())
    )
    with accepting:
        assert accepting.comes_in("CLIENTS")


def test_without_descriptors_the_acceptor_waits_but_not_longer_than_it_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exhausted = Listening(*[OSError(errno.EMFILE, "too many open files") for _ in range(10_000)])
    with (
        socket.create_connection(exhausted.getsockname()),
        Accepting(ConnectionQuota(9, 9), CLIENTS=exhausted),
    ):
        wait_for(lambda: "cannot accept on CLIENTS: [Errno 24] too many open files" in caplog.text)
    # The second time if the thread sees the waiting client before the end.
    assert exhausted.calls <= 2


def test_a_listener_that_is_changed_twice_leaves_no_socket_behind(caplog: pytest.LogCaptureFixture) -> None:
    """The accepting thread may see both changes at once, and with them a client of the first socket."""
    first, between, last = Listening(), Listening(), Listening()
    accepting = Accepting(ConnectionQuota(0, 9), CLIENTS=first)
    accepting.acceptor.change(["CLIENTS"], [("CLIENTS", between)], None)
    accepting.acceptor.change(["CLIENTS"], [("CLIENTS", last)], "CLIENTS")
    accepting.listening["CLIENTS"] = last
    with socket.create_connection(first.getsockname()), accepting:
        wait_for(lambda: first.fileno() == between.fileno() == -1, "the end of the former sockets")
        assert accepting.comes_in("CLIENTS"), "it is the brokers' listener now"
    assert "cannot accept" not in caplog.text


def test_above_its_rate_a_listener_pauses_and_others_do_not() -> None:
    accepting = Accepting(ConnectionQuota(99, 99), CLIENTS=Listening(), BROKERS=Listening())
    accepting.rates.set_limits(UNLIMITED, {"CLIENTS": 10})
    with accepting:
        began = time.monotonic()
        assert accepting.comes_in("CLIENTS")
        # The second one of a window pauses the listener after it, for a window at most.
        assert accepting.comes_in("CLIENTS")
        assert accepting.comes_in("BROKERS")
        assert accepting.comes_in("CLIENTS")
        assert time.monotonic() - began >= 0.05
        # A paused listener may be removed.
        assert accepting.comes_in("CLIENTS")
        accepting.acceptor.change(["CLIENTS"], [], "BROKERS")
        wait_for(lambda: accepting.listening["CLIENTS"].fileno() == -1, "the end of the listener")


def test_above_the_rate_of_its_address_a_connection_is_closed_after_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor_module, "_MOST_DELAYED", 2)
    accepting = Accepting(ConnectionQuota(99, 99), CLIENTS=Listening())
    accepting.rates.take({Entity.ip("127.0.0.1"): StoredConfig({"connection_creation_rate": "0"}, 1, 1)})
    with accepting:
        began = time.monotonic()
        clients = [socket.create_connection(accepting.listening["CLIENTS"].getsockname()) for _ in range(3)]
        for client in reversed(clients):
            with client:
                client.settimeout(DEADLINE_S)
                assert client.recv(1) == b""
        assert time.monotonic() - began >= 0.1
    assert accepting.accepted == []
    assert "127.0.0.1 connects more often than its connection_creation_rate" in caplog.text


def test_connections_that_wait_to_be_closed_leave_descriptors_for_the_logs() -> None:
    accepting = Accepting(ConnectionQuota(99, 99, 2), CLIENTS=Listening())
    accepting.rates = accepting.acceptor._rates = ConnectionRates(Windows(2, int(4 * DEADLINE_S * 1_000)))
    accepting.rates.take({Entity.ip("127.0.0.1"): StoredConfig({"connection_creation_rate": "0"}, 1, 1)})
    with accepting:
        clients = [socket.create_connection(accepting.listening["CLIENTS"].getsockname()) for _ in range(3)]
        clients[0].settimeout(DEADLINE_S)
        assert clients[0].recv(1) == b"", "closed before its time"
        wait_for(lambda: len(accepting.acceptor._delayed) == 2, "the last one to wait")
    for client in clients:
        client.close()


def test_an_ipv4_address_is_the_same_on_a_socket_for_both_kinds() -> None:
    both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    quota, hosts = ConnectionQuota(99, 99), list[str]()
    quota.set_limits(99, 99, of_hosts={"::ffff:127.0.0.1": 1})
    acceptor = Acceptor(
        [("BOTH", both)],
        quota=quota,
        hand_over=lambda sock, host, port, name: (hosts.append(host), sock.close())[0],
        on_fatal=pytest.fail,
    )
    clients = [socket.create_connection(("127.0.0.1", both.getsockname()[1])) for _ in range(2)]
    acceptor.start()
    for client in clients:
        with client:
            client.settimeout(DEADLINE_S)
            assert client.recv(1) == b""
    assert acceptor.stop(DEADLINE_S)
    assert hosts == ["127.0.0.1"], "the second one is above the limit of its address"
