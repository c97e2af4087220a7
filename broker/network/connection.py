"""One client's connection: frames in, responses out, in order and bounded.

Requests of one connection are run one at a time and in order. A request that was run but not yet answered (it
waits in the purgatory) does not block the next one; responses leave in the order of the requests, from the
slots.

Bounds: at most `max_in_flight` requests run and unanswered; reading stops while as many are received and not
answered, while their frames exceed `max_in_flight_bytes`, while the request queue is full, or while the peer
does not read its responses. In the last case no further request is run either, so a slow reader holds twice
`max_unwritten_bytes` and two responses at most, however much it asks for.

If a peer ends its side, its received requests are still run, because a producer with acks=0 may write, close
and rely on that. Then the connection is closed; like Apache Kafka, it does not wait for unanswered requests.

Threads: the protocol callbacks, `flush` and `close` run on the network thread that owns the connection;
`answer`, `answer_with_close`, `take_request` and `request_done` on any thread. The lock guards what both
touch and is never held while bytes are sent or anything else is called that could wait; the queue's own short
lock may be taken inside it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast

from barnabas.broker.network.request import Buffers, Lane, NotShort, Request
from barnabas.broker.network.request_queue import RequestQueue
from barnabas.broker.network.request_runner import RequestRunner
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.frames import BufferPool, FrameReceiver
from barnabas.protocol.invariants import invariant

logger = logging.getLogger(__name__)

_ENDED: Final = "closed by the peer"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may hold."""

    max_frame_bytes: int = 104_857_600
    max_in_flight: int = 100
    max_in_flight_bytes: int = 16 * 1024 * 1024
    max_unwritten_bytes: int = 1024 * 1024


class Owner(Protocol):
    """What a connection needs of its network thread."""

    def wake_for(self, connection: Connection) -> None:
        """Have `flush` called on the network thread soon. From any thread."""

    def begin_run(self) -> None:
        """A run of requests begins on the network thread itself."""

    def end_run(self) -> None:
        """It has ended: flush those that were to be woken meanwhile."""

    def wake_for_room(self) -> None:
        """Have `room_in_queue` called on every stalled connection. From any thread."""

    def after_run_soon(self, runner: RequestRunner) -> None:
        """Have the runner's `after_run` called a few turns of the loop later, once for all runs till then."""

    def opened(self, connection: Connection) -> None: ...

    def lost(self, connection: Connection) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """See the module's text. `on_lost` is called once, on the network thread, when the socket is gone."""

    def __init__(
        self,
        connection_id: str,
        peer_host: str,
        listener_name: str,
        *,
        owner: Owner,
        queues: Mapping[Lane, RequestQueue],
        runner: RequestRunner,
        pool: BufferPool,
        limits: ConnectionLimits,
        on_lost: Callable[[], None],
    ) -> None:
        self.id = connection_id
        self.peer_host = peer_host
        self.listener_name = listener_name
        self.opened_ns = self.last_active_ns = time.monotonic_ns()
        self._owner = owner
        self._queues = queues
        self._runner = runner
        self._limits = limits
        self._on_lost = on_lost
        self._receiver = FrameReceiver(pool, limits.max_frame_bytes)
        # Only the network thread touches these.
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self._queue_full = False
        self._close_reason = ""
        self._closing_when_idle = ""
        # The lock guards these. `_pending` (not yet run) is always a suffix of `_slots` (not yet sent). The
        # queue is that of the first pending request's lane; it counts `_pending` exactly while `_scheduled`.
        self._lock = threading.Lock()
        self._queue = queues[Lane.GENERAL]
        self._slots: deque[Request] = deque()
        self._pending: deque[Request] = deque()
        self._scheduled = False
        self._in_flight_bytes = 0
        self._unsent_bytes = 0
        self._peer_is_slow = False
        self._closed = False
        self._peer_has_ended = False
        # The request that is answered by closing, when its turn comes; none after it is run.
        self._closing_request: Request | None = None
        self._wanted_close = ""

    # ---- on the network thread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.max_unwritten_bytes)
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._receiver.buffer_updated(nbytes)
        except MalformedFrame as error:
            self.close(f"malformed frame: {error}")
            return
        self.last_active_ns = now_ns = time.monotonic_ns()
        if not frames or self._close_reason:
            return
        requests = [Request(self, frame, now_ns) for frame in frames]
        received_bytes = 0
        for request in requests:
            received_bytes += request.size_bytes
        with self._lock:
            self._slots.extend(requests)
            self._pending.extend(requests)
            self._in_flight_bytes += received_bytes
            runs_here = False
            if self._scheduled:
                self._queue_full = self._queue.add(None, len(requests), self._owner.wake_for_room)
            elif self._may_run() and self._runner.is_short(self._pending[0]):
                runs_here = self._scheduled = True
                self._queue = self._queues[Lane.GENERAL]
                self._queue_full = self._queue.add(None, len(self._pending), self._owner.wake_for_room)
            else:
                self._queue_full = self._schedule_if_possible()
            may_read = self._may_read()
        if runs_here:
            self._run_here()
        if self._queue_full or not may_read or not self._reading:
            self._set_reading()

    def _run_here(self) -> None:
        """Run what is short on this thread, as a worker would; hand the rest over where a long one comes."""
        runner = self._runner
        self._owner.begin_run()
        try:
            while True:
                request = self.take_request()
                self._queue.discount(1)
                if request is not None and not self._ran_shortly(request):
                    break
                if not self.request_done():
                    break
                with self._lock:
                    if not runner.is_short(self._pending[0]):
                        self._queue_up_counted()
                        break
            self._owner.after_run_soon(runner)
        except BaseException as error:
            logger.critical("a request on the network thread of %s broke the broker", self.id, exc_info=True)
            runner.on_fatal(error)
        finally:
            self._owner.end_run()

    def _ran_shortly(self, request: Request) -> bool:
        """Run it here, unless it says that it takes long: then it goes to a worker with all behind it."""
        request.must_be_short = True
        try:
            self._runner.handle(request)
        except NotShort as elsewhere:
            request.must_be_short = False
            self._queue_full = self.put_back(request, elsewhere.lane)
            return False
        return True

    def eof_received(self) -> bool:
        """Keep the socket for as long as something that came before the end is still to be run."""
        with self._lock:
            self._peer_has_ended = True
            is_idle = not self._scheduled and not self._pending
        if is_idle:
            self._close_reason = self._close_reason or _ENDED
            return False
        # It finds out whether what is left may be run.
        self._owner.wake_for(self)
        return True

    def pause_writing(self) -> None:
        with self._lock:
            self._peer_is_slow = True
        self._set_reading()

    def resume_writing(self) -> None:
        with self._lock:
            self._peer_is_slow = False
            self._schedule_if_possible()
        self._set_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        with self._lock:
            self._closed = True
            self._slots.clear()
            # It and its frame would wait for the garbage collector, held by each other.
            self._closing_request = None
            self._unsent_bytes = self._in_flight_bytes = 0
            # While scheduled, the workers empty it and drop each request, because the queue has counted them.
            if not self._scheduled:
                self._pending.clear()
        reason = self._close_reason or (f"connection lost: {exc}" if exc else _ENDED)
        logger.info("connection %s on %s closed: %s", self.id, self.listener_name, reason)
        self._transport = None
        self._owner.lost(self)
        self._on_lost()

    def flush(self) -> None:
        """Send what may be sent in order, then let reading and running go on where they had to stop."""
        transport = self._transport
        if transport is None:
            return
        out: list[bytes | bytearray | memoryview] = []
        closes = False
        with self._lock:
            slots = self._slots
            while slots and slots[0].answered:
                request = slots.popleft()
                self._in_flight_bytes -= request.size_bytes
                if request is self._closing_request:
                    closes = True
                    break
                out.extend(request.buffers)
                request.buffers = ()
            self._unsent_bytes -= sum(map(len, out))
            self._schedule_if_possible()
            idle = not slots
            is_over = self._peer_has_ended and not self._scheduled
        if out:
            self.last_active_ns = time.monotonic_ns()
            if len(out) == 1:
                transport.write(out[0])
            else:
                transport.writelines(out)
        if closes:
            self._close_gently(self._wanted_close)
            return
        if is_over:
            self._close_gently(_ENDED)
            return
        if not self._reading:
            self._set_reading()
        if idle and self._closing_when_idle:
            self._close_gently(self._closing_when_idle)

    def room_in_queue(self) -> None:
        """The request queue has room again."""
        if self._queue_full:
            self._queue_full = False
            self._set_reading()

    def close_if_idle(self, now_ns: int, max_idle_ns: int) -> None:
        """Close when nothing was received or sent for so long and no request is in flight.

        One that is closing and whose peer does not read what is left for it is cut off.
        """
        transport = self._transport
        if transport is None or now_ns - self.last_active_ns < max_idle_ns:
            return
        if transport.is_closing():
            transport.abort()
        elif not self._slots:
            self._close_gently(f"idle for {(now_ns - self.last_active_ns) // 1_000_000} ms")

    def close_when_idle(self, reason: str) -> None:
        """Read nothing more and close as soon as what is in flight has been answered and sent."""
        self._closing_when_idle = reason
        self._set_reading()
        if not self._slots:
            self._close_gently(reason)

    def adoption_failed(self, reason: str) -> None:
        """The network thread could not take the socket over, and has closed it."""
        self._close_reason = reason
        self.connection_lost(None)

    def close(self, reason: str) -> None:
        """Close at once; unsent responses are dropped."""
        if self._transport is not None:
            self._close_reason = self._close_reason or reason
            self._transport.abort()

    def _close_gently(self, reason: str) -> None:
        if self._transport is not None and not self._close_reason:
            self._close_reason = reason
            self._transport.close()

    def _set_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        with self._lock:
            wanted = self._may_read() and not self._peer_has_ended
        wanted = wanted and not self._queue_full and not self._closing_when_idle
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    # ---- on any thread

    def take_request(self) -> Request | None:
        with self._lock:
            request = self._pending.popleft()
            return None if self._closed else request

    def request_done(self) -> bool:
        with self._lock:
            queue = self._queue
            scheduled = self._scheduled = bool(self._pending) and self._may_run()
            blocked = 0 if scheduled else len(self._pending)
            is_over = self._peer_has_ended and not scheduled
            goes_on = scheduled and self._queue_of_next() is queue
            if scheduled and not goes_on:
                self._queue_up_counted()
        if is_over:
            self._owner.wake_for(self)
        if blocked:
            # These requests wait for their own peer, so they must not count in the queue.
            queue.discount(blocked)
        return goes_on

    def put_back(self, request: Request, lane: Lane) -> bool:
        """Queue the connection for that lane, this request first; returns whether the queue is full."""
        with self._lock:
            request.lane = lane
            self._pending.appendleft(request)
            self._queue.add(None, 1, self._owner.wake_for_room)
            return self._queue_up_counted()

    def answer(self, request: Request, buffers: Buffers) -> None:
        with self._lock:
            if request.failed:
                return
            invariant(not request.answered, "a request of %s was answered twice", self.id)
            request.answered = True
            if self._closed:
                return
            request.buffers = buffers
            for buffer in buffers:
                self._unsent_bytes += len(buffer)
            is_next = self._slots[0] is request
        if is_next:
            self._owner.wake_for(self)

    def answer_with_close(self, request: Request, reason: str) -> None:
        with self._lock:
            if request.failed:
                return
            invariant(not request.answered, "a request of %s was answered twice", self.id)
            is_next = self._close_after(request, reason)
        if is_next:
            self._owner.wake_for(self)

    def fail(self, request: Request, reason: str) -> None:
        with self._lock:
            request.failed = True
            is_next = not request.answered and self._close_after(request, reason)
        if is_next:
            self._owner.wake_for(self)

    # ---- with the lock held

    def _close_after(self, request: Request, reason: str) -> bool:
        """Answer a request by closing the connection; whether its turn has come."""
        request.answered = True
        if self._closed:
            return False
        if self._closing_request is None:
            self._closing_request, self._wanted_close = request, reason
        return self._slots[0] is request

    def _may_run(self) -> bool:
        """Whether the next pending request may be run; one that only has to be dropped always may."""
        return self._closed or (
            self._closing_request is None
            and not self._peer_is_slow
            and self._unsent_bytes <= self._limits.max_unwritten_bytes
            and len(self._slots) - len(self._pending) < self._limits.max_in_flight
        )

    def _may_read(self) -> bool:
        return (
            self._closing_request is None
            and not self._peer_is_slow
            and len(self._slots) < self._limits.max_in_flight
            and self._in_flight_bytes < self._limits.max_in_flight_bytes
        )

    def _schedule_if_possible(self) -> bool:
        """Queue this connection if it has something to run and may; whether the queue is full by that.

        The queue counts before another thread can take, so its count is never below what is there.
        """
        if self._scheduled or not self._pending or not self._may_run():
            return False
        self._scheduled = True
        self._queue = self._queue_of_next()
        return self._queue.add(self, len(self._pending), self._owner.wake_for_room)

    def _queue_up_counted(self) -> bool:
        """Queue this connection, whose requests are counted already, in the lane of its first request."""
        queue, before = self._queue_of_next(), self._queue
        if queue is before:
            return queue.add(self, 0, self._owner.wake_for_room)
        self._queue = queue
        is_full = queue.add(self, len(self._pending), self._owner.wake_for_room)
        before.discount(len(self._pending))
        return is_full

    def _queue_of_next(self) -> RequestQueue:
        return self._queues[self._runner.lane_of(self._pending[0])]
