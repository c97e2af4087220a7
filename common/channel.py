"""The RPC channel: one connection to one broker, opened on demand and reopened after a loss.

Every outgoing connection uses it: clients to brokers, followers to leaders, the controller to all brokers.
Requests are pipelined up to ``max_in_flight``, in the order of the calls once the channel is connected. Each
has a deadline, which includes connecting and waiting for room; answers are matched by correlation id.
When the connection is lost, every request in flight fails at once with `ConnectionClosed`. The request may
have been carried out, so only the caller can decide to send it again. A cancelled caller leaves its request
in flight, because the broker still owes the answer.

After a failed attempt to connect, the next one waits for the back-off, which doubles up to its maximum and is
reset by an answer. A request during the back-off fails at once instead of waiting in a hidden queue. If a
peer closes the connection before its first answer, that attempt has failed too.

With ``wire="kafka"`` the channel uses Kafka's protocol instead of the native one: after each connect it first
requests the peer's versions, and a request of an API without a common version fails with UNSUPPORTED_VERSION.

``security`` adds TLS and SASL. A refusal raises `AuthenticationFailed`, also within the back-off, so nobody
waits in vain. Before a session ends (KIP-368) the channel authenticates again in place.

A channel belongs to the event loop it was first used on; nothing here may be called from another thread.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from barnabas.common.backoff import Backoff
from barnabas.common.connection import Connection, open_connection, tls_failure
from barnabas.common.dialects import NATIVE, Dialect, Features, Wire
from barnabas.common.opening import Gate, Opening, authenticate, negotiate
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity, Login
from barnabas.common.traffic import Traffic
from barnabas.protocol.errors import (
    AuthenticationFailed,
    ClosedUnanswered,
    ConnectionClosed,
    ConnectionRefused,
    LocalError,
    MalformedFrame,
    RequestTimedOutLocally,
    TlsHandshakeFailed,
)
from barnabas.protocol.frames import DEFAULT_MAX_FRAME_BYTES, BufferPool, Frame
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.invariants import invariant
from barnabas.protocol.messages.fetch import PUSHES, FetchRequest
from barnabas.protocol.schema import RequestOf

log = logging.getLogger(__name__)

R = TypeVar("R")
CloseListener = Callable[["Channel", ConnectionClosed], None]
PushListener = Callable[[Sequence["Answer"]], None]

_MAX_CORRELATION_ID: Final = PUSHES - 1
# Timers count in milliseconds and may fire up to one millisecond early.
_TIMER_SLACK_S: Final = 0.001
_SESSION_SHARE: Final = (0.85, 0.95)
"""The bounds of the share of a session after which the channel authenticates again, as in Kafka."""


_OTHER_PROTOCOLS: Final = {
    "PLAINTEXT": "SSL, SASL_PLAINTEXT or SASL_SSL",
    "SSL": "SASL_SSL",
    "SASL_PLAINTEXT": "SASL_SSL",
}
"""The protocols of a listener that closes a connection of another protocol without an answer."""


class ChannelState(Enum):
    """The states of a channel; `_NEXT` has the transitions."""

    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


_NEXT: Final = {
    ChannelState.DISCONNECTED: {ChannelState.CONNECTING, ChannelState.CLOSED},
    ChannelState.CONNECTING: {ChannelState.CONNECTED, ChannelState.DISCONNECTED, ChannelState.CLOSED},
    ChannelState.CONNECTED: {ChannelState.DISCONNECTED, ChannelState.CLOSED},
    ChannelState.CLOSED: set[ChannelState](),
}


class _InFlight(NamedTuple):
    answer: asyncio.Future[Answer]
    request_type: type[RequestOf[Any]]
    version: int
    deadline: float
    timeout_ms: int
    holds_slot: bool = True


class Answer(NamedTuple):
    """A response, and the frame that its records are views of."""

    body: Any
    frame: Frame


class Channel:
    """RPC with one broker over one connection."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        client_id: str,
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        max_in_flight: int = 128,
        reconnect_backoff_ms: int = 50,
        reconnect_backoff_max_ms: int = 1_000,
        connections_max_idle_ms: int = 540_000,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        pool: BufferPool | None = None,
        on_close: CloseListener | None = None,
        on_push: PushListener | None = None,
        wire: Wire | str = Wire.NATIVE,
        ends_with_silent_host: bool = False,
        security: ChannelSecurity = PLAINTEXT,
        traffic: Traffic | None = None,
    ) -> None:
        """``on_push`` takes what a leader pushes. ``ends_with_silent_host``: see `end_with_silent_host`."""
        self.endpoint = endpoint
        self.client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._backoff = Backoff(reconnect_backoff_ms, reconnect_backoff_max_ms)
        self._backoff_max_ms = reconnect_backoff_max_ms
        self._idle_ms = connections_max_idle_ms
        self._max_frame_bytes = max_frame_bytes
        self._pool = pool or BufferPool()
        self._traffic = traffic or Traffic()
        self._on_close, self._on_push = on_close, on_push
        self._wire = Wire(wire)
        self._ends_with_silent_host = ends_with_silent_host
        self._was_answered = False
        self._dialect: Dialect = NATIVE
        self._security = security
        self._opening: Opening | None = None
        self._refusal: AuthenticationFailed | None = None
        """The reason of the last failed attempt, if another attempt could not change it."""
        self._loss = ConnectionClosed(f"the connection to {endpoint} was lost")
        """Why the last connection ended."""
        self._session_timer: asyncio.TimerHandle | None = None
        # Until when the broker mutes the connection, by the throttle times of its answers.
        self._muted_until = 0.0
        self._authenticating_again: asyncio.Task[None] | None = None
        self._gate: Gate | None = None
        """Holds requests back while the channel authenticates again."""
        self._state = ChannelState.DISCONNECTED
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        # Every entry of an owner's request holds one of the slots and releases it when it is settled.
        self._in_flight: dict[int, _InFlight] = {}
        self._slots = asyncio.Semaphore(max_in_flight)
        # One timer for all deadlines; it fires at the earliest one or before it. Its time is kept here,
        # because uvloop does not return the time of a timer that is already due.
        self._deadline_timer: asyncio.Handle | None = None
        self._deadline_watched = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._next_correlation_id = 0
        self._last_used = 0.0

    @property
    def is_connected(self) -> bool:
        return self._state is ChannelState.CONNECTED

    @property
    def peer_address(self) -> tuple[Any, ...] | None:
        """The peer's address; None without a connection."""
        return None if self._connection is None else self._connection.peer_address

    @property
    def is_closed(self) -> bool:
        return self._state is ChannelState.CLOSED

    @property
    def in_flight(self) -> int:
        """Requests sent and not yet answered."""
        return len(self._in_flight)

    async def connect(self) -> None:
        """Connect, unless connected. Raises ConnectionClosed after a failure or within the back-off.

        AuthenticationFailed is the ConnectionClosed that another attempt does not change.
        """
        if self._state is ChannelState.CONNECTED:
            return
        if self._state is ChannelState.CLOSED:
            raise ConnectionClosed(f"the channel to {self.endpoint} is closed")
        if self._connecting is None:
            wait = self._backoff.remaining(asyncio.get_running_loop().time())
            if wait > 0 and self._refusal is not None:
                raise self._refusal.again()
            if wait > 0:
                raise ConnectionClosed(f"{self.endpoint} could not be reached; next attempt in {wait:.3f} s")
            self._connecting = asyncio.create_task(self._connect_once())
            self._connecting.add_done_callback(_retrieve_outcome)
        attempt = self._connecting
        try:
            # Shielded, because a cancelled caller must not cancel the attempt that others wait for.
            await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if not attempt.cancelled() or _is_being_cancelled():
                raise
            raise ConnectionClosed(f"the channel to {self.endpoint} was closed while connecting") from None

    @property
    def peer_is_ours(self) -> bool:
        """Whether the peer speaks the native protocol, by its last answer to ApiVersions."""
        return self._dialect.peer_is_ours

    @property
    def features(self) -> Features:
        """The finalized features of the peer, by its last answer to ApiVersions."""
        return self._dialect.features

    async def request(self, message: RequestOf[R], *, timeout_ms: int | None = None) -> R:
        """Send a request and return its response; record fields are views that stay valid while held.

        Raises ConnectionClosed or RequestTimedOutLocally; after either the request may have been carried out.
        Raises UNSUPPORTED_VERSION, without sending it, if the peer lacks the API.
        """
        body: R = (await self.request_frame(message, timeout_ms=timeout_ms)).body
        return body

    async def request_frame(
        self, message: RequestOf[Any], *, timeout_ms: int | None = None, last_version: int | None = None
    ) -> Answer:
        """Send a request and return its response with the frame, which the caller may release.

        ``last_version`` is the last version of Kafka's protocol that it may be sent in.
        """
        loop = asyncio.get_running_loop()
        timeout_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = max(loop.time(), self._muted_until) + timeout_ms / 1000
        if self._slots.locked():
            await self._within(self._slots.acquire(), deadline, message)
        else:
            await self._slots.acquire()
        try:
            connection = await self._connected(deadline, message)
            version = self._dialect.version_of(message, last_version)
            correlation_id = self._take_correlation_id()
            connection.write(self._dialect.encode(version, correlation_id, self.client_id, message))
        except BaseException:
            self._slots.release()
            raise
        answer: asyncio.Future[Answer] = loop.create_future()
        self._expect(correlation_id, _InFlight(answer, type(message), version, deadline, timeout_ms))
        return await answer

    def _expect(self, correlation_id: int, entry: _InFlight) -> None:
        self._in_flight[correlation_id] = entry
        if self._deadline_timer is None or entry.deadline < self._deadline_watched:
            self._watch(entry.deadline)

    async def send_oneway(self, message: RequestOf[Any]) -> None:
        """Send a request that the broker does not answer (acks=0)."""
        deadline = asyncio.get_running_loop().time() + self._request_timeout_ms / 1000
        connection = await self._connected(deadline, message)
        while not connection.writable.is_set():
            await self._within(connection.writable.wait(), deadline, message)
            # The channel may authenticate again by now, and the broker takes no other request meanwhile.
            connection = await self._connected(deadline, message)
        version = self._dialect.version_of(message)
        connection.write(self._dialect.encode(version, self._take_correlation_id(), self.client_id, message))
        self._last_used = asyncio.get_running_loop().time()

    @property
    def can_send_now(self) -> bool:
        """Whether `send_now` can send: connected, not authenticating again, and the peer reads."""
        connection = self._connection
        return (
            self._state is ChannelState.CONNECTED
            and self._gate is None
            and connection is not None
            and connection.is_usable
            and connection.writable.is_set()
        )

    def send_now(self, message: RequestOf[Any]) -> None:
        """Send a request that the broker does not answer; the channel must be able to."""
        connection = self._connection
        if connection is None:
            raise ConnectionClosed(f"the connection to {self.endpoint} was lost")
        version = self._dialect.version_of(message)
        connection.write(self._dialect.encode(version, self._take_correlation_id(), self.client_id, message))

    def close(self, reason: str = "closed by its owner") -> None:
        """Close permanently; requests in flight fail with ConnectionClosed. Idempotent."""
        if self._state is ChannelState.CLOSED:
            return
        self._move(ChannelState.CLOSED)
        for task in (self._connecting, self._authenticating_again):
            if task is not None:
                task.cancel()
        self._drop(ConnectionClosed(f"connection to {self.endpoint}: {reason}"))

    def disconnect(self, reason: str) -> None:
        """Close the present connection, if any; the next request opens a new one."""
        if self._state is ChannelState.CONNECTED:
            self._move(ChannelState.DISCONNECTED)
            self._drop(ConnectionClosed(f"connection to {self.endpoint}: {reason}"))

    async def _connected(self, deadline: float, message: RequestOf[Any]) -> Connection:
        if self._connection is not None and not self._connection.is_usable:
            # It has ended, but the loop has not called `lost` yet, and cannot while our caller retries.
            self.lost(self._connection, None)
        if self._gate is not None:
            await self._within(self._pass(self._gate), deadline, message)
        if self._state is not ChannelState.CONNECTED:
            await self._within(self.connect(), deadline, message)
        connection = self._connection
        if connection is None:
            raise ConnectionClosed(f"the connection to {self.endpoint} was lost")
        if not connection.is_usable:
            # It ended as soon as it was up; its last call has the reason.
            await self._within(connection.ended.wait(), deadline, message)
            raise self._loss.again()
        return connection

    async def _within(self, step: Coroutine[Any, Any, Any], deadline: float, message: Any) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await step
        except TimeoutError:
            raise RequestTimedOutLocally(
                f"{type(message).__name__} was not sent to {self.endpoint} in time"
            ) from None

    def _take_correlation_id(self) -> int:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = correlation_id + 1 if correlation_id < _MAX_CORRELATION_ID else 0
        return correlation_id

    def _settle(self, correlation_id: int, outcome: Answer | Exception) -> None:
        """End one request; its caller may be gone."""
        entry = self._in_flight.pop(correlation_id)
        if entry.holds_slot:
            self._slots.release()
        if entry.answer.done():
            if isinstance(outcome, Answer):
                outcome.frame.release()
        elif isinstance(outcome, Answer):
            entry.answer.set_result(outcome)
        else:
            entry.answer.set_exception(outcome)
            # A caller that is cancelled at this moment never retrieves it; asyncio must not warn then.
            entry.answer.exception()

    def _watch(self, deadline: float) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline_timer = asyncio.get_running_loop().call_at(deadline, self._check_deadlines)
        self._deadline_watched = deadline

    def _check_deadlines(self) -> None:
        self._deadline_timer = None
        now = asyncio.get_running_loop().time()
        late = [key for key, entry in self._in_flight.items() if entry.deadline <= now + _TIMER_SLACK_S]
        if late:
            timeout_ms = self._in_flight[late[0]].timeout_ms
            for key in late:
                waited_ms = self._in_flight[key].timeout_ms
                text = f"no answer from {self.endpoint} within {waited_ms} ms"
                self._settle(key, RequestTimedOutLocally(text))
            # A broker answers in order, so no later answer can come on this connection either.
            self.disconnect(f"no answer within {timeout_ms} ms")
        elif self._in_flight:
            self._watch(min(entry.deadline for entry in self._in_flight.values()))

    async def _connect_once(self) -> None:
        loop = asyncio.get_running_loop()
        self._move(ChannelState.CONNECTING)
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                connection, session_ms = await self._open()
        except (OSError, TimeoutError, LocalError) as error:
            self._backoff.failed(loop.time())
            self._move(ChannelState.DISCONNECTED)
            reason = self._reason(error)
            self._refusal = None
            if isinstance(reason, AuthenticationFailed):
                self._refusal = reason
                self._traffic.refused += 1
            if reason is error:
                raise
            raise reason from error
        except Exception:
            # A bug, perhaps of the user's code for credentials: the next attempt must be possible.
            self._backoff.failed(loop.time())
            self._move(ChannelState.DISCONNECTED)
            raise
        finally:
            self._connecting = None
        self._refusal = None
        self._connection = connection
        self._move(ChannelState.CONNECTED)
        self._last_used = loop.time()
        self._idle_timer = loop.call_later(self._idle_ms / 1000, self._check_idle)
        self._watch_session(session_ms)

    async def _open(self) -> tuple[Connection, int]:
        """A connection that is ready for requests, and the time in ms that its session lasts."""
        security = self._security
        # A token may take a while, and a connection that is not authenticated must not wait for it.
        client = None if security.login is None else await security.login.start()
        tls = None if security.tls is None else security.tls()
        connection = await open_connection(self.endpoint, self._new_connection, tls)
        if self._wire is Wire.NATIVE and client is None:
            return connection, 0
        opening = self._opening = Opening(connection, self.endpoint, self.client_id)
        session_ms = 0
        try:
            dialect = NATIVE if self._wire is Wire.NATIVE else await negotiate(opening)
            if client is not None:
                session_ms = await authenticate(self.endpoint, client, lambda m: opening.ask(dialect, m))
                self._traffic.authenticated += 1
            # After the last answer arrived and before it was read.
            opening.check_open()
        except BaseException:
            connection.close()
            raise
        finally:
            self._opening = None
        self._dialect = dialect
        return connection, session_ms

    def _reason(self, error: Exception) -> Exception:
        """The error for the callers of a failed attempt to connect."""
        if isinstance(error, LocalError):
            return error
        if isinstance(error, ssl.SSLError):
            return tls_failure(self.endpoint, error)
        if isinstance(error, ConnectionRefusedError):
            return ConnectionRefused(f"{self.endpoint} refused the connection")
        text = f"{self.endpoint}: {type(error).__name__}: {error}"
        if isinstance(error, ConnectionError) and self._security.tls is not None:
            text += "; the connection ended during the TLS handshake: does the listener use TLS?"
        return ConnectionClosed(text)

    # Authenticating again

    def _watch_session(self, session_ms: int) -> None:
        login = self._security.login
        if session_ms > 0 and login is not None:
            self._session_timer = asyncio.get_running_loop().call_later(
                session_ms / 1000 * random.uniform(*_SESSION_SHARE), self._authenticate_later, login
            )

    def _authenticate_later(self, login: Login) -> None:
        self._session_timer = None
        self._authenticating_again = asyncio.create_task(self._authenticate_again(login))
        self._authenticating_again.add_done_callback(_retrieve_outcome)

    async def _authenticate_again(self, login: Login) -> None:
        """Authenticate on the present connection; a failure ends it.

        The broker reads the exchange after all earlier requests, and no other request within it.
        """
        connection = self._connection
        gate: Gate | None = None
        try:
            client = await login.start()
            if connection is None or self._connection is not connection:
                return
            gate = self._gate = Gate()
            await gate.close()
            last_used = self._last_used
            session_ms = await authenticate(self.endpoint, client, self._ask_past_gate)
            if self._connection is connection:
                # This is no use of the connection by its owner.
                self._last_used = last_used
                self._watch_session(session_ms)
        except LocalError as error:
            if self._connection is connection and self._state is ChannelState.CONNECTED:
                if isinstance(error, AuthenticationFailed):
                    self._refused(error)
                self._move(ChannelState.DISCONNECTED)
                self._drop(ConnectionClosed(f"connection to {self.endpoint}: {error}"))
        finally:
            if self._authenticating_again is asyncio.current_task():
                self._authenticating_again = None
            if gate is not None:
                gate.open()
                self._forget(gate)

    async def _ask_past_gate(self, message: RequestOf[Any]) -> Any:
        """A request of the exchange itself, in flight behind the requests before it."""
        connection = self._connection
        if connection is None:
            raise ConnectionClosed(f"the connection to {self.endpoint} was lost")
        loop = asyncio.get_running_loop()
        # The answers before it may take as long as their requests allow.
        earliest = max((entry.deadline for entry in self._in_flight.values()), default=loop.time())
        deadline = max(earliest, loop.time()) + self._request_timeout_ms / 1000
        version = self._dialect.version_of(message)
        correlation_id = self._take_correlation_id()
        connection.write(self._dialect.encode(version, correlation_id, self.client_id, message))
        answer: asyncio.Future[Answer] = loop.create_future()
        entry = _InFlight(answer, type(message), version, deadline, self._request_timeout_ms, False)
        self._expect(correlation_id, entry)
        return (await answer).body

    async def _pass(self, gate: Gate) -> None:
        try:
            await gate.wait()
        finally:
            self._forget(gate)

    def _forget(self, gate: Gate) -> None:
        if gate.is_passed and self._gate is gate:
            self._gate = None

    def _refused(self, error: AuthenticationFailed) -> None:
        self._refusal = error
        self._traffic.refused += 1
        self._backoff.failed(asyncio.get_running_loop().time())

    def _new_connection(self) -> Connection:
        return Connection(
            self,
            self._pool,
            self._max_frame_bytes,
            traffic=self._traffic,
            ends_with_silent_host=self._ends_with_silent_host,
        )

    def _move(self, state: ChannelState) -> None:
        invariant(state in _NEXT[self._state], "a channel went from %s to %s", self._state.value, state.value)
        self._state = state

    def _drop(self, error: ConnectionClosed) -> None:
        """Fail the requests in flight, close the connection and call the owner."""
        connection, self._connection = self._connection, None
        self._muted_until = 0.0
        self._loss = error
        for timer in (self._idle_timer, self._deadline_timer, self._session_timer):
            if timer is not None:
                timer.cancel()
        self._idle_timer = self._deadline_timer = self._session_timer = None
        for correlation_id in list(self._in_flight):
            self._settle(correlation_id, error.again())
        if connection is not None:
            connection.close()
            if self._on_close is not None:
                self._on_close(self, error)

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        remaining = self._last_used + self._idle_ms / 1000 - loop.time()
        if self._in_flight or remaining > 0:
            self._idle_timer = loop.call_later(max(remaining, self._idle_ms / 2000), self._check_idle)
        else:
            self.disconnect("idle for connections.max.idle.ms")

    def received(self, connection: Connection, frames: list[Frame]) -> None:
        """Called by the connection with whole frames, at least one.

        Raises MalformedFrame, which closes the connection.
        """
        if self._opening is not None:
            self._opening.received(frames)
            return
        if not connection.has_answered:
            connection.has_answered = True
            self._backoff.succeeded()
        self._last_used = asyncio.get_running_loop().time()
        pushed: list[Answer] = []
        for frame in frames:
            correlation_id, opened = self._dialect.open(frame.view)
            entry = self._in_flight.get(correlation_id)
            if entry is None:
                if correlation_id == PUSHES and self._on_push is not None:
                    pushed.append(Answer(self._dialect.read(opened, FetchRequest, 0), frame))
                    continue
                raise MalformedFrame(f"correlation id {correlation_id} answers no request")
            body = self._dialect.read(opened, entry.request_type, entry.version)
            if getattr(body, "throttle_time_ms", 0):
                self._throttled(body.throttle_time_ms)
            self._settle(correlation_id, Answer(body, frame))
        if pushed and self._on_push is not None:
            self._on_push(pushed)

    def _throttled(self, throttle_ms: int) -> None:
        """The broker does not read this connection for a while (KIP-219); that is no fault of its answers."""
        log.debug("%s throttles %r for %d ms, by a quota", self.endpoint, self.client_id, throttle_ms)
        self._muted_until = max(self._muted_until, asyncio.get_running_loop().time() + throttle_ms / 1000)
        for key, entry in self._in_flight.items():
            deadline = max(entry.deadline, self._muted_until + entry.timeout_ms / 1000)
            self._in_flight[key] = entry._replace(deadline=deadline)

    def lost(self, connection: Connection, error: Exception | None) -> None:
        """The connection's last call: the peer closed it (no error), it broke, or it got malformed bytes."""
        self._was_answered = self._was_answered or self._is_answered(connection)
        if self._opening is not None and connection is self._opening.connection:
            self._opening.lost(self._why(connection, error), self._kind(connection, error))
        if connection is not self._connection:
            return
        now = asyncio.get_running_loop().time()
        kind = self._kind(connection, error)
        reason = kind(f"connection to {self.endpoint}: {self._why(connection, error)}")
        if not connection.has_answered:
            if isinstance(error, ssl.SSLError):
                # A broker reads the certificate of a client after the client's side of the handshake.
                reason = tls_failure(self.endpoint, error)
            if isinstance(reason, TlsHandshakeFailed):
                self._refused(reason)
            elif now - connection.opened_at < self._backoff_max_ms / 1000:
                self._backoff.failed(now)
        self._move(ChannelState.DISCONNECTED)
        self._drop(reason)

    def _why(self, connection: Connection, error: Exception | None) -> str:
        """Why a connection ended, with the likely reason if the peer has never answered on any."""
        why = f"{type(error).__name__}: {error}" if error is not None else "closed by the peer"
        others = _OTHER_PROTOCOLS.get(self._security.protocol)
        if self._was_answered or others is None:
            return why
        return f"{why}, before it answered: does the listener need security_protocol={others}?"

    def _kind(self, connection: Connection, error: Exception | None) -> type[ConnectionClosed]:
        is_closed_by_peer = error is None or isinstance(error, ConnectionError)
        is_sudden = is_closed_by_peer and not self._is_answered(connection)
        return ClosedUnanswered if is_sudden else ConnectionClosed

    def _is_answered(self, connection: Connection) -> bool:
        """Whether the peer has ever answered on this connection."""
        return connection.has_answered or (self._opening is not None and self._opening.is_answered)


def _retrieve_outcome(attempt: asyncio.Task[None]) -> None:
    """Retrieve the outcome of an attempt: all its callers may have been cancelled."""
    if not attempt.cancelled():
        attempt.exception()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
