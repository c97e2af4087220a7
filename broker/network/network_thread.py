"""A thread with an event loop of its own, its connections, and its response queue.

A connection moves bytes between its socket, its `Pipeline`, which has the rules, and the lanes. Other threads
hand the network thread work through deques and wake the loop only when no wake-up is pending, so that many
responses cost one. Stopping: reading ends, each connection closes when what it has in flight is answered and
sent, and at the deadline the rest is cut off. A loop that dies otherwise calls `on_fatal`.

Threads: the protocol callbacks of a connection, `flush` and `close` run on its network thread; `answer`,
`resume`, `take_request` and `request_done` on any thread. Its lock guards the pipeline, and is never held
while bytes are sent or anything else is called that could wait; the short lock of a queue may be taken inside
it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import uvloop

from barnabas.broker.base.limits import ConnectionLimits
from barnabas.broker.network.busy_time import BusyTime
from barnabas.broker.network.memory import MemoryShare, RequestMemory
from barnabas.broker.network.pipeline import CLOSING, ENDED, HALF_CLOSED, OPEN, Pipeline
from barnabas.broker.network.request import Buffers, Lane, Peer, Request
from barnabas.broker.network.request_metrics import RequestMetrics
from barnabas.broker.network.request_queue import Lanes, RequestQueue
from barnabas.common.threads import make_thread
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.frames import BufferPool, FrameReceiver

logger = logging.getLogger(__name__)

_NETWORK: Final = Lane.NETWORK
_STOPPING: Final = "the broker is stopping"
_TURNS_BEFORE_AFTER_RUN: Final = 4
"""How often the loop polls its sockets before it calls `after_run`. A client that pipelines sends its next
requests while its first one runs. A turn of the loop costs a few microseconds; a request that is still in
time for this run travels to the followers in the same fetch, which saves two messages and the changes of
threads that go with them.
"""


class Connection(asyncio.BufferedProtocol):
    """One client's socket. `on_lost` is called once, on the network thread, when the socket is gone."""

    def __init__(
        self,
        peer: Peer,
        thread: NetworkThread,
        *,
        pool: BufferPool,
        max_frame_bytes: int,
        limits: ConnectionLimits,
        is_protected: bool = False,
        on_lost: Callable[[], None],
    ) -> None:
        self._peer = peer
        self._thread = thread
        self._lanes = thread.lanes
        self._limits = limits
        self._on_lost = on_lost
        self._receiver = FrameReceiver(pool, max_frame_bytes)
        self._memory = MemoryShare(thread.memory, self._receiver, limits, is_protected, self._set_reading)
        # Only the network thread touches these.
        self._last_active_ns = peer.opened_ns
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._queue_is_full = False
        # The lock guards these. A queue counts all pending requests exactly while it is `_queue`.
        self._lock = threading.Lock()
        self._pipeline = Pipeline(limits, thread.lanes.in_turn)
        self._queue: RequestQueue[Connection] | None = None

    # ---- on the network thread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.max_unwritten_bytes)
        self._thread.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._memory.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._receiver.buffer_updated(nbytes)
        except MalformedFrame as error:
            self.close(f"malformed frame: {error}")
            return
        self._last_active_ns = now_ns = time.monotonic_ns()
        pipeline, memory = self._pipeline, self._memory
        if pipeline.phase is CLOSING:
            return
        is_short = memory.received(frames, now_ns)
        if not frames:
            if is_short:
                self._set_reading()
            return
        peer, lane_of, answer = self._peer, self._lanes.lane_of, self.answer
        resume, give_back = self.resume, memory.give_back
        requests = [
            Request(frame, peer, lane_of(frame.view), now_ns, answer, resume, give_back) for frame in frames
        ]
        first = None
        with self._lock:
            pipeline.receive(requests)
            if self._queue is not None:
                self._queue_is_full = self._queue.add(None, len(requests), self._thread.wake_for_room)
            else:
                lane = pipeline.claim()
                if lane is _NETWORK:
                    first = pipeline.take()
                elif lane is not None:
                    self._queue_is_full = self._queue_up(lane)
            may_read = pipeline.may_read
        if first is not None:
            self._run(first)
        if self._queue_is_full or not may_read or not self._is_reading or is_short:
            self._set_reading()

    def _run(self, request: Request | None) -> None:
        """Run requests of the network lane; where another lane follows, queue the connection there.

        A run has a budget of time, so that the thread's other connections do not wait for a peer that
        pipelines many requests: it continues in the next turn of the loop.
        """
        thread, lanes = self._thread, self._lanes
        deadline_ns = time.monotonic_ns() + self._limits.run_ns
        thread.begin_run()
        try:
            while True:
                if request is not None:
                    lanes.run(request)
                is_late = time.monotonic_ns() >= deadline_ns
                with self._lock:
                    lane = self._pipeline.finish(request)
                    if lane is _NETWORK and not is_late:
                        request = self._pipeline.take()
                        continue
                    if lane is not None and lane is not _NETWORK:
                        self._queue_is_full = self._queue_up(lane)
                    has_ended = lane is None and self._pipeline.phase is HALF_CLOSED
                break
            if lane is _NETWORK:
                thread.continue_soon(self._continue)
            elif has_ended:
                thread.wake_for(self)
            thread.after_run_soon()
        except BaseException as error:
            logger.critical(
                "a request of %s ended the network thread", self._peer.connection_id, exc_info=True
            )
            lanes.on_fatal(error)
        finally:
            thread.end_run()

    def _continue(self) -> None:
        """Run the next request of a run whose time was over; it is claimed, also if the socket is gone."""
        with self._lock:
            request = self._pipeline.take()
        self._run(request)
        if self._queue_is_full:
            self._set_reading()

    def eof_received(self) -> bool:
        with self._lock:
            self._pipeline.peer_ends()
        # It closes the connection, unless something that came before the end is still to run.
        self._thread.wake_for(self)
        return True

    def pause_writing(self) -> None:
        with self._lock:
            self._pipeline.output_is_full()
        self._set_reading()

    def resume_writing(self) -> None:
        with self._lock:
            self._pipeline.output_has_room()
            self._queue_up_if_possible()
        self._set_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        abandoned: list[Request] = []
        with self._lock:
            reason = self._pipeline.lose(f"connection lost: {exc}" if exc else ENDED, abandoned)
        for request in abandoned:
            request.abandon()
        # Clients and health checks come and go: only the other reasons are worth a line of the log.
        level = logging.DEBUG if reason == ENDED else logging.INFO
        logger.log(
            level,
            "connection %s on %s closed: %s",
            self._peer.connection_id,
            self._peer.listener_name,
            reason,
        )
        self._transport = None
        self._memory.lose()
        self._thread.lost(self)
        self._on_lost()

    def flush(self) -> None:
        """Send the answers whose turn has come, then continue to read and run what had to stop."""
        transport, pipeline = self._transport, self._pipeline
        if transport is None or pipeline.phase is CLOSING:
            return
        sent: list[Request] = []
        with self._lock:
            out = pipeline.take_sendable(sent)
            if pipeline.pending:
                self._queue_up_if_possible()
            reason = "" if pipeline.phase is OPEN else pipeline.due_close()
        if out:
            self._last_active_ns = time.monotonic_ns()
            if len(out) == 1:
                transport.write(out[0])
            else:
                transport.writelines(out)
        if sent and self._lanes.measures_times:
            now_ns = time.monotonic_ns()
            self._thread.times.note(sent, self._last_active_ns if out else now_ns, now_ns)
        if reason:
            self._close_gently(reason)
        elif not self._is_reading:
            self._set_reading()

    def queue_has_room(self) -> None:
        if self._queue_is_full:
            self._queue_is_full = False
            self._set_reading()

    def close_if_idle(self, now_ns: int, max_idle_ns: int) -> None:
        """Close after ``max_idle_ns`` without a byte received or sent, if no request is in flight.

        A connection that is closing and whose peer does not read the rest is cut off.
        """
        transport = self._transport
        if transport is None or now_ns - self._last_active_ns < max_idle_ns:
            return
        if transport.is_closing():
            transport.abort()
        elif self._pipeline.is_idle:
            self._close_gently(f"idle for {(now_ns - self._last_active_ns) // 1_000_000} ms")

    def close_if_overdue(self, now_ns: int) -> None:
        """Close if others wait for the memory that this connection holds for too long."""
        with self._lock:
            held = None if self._queue_is_full else self._pipeline.held()
        if reason := self._memory.overdue(now_ns, held):
            self.close(reason)

    def drain(self) -> None:
        """Read nothing more and close as soon as what is in flight has been answered and sent."""
        with self._lock:
            self._pipeline.drain(_STOPPING)
        self._set_reading()
        self.flush()

    def adoption_failed(self, reason: str) -> None:
        """The network thread could not take the socket over, and has closed it."""
        with self._lock:
            self._pipeline.close(reason)
        self.connection_lost(None)

    @property
    def listener_name(self) -> str:
        return self._peer.listener_name

    def close(self, reason: str) -> None:
        """Close at once; unsent responses are dropped."""
        if self._transport is not None:
            with self._lock:
                self._pipeline.close(reason)
            self._transport.abort()

    def _close_gently(self, reason: str) -> None:
        if self._transport is not None:
            with self._lock:
                self._pipeline.close(reason)
            self._transport.close()

    def _set_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        with self._lock:
            should_read = self._pipeline.may_read and not self._queue_is_full
        should_read = should_read and self._memory.may_receive(self._pipeline.in_flight_bytes)
        if should_read != self._is_reading:
            self._is_reading = should_read
            if should_read:
                transport.resume_reading()
            else:
                transport.pause_reading()

    # ---- on any thread

    def answer(self, request: Request, buffers: Buffers, close_reason: str) -> None:
        if request.started_ns:
            request.answered_ns = time.monotonic_ns()
        with self._lock:
            is_next = self._pipeline.answer(request, buffers, close_reason)
        if is_next:
            self._thread.wake_for(self)

    def resume(self, request: Request) -> None:
        with self._lock:
            lane = self._pipeline.resume(request)
            if lane is not None:
                self._queue_up(lane)

    # ---- on the workers

    def take_request(self) -> Request | None:
        """The next request, which the queue has just stopped counting; None if it was dropped."""
        with self._lock:
            return self._pipeline.take()

    def request_done(self, request: Request | None) -> bool:
        """Note that the request has run. Returns whether the caller may take the next request.

        If not, the connection is in another lane's queue, or will be queued when its next request may run.
        """
        with self._lock:
            queue, pipeline = self._queue, self._pipeline
            counted = len(pipeline.pending)
            # A request that continues is pending again, and the queue must count it again.
            lane = pipeline.finish(request)
            if lane is None:
                self._queue = None
            elif self._queue_of_next(lane) is queue and len(pipeline.pending) == counted:
                return True
            else:
                self._queue_up(lane)
            has_ended = lane is None and pipeline.phase is HALF_CLOSED
        if has_ended:
            self._thread.wake_for(self)
        if counted and queue is not None:
            queue.discount(counted)
        return False

    # ---- with the lock held

    def _queue_up_if_possible(self) -> None:
        lane = self._pipeline.claim()
        if lane is not None:
            self._queue_up(lane)

    def _queue_up(self, lane: Lane) -> bool:
        """Queue this connection, which is claimed; returns whether the queue is full by that.

        The queue counts before another thread can take, so its count is never below what is there.
        """
        self._queue = self._queue_of_next(lane)
        return self._queue.add(self, len(self._pipeline.pending), self._thread.wake_for_room)

    def _queue_of_next(self, lane: Lane) -> RequestQueue[Connection]:
        """The queue of the next request, which is in that lane and will run on a worker."""
        if lane is _NETWORK:
            lane = self._pipeline.pending[0].lane = Lane.GENERAL
        return self._lanes.queues[lane]


class NetworkThread:
    """Made and started by the server; `adopt`, `wake_for`, `call_soon` and `stop` are for any thread."""

    def __init__(
        self, name: str, lanes: Lanes[Connection], *, max_idle_ms: int, max_request_bytes: int = 2**63
    ) -> None:
        self.lanes = lanes
        self.times = RequestMetrics()
        """The requests that this thread has answered, if times are measured."""
        self.busy = BusyTime()
        self._name = name
        self._max_idle_ns = max_idle_ms * 1_000_000
        self._loop = uvloop.new_event_loop()
        self.memory = RequestMemory(max_request_bytes, self._loop.call_later, self._close_overdue)
        self._thread = make_thread(name, self._run, lanes.on_fatal)
        self._connections: set[Connection] = set()
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

    def adopt(self, sock: socket.socket, connection: Connection) -> None:
        """Take over an accepted socket. Raises RuntimeError if the thread has ended."""
        self._loop.call_soon_threadsafe(self._begin_adoption, sock, connection)

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

    def _begin_adoption(self, sock: socket.socket, connection: Connection) -> None:
        if self._stopping:
            sock.close()
            connection.adoption_failed(_STOPPING)
            return
        task = self._loop.create_task(self._adopt(sock, connection))
        self._adoptions.add(task)
        task.add_done_callback(self._adopted)

    def _adopted(self, task: asyncio.Task[None]) -> None:
        self._adoptions.discard(task)
        # If its connection has come and gone while the thread stops, nothing else ends the thread.
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
            connection.drain()

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._stopping:
            self._end_when_empty()

    def begin_run(self) -> None:
        """A run of requests begins on this thread; `end_run` flushes the connections that it wakes."""
        self._is_running = True
        if self.lanes.measures_times:
            self.busy.begin()

    def end_run(self) -> None:
        self._is_running = False
        self._flush_all()
        if self.lanes.measures_times:
            self.busy.end()

    def _work(self, work: Callable[[], None]) -> None:
        self.begin_run()
        try:
            work()
        except BaseException as error:
            logger.critical("%s ended %s", work, self._name, exc_info=True)
            self.lanes.on_fatal(error)
        finally:
            self.end_run()

    def continue_soon(self, run: Callable[[], None]) -> None:
        """Continue a run in the next turn of the loop."""
        self._loop.call_soon(run)

    def after_run_soon(self) -> None:
        """Have `after_run` called a few turns of the loop later, once for all runs until then."""
        if not self._after_run_is_pending:
            self._after_run_is_pending = True
            self._loop.call_soon(self._count_down, self._after_run, _TURNS_BEFORE_AFTER_RUN - 1)

    def _after_run(self) -> None:
        self._after_run_is_pending = False
        try:
            self.lanes.after_run()
        except BaseException as error:
            logger.critical("what follows a run ended %s", self._name, exc_info=True)
            self.lanes.on_fatal(error)

    def _flush_woken(self) -> None:
        if not self.lanes.measures_times:
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
        self._loop.call_later(self._idle_tick_s(), self._close_idle)

    def _close_overdue(self, now_ns: int) -> None:
        for connection in tuple(self._connections):
            connection.close_if_overdue(now_ns)

    def _close_listener(self, name: str) -> None:
        for connection in tuple(self._connections):
            if connection.listener_name == name:
                connection.close(f"listener {name} was removed")

    def _begin_stop(self, drain_timeout_ms: int) -> None:
        self._stopping = True
        for connection in tuple(self._connections):
            connection.drain()
        self._loop.call_later(drain_timeout_ms / 1000, self._cut_off)
        self._end_when_empty()

    def _cut_off(self) -> None:
        for connection in tuple(self._connections):
            connection.close(f"{_STOPPING} and waited long enough")

    def _end_when_empty(self) -> None:
        if not self._connections and not self._adoptions:
            self._loop.stop()
