"""A socket server on a free port that runs a test's handler, and blocking clients."""

import errno
import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from barnabas.broker.base.limits import ConnectionLimits
from barnabas.broker.network.request import Lane, Request
from barnabas.broker.network.server import SocketServer
from barnabas.broker.security.session import Session
from tests.support.defaults import make_config
from tests.support.waiting import DEADLINE_S

LENGTH = struct.Struct(">I")


def start_server(
    process: Callable[[Request], None],
    *,
    on_fatal: Callable[[BaseException], None],
    lane_of: Callable[[memoryview], Lane] = lambda view: Lane.GENERAL,
    in_turn: Callable[[memoryview], bool] = lambda view: False,
    after_run: Callable[[], None] = lambda: None,
    limits: ConnectionLimits | None = None,
    listener: str = "PLAINTEXT",
    port: int = 0,
    protocol: str = "PLAINTEXT",
    protect: Callable[[Session, str], None] = lambda session, listener_name: None,
    **settings: object,
) -> SocketServer:
    """Settings by Kafka's names, with underscores: ``num_io_threads=2``."""
    settings.setdefault("connection_failed_authentication_delay_ms", 0)
    config = make_config(
        listeners=f"{listener}://127.0.0.1:{port}",
        listener_security_protocol_map=f"{listener}:{protocol}",
        inter_broker_listener_name=listener,
        **settings,
    )
    server = SocketServer(config, on_fatal=on_fatal, limits=limits, protect=protect)
    server.bind()
    server.start(process, lane_of=lane_of, in_turn=in_turn, after_run=after_run)
    return server


def frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def echo(request: Request) -> None:
    """Answer with the same payload, as a handler does: take what is needed, release, respond."""
    payload = bytes(request.frame.view)
    request.release_frame()
    request.respond((frame(payload),))


class Client:
    """A blocking connection, with TLS if it gets a context; a call beyond the deadline fails the test."""

    def __init__(
        self, port: int, receive_buffer_bytes: int | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(DEADLINE_S)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.connect(("127.0.0.1", port))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *payloads: bytes) -> None:
        self.socket.sendall(b"".join(map(frame, payloads)))

    def receive(self) -> bytes:
        """The payload of the next frame; raises ConnectionError when the server has closed."""
        return self._exactly(LENGTH.unpack(self._exactly(4))[0])

    def is_closed_by_server(self) -> bool:
        """Wait for the end of the stream, whether clean or by reset."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def has_seen_the_end(self) -> bool:
        """Whether the server has closed, without waiting for that."""
        # Not select(), which takes no descriptor above 1023: logs of other tests may still have theirs.
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        try:
            return bool(poll.poll(0)) and self.socket.recv(1, socket.MSG_PEEK) == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """Close so that the peer sees a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise ConnectionError("closed by the server")
            parts += part
        return bytes(parts)


class Served:
    """A running server, its clients, and its fatal errors."""

    def __init__(self, server: SocketServer, fatal: list[BaseException]) -> None:
        self.server = server
        self.fatal = fatal
        self.clients: list[Client] = []

    def refuses(self) -> bool:
        """Whether the server accepts no more connections."""
        with socket.socket() as late:
            return late.connect_ex(("127.0.0.1", self.server.ports["PLAINTEXT"])) == errno.ECONNREFUSED

    def queued(self) -> int:
        """Requests that could run and that no worker has taken."""
        return sum(queue.queued for queue in self.server.queues.values())

    def client(self, receive_buffer_bytes: int | None = None, tls: ssl.SSLContext | None = None) -> Client:
        ports = self.server.ports
        port = ports.get("PLAINTEXT") or next(iter(ports.values()))
        client = Client(port, receive_buffer_bytes, tls)
        self.clients.append(client)
        return client


Serve = Callable[..., Served]


@contextmanager
def servers(at_end: Callable[[Served], None] = lambda served: None, **defaults: Any) -> Iterator[Serve]:
    """``serve(process, setting=value, …)``: servers that are stopped at the end, after `at_end` of each."""
    running: list[Served] = []

    def start(process: Callable[[Request], None] = echo, **settings: Any) -> Served:
        fatal: list[BaseException] = []
        server = start_server(process, on_fatal=fatal.append, **(defaults | settings))
        running.append(Served(server, fatal))
        return running[-1]

    yield start
    for served in running:
        for client in served.clients:
            client.socket.close()
        at_end(served)
        served.server.stop(drain_timeout_ms=200)
    for served in running:
        assert served.fatal == []
