"""A thread with an event loop of its own, its connections, and its response queue.

Other threads hand it work through deques and wake the loop only when no wake-up is pending, so that many
responses cost one. Stopping: reading ends, each connection closes when what it has in flight is answered and
sent, and what is left at the deadline is cut off. A loop that dies otherwise calls `on_fatal`.
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

from barnabas.broker.network.connection import Connection
from barnabas.broker.network.request_runner import RequestRunner

logger = logging.getLogger(__name__)

_TURNS_BEFORE_AFTER_RUN: Final = 4
"""How often the sockets are looked at again before what follows a run is done.

A client that pipelines sends its next requests while its first one is run here. A turn of the loop costs a
few microseconds; a request that is still in time for this run travels to the followers in the same fetch,
which saves two messages and the changes of threads that go with them.
"""


class NetworkThread:
    """Made and started by the server; `adopt`, `wake_for`, `wake_for_room` and `stop` are for any thread."""

    def __init__(self, name: str, *, max_idle_ms: int, on_fatal: Callable[[BaseException], None]) -> None:
        self.name = name
        self._max_idle_ns = max_idle_ms * 1_000_000
        self._on_fatal = on_fatal
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._connections: set[Connection] = set()
        self._adoptions: set[asyncio.Task[None]] = set()
        self._to_flush: deque[Connection] = deque()
        self._wake_is_pending = False
        self._is_running = False
        self._after_run_is_pending = False
        self._stopping = False

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def start(self) -> None:
        self._thread.start()

    def adopt(self, sock: socket.socket, connection: Connection) -> None:
        """Take over an accepted socket. Raises RuntimeError when the thread has ended."""
        self._loop.call_soon_threadsafe(self._begin_adoption, sock, connection)

    def wake_for(self, connection: Connection) -> None:
        self._to_flush.append(connection)
        if self._is_running and threading.get_ident() == self._thread.ident:
            # The end of the run flushes it, a turn of the loop earlier than a call from the loop would.
            return
        # Cleared before the deque is emptied, so that nothing appended can be left without a wake-up.
        if not self._wake_is_pending:
            self._wake_is_pending = True
            self._call(self._flush_all)

    def begin_run(self) -> None:
        self._is_running = True

    def end_run(self) -> None:
        self._is_running = False
        self._flush_all()

    def wake_for_room(self) -> None:
        self._call(self._room_in_queue)

    def stop(self, drain_timeout_ms: int) -> None:
        """Begin to stop; returns at once."""
        self._call(self._begin_stop, drain_timeout_ms)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _call(self, callback: Callable[..., object], *values: Any) -> None:
        if threading.get_ident() == self._thread.ident:
            self._loop.call_soon(callback, *values)
            return
        try:
            self._loop.call_soon_threadsafe(callback, *values)
        except RuntimeError:
            # The loop is closed, and with it every connection that the call could have been for.
            logger.debug("%s has ended; %s is dropped", self.name, callback.__name__)

    # ---- on the thread itself

    def _run(self) -> None:
        loop = self._loop
        loop.set_exception_handler(self._unhandled)
        try:
            loop.call_later(self._idle_tick_s(), self._close_idle)
            loop.run_forever()
            if not self._stopping:
                raise RuntimeError(f"the event loop of {self.name} ended by itself")
        except BaseException as error:
            logger.critical("%s died", self.name, exc_info=True)
            self._on_fatal(error)
        finally:
            loop.close()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        logger.error("%s: %s", self.name, context.get("message"), exc_info=error)

    def _begin_adoption(self, sock: socket.socket, connection: Connection) -> None:
        if self._stopping:
            sock.close()
            connection.adoption_failed("the broker is stopping")
            return
        task = self._loop.create_task(self._adopt(sock, connection))
        self._adoptions.add(task)
        task.add_done_callback(self._adopted)

    def _adopted(self, task: asyncio.Task[None]) -> None:
        self._adoptions.discard(task)
        # Its connection may have come and gone while the thread is stopping: then nothing else ends it.
        if self._stopping:
            self._end_when_empty()

    async def _adopt(self, sock: socket.socket, connection: Connection) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, sock)
        except OSError as error:
            sock.close()
            connection.adoption_failed(f"the socket cannot be used: {error}")

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._stopping:
            connection.close_when_idle("the broker is stopping")

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._stopping:
            self._end_when_empty()

    def after_run_soon(self, runner: RequestRunner) -> None:
        if not self._after_run_is_pending:
            self._after_run_is_pending = True
            self._loop.call_soon(self._after_run, runner, _TURNS_BEFORE_AFTER_RUN)

    def _after_run(self, runner: RequestRunner, turns: int) -> None:
        if turns > 1:
            self._loop.call_soon(self._after_run, runner, turns - 1)
            return
        self._after_run_is_pending = False
        try:
            runner.after_run()
        except BaseException as error:
            logger.critical("what follows a run on %s broke the broker", self.name, exc_info=True)
            runner.on_fatal(error)

    def _flush_all(self) -> None:
        self._wake_is_pending = False
        to_flush = self._to_flush
        while to_flush:
            to_flush.popleft().flush()

    def _room_in_queue(self) -> None:
        for connection in tuple(self._connections):
            connection.room_in_queue()

    def _idle_tick_s(self) -> float:
        return min(max(self._max_idle_ns / 10e9, 0.01), 10.0)

    def _close_idle(self) -> None:
        now_ns = time.monotonic_ns()
        for connection in tuple(self._connections):
            connection.close_if_idle(now_ns, self._max_idle_ns)
        self._loop.call_later(self._idle_tick_s(), self._close_idle)

    def _begin_stop(self, drain_timeout_ms: int) -> None:
        self._stopping = True
        for connection in tuple(self._connections):
            connection.close_when_idle("the broker is stopping")
        self._loop.call_later(drain_timeout_ms / 1000, self._cut_off)
        self._end_when_empty()

    def _cut_off(self) -> None:
        for connection in tuple(self._connections):
            connection.close("the broker is stopping and waited long enough")

    def _end_when_empty(self) -> None:
        if not self._connections and not self._adoptions:
            self._loop.stop()
