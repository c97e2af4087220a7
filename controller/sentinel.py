"""Watches the process of the broker that is the controller, so that its death is noticed at once.

Every other broker keeps one idle connection to the controller's broker. When that process dies, its sockets
are reset and its port refuses, or its host is gone or silent. The sentinel reports that within milliseconds
or three seconds, long before the ZooKeeper session expires. The `FailureDetector` decides what counts as a
death. An error is safe: only that very ``/controller`` node is deleted, the next controller raises the epoch,
and the epoch fences all later writes and requests of the old one.

A lost connection that can be made again (an idle close, a restart of the acceptor) means nothing. On a
listener with TLS or SASL the connection is an authenticated one: brokers close others after some seconds.

The controller's event thread sets the target; a task on the event loop of the broker's links watches it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from barnabas.common.backoff import doubled
from barnabas.common.channel import Channel
from barnabas.common.connection import end_with_silent_host
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.common.threads import LoopThread
from barnabas.controller.failure_detector import ConnectResult, FailureDetector, try_connect
from barnabas.protocol.errors import LocalError
from barnabas.protocol.ids import BrokerEpoch, BrokerId, Endpoint
from barnabas.zookeeper.znodes import ControllerNode

log = logging.getLogger("barnabas.controller")

_RETRY_S: Final = 0.25
_FIRST_RETRY_S: Final = 0.01
"""After a connection that ended at once; doubled for each further one, up to ``_RETRY_S``."""
_FAILED_RETRY_S: Final = 0.1
_PAUSES_S: Final = {ConnectResult.SILENT: _RETRY_S, ConnectResult.ANSWERS: 1.0}
"""After an attempt; a broker that answers has refused TLS or SASL, and must not be asked often."""
_LOGIN_TIMEOUT_MS: Final = 2_000
"""A host that has vanished is silent; the attempt that tells so comes after this."""
_NEVER_IDLE_MS: Final = 2**31 - 1

_Registration = tuple[BrokerId, BrokerEpoch]


class Target(NamedTuple):
    """A controller, with the epoch and address of its broker."""

    node: ControllerNode
    broker_epoch: BrokerEpoch
    endpoint: Endpoint


class ControllerSentinel:
    """`on_gone` is called on the links' loop, again and again until another target is set."""

    def __init__(
        self,
        on_gone: Callable[[ControllerNode], None],
        detector: FailureDetector,
        security: ChannelSecurity = PLAINTEXT,
    ) -> None:
        self._security = security
        self._on_gone = on_gone
        self._detector = detector
        self._target: Target | None = None
        # The controller that was declared dead last; its node stays until a broker deletes it.
        self._gone: ControllerNode | None = None
        self._links: LoopThread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, links: LoopThread) -> None:
        """Connect to later targets, on this loop."""
        self._links = links

    def watch(self, target: Target | None) -> None:
        """Watch this controller's process from now on; None to watch nothing."""
        if target == self._target:
            return
        if target is not None and target.node != self._gone:
            # A dead process does not become controller.
            self._detector.proved_alive(target.node.broker_id, target.broker_epoch)
        self._target = target
        if self._links is not None:
            self._links.call(self._watch_from_now_on, self._links, target)

    def stop(self) -> None:
        """Close the connection. Idempotent."""
        self.watch(None)

    def _watch_from_now_on(self, links: LoopThread, target: Target | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None if target is None else links.spawn(self._serve(target))

    async def _serve(self, target: Target) -> None:
        registration = (target.node.broker_id, target.broker_epoch)
        attend = self._attend if self._security is PLAINTEXT else self._attend_secured
        # Connections in a row that lasted less than ``_RETRY_S``.
        ended_at_once = 0
        while True:
            began_s = self._detector.now_s()
            result, lasted_s = await attend(target.endpoint, registration)
            if lasted_s is None:
                self._not_connected(target, result, began_s)
                pause_s = _PAUSES_S.get(result, _FAILED_RETRY_S)
            else:
                # A broker that closes accepted connections (max.connections) must not cause a busy loop. But
                # a killed process may accept once more: its connections are reset before its port is closed.
                ended_at_once = 0 if lasted_s >= _RETRY_S else ended_at_once + 1
                pause_s = doubled(_FIRST_RETRY_S, ended_at_once - 1, _RETRY_S) if ended_at_once else 0.0
            await asyncio.sleep(pause_s)

    async def _attend(
        self, endpoint: Endpoint, registration: _Registration
    ) -> tuple[ConnectResult, float | None]:
        """Connect and wait for the end: how long the connection lasted in seconds; None without one."""
        result, connection = await try_connect(endpoint, self._detector.address(*registration))
        if connection is None:
            return result, None
        with connection:
            return result, await self._wait_for_end(registration, connection)

    async def _attend_secured(
        self, endpoint: Endpoint, registration: _Registration
    ) -> tuple[ConnectResult, float | None]:
        """As `_attend`; a broker that takes a connection and refuses the rest is not dead."""
        ended = asyncio.Event()
        channel = Channel(
            endpoint,
            client_id="controller-sentinel",
            connect_timeout_ms=_LOGIN_TIMEOUT_MS,
            connections_max_idle_ms=_NEVER_IDLE_MS,
            ends_with_silent_host=True,
            on_close=lambda channel, error: ended.set(),
            security=self._security,
        )
        try:
            await channel.connect()
            since_s = self._detector.now_s()
            self._detector.connected(*registration, channel.peer_address)
            await ended.wait()
            return ConnectResult.ANSWERS, self._detector.now_s() - since_s
        except LocalError as error:
            log.debug("controller at %s: %s", endpoint, error)
        finally:
            channel.close()
        result, connection = await try_connect(endpoint, self._detector.address(*registration))
        if connection is not None:
            connection.close()
        return result, None

    async def _wait_for_end(self, registration: _Registration, connection: socket.socket) -> float:
        """The time in seconds that the connection lasted."""
        since_s = self._detector.now_s()
        address = None
        with suppress(OSError):
            end_with_silent_host(connection)
            address = connection.getpeername()
        self._detector.connected(*registration, address)
        with suppress(OSError):
            # A broker sends nothing unasked, so only the end of the connection ends this read.
            await asyncio.get_running_loop().sock_recv(connection, 1)
        return self._detector.now_s() - since_s

    def _not_connected(self, target: Target, result: ConnectResult, began_s: float) -> None:
        node = target.node
        if not self._detector.attempted(node.broker_id, target.broker_epoch, result, began_s):
            log.info("controller %d at %s %s", node.broker_id, target.endpoint, result.value)
            return
        is_first, self._gone = self._gone != node, node
        log.log(
            logging.WARNING if is_first else logging.DEBUG,
            "controller %d at %s is declared dead: it %s",
            node.broker_id,
            target.endpoint,
            result.value,
        )
        self._on_gone(node)
