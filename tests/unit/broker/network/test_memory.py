"""The memory for the requests of all connections, over real sockets: its bound, turns and what ends them."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.broker.config.listeners import Listener
from barnabas.broker.limits import ConnectionLimits
from barnabas.broker.network.request import Lane, Request
from tests.support.socket_server import LENGTH, Client, Served, echo, frame, start_server
from tests.support.waiting import wait_for

MB = 1 << 20
MAX_BYTES = 4 * MB
ALWAYS_BYTES = ConnectionLimits().always_bytes
SOON_NS = 1_000_000

Serve = Callable[..., Served]


class Sender:
    """A client that sends as much as the server takes, and no more."""

    def __init__(self, client: Client, data: bytes) -> None:
        self.client = client
        self._rest = memoryview(data)
        # Small, so that the kernel does not take what the server refuses.
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        client.socket.setblocking(False)

    def is_done(self) -> bool:
        """Send what can be sent; whether that was all."""
        try:
            while self._rest:
                self._rest = self._rest[self.client.socket.send(self._rest) :]
        except BlockingIOError:
            return False
        self.client.socket.settimeout(20)
        return True


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[Served] = []

    def start(process: Callable[[Request], None] = echo, **settings: Any) -> Served:
        fatal: list[BaseException] = []
        merged = {
            "queued_max_request_bytes": MAX_BYTES,
            "socket_receive_buffer_bytes": 16_384,
            "lane_of": lambda view: Lane.NETWORK,
            **settings,
        }
        running.append(Served(start_server(process, on_fatal=fatal.append, **merged), fatal))
        return running[-1]

    yield start
    for served in running:
        for client in served.clients:
            client.socket.close()
        # What every request and every connection has taken is given back in the end.
        wait_for(lambda served=served: held(served) == 0, lambda served=served: f"{held(served)} bytes held")
        served.server.stop(drain_timeout_ms=200)
        assert served.fatal == []


def held(served: Served) -> int:
    """What is counted."""
    return sum(thread.memory.held_bytes for thread in served.server.network_threads)


def received(served: Served) -> int:
    """What connections have really received of incomplete frames."""
    return sum(
        connection._receiver.buffered_bytes
        for thread in served.server.network_threads
        for connection in tuple(thread._connections)
    )


def half_frames(served: Served, count: int, size: int = MB) -> list[Sender]:
    """Each client sends a frame without its last byte."""
    senders = []
    for _ in range(count):
        client = served.client()
        senders.append(Sender(client, frame(bytes(size))[:-1]))
    return senders


def done(senders: list[Sender]) -> list[Sender]:
    return [sender for sender in senders if sender.is_done()]


def send_until_full(served: Served, senders: list[Sender]) -> None:
    wait_for(lambda: len(done(senders)) >= 4 and held(served) >= MAX_BYTES, lambda: f"{held(served)} held")
    # The turns that a byte takes from a client to the server: what could be received would be by then.
    other = served.client()
    for _ in range(20):
        done(senders)
        other.send(b"small")
        assert other.receive() == b"small"


@pytest.mark.parametrize("threads", [1, 2])
def test_half_frames_of_many_connections_are_bounded_and_all_complete(serve: Serve, threads: int) -> None:
    served = serve(num_network_threads=threads)
    senders = half_frames(served, 20)
    send_until_full(served, senders)
    most = MAX_BYTES + threads * MB
    assert MAX_BYTES <= held(served) <= most + 1_000
    assert received(served) <= most + 20 * ALWAYS_BYTES
    assert len(done(senders)) < 12
    other = served.client()
    other.send(bytes(ALWAYS_BYTES))
    assert len(other.receive()) == ALWAYS_BYTES

    def ready() -> list[Sender]:
        return done(senders)

    while senders:
        wait_for(ready, lambda: f"{len(senders)} wait, {held(served)} bytes held")
        for sender in ready():
            senders.remove(sender)
            sender.client.socket.sendall(b"\0")
            assert len(sender.client.receive()) == MB


def test_connections_that_are_lost_give_their_share_back(serve: Serve) -> None:
    served = serve()
    senders = half_frames(served, 10)
    send_until_full(served, senders)
    ready = done(senders)
    rest = [sender for sender in senders if sender not in ready]
    for sender in ready:
        sender.client.reset()
    wait_for(lambda: len(done(rest)) >= 3)


def test_the_maximum_is_no_limit_if_it_is_negative(serve: Serve) -> None:
    served = serve(queued_max_request_bytes=-1)
    senders = half_frames(served, 10)
    wait_for(lambda: len(done(senders)) == 10)


def test_a_peer_that_sends_too_slowly_is_closed_if_others_wait(serve: Serve) -> None:
    served = serve(limits=ConnectionLimits(begun_grace_ns=SOON_NS, slowest_bytes_per_s=10 * MB))
    alone = served.client()
    alone.socket.sendall(LENGTH.pack(MAX_BYTES) + b"x")
    wait_for(lambda: held(served) == MAX_BYTES)
    other = served.client()
    other.send(bytes(MB))
    assert len(other.receive()) == MB
    assert alone.is_closed_by_server()


class Keeping:
    """A handler that answers requests of 1 MB only when the test says so, and has released no frame."""

    def __init__(self) -> None:
        self.requests = queue.SimpleQueue[Request]()

    def __call__(self, request: Request) -> None:
        if request.size_bytes < MB:
            echo(request)
        else:
            self.requests.put(request)


def test_requests_hold_memory_until_they_are_answered(serve: Serve) -> None:
    keeping = Keeping()
    served = serve(keeping)
    clients = [served.client() for _ in range(5)]
    for client in clients[:4]:
        client.send(bytes(MB))
    kept = [keeping.requests.get(timeout=20) for _ in range(4)]
    last = Sender(clients[4], frame(bytes(2 * MB)))
    other = served.client()
    for _ in range(20):
        assert not last.is_done()
        other.send(b"small")
        assert other.receive() == b"small"
    # Not its last reference: a test's own list would hold the memory too.
    kept.pop().respond((frame(b"answer"),))
    wait_for(last.is_done)
    answered = keeping.requests.get(timeout=20)
    for request in (*kept, answered):
        request.respond((frame(b"answer"),))
    for client in clients:
        assert client.receive() == b"answer"


def test_a_released_frame_does_not_wait_for_the_answer(serve: Serve) -> None:
    waiting: list[Request] = []

    def process(request: Request) -> None:
        request.release_frame()
        waiting.append(request)

    served = serve(process)
    for _ in range(10):
        served.client().send(bytes(MB))
    wait_for(lambda: len(waiting) == 10)
    assert held(served) == 0
    waiting.clear()


def test_a_connection_that_keeps_memory_for_an_answer_is_closed_if_others_wait(serve: Serve) -> None:
    keeping = Keeping()
    served = serve(keeping, limits=ConnectionLimits(longest_hold_ns=SOON_NS))
    holders = [served.client() for _ in range(4)]
    for client in holders:
        client.send(bytes(MB))
    wait_for(lambda: keeping.requests.qsize() == 4)
    other = served.client()
    sender = Sender(other, frame(bytes(MB)))
    assert not sender.is_done()
    for client in holders:
        assert client.is_closed_by_server()
    while not keeping.requests.empty():
        keeping.requests.get().respond(())
    wait_for(sender.is_done)
    request = keeping.requests.get(timeout=20)
    request.respond((frame(b"answer"),))
    assert other.receive() == b"answer"


def test_requests_that_wait_for_workers_are_not_closed_for_the_memory_that_they_hold(serve: Serve) -> None:
    go = threading.Event()

    def process(request: Request) -> None:
        go.wait(20)
        echo(request)

    served = serve(
        process,
        num_io_threads=1,
        lane_of=lambda view: Lane.GENERAL,
        limits=ConnectionLimits(longest_hold_ns=SOON_NS),
    )
    clients = [served.client() for _ in range(6)]
    senders = [Sender(client, frame(bytes(MB))) for client in clients]
    wait_for(lambda: len(done(senders)) >= 4 and held(served) >= MAX_BYTES)
    network = served.server.network_threads[0]
    checked = threading.Event()
    check = network._close_overdue
    network.memory._on_short = lambda now_ns: (check(now_ns), checked.set())
    assert checked.wait(20)
    go.set()
    for sender in senders:
        wait_for(sender.is_done)
        assert len(sender.client.receive()) == MB


def test_the_brokers_own_listener_does_not_wait(serve: Serve) -> None:
    served = serve()
    plain, added = Listener("PLAINTEXT", "127.0.0.1", 0), Listener("ADDED", "127.0.0.1", 0)
    served.server.change_listeners([plain, added])
    for _ in range(5):
        client = Client(served.server.ports["ADDED"])
        served.clients.append(client)
        client.socket.sendall(LENGTH.pack(MB) + b"x")
    wait_for(lambda: held(served) >= MAX_BYTES)
    broker = served.client()
    broker.send(bytes(MAX_BYTES))
    assert len(broker.receive()) == MAX_BYTES
