"""One client's connection: between its socket, its `Pipeline`, which has the rules, and the handlers.

Threads: the protocol callbacks, `flush` and `close` run on its network thread; `answer`, `resume`,
`take_request` and `request_done` on any thread. Its lock guards the pipeline, and is never held while bytes
are sent or anything else is called that could wait; the short lock of a queue may be taken inside it,
and a worker started, which takes a tenth of a millisecond.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from barnabas.broker.base.limits import MAX_UNAUTHENTICATED_REQUESTS, ConnectionLimits
from barnabas.broker.network.memory import MemoryShare
from barnabas.broker.network.pipeline import CLOSING, ENDED, HALF_CLOSED, OPEN, Pipeline
from barnabas.broker.network.request import Buffers, Lane, Peer, Request
from barnabas.broker.network.request_queue import RequestQueue
from barnabas.broker.network.unauthenticated import Unauthenticated
from barnabas.broker.security.authentication_outcomes import AuthenticationOutcomes
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.frames import BufferPool, FrameReceiver

if TYPE_CHECKING:
    # The thread makes no connection, and each knows the other.
    from barnabas.broker.network.network_thread import NetworkThread
    from barnabas.broker.network.tls_transport import TlsTransport

logger = logging.getLogger(__name__)

STOPPING: Final = "the broker is stopping"
DISPLACED: Final = "others came, and too many peers are not authenticated"
_NETWORK: Final = Lane.NETWORK
_LONGEST_MUTE_MS: Final = 600_000
"""The end of a muted connection is not seen, so this is how long one that the peer has left takes up memory.
A client that must wait for longer is muted again after its next request."""


class Authentication(NamedTuple):
    """The rules for a connection until its peer is known."""

    pending: Unauthenticated[Connection]
    outcomes: AuthenticationOutcomes
    needs_sasl: bool
    """TLS alone does not end it."""


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
        authentication: Authentication | None = None,
        on_lost: Callable[[], None],
    ) -> None:
        self.peer = peer
        self._thread = thread
        self._handlers = thread.handlers
        self._limits = limits
        self._on_lost = on_lost
        # None once the peer is known.
        self._authentication = authentication
        self._max_frame_bytes = max_frame_bytes
        self._receiver = FrameReceiver(pool, max_frame_bytes)
        if (authenticator := peer.session.authenticator) is not None:
            # Until the peer is known, it may not make the broker hold more than a handshake takes.
            self._receiver.max_frame_bytes = min(authenticator.max_receive_bytes, max_frame_bytes)
            peer.session.on_authenticated = self.authenticated
            peer.session.on_failed = self.authentication_failed
        self._memory = MemoryShare(thread.memory, self._receiver, limits, is_protected, self._set_reading)
        # Only the network thread touches these.
        self._last_active_ns = peer.opened_ns
        self._transport: asyncio.Transport | None = None
        self._handshake: TlsTransport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_reported = False
        self.is_refused = False
        """It must be closed as soon as the thread has taken its socket over."""
        self._is_reading = True
        self._queue_is_full = False
        self._end_of_mute: asyncio.TimerHandle | None = None
        # The lock guards these. A queue counts all pending requests exactly while it is `_queue`.
        self._lock = threading.Lock()
        self._pipeline = Pipeline(limits, thread.handlers.in_turn)
        self._queue: RequestQueue[Connection] | None = None
        self._muted_until_ns = 0

    # ---- on the network thread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.max_unwritten_bytes)
        is_secure, self._handshake = self._handshake is not None, None
        if is_secure and (authentication := self._authentication) is not None:
            if authentication.needs_sasl:
                authentication.pending.wait(self)
            else:
                authentication.outcomes.succeeded()
                self.authenticated()
        self._thread.opened(self)
        self._set_deadline()

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
        if (authentication := self._authentication) is not None and pipeline.exceeds(
            frames, MAX_UNAUTHENTICATED_REQUESTS, 2 * self._receiver.max_frame_bytes
        ):
            self.close("too many requests before it is authenticated")
            return
        is_short = memory.received(frames, now_ns)
        if not frames:
            if is_short:
                self._set_reading()
            return
        if authentication is not None and not self._is_reported:
            authentication.pending.serve(self)
        peer, answer, resume, give_back = self.peer, self.answer, self.resume, memory.give_back
        push = self.push
        # Unknown peers take turns and fill no worker's queue: they are refused, or log in.
        lane_of = self._handlers.lane_of if authentication is None else _network_lane
        deadlines = self._thread.deadlines
        requests = [
            Request(frame, peer, lane_of(frame.view), now_ns, answer, resume, give_back, deadlines, push)
            for frame in frames
        ]
        first, waits_for_turn = None, False
        with self._lock:
            pipeline.receive(requests)
            if self._queue is not None:
                self._queue_is_full = self._queue.add(None, len(requests), self._thread.wake_for_room)
            else:
                lane = pipeline.claim()
                if lane is _NETWORK and authentication is not None:
                    waits_for_turn = True
                elif lane is _NETWORK:
                    first = pipeline.take()
                elif lane is not None:
                    self._queue_is_full = self._queue_up(lane)
            may_read = pipeline.may_read
        if first is not None:
            self._run(first)
        elif waits_for_turn:
            self._thread.take_turn(self._continue, peer.host)
        if self._queue_is_full or not may_read or not self._is_reading or is_short:
            self._set_reading()

    def _run(self, request: Request | None) -> None:
        """Run requests of the network lane; where another lane follows, queue the connection there.

        A run has a budget of time, so that the thread's other connections do not wait for a peer that
        pipelines many requests: it continues in the next turn of the loop.
        """
        thread, handlers = self._thread, self._handlers
        deadline_ns = time.monotonic_ns() + self._limits.run_ns
        thread.begin_run()
        try:
            while True:
                if request is not None:
                    handlers.run(request)
                is_unknown = self._authentication is not None
                is_late = is_unknown or time.monotonic_ns() >= deadline_ns
                with self._lock:
                    lane = self._pipeline.finish(request)
                    if lane is _NETWORK and not is_late:
                        request = self._pipeline.take()
                        continue
                    if lane is not None and lane is not _NETWORK:
                        self._queue_is_full = self._queue_up(lane)
                    has_ended = lane is None and self._pipeline.phase is HALF_CLOSED
                break
            if lane is _NETWORK and is_unknown:
                thread.take_turn(self._continue, self.peer.host)
            elif lane is _NETWORK:
                thread.continue_soon(self._continue)
            elif has_ended:
                thread.wake_for(self)
            thread.after_run_soon()
        except BaseException as error:
            logger.critical(
                "a request of %s ended the network thread", self.peer.connection_id, exc_info=True
            )
            handlers.on_fatal(error)
        finally:
            thread.end_run()

    def _continue(self) -> None:
        """Run the next request, whose turn has come; it is claimed, also if the socket is gone."""
        with self._lock:
            request = self._pipeline.take()
        self._run(request)
        if self._queue_is_full:
            self._set_reading()

    def handshake_began(self, transport: TlsTransport) -> None:
        """The socket is open; `connection_made` is called after the handshake."""
        self._handshake = transport
        self._thread.opened(self)
        self._set_deadline()

    def handshake_has_bytes(self) -> None:
        """The peer has sent some, and the handshake waits for its turn."""
        if (authentication := self._authentication) is not None:
            authentication.pending.serve(self)

    def handshake_waits(self, *, has_advanced: bool) -> None:
        """The broker waits for the peer, after its own answer or for the rest of a message."""
        if (authentication := self._authentication) is not None:
            authentication.pending.wait(self, has_advanced=has_advanced)

    def tls_failed(self, reason: str, *, is_handshake: bool) -> None:
        """The transport closes the socket soon, and then calls `connection_lost`."""
        with self._lock:
            self._pipeline.close(reason)
        if is_handshake:
            self._report_failure(reason)
            self.handshake_waits(has_advanced=False)

    def _report_failure(self, reason: str) -> None:
        self._is_reported = True
        if (authentication := self._authentication) is not None:
            authentication.outcomes.refused(self.peer.host, self.peer.connection_id, reason)

    def _set_deadline(self) -> None:
        if self.is_refused:
            # Before the thread had taken the socket over.
            self.close(DISPLACED)
        elif self._authentication is not None and self._deadline is None:
            self._deadline = self._thread.call_later(
                self._limits.authentication_ms / 1000, self._close_if_late
            )

    def _close_if_late(self) -> None:
        self._close_if_unknown(f"not authenticated within {self._limits.authentication_ms} ms")

    def close_if_displaced(self) -> None:
        self._close_if_unknown(DISPLACED)

    def _close_if_unknown(self, reason: str) -> None:
        if self._authentication is not None:
            if not self._is_reported:
                self._report_failure(reason)
            self.is_refused = True
            self.close(reason)

    def eof_received(self) -> bool:
        with self._lock:
            self._pipeline.peer_ends()
        # It closes the connection, unless something that came before the end is still to run.
        self._thread.wake_for(self)
        return True

    def pause_writing(self) -> None:
        with self._lock:
            self._pipeline.peer_is_slow = True
        self._set_reading()

    def resume_writing(self) -> None:
        with self._lock:
            self._pipeline.peer_is_slow = False
            self._queue_up_if_possible()
        self._set_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        abandoned: list[Request] = []
        with self._lock:
            reason = self._pipeline.lose(f"connection lost: {exc}" if exc else ENDED, abandoned)
        for request in abandoned:
            request.abandon()
        is_unknown = self._authentication is not None
        if is_unknown and not (self._is_reported or exc or reason in (ENDED, STOPPING)):
            self._report_failure(reason)
        # Clients and health checks come and go: only the other reasons are worth a line of the log. Unknown
        # peers must not fill it.
        level = logging.DEBUG if reason == ENDED or self._is_reported or is_unknown else logging.INFO
        logger.log(
            level,
            "connection %s on %s closed: %s",
            self.peer.connection_id,
            self.peer.listener_name,
            reason,
        )
        self._transport = self._handshake = None
        if (authentication := self._authentication) is not None:
            authentication.pending.remove(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._end_of_mute is not None:
            self._end_of_mute.cancel()
        self._memory.lose()
        self.peer.session.end()
        self._thread.lost(self)
        self._on_lost()

    def flush(self) -> None:
        """Send the answers whose turn has come, then continue to read and run what had to stop.

        An answer with a throttle time has muted the connection by then.
        """
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
            if (authentication := self._authentication) is not None:
                authentication.pending.wait(self)
        if pipeline.is_muted:
            self._wait_for_end_of_mute()
        if self._handlers.charges_times and out:
            _charge_sending(sent, time.monotonic_ns() - self._last_active_ns)
        if sent and self._handlers.measures_times:
            now_ns = time.monotonic_ns()
            self._thread.metrics.note(sent, self._last_active_ns if out else now_ns, now_ns)
        if reason:
            self._close_gently(reason)
        elif not self._is_reading:
            self._set_reading()

    def _wait_for_end_of_mute(self) -> None:
        if self._end_of_mute is None:
            left_ns = self._muted_until_ns - time.monotonic_ns()
            self._end_of_mute = self._thread.call_later(max(0, left_ns) / 1e9, self._unmute_if_due)
            self._set_reading()

    def _unmute_if_due(self) -> None:
        """Continue, unless another answer has prolonged the mute meanwhile."""
        self._end_of_mute = None
        now_ns = time.monotonic_ns()
        with self._lock:
            if now_ns < self._muted_until_ns:
                is_due = False
            else:
                is_due, self._pipeline.is_muted = True, False
                self._queue_up_if_possible()
        if is_due:
            self._last_active_ns = now_ns
            # The peer could not send the rest of a frame meanwhile.
            self._memory.resume(now_ns)
        else:
            self._wait_for_end_of_mute()

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
            is_muted = self._pipeline.is_muted
        if reason := self._memory.overdue(now_ns, held, is_muted=is_muted):
            self.close(reason)

    def drain(self) -> None:
        """Read nothing more and close as soon as what is in flight has been answered and sent."""
        if self._handshake is not None:
            self.close(STOPPING)
            return
        with self._lock:
            self._pipeline.drain(STOPPING)
        self._set_reading()
        self.flush()

    def adoption_failed(self, reason: str) -> None:
        """The network thread could not take the socket over, and has closed it."""
        with self._lock:
            self._pipeline.close(reason)
        self.connection_lost(None)

    def close(self, reason: str) -> None:
        """Close at once; unsent responses are dropped."""
        transport = self._transport or self._handshake
        if transport is not None:
            with self._lock:
                self._pipeline.close(reason)
            transport.abort()

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

    def authenticated(self) -> None:
        """The peer is known now, and may send larger frames. Idempotent."""
        authentication, self._authentication = self._authentication, None
        self._receiver.max_frame_bytes = self._max_frame_bytes
        if authentication is None:
            return
        authentication.pending.remove(self)
        with self._lock:
            for request in self._pipeline.pending:
                request.lane = self._handlers.lane_of(request.frame.view)

    def authentication_failed(self) -> None:
        """The peer was refused and reported, and waits for the answer: until then it may be displaced."""
        self._is_reported = True
        if (authentication := self._authentication) is not None:
            authentication.pending.wait(self)

    def displace(self) -> None:
        """Close soon, unless the peer is known by then: too many others are not known."""
        self._thread.close_unknown(self)

    def answer(self, request: Request, buffers: Buffers, close_reason: str) -> None:
        if request.started_ns:
            request.answered_ns = time.monotonic_ns()
        with self._lock:
            is_next = self._pipeline.answer(request, buffers, close_reason)
            if request.throttle_ms:
                self._mute(request.throttle_ms)
                is_next = True
        if is_next:
            self._thread.wake_for(self)

    def push(self, buffers: Buffers) -> bool:
        """Send frames that answer no request after the answers so far; False if the connection ends."""
        with self._lock:
            if not self._pipeline.push(buffers):
                return False
        self._thread.wake_for(self)
        return True

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

    def _mute(self, throttle_ms: int) -> None:
        until_ns = time.monotonic_ns() + min(throttle_ms, _LONGEST_MUTE_MS) * 1_000_000
        self._muted_until_ns = max(self._muted_until_ns, until_ns)
        self._pipeline.is_muted = True

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
        return self._handlers.queues[lane]


def _network_lane(view: memoryview) -> Lane:
    return _NETWORK


def _charge_sending(sent: list[Request], taken_ns: int) -> None:
    for request in sent:
        if request.charge_sent is not None:
            request.charge_sent(taken_ns // len(sent))
