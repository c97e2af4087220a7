"""A thread with an event loop of its own, its connections, and its response queue.

Other threads hand the network thread work through deques and wake the loop only when no wake-up is pending,
so that many responses cost one. Stopping: reading ends, each connection closes when what it has in flight is
answered and sent, and at the deadline the rest is cut off. A loop that dies otherwise calls `on_fatal`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import uvloop

from barnabas.broker.base.limits import ADOPTIONS_RUN_NS, HANDSHAKES_RUN_NS
from barnabas.broker.base.purgatory import LoopDeadlines
from barnabas.broker.network.connection import DISPLACED, STOPPING, Connection
from barnabas.broker.network.handshakes import Handshakes
from barnabas.broker.network.memory import RequestMemory
from barnabas.broker.network.request_handler_pool import RequestHandlerPool
from barnabas.broker.network.request_metrics import BusyTime, RequestMetrics
from barnabas.broker.network.tls_listeners import TlsListener
from barnabas.broker.network.tls_transport import TlsTransport
from barnabas.common.threads import make_thread

logger = logging.getLogger(__name__)

_TURNS_BEFORE_AFTER_RUN: Final = 4
"""How often the loop polls its sockets before it calls `after_run`. A client that pipelines sends its next
requests while its first one runs. A turn of the loop costs ten microseconds; a request that is still in time
for this run travels to the followers in the same push, which saves two messages and the changes of threads
that go with them.
"""


class NetworkThread:
    """Made and started by the server; `adopt`, `wake_for`, `call_soon` and `stop` are for any thread."""

    def __init__(
        self,
        name: str,
        handlers: RequestHandlerPool,
        *,
        max_idle_ms: int,
        max_request_bytes: int = 2**63,
    ) -> None:
        self.handlers = handlers
        self.metrics = RequestMetrics()
        """The requests that this thread has answered, if times are measured."""
        self.busy = BusyTime()
        self._name = name
        self._max_idle_ns = max_idle_ms * 1_000_000
        self._loop = uvloop.new_event_loop()
        self._handshakes = Handshakes(self._loop.call_soon, self._loop.call_later, HANDSHAKES_RUN_NS)
        self.deadlines = LoopDeadlines(self._work_later, self.call_soon)
        """Of the requests of its connections that wait for an event."""
        self.memory = RequestMemory(max_request_bytes, self._loop.call_later, self._close_overdue)
        self._thread = make_thread(name, self._run, handlers.on_fatal)
        self._connections: set[Connection] = set()
        self._to_adopt: deque[tuple[socket.socket, Connection, TlsListener | None]] = deque()
        self._adoptions: set[asyncio.Task[None]] = set()
        self._to_flush: deque[Connection] = deque()
        self._wake_is_pending = False
        self._is_running = False
        self._after_run_is_pending = False
        self._stopping = False

    @property
    def to_flush(self) -> int:
        """Connections with answers that this thread has not taken."""
        return len(self._to_flush)

    def start(self) -> None:
        self._thread.start()

    def adopt(self, sock: socket.socket, connection: Connection, tls: TlsListener | None = None) -> None:
        """Take over an accepted socket, with TLS or without. Raises RuntimeError if the thread has ended."""
        self._loop.call_soon_threadsafe(self._queue_adoption, sock, connection, tls)

    def wake_for(self, connection: Connection) -> None:
        """Have the connection flushed on this thread soon."""
        self._to_flush.append(connection)
        if self._is_running and threading.get_ident() == self._thread.ident:
            # The end of the run flushes it, a turn of the loop earlier than a call from the loop would.
            return
        # Cleared before the deque is emptied, so that nothing appended can be left without a wake-up.
        if not self._wake_is_pending:
            self._wake_is_pending = True
            self._call(self._flush_woken)

    def wake_for_room(self) -> None:
        """Let every connection know that a queue has room."""
        self._call(self._queue_has_room)

    def close_unknown(self, connection: Connection) -> None:
        """Close a connection soon if its peer is not known by then."""
        self._call(connection.close_if_displaced)

    def close_listener(self, name: str) -> None:
        """Close the connections of a listener soon."""
        self._call(self._close_listener, name)

    def stop(self, drain_timeout_ms: int) -> None:
        """Begin to stop; returns at once."""
        self._call(self._begin_stop, drain_timeout_ms)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; returns whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call a function in the next turn of the loop: answers that are complete by then are sent before.

        Its own answers are sent when it returns. An exception is fatal.
        """
        self._call(self._work, work)

    def _work_later(self, delay_s: float, work: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, self._work, work)

    def call_after_turns(self, work: Callable[[], None], turns: int = _TURNS_BEFORE_AFTER_RUN) -> None:
        """Call a function a few turns of the loop later, after what its sockets have now was received."""
        self._call(self._count_down, work, turns)

    def _count_down(self, work: Callable[[], None], turns: int) -> None:
        if turns:
            self._loop.call_soon(self._count_down, work, turns - 1)
        else:
            work()

    def _call(self, callback: Callable[..., object], *values: Any) -> None:
        if threading.get_ident() == self._thread.ident:
            self._loop.call_soon(callback, *values)
            return
        try:
            self._loop.call_soon_threadsafe(callback, *values)
        except RuntimeError:
            # The loop is closed, and so is every connection that the call could concern.
            logger.debug("%s has ended; %s is dropped", self._name, callback.__name__)

    # ---- on the thread itself

    def _run(self) -> None:
        loop = self._loop
        loop.set_exception_handler(self._unhandled)
        try:
            loop.call_later(self._idle_tick_s(), self._close_idle)
            loop.run_forever()
            if not self._stopping:
                raise RuntimeError(f"the event loop of {self._name} ended by itself")
        finally:
            loop.close()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        logger.error("%s: %s", self._name, context.get("message"), exc_info=error)

    def _queue_adoption(self, sock: socket.socket, connection: Connection, tls: TlsListener | None) -> None:
        self._to_adopt.append((sock, connection, tls))
        if self._stopping:
            self._adopt_all()
        elif len(self._to_adopt) == 1:
            self._loop.call_soon(self._adopt_some)

    def _adopt_some(self) -> None:
        """Adopt for a bounded time: thousands may come at once, and the requests of others go on."""
        deadline_ns = time.monotonic_ns() + ADOPTIONS_RUN_NS
        while self._to_adopt:
            self._begin_adoption(*self._to_adopt.popleft())
            if time.monotonic_ns() >= deadline_ns:
                break
        if self._to_adopt:
            self._loop.call_soon(self._adopt_some)

    def _adopt_all(self) -> None:
        while self._to_adopt:
            self._begin_adoption(*self._to_adopt.popleft())

    def _begin_adoption(self, sock: socket.socket, connection: Connection, tls: TlsListener | None) -> None:
        if self._stopping:
            sock.close()
            connection.adoption_failed(STOPPING)
            return
        if connection.is_refused:
            sock.close()
            connection.adoption_failed(DISPLACED)
            return
        protocol = connection if tls is None else TlsTransport(connection, tls, self._handshakes)
        task = self._loop.create_task(self._adopt(sock, connection, protocol))
        self._adoptions.add(task)
        task.add_done_callback(self._adopted)

    def _adopted(self, task: asyncio.Task[None]) -> None:
        self._adoptions.discard(task)
        # If its connection has come and gone while the thread stops, nothing else ends the thread.
        if self._stopping:
            self._end_when_empty()

    async def _adopt(
        self, sock: socket.socket, connection: Connection, protocol: asyncio.BaseProtocol
    ) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, sock)
        except OSError as error:
            sock.close()
            connection.adoption_failed(f"the socket cannot be used: {error}")

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._stopping:
            connection.drain()

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._stopping:
            self._end_when_empty()

    def begin_run(self) -> None:
        """A run of requests begins on this thread; `end_run` flushes the connections that it wakes."""
        self._is_running = True
        if self.handlers.measures_times:
            self.busy.begin()

    def end_run(self) -> None:
        self._is_running = False
        self._flush_all()
        if self.handlers.measures_times:
            self.busy.end()

    def _work(self, work: Callable[[], None]) -> None:
        self.begin_run()
        try:
            work()
        except BaseException as error:
            logger.critical("%s ended %s", work, self._name, exc_info=True)
            self.handlers.on_fatal(error)
        finally:
            self.end_run()

    def take_turn(self, run: Callable[[], None], host: str) -> None:
        """Run a request of a peer that is not known when it is the turn of its address."""
        self._handshakes.queue(run, host)

    def continue_soon(self, run: Callable[[], None]) -> None:
        """Continue a run in the next turn of the loop."""
        self._loop.call_soon(run)

    def call_later(self, delay_s: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, work)

    def after_run_soon(self) -> None:
        """Have `after_run` called a few turns of the loop later, once for all runs until then, if due."""
        if not self._after_run_is_pending and self.handlers.is_due():
            self._after_run_is_pending = True
            self._loop.call_soon(self._count_down, self._after_run, _TURNS_BEFORE_AFTER_RUN - 1)

    def _after_run(self) -> None:
        self._after_run_is_pending = False
        self._work(self.handlers.after_run)

    def _flush_woken(self) -> None:
        if not self.handlers.measures_times:
            self._flush_all()
            return
        self.busy.begin()
        self._flush_all()
        self.busy.end()

    def _flush_all(self) -> None:
        self._wake_is_pending = False
        to_flush = self._to_flush
        while to_flush:
            to_flush.popleft().flush()

    def _queue_has_room(self) -> None:
        for connection in tuple(self._connections):
            connection.queue_has_room()

    def _idle_tick_s(self) -> float:
        return min(max(self._max_idle_ns / 10e9, 0.01), 10.0)

    def _close_idle(self) -> None:
        now_ns = time.monotonic_ns()
        for connection in tuple(self._connections):
            connection.close_if_idle(now_ns, self._max_idle_ns)
        for queue in self.handlers.queues.values():
            queue.start_missing()
        self._loop.call_later(self._idle_tick_s(), self._close_idle)

    def _close_overdue(self, now_ns: int) -> None:
        for connection in tuple(self._connections):
            connection.close_if_overdue(now_ns)

    def _close_listener(self, name: str) -> None:
        for connection in tuple(self._connections):
            if connection.peer.listener_name == name:
                connection.close(f"listener {name} was removed")

    def _begin_stop(self, drain_timeout_ms: int) -> None:
        self._stopping = True
        self._adopt_all()
        for connection in tuple(self._connections):
            connection.drain()
        self._loop.call_later(drain_timeout_ms / 1000, self._cut_off)
        self._end_when_empty()

    def _cut_off(self) -> None:
        for connection in tuple(self._connections):
            connection.close(f"{STOPPING} and waited long enough")

    def _end_when_empty(self) -> None:
        if not self._connections and not self._adoptions:
            self._loop.stop()
