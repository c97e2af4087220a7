"""Watches the process of the broker that is the controller, so that its death is noticed at once.

Every other broker keeps one idle connection to the controller's broker. When that process dies, its sockets
are reset and its port refuses, or its host is gone or silent. The sentinel reports that within milliseconds
or three seconds, long before the ZooKeeper session expires. The `FailureDetector` decides what counts as a
death. An error is safe: only that very ``/controller`` node is deleted, the next controller raises the epoch,
and the epoch fences all later writes and requests of the old one.

One thread per broker, which blocks in a read most of the time. A lost connection that can be made again (an
idle close, a restart of the acceptor) means nothing.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.common.backoff import doubled
from barnabas.common.connection import end_with_silent_host
from barnabas.common.threads import make_thread
from barnabas.controller.failure_detector import ConnectResult, FailureDetector, connect
from barnabas.protocol.ids import BrokerEpoch, Endpoint
from barnabas.zookeeper.session import Threads
from barnabas.zookeeper.znodes import ControllerNode

log = logging.getLogger("barnabas.controller")

_RETRY_S: Final = 0.25
_FIRST_RETRY_S: Final = 0.01
"""After a connection that ended at once; doubled for each further one, up to ``_RETRY_S``."""
_FAILED_RETRY_S: Final = 0.1


class Target(NamedTuple):
    """A controller, with the epoch and address of its broker."""

    node: ControllerNode
    broker_epoch: BrokerEpoch
    endpoint: Endpoint


class ControllerSentinel:
    """`on_gone` is called on the sentinel's thread, again and again until another target is set."""

    def __init__(
        self,
        on_gone: Callable[[ControllerNode], None],
        *,
        detector: FailureDetector,
        on_fatal: Callable[[BaseException], None],
        threads: Threads | None = None,
    ) -> None:
        self._threads = threads or Threads()
        self._on_gone = on_gone
        self._detector = detector
        self._changed = threading.Condition()
        self._target: Target | None = None
        # The controller that was declared dead last; its node stays until a broker deletes it.
        self._gone: ControllerNode | None = None
        self._socket: socket.socket | None = None
        self._ended_at_once = 0
        """Connections in a row to this target that lasted less than ``_RETRY_S``."""
        self._is_stopping = False
        self._thread = make_thread("controller-sentinel", self._run, on_fatal, log)

    def start(self) -> None:
        self._threads.start(self._thread)

    def watch(self, target: Target | None) -> None:
        """Watch this controller's process from now on; None to watch nothing. Any thread."""
        with self._changed:
            if target == self._target:
                return
            if target is not None and target.node != self._gone:
                # A dead process does not become controller.
                self._detector.proved_alive(target.node.broker_id, target.broker_epoch)
            self._target = target
            self._ended_at_once = 0
            self._interrupt()

    def stop(self) -> None:
        """End the thread. Idempotent."""
        with self._changed:
            self._is_stopping = True
            self._interrupt()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _interrupt(self) -> None:
        self._changed.notify_all()
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The peer was faster; the read has ended by itself.
                log.debug("the sentinel's connection was lost already")

    def _run(self) -> None:
        while (target := self._next_target()) is not None:
            self._watch_once(target)

    def _next_target(self) -> Target | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._target is not None)
            return None if self._is_stopping else self._target

    def _watch_once(self, target: Target) -> None:
        """Connect and wait for the connection to end."""
        registration = (target.node.broker_id, target.broker_epoch)
        began_s = self._detector.now_s()
        result, connection = connect(target.endpoint, self._detector.address(*registration))
        if connection is None:
            self._not_connected(target, result, began_s)
            return
        with connection:
            connection.settimeout(None)
            end_with_silent_host(connection)
            try:
                self._detector.connected(*registration, connection.getpeername())
            except OSError as error:
                log.debug("the sentinel's connection was lost at once: %s", error)
                self._detector.connected(*registration)
            with self._changed:
                if self._target != target or self._is_stopping:
                    return
                self._socket = connection
            since = time.monotonic()
            try:
                # A broker sends nothing unasked, so only the end of the connection ends this read.
                connection.recv(1)
            except OSError as error:
                log.debug("the sentinel's connection ended: %s", error)
            finally:
                with self._changed:
                    self._socket = None
        self._connection_ended(target, time.monotonic() - since)

    def _connection_ended(self, target: Target, lasted_s: float) -> None:
        with self._changed:
            if self._target != target:
                return
            self._ended_at_once = 0 if lasted_s >= _RETRY_S else self._ended_at_once + 1
        if self._ended_at_once:
            # A broker that closes accepted connections (max.connections) must not cause a busy loop. But a
            # killed process may accept once more: its connections are reset before its port is closed.
            self._pause(target, doubled(_FIRST_RETRY_S, self._ended_at_once - 1, _RETRY_S))

    def _not_connected(self, target: Target, result: ConnectResult, began_s: float) -> None:
        node = target.node
        if self._detector.attempted(node.broker_id, target.broker_epoch, result, began_s):
            with self._changed:
                is_first, self._gone = self._gone != node, node
            log.log(
                logging.WARNING if is_first else logging.DEBUG,
                "controller %d at %s is declared dead: it %s",
                node.broker_id,
                target.endpoint,
                result.value,
            )
            self._on_gone(node)
        else:
            log.info("controller %d at %s %s", node.broker_id, target.endpoint, result.value)
        self._pause(target, _RETRY_S if result is ConnectResult.SILENT else _FAILED_RETRY_S)

    def _pause(self, target: Target, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._target != target, pause_s)
