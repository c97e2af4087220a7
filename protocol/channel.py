"""The one RPC channel: a connection to one broker, made on demand and made again after a loss.

Every outgoing connection of ours is one of these: clients to brokers, followers to leaders, the controller to
all. Requests are pipelined up to ``max_in_flight``; each has a deadline; answers are matched by correlation
id. When the connection is lost, every request in flight fails at once with `ConnectionClosed`: whether it was
carried out is then unknown, and only the caller can decide to send it again.

After a failed attempt to connect, the next one waits for the back-off, which doubles up to its maximum and
starts anew after a success. A request made meanwhile fails at once rather than waiting in a hidden queue.

A channel belongs to the event loop it was first used on; nothing here may be called from another thread.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import (
    ConnectionClosed,
    ConnectionRefused,
    MalformedFrame,
    RequestTimedOutLocally,
)
from barnabas.protocol.frames import DEFAULT_MAX_FRAME_BYTES, BufferPool, Frame, FrameReceiver
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.schema import Buffer, RequestOf

R = TypeVar("R")
CloseListener = Callable[["Channel", ConnectionClosed], None]

_MAX_CORRELATION_ID: Final = 0x7FFFFFFF
_WRITE_HIGH_WATER_BYTES: Final = 4 * 1024 * 1024


class ChannelState(Enum):
    """DISCONNECTED may become CONNECTING or CLOSED, and so on; CLOSED is final."""

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
    answer: asyncio.Future[Any]
    response_type: type[Any]
    timer: asyncio.TimerHandle


class Answer(NamedTuple):
    """A response together with the frame that its records are views of."""

    body: Any
    frame: Frame


class Channel:
    """RPC with one broker over one connection; see the module."""

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
    ) -> None:
        self.endpoint = endpoint
        self.client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._max_in_flight = max_in_flight
        self._backoff_ms = reconnect_backoff_ms
        self._backoff_max_ms = reconnect_backoff_max_ms
        self._idle_ms = connections_max_idle_ms
        self._max_frame_bytes = max_frame_bytes
        self._pool = pool or BufferPool()
        self._on_close = on_close
        self._state = ChannelState.DISCONNECTED
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._in_flight: dict[int, _InFlight] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._next_correlation_id = 0
        self._failures = 0
        self._retry_at = 0.0
        self._last_used = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def is_connected(self) -> bool:
        return self._state is ChannelState.CONNECTED

    @property
    def is_closed(self) -> bool:
        return self._state is ChannelState.CLOSED

    @property
    def in_flight(self) -> int:
        """Requests sent and not yet answered."""
        return len(self._in_flight)

    async def connect(self) -> None:
        """Be connected on return. Raises ConnectionClosed when that fails or the back-off has not passed."""
        if self._state is ChannelState.CONNECTED:
            return
        if self._state is ChannelState.CLOSED:
            raise ConnectionClosed(f"the channel to {self.endpoint} is closed")
        if self._connecting is None:
            wait = self._retry_at - asyncio.get_running_loop().time()
            if wait > 0:
                raise ConnectionClosed(f"{self.endpoint} could not be reached; next attempt in {wait:.3f} s")
            self._connecting = asyncio.create_task(self._connect_once())
            self._connecting.add_done_callback(_look_at)
        attempt = self._connecting
        try:
            # Shielded: one impatient caller must not cancel the attempt that others wait for.
            await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if not attempt.cancelled() or _is_being_cancelled():
                raise
            raise ConnectionClosed(f"the channel to {self.endpoint} was closed while connecting") from None

    async def request(self, message: RequestOf[R], *, timeout_ms: int | None = None) -> R:
        """Send a request and return its response; record fields are views that stay valid while held.

        Raises ConnectionClosed or RequestTimedOutLocally; after either the request may have been carried out.
        """
        body: R = (await self._exchange(message, timeout_ms)).body
        return body

    async def request_frame(self, message: RequestOf[Any], *, timeout_ms: int | None = None) -> Answer:
        """As `request`, but hands out the frame too, for callers that release it when they are done."""
        return await self._exchange(message, timeout_ms)

    async def send_oneway(self, message: RequestOf[Any]) -> None:
        """Send a request that the broker does not answer (acks=0)."""
        await self.connect()
        connection = self._connection
        if connection is None:
            raise ConnectionClosed(f"the connection to {self.endpoint} was lost")
        await connection.writable.wait()
        if connection is not self._connection:
            raise ConnectionClosed(f"the connection to {self.endpoint} was lost")
        connection.write(codec_msgpack.encode_request(self._take_correlation_id(), self.client_id, message))
        self._last_used = asyncio.get_running_loop().time()

    def close(self, reason: str = "closed by its owner") -> None:
        """Close for good; what is in flight fails with ConnectionClosed. Idempotent."""
        if self._state is ChannelState.CLOSED:
            return
        self._move(ChannelState.CLOSED)
        if self._connecting is not None:
            self._connecting.cancel()
        self._drop(ConnectionClosed(f"connection to {self.endpoint}: {reason}"))

    def disconnect(self, reason: str) -> None:
        """Give up the present connection, if any; the next request makes a new one."""
        if self._state is ChannelState.CONNECTED:
            self._move(ChannelState.DISCONNECTED)
            self._drop(ConnectionClosed(f"connection to {self.endpoint}: {reason}"))

    async def _exchange(self, message: RequestOf[Any], timeout_ms: int | None) -> Answer:
        loop = asyncio.get_running_loop()
        timeout_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = loop.time() + timeout_ms / 1000
        if self._state is not ChannelState.CONNECTED:
            await self._within(self.connect(), deadline, message)
        while len(self._in_flight) >= self._max_in_flight:
            self._room.clear()
            await self._within(self._room.wait(), deadline, message)
            await self.connect()
        connection = self._connection
        if connection is None:
            raise ConnectionClosed(f"the connection to {self.endpoint} was lost")
        correlation_id = self._take_correlation_id()
        answer: asyncio.Future[Answer] = loop.create_future()
        timer = loop.call_at(deadline, self._expire, correlation_id, timeout_ms)
        self._in_flight[correlation_id] = _InFlight(answer, message.response_type, timer)
        try:
            connection.write(codec_msgpack.encode_request(correlation_id, self.client_id, message))
            return await answer
        finally:
            self._forget(correlation_id)

    async def _within(self, step: Any, deadline: float, message: RequestOf[Any]) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await step
        except TimeoutError:
            raise RequestTimedOutLocally(
                f"{type(message).__name__} was not sent to {self.endpoint} in time"
            ) from None

    def _take_correlation_id(self) -> int:
        taken = self._next_correlation_id
        self._next_correlation_id = taken + 1 if taken < _MAX_CORRELATION_ID else 0
        return taken

    def _forget(self, correlation_id: int) -> None:
        entry = self._in_flight.pop(correlation_id, None)
        if entry is not None:
            entry.timer.cancel()
            if not self._room.is_set():
                self._room.set()

    def _expire(self, correlation_id: int, timeout_ms: int) -> None:
        entry = self._in_flight.get(correlation_id)
        if entry is not None and not entry.answer.done():
            entry.answer.set_exception(
                RequestTimedOutLocally(f"no answer from {self.endpoint} within {timeout_ms} ms")
            )
        # A broker answers in order, so what it owes now stays owed: the connection is of no more use.
        self.disconnect(f"no answer within {timeout_ms} ms")

    async def _connect_once(self) -> None:
        loop = asyncio.get_running_loop()
        self._move(ChannelState.CONNECTING)
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self), self.endpoint.host, self.endpoint.port
                )
        except (OSError, TimeoutError) as error:
            self._failures += 1
            backoff_ms = min(self._backoff_max_ms, self._backoff_ms * 2 ** min(self._failures - 1, 20))
            # Jitter keeps the peers of a restarted broker from arriving all in one moment.
            self._retry_at = loop.time() + backoff_ms * random.uniform(0.8, 1.2) / 1000
            if self._state is ChannelState.CONNECTING:
                self._move(ChannelState.DISCONNECTED)
            if isinstance(error, ConnectionRefusedError):
                raise ConnectionRefused(f"{self.endpoint} refused the connection") from error
            raise ConnectionClosed(f"{self.endpoint}: {type(error).__name__}: {error}") from error
        finally:
            self._connecting = None
        self._failures = 0
        self._connection = connection
        self._move(ChannelState.CONNECTED)
        self._last_used = loop.time()
        self._idle_timer = loop.call_later(self._idle_ms / 1000, self._check_idle)

    def _move(self, state: ChannelState) -> None:
        if state not in _NEXT[self._state]:
            raise RuntimeError(f"a channel cannot go from {self._state.value} to {state.value}")
        self._state = state

    def _drop(self, error: ConnectionClosed) -> None:
        """Fail what is in flight, close the connection and tell the owner."""
        connection, self._connection = self._connection, None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        for entry in list(self._in_flight.values()):
            if not entry.answer.done():
                entry.answer.set_exception(ConnectionClosed(str(error)))
                # Whoever waits sees it; one who stopped waiting must not cause a warning.
                entry.answer.exception()
        self._room.set()
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

    def _received(self, frames: list[Frame]) -> None:
        self._last_used = asyncio.get_running_loop().time()
        for frame in frames:
            opened = codec_msgpack.open_response(frame.view)
            entry = self._in_flight.get(opened.correlation_id)
            if entry is None or entry.answer.done():
                frame.release()
                continue
            answer = Answer(opened.body(entry.response_type), frame)
            entry.answer.set_result(answer)

    def _lost(self, connection: _Connection, error: Exception | None) -> None:
        if connection is not self._connection:
            return
        self._move(ChannelState.DISCONNECTED)
        why = f"{type(error).__name__}: {error}" if error is not None else "closed by the peer"
        self._drop(ConnectionClosed(f"connection to {self.endpoint}: {why}"))


def _look_at(attempt: asyncio.Task[None]) -> None:
    """Take note of the outcome of an attempt whose callers have all gone."""
    if not attempt.cancelled():
        attempt.exception()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Connection(asyncio.BufferedProtocol):
    """The socket side of a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._receiver = FrameReceiver(channel._pool, channel._max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._malformed: MalformedFrame | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport) and not hasattr(transport, "writelines"):
            raise TypeError(f"{type(transport).__name__} is no stream transport")
        self._transport = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)  # type: ignore[attr-defined]
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self._malformed is not None:
            return
        try:
            self._channel._received(self._receiver.buffer_updated(nbytes))
        except MalformedFrame as error:
            self._malformed = error
            self._channel._lost(self, error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        self._channel._lost(self, exc)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def write(self, buffers: list[Buffer]) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionClosed(f"the connection to {self._channel.endpoint} is closing")
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
