"""The socket server: acceptor, network threads, request queue and workers, started and stopped as one.

`bind` comes first and alone, so that a broker knows its ports before it registers anywhere, and refuses a
taken port at once. `start` lets connections in. `stop` lets no more in, reads nothing more, answers what is
in flight within the drain time, closes every connection with a logged reason, and ends all threads.
"""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.network.acceptor import Acceptor, ConnectionQuota, most_connections
from barnabas.broker.network.connection import Connection, ConnectionLimits
from barnabas.broker.network.io_workers import IoWorkers
from barnabas.broker.network.network_thread import NetworkThread
from barnabas.broker.network.request import Lane, Request
from barnabas.broker.network.request_queue import RequestQueue
from barnabas.broker.network.request_runner import RequestRunner
from barnabas.protocol.errors import LocalError
from barnabas.protocol.frames import BufferPool

logger = logging.getLogger(__name__)

_LANE_THREADS: Final = {
    # Decompressed records take a multiple of their size: the number of threads bounds the memory.
    Lane.RECORDS: 2,
    Lane.CONTROL: 1,
}


class CannotBind(LocalError):
    """A listener's address is taken, foreign or not allowed."""


class ListenAddress(NamedTuple):
    """Where to listen: an empty host is every interface, port 0 any free port."""

    name: str
    host: str
    port: int

    @classmethod
    def all_of(cls, config: BrokerConfig) -> list[ListenAddress]:
        """The ``listeners`` of a broker's config."""
        return [cls(listener.name, listener.host, listener.port) for listener in config.listeners]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """The broker's settings for the server, with their defaults."""

    num_network_threads: int = 1
    num_io_threads: int = 8
    queued_max_requests: int = 500
    socket_listen_backlog_size: int = 50
    socket_send_buffer_bytes: int = -1
    socket_receive_buffer_bytes: int = -1
    connections_max_idle_ms: int = 600_000
    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1
    connection_descriptors: int = 2**31 - 1
    """The most descriptors of the process that connections may take."""
    protected_listener: str | None = None
    """The listener that ``max_connections`` and ``connection_descriptors`` do not limit."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)

    @classmethod
    def from_config(cls, config: BrokerConfig) -> ServerSettings:
        """What a broker's config says about its sockets."""
        return cls(
            num_network_threads=config.num_network_threads,
            num_io_threads=config.num_io_threads,
            queued_max_requests=config.queued_max_requests,
            socket_listen_backlog_size=config.socket_listen_backlog_size,
            socket_send_buffer_bytes=config.socket_send_buffer_bytes,
            socket_receive_buffer_bytes=config.socket_receive_buffer_bytes,
            connections_max_idle_ms=config.connections_max_idle_ms,
            max_connections=config.max_connections,
            max_connections_per_ip=config.max_connections_per_ip,
            connection_descriptors=most_connections(),
            # As in Kafka: where clients come in by the same listener, they cannot be told from brokers.
            protected_listener=config.inter_broker_listener_name if len(config.listeners) > 1 else None,
            limits=ConnectionLimits(max_frame_bytes=config.socket_request_max_bytes),
        )


class SocketServer:
    """One per broker. `process` runs on the workers and answers each request once, then or later.

    `is_short` chooses the requests that a network thread runs itself (none by default), `lane_of` the lane of
    the others (the general one by default); both get undecoded requests. `after_run` is called by a thread
    that has run all ready requests of one connection. `on_fatal` is called by a thread of the server that
    dies; the broker must then stop.
    """

    def __init__(
        self,
        listeners: Sequence[ListenAddress],
        process: Callable[[Request], None],
        *,
        settings: ServerSettings,
        on_fatal: Callable[[BaseException], None],
        is_short: Callable[[Request], bool] | None = None,
        lane_of: Callable[[Request], Lane] | None = None,
        after_run: Callable[[], None] | None = None,
    ) -> None:
        self._addresses = list(listeners)
        self._settings = settings
        self._on_fatal = on_fatal
        self._numbers = itertools.count(1)
        self._pool = BufferPool()
        self._quota = ConnectionQuota(
            settings.max_connections, settings.max_connections_per_ip, settings.connection_descriptors
        )
        self._queues = {lane: RequestQueue(settings.queued_max_requests) for lane in Lane}
        self._runner = RequestRunner(
            process, on_fatal=on_fatal, is_short=is_short, lane_of=lane_of, after_run=after_run
        )
        threads = {Lane.GENERAL: settings.num_io_threads, **_LANE_THREADS}
        self._workers = [
            IoWorkers(queue, self._runner, threads=threads[lane], lane=lane)
            for lane, queue in self._queues.items()
        ]
        self._bound: list[tuple[str, socket.socket]] = []
        self._ports: dict[str, int] = {}
        self._acceptor: Acceptor | None = None
        self._network_threads: list[NetworkThread] = []
        self._turns: itertools.cycle[NetworkThread] | None = None

    @property
    def ports(self) -> dict[str, int]:
        """The bound port of each listener, by name."""
        return dict(self._ports)

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return self._quota.total

    @property
    def queued_requests(self) -> int:
        """Requests received and not yet taken by a worker."""
        return sum(queue.queued for queue in self._queues.values())

    def set_connection_limits(self, max_connections: int, max_connections_per_ip: int) -> None:
        """Have other limits from now on; connections that are open stay. Any thread."""
        self._quota.set_limits(max_connections, max_connections_per_ip)

    def bind(self) -> dict[str, int]:
        """Bind every listener and return the ports; raises CannotBind, and then none is left bound."""
        try:
            for address in self._addresses:
                listening = self._listening_socket(address)
                self._bound.append((address.name, listening))
                self._ports[address.name] = listening.getsockname()[1]
        except OSError as error:
            self._unbind()
            raise CannotBind(
                f"listener {address.name} cannot bind {address.host or '*'}:{address.port}: "
                f"{error.strerror or error}"
            ) from error
        return self.ports

    def start(self) -> None:
        """Let connections in; binds first when `bind` was not called."""
        if not self._bound:
            self.bind()
        settings = self._settings
        self._network_threads = [
            NetworkThread(
                f"network-{number}", max_idle_ms=settings.connections_max_idle_ms, on_fatal=self._on_fatal
            )
            for number in range(settings.num_network_threads)
        ]
        self._turns = itertools.cycle(self._network_threads)
        self._acceptor = Acceptor(
            self._bound,
            quota=self._quota,
            protected_listener=settings.protected_listener,
            hand_over=self._hand_over,
            on_fatal=self._on_fatal,
        )
        for workers in self._workers:
            workers.start()
        for thread in self._network_threads:
            thread.start()
        self._acceptor.start()

    def stop(self, drain_timeout_ms: int = 2_000) -> None:
        """Stop as the module's text says, in little more than the drain time even when a handler hangs.

        Idempotent; a server that was stopped cannot be started again.
        """
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is None:
            self._unbind()
            return
        stopped = acceptor.stop(1.0)
        for thread in self._network_threads:
            thread.stop(drain_timeout_ms)
        for thread in self._network_threads:
            stopped = thread.join(drain_timeout_ms / 1000 + 1.0) and stopped
        self._bound.clear()
        for queue in self._queues.values():
            queue.close()
        for workers in self._workers:
            stopped = workers.join(1.0) and stopped
        if not stopped:
            logger.error("the socket server stopped, but a thread of it hangs")

    def _hand_over(self, sock: socket.socket, host: str, port: int, listener_name: str) -> None:
        settings = self._settings
        if settings.socket_send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.socket_send_buffer_bytes)
        if self._turns is None:
            raise OSError("the server has not started")
        thread = next(self._turns)
        connection = Connection(
            f"{host}:{port}#{next(self._numbers)}",
            host,
            listener_name,
            owner=thread,
            queues=self._queues,
            runner=self._runner,
            pool=self._pool,
            limits=settings.limits,
            on_lost=lambda: self._quota.leave(host),
        )
        thread.adopt(sock, connection)

    def _listening_socket(self, address: ListenAddress) -> socket.socket:
        settings = self._settings
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if settings.socket_receive_buffer_bytes >= 0:
                # Set before listen(): accepted sockets inherit it, and the window scale depends on it.
                listening.setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVBUF, settings.socket_receive_buffer_bytes
                )
            listening.bind(where)
            listening.listen(settings.socket_listen_backlog_size)
        except OSError:
            listening.close()
            raise
        return listening

    def _unbind(self) -> None:
        for _, listening in self._bound:
            listening.close()
        self._bound.clear()
        self._ports.clear()
