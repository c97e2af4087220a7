"""The socket server: acceptor, network threads and workers, started and stopped as one.

`bind` comes first and alone, so that a broker knows its ports before it registers anywhere, and refuses a
taken port at once. `start` accepts connections. `stop` accepts no more, reads nothing more, answers what is
in flight within the drain time, closes every connection with a logged reason, and ends all threads.
"""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from barnabas.broker.base.limits import (
    CONTROL_WORKERS,
    DISK_WORKERS,
    LEAST_UNAUTHENTICATED,
    MAX_UNAUTHENTICATED,
    RECORDS_WORKERS,
    ConnectionLimits,
)
from barnabas.broker.base.purgatory import Purgatory, Reaper
from barnabas.broker.config.listener_config import CLIENT_AUTH, ListenerConfig
from barnabas.broker.config.listeners import (
    PLAINTEXT,
    SASL_PROTOCOLS,
    SASL_SSL,
    TLS_PROTOCOLS,
    Listener,
    changed_protocols,
)
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.network.acceptor import Acceptor, ConnectionQuota, most_connections
from barnabas.broker.network.connection import Authentication, Connection
from barnabas.broker.network.network_thread import NetworkThread
from barnabas.broker.network.request import Lane, Peer, Request
from barnabas.broker.network.request_handler_pool import RequestHandlerPool
from barnabas.broker.network.request_metrics import BusyTime
from barnabas.broker.network.request_queue import RequestQueue
from barnabas.broker.network.tls_listeners import TlsListeners
from barnabas.broker.network.unauthenticated import Unauthenticated
from barnabas.broker.security.authentication_outcomes import AuthenticationOutcomes
from barnabas.broker.security.connection_rates import ConnectionRates
from barnabas.broker.security.rates import Windows
from barnabas.broker.security.session import Session
from barnabas.common.settings import LONG_MAX
from barnabas.protocol.errors import InvalidConfiguration, LocalError
from barnabas.protocol.frames import BufferPool

logger = logging.getLogger(__name__)


class CannotBind(LocalError):
    """A listener's address is taken, foreign or not allowed."""


def protected_listener(config: BrokerConfig, count: int) -> str | None:
    """The listener of the brokers, if there are others. Clients that use it too look like brokers."""
    return config.inter_broker_listener_name if count > 1 else None


class SocketServer:
    """One per broker. `on_fatal` is called by a thread of the server that dies; the broker must then stop.

    ``protect`` is called with the session and the listener of each new connection: the peer may have to
    authenticate.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        on_fatal: Callable[[BaseException], None],
        limits: ConnectionLimits | None = None,
        protect: Callable[[Session, str], None] = lambda session, listener_name: None,
        outcomes: AuthenticationOutcomes | None = None,
    ) -> None:
        self._config = config
        self._protect = protect
        self._outcomes = outcomes or AuthenticationOutcomes(
            0, Purgatory("authentication", Reaper(on_fatal=on_fatal))
        )
        self._on_fatal = on_fatal
        self._limits = limits or ConnectionLimits()
        self._config_of: Callable[[str], ListenerConfig] = config.listener
        self._value: Callable[[str], Any] = config.value
        self._descriptors = most_connections()
        self.quota = ConnectionQuota(config.max_connections, config.max_connections_per_ip, self._descriptors)
        self.connection_rates = ConnectionRates(
            Windows(config.quota_window_num, config.quota_window_size_seconds * 1_000)
        )
        self.tls = TlsListeners(config.inter_broker_listener_name)
        self.unauthenticated = {
            is_protected: Unauthenticated[Connection](MAX_UNAUTHENTICATED) for is_protected in (False, True)
        }
        """The connections whose peers are not known, apart for those on the protected listener."""
        self.ports: dict[str, int] = {}
        """The bound port of each listener, by name."""
        self._numbers = itertools.count(1)
        self._pool = BufferPool()
        self._bound: list[tuple[str, socket.socket]] = []
        self._listeners: dict[str, Listener] = {}
        self._acceptor: Acceptor | None = None
        self.network_threads: list[NetworkThread] = []
        self.worker_times: list[BusyTime] = []
        """Of the workers of the general lane."""
        self._handlers: RequestHandlerPool | None = None
        self._charges_times = False
        self.queues: dict[Lane, RequestQueue[Connection]] = {}

    def bind(self) -> None:
        """Bind every listener; before it raises CannotBind, it closes all of them."""
        self.change_listeners(self._config.listeners)

    def change_listeners(self, listeners: Sequence[Listener]) -> None:
        """Bind added listeners, and close removed ones with their connections; one thread at a time.

        A listener with another address is removed and added. Raises CannotBind, or InvalidConfiguration for a
        certificate or another protocol of an open listener, and then changes nothing.
        """
        present = {listener.name: listener for listener in listeners}
        self.check_protocols(listeners)
        removed = {name for name, listener in self._listeners.items() if present.get(name) != listener}
        changed = [listener for listener in listeners if self._listeners.get(listener.name) != listener]
        if self._acceptor is not None:
            # Before it binds, because a certificate may be unusable. Removed listeners keep theirs.
            self._take_listener_configs((self._listeners | present).values())
        added = self._bind_all(changed)
        self._listeners = present
        gone = [entry for entry in self._bound if entry[0] in removed]
        self._bound = [entry for entry in self._bound if entry[0] not in removed] + added
        ports = {name: port for name, port in self.ports.items() if name not in removed}
        self.ports = ports | {name: listening.getsockname()[1] for name, listening in added}
        if self._acceptor is None:
            for _, listening in gone:
                listening.close()
            return
        self._take_listener_configs(listeners)
        self._acceptor.change(removed, added, protected_listener(self._config, len(present)))
        for thread in self.network_threads:
            for name in removed:
                thread.close_listener(name)

    def check_protocols(self, listeners: Iterable[Listener]) -> None:
        """Raises InvalidConfiguration if an open listener would speak another protocol.

        Until the former socket was closed, peers could come to it by the rules of the new protocol.
        """
        present = self._listeners if self._acceptor is not None else {}
        if problems := changed_protocols(present.values(), listeners):
            raise InvalidConfiguration("; ".join(problems))

    def start(
        self,
        process: Callable[[Request], None],
        *,
        lane_of: Callable[[memoryview], Lane],
        in_turn: Callable[[memoryview], bool],
        after_run: Callable[[], None],
        is_due: Callable[[], bool] = lambda: True,
    ) -> None:
        """Accept connections; `bind` has been called. For the functions see `RequestHandlerPool`."""
        self.load_certificates()
        self.set_connection_limits(self._value)
        config = self._config
        workers = {
            Lane.GENERAL: config.num_io_threads,
            Lane.RECORDS: RECORDS_WORKERS,
            Lane.DISK: DISK_WORKERS,
            Lane.CONTROL: CONTROL_WORKERS,
        }
        handlers = RequestHandlerPool(
            process,
            lane_of=lane_of,
            in_turn=in_turn,
            after_run=after_run,
            is_due=is_due,
            on_fatal=self._on_fatal,
            max_requests=config.queued_max_requests,
            workers=workers,
            measures_times=config.metrics_port >= 0,
        )
        handlers.charges_times = self._charges_times
        self._handlers, self.queues = handlers, handlers.queues
        self.worker_times = handlers.worker_times[Lane.GENERAL]
        self.network_threads = [
            NetworkThread(
                f"network-{number}",
                handlers,
                max_idle_ms=config.connections_max_idle_ms,
                max_request_bytes=_share(config.queued_max_request_bytes, config.num_network_threads),
            )
            for number in range(config.num_network_threads)
        ]
        turns = itertools.cycle(self.network_threads)
        self._acceptor = Acceptor(
            self._bound,
            quota=self.quota,
            rates=self.connection_rates,
            protected_listener=protected_listener(config, len(self._bound)),
            hand_over=lambda *accepted: self._hand_over(next(turns), *accepted),
            on_fatal=self._on_fatal,
        )
        for thread in self.network_threads:
            thread.start()
        self._acceptor.start()

    def set_process(self, process: Callable[[Request], None]) -> None:
        """Replace the function that answers requests, once the server has started."""
        if self._handlers is not None:
            self._handlers.process = process

    def charge_times(self, charges_times: bool) -> None:
        """Measure how long threads run each request, or not, from now on: quotas need that."""
        self._charges_times = charges_times
        if self._handlers is not None:
            self._handlers.charges_times = charges_times

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call a function on a network thread, after it has sent the answers that are complete.

        Any thread, once the server has started. It is dropped if the thread has ended.
        """
        self.network_threads[0].call_soon(work)

    def are_turning(self, timeout_s: float = 1.0) -> bool:
        """Whether every network thread takes a few turns of its loop within the time.

        Then it has read what the sockets had when this was called. True before the start.
        """
        turned = [threading.Event() for _ in self.network_threads]
        for thread, event in zip(self.network_threads, turned, strict=True):
            thread.call_after_turns(event.set)
        deadline = time.monotonic() + timeout_s
        return all(event.wait(max(0.0, deadline - time.monotonic())) for event in turned)

    def stop(self, drain_timeout_ms: int = 2_000) -> None:
        """Stop in little more than the drain time even if a handler hangs.

        Idempotent; a server that was stopped cannot be started again.
        """
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is None:
            self._unbind()
            return
        stopped = acceptor.stop(1.0)
        for thread in self.network_threads:
            thread.stop(drain_timeout_ms)
        for thread in self.network_threads:
            stopped = thread.join(drain_timeout_ms / 1000 + 1.0) and stopped
        self._bound.clear()
        if self._handlers is not None:
            stopped = self._handlers.stop(1.0) and stopped
        if not stopped:
            logger.error("the socket server stopped, but a thread of it hangs")

    def _hand_over(
        self, thread: NetworkThread, sock: socket.socket, host: str, port: int, listener_name: str
    ) -> None:
        if self._config.socket_send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.socket_send_buffer_bytes)
        listener = self._listeners.get(listener_name)
        if listener is None:
            raise OSError("the listener was removed")
        try:
            tls = self.tls.of(listener_name) if listener.security_protocol in TLS_PROTOCOLS else None
        except KeyError:
            raise OSError("the listener was removed") from None
        session = Session(host)
        self._protect(session, listener_name)
        is_protected = listener_name == protected_listener(self._config, len(self._listeners))
        authentication = self._authentication(listener, is_protected)
        connection = Connection(
            Peer(f"{host}:{port}#{next(self._numbers)}", host, listener_name, time.monotonic_ns(), session),
            thread,
            pool=self._pool,
            max_frame_bytes=self._config.socket_request_max_bytes,
            limits=self._limits,
            is_protected=is_protected,
            authentication=authentication,
            on_lost=lambda: self.quota.leave(host, listener_name),
        )
        displaced = None if authentication is None else authentication.pending.add(connection, host)
        if displaced is not None:
            # Perhaps this one: then its thread closes the socket instead of taking it over.
            displaced.displace()
        thread.adopt(sock, connection, tls)

    def _authentication(self, listener: Listener, is_protected: bool) -> Authentication | None:
        if listener.security_protocol == PLAINTEXT:
            return None
        return Authentication(
            self.unauthenticated[is_protected], self._outcomes, listener.security_protocol in SASL_PROTOCOLS
        )

    def set_listener_configs(self, config_of: Callable[[str], ListenerConfig]) -> None:
        """Put changed settings of listeners into force, by the function that returns those of a listener."""
        self._config_of = config_of
        if self._acceptor is not None:
            self._take_listener_configs(self._listeners.values())

    def load_certificates(self) -> None:
        """Read the certificates of all listeners, which `start` needs. Raises InvalidConfiguration.

        Not when they are bound, because settings in ZooKeeper may replace those given at start.
        """
        self._take_listener_configs(self._listeners.values())

    def set_connection_limits(self, value: Callable[[str], Any]) -> None:
        """Put the present limits on connections into force, by the function that returns a setting."""
        self._value = value
        self.connection_rates.set_limits(
            value("max.connection.creation.rate"),
            {
                listener.name: self._config_of(listener.name).max_connection_creation_rate
                for listener in self._listeners.values()
            },
        )
        half = max(LEAST_UNAUTHENTICATED, min(value("max.connections"), self._descriptors) // 2)
        for pending in self.unauthenticated.values():
            pending.max_connections = min(MAX_UNAUTHENTICATED, half)
        self.quota.set_limits(
            value("max.connections"),
            value("max.connections.per.ip"),
            of_hosts=value("max.connections.per.ip.overrides"),
            of_listeners={
                listener.name: self._config_of(listener.name).max_connections
                for listener in self._listeners.values()
            },
        )

    def _take_listener_configs(self, listeners: Iterable[Listener]) -> None:
        configs: dict[str, ListenerConfig] = {}
        for name, _, _, protocol in listeners:
            if protocol in TLS_PROTOCOLS:
                configs[name] = self._config_of(name)
            own = self._config.listener_overrides.get(name.lower(), {})
            if protocol == SASL_SSL and CLIENT_AUTH not in own:
                # KIP-684: the setting of all listeners is not for listeners where SASL names the peer.
                configs[name] = replace(configs[name], ssl_client_auth="none")
        self.tls.apply(configs)

    def _bind_all(self, listeners: Iterable[Listener]) -> list[tuple[str, socket.socket]]:
        bound: list[tuple[str, socket.socket]] = []
        for listener in listeners:
            try:
                bound.append((listener.name, self._listening_socket(listener)))
            except OSError as error:
                for _, listening in bound:
                    listening.close()
                raise CannotBind(
                    f"listener {listener.name} cannot bind {listener.host or '*'}:{listener.port}: "
                    f"{error.strerror or error}"
                ) from error
        return bound

    def _listening_socket(self, listener: Listener) -> socket.socket:
        config = self._config
        family, kind, protocol, _, address = socket.getaddrinfo(
            listener.host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if config.socket_receive_buffer_bytes >= 0:
                # Set before listen(): accepted sockets inherit it, and the window scale depends on it.
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes)
            listening.bind(address)
            listening.listen(config.socket_listen_backlog_size)
        except OSError:
            listening.close()
            raise
        return listening

    def _unbind(self) -> None:
        for _, listening in self._bound:
            listening.close()
        self._bound.clear()
        self.ports.clear()


def _share(max_bytes: int, threads: int) -> int:
    """The part of one network thread; without a maximum it is never reached."""
    return max_bytes // threads if max_bytes > 0 else LONG_MAX
