"""Watches the process of the broker that is the controller, so that its death is seen at once.

Every other broker keeps one idle connection to the controller's broker. When that process dies, its sockets
are reset and its port refuses; the sentinel says so within milliseconds, where the session in ZooKeeper takes
seconds to expire. What follows is safe even if the sentinel errs: whoever takes ``/controller`` away does so
for that very node only, the next controller raises the epoch, and all that the old one still writes or says
is fenced by it.

One thread per broker, blocked in a read most of its life. A lost connection that can be made again (an idle
close, a restart of the acceptor) means nothing.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.controller.threads import Threads
from barnabas.controller.znodes import ControllerNode
from barnabas.protocol.ids import Endpoint

log = logging.getLogger("barnabas.controller")

_CONNECT_TIMEOUT_S: Final = 1.0
_RETRY_S: Final = 0.25


class _Target(NamedTuple):
    node: ControllerNode
    endpoint: Endpoint


class ControllerSentinel:
    """`on_gone` is called on the sentinel's thread, again and again until another target is set."""

    def __init__(
        self,
        on_gone: Callable[[ControllerNode], None],
        *,
        on_fatal: Callable[[BaseException], None],
        threads: Threads | None = None,
    ) -> None:
        self._threads = threads or Threads()
        self._on_gone = on_gone
        self._on_fatal = on_fatal
        self._changed = threading.Condition()
        self._target: _Target | None = None
        self._socket: socket.socket | None = None
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="controller-sentinel", daemon=True)

    def start(self) -> None:
        self._threads.start(self._thread)

    def watch(self, node: ControllerNode | None, endpoint: Endpoint | None) -> None:
        """Watch the process behind a node from now on, or nobody. From any thread."""
        target = None if node is None or endpoint is None else _Target(node, endpoint)
        with self._changed:
            if target != self._target:
                self._target = target
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
        try:
            while (target := self._next_target()) is not None:
                self._watch_once(target)
        except Exception as error:
            log.critical("the controller's sentinel ends: %r", error, exc_info=True)
            self._on_fatal(error)

    def _next_target(self) -> _Target | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._target is not None)
            return None if self._is_stopping else self._target

    def _watch_once(self, target: _Target) -> None:
        """Connect and wait for the connection to end; only a refusal says that nobody is there."""
        try:
            connection = socket.create_connection(target.endpoint, timeout=_CONNECT_TIMEOUT_S)
        except ConnectionRefusedError:
            log.warning("controller %d at %s refuses connections", target.node.broker_id, target.endpoint)
            self._on_gone(target.node)
            self._pause(target)
            return
        except OSError as error:
            log.info("controller %d at %s: %s", target.node.broker_id, target.endpoint, error)
            self._pause(target)
            return
        with connection:
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            with self._changed:
                if self._target != target or self._is_stopping:
                    return
                self._socket = connection
            since = time.monotonic()
            try:
                # A broker says nothing unasked: whatever ends this read is the end of the connection.
                connection.recv(1)
            except OSError as error:
                log.debug("the sentinel's connection ended: %s", error)
            finally:
                with self._changed:
                    self._socket = None
        if time.monotonic() - since < _RETRY_S:
            # A broker that takes connections only to close them (max.connections) must not keep us spinning.
            self._pause(target)

    def _pause(self, target: _Target) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._target != target, _RETRY_S)
