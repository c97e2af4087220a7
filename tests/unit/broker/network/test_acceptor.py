"""Limits on connections: in all, per address, and for brokers."""

import socket
from collections.abc import Iterator

import pytest

from barnabas.broker.config.load import config_from
from barnabas.broker.network.acceptor import Acceptor, ConnectionQuota, connections_within
from barnabas.broker.network.server import protected_listener
from tests.support.defaults import REQUIRED
from tests.support.waiting import wait_for


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


def test_the_limit_per_address_holds_for_brokers_too() -> None:
    quota = ConnectionQuota(9, 1)
    assert quota.enter("a") == ""
    assert "max.connections.per.ip=1" in quota.enter("a", is_protected=True)


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


def test_connections_get_most_open_files_of_the_process() -> None:
    assert [connections_within(limit) for limit in (100, 256, 1024, 20_000)] == [1, 128, 896, 17_500]


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


@pytest.fixture
def listening() -> Iterator[list[tuple[str, socket.socket]]]:
    sockets = []
    for name in ("CLIENTS", "BROKERS"):
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sockets.append((name, sock))
    yield sockets
    for _, sock in sockets:
        sock.close()


def test_clients_that_fill_the_limit_do_not_block_a_broker(
    listening: list[tuple[str, socket.socket]],
) -> None:
    ports = {name: sock.getsockname()[1] for name, sock in listening}
    accepted: list[tuple[socket.socket, str]] = []

    def hand_over(sock: socket.socket, host: str, port: int, listener_name: str) -> None:
        sock.setblocking(True)
        sock.sendall(b"!")
        accepted.append((sock, listener_name))

    def comes_in(listener: str) -> bool:
        with socket.create_connection(("127.0.0.1", ports[listener]), timeout=20) as client:
            return client.recv(1) == b"!"

    acceptor = Acceptor(
        listening,
        quota=ConnectionQuota(1, 9),
        protected_listener="BROKERS",
        hand_over=hand_over,
        on_fatal=lambda error: None,
    )
    acceptor.start()
    try:
        assert [comes_in(name) for name in ("CLIENTS", "CLIENTS", "BROKERS")] == [True, False, True]
    finally:
        assert acceptor.stop(20)
        for sock, _ in accepted:
            sock.close()
    assert [name for _, name in accepted] == ["CLIENTS", "BROKERS"]


def test_a_listener_that_is_changed_twice_leaves_no_socket_behind(
    listening: list[tuple[str, socket.socket]],
) -> None:
    """The accepting thread may see both changes at once."""
    (_, first), (_, last) = listening
    between = socket.create_server(("127.0.0.1", 0))
    acceptor = Acceptor(
        [("CLIENTS", first)],
        quota=ConnectionQuota(9, 9),
        hand_over=lambda *_: None,
        on_fatal=lambda error: None,
    )
    acceptor.change(["CLIENTS"], [("CLIENTS", between)], None)
    acceptor.change(["CLIENTS"], [("CLIENTS", last)], None)
    acceptor.start()
    try:
        wait_for(lambda: first.fileno() == between.fileno() == -1, "the end of the former sockets")
        assert last.fileno() != -1
    finally:
        assert acceptor.stop(20)
