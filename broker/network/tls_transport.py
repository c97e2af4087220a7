"""TLS between a connection and its socket; to the connection it is a transport of plain bytes.

It decrypts straight into the connection's buffers. It encrypts no more than the socket takes at a time, so an
answer that waits for a slow peer stays a view of a log. Received bytes that are not decrypted, because
the connection pauses, are at most one receive buffer. A peer that ends its side (close_notify, or the
end of the stream) may still receive, as without TLS. After a failed handshake the alert is sent and the
peer's end awaited for a moment: a close at once would reset the stream, and the peer would not see why.

Everything runs on the connection's network thread. Source: RFC 8446, RFC 5246; Python's ssl.MemoryBIO.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, cast

from barnabas.broker.network.handshakes import Handshakes
from barnabas.broker.network.tls_listeners import TlsListener
from barnabas.common.security.certificate_names import names_of
from barnabas.common.security.principal import Principal
from barnabas.common.security.tls import reason_of
from barnabas.protocol.errors import LocalError
from barnabas.protocol.invariants import InvariantViolation

if TYPE_CHECKING:
    from barnabas.broker.network.connection import Connection

logger = logging.getLogger(__name__)

_SOCKET_HIGH_BYTES: Final = 256 * 1024
"""Encrypted bytes that may wait for the socket."""
_ENCRYPTED_AT_ONCE_BYTES: Final = 64 * 1024
_RECORD_BYTES: Final = 16 * 1024
"""The largest record of TLS. Smaller answers are joined, because each record costs the same."""
_MOST_UNREAD_BYTES: Final = 64 * 1024
"""Answers to changes of keys that may wait, beside bytes that wait for the socket."""
_LINGER_S: Final = 1.0
_HANDSHAKE_RECORD: Final = 0x16


class _Phase(Enum):
    HANDSHAKE = auto()
    OPEN = auto()
    CLOSING = auto()
    """The rest of the answers is sent, then close_notify; nothing is received."""
    FAILED = auto()
    """The alert is sent; the peer's end is awaited."""
    LOST = auto()


class _Event(Enum):
    DONE = auto()
    FAIL = auto()
    CLOSE = auto()
    LOSE = auto()


_TRANSITIONS: Final = {
    (_Phase.HANDSHAKE, _Event.DONE): _Phase.OPEN,
    (_Phase.HANDSHAKE, _Event.FAIL): _Phase.FAILED,
    (_Phase.HANDSHAKE, _Event.CLOSE): _Phase.CLOSING,
    (_Phase.HANDSHAKE, _Event.LOSE): _Phase.LOST,
    (_Phase.OPEN, _Event.FAIL): _Phase.FAILED,
    (_Phase.OPEN, _Event.CLOSE): _Phase.CLOSING,
    (_Phase.OPEN, _Event.LOSE): _Phase.LOST,
    (_Phase.CLOSING, _Event.CLOSE): _Phase.CLOSING,
    (_Phase.CLOSING, _Event.LOSE): _Phase.LOST,
    (_Phase.FAILED, _Event.CLOSE): _Phase.CLOSING,
    (_Phase.FAILED, _Event.LOSE): _Phase.LOST,
}
_OPEN: Final = _Phase.OPEN


class TlsTransport(asyncio.BufferedProtocol):
    """The protocol of a socket, and the transport of its connection."""

    def __init__(self, connection: Connection, listener: TlsListener, handshakes: Handshakes) -> None:
        self.connection = connection
        self._handshakes = handshakes
        self._mapping = listener.mapping
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = listener.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._phase = _Phase.HANDSHAKE
        self._socket: asyncio.Transport | None = None
        self._received_bytes = 0
        self._peer_ended = False
        self._end_is_told = False
        # The connection's side
        self._is_paused = False
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._high_bytes = _SOCKET_HIGH_BYTES
        self._is_told_to_pause = False
        # The socket's side
        self._socket_is_full = False
        self._lingering: asyncio.TimerHandle | None = None

    # ---- the protocol of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        self._socket.set_write_buffer_limits(high=_SOCKET_HIGH_BYTES)
        self.connection.handshake_began(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._handshakes.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        received = self._handshakes.receive_buffer[:nbytes]
        if self._phase is _OPEN:
            # Bytes after close_notify are never read.
            if not self._peer_ended:
                self._incoming.write(received)
                self._decrypt()
        elif self._phase is _Phase.HANDSHAKE and self._socket is not None:
            if not self._received_bytes and received[0] != _HANDSHAKE_RECORD:
                self.fail(f"no TLS: the first byte is 0x{received[0]:02x}; does the client use PLAINTEXT?")
                return
            self._received_bytes += nbytes
            self._incoming.write(received)
            # The handshake takes its turn; until then, further bytes stay in the socket.
            self._socket.pause_reading()
            self._handshakes.queue(self.step, self.connection.peer.host)
            self.connection.handshake_has_bytes()

    def eof_received(self) -> bool:
        self._peer_ended = True
        if self._phase is _OPEN:
            if not self._is_paused:
                self._decrypt()
            return True
        return False

    def pause_writing(self) -> None:
        self._socket_is_full = True

    def resume_writing(self) -> None:
        self._socket_is_full = False
        if self._phase in (_OPEN, _Phase.CLOSING):
            self._send_pending()
            self._encrypt()

    def connection_lost(self, exc: Exception | None) -> None:
        self._move(_Event.LOSE)
        self._backlog.clear()
        self._backlog_bytes = 0
        self._socket = None
        if self._lingering is not None:
            self._lingering.cancel()
        self.connection.connection_lost(exc)

    # ---- the handshake

    def step(self) -> None:
        """Continue the handshake with the received bytes. The thread's `Handshakes` calls it in turn."""
        if self._phase is not _Phase.HANDSHAKE or self._socket is None:
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            has_advanced = bool(self._outgoing.pending)
            self._send_pending()
            self._socket.resume_reading()
            self.connection.handshake_waits(has_advanced=has_advanced)
            return
        except ssl.SSLError as error:
            self.fail(f"SSL handshake failed: {reason_of(error)}")
            return
        self._send_pending()
        try:
            self._note_principal()
        except LocalError as error:
            self.fail(str(error))
            return
        self._move(_Event.DONE)
        # It uses the methods of a transport that are here.
        self.connection.connection_made(cast(asyncio.Transport, self))
        self._resume()

    def _note_principal(self) -> None:
        certificate = self._tls.getpeercert(binary_form=True)
        if certificate is None:
            return
        if self._tls.session_reused and self._has_expired():
            raise LocalError("SSL handshake failed: certificate verify failed: certificate has expired")
        session = self.connection.peer.session
        if session.authenticator is not None:
            # As in Kafka, SASL alone names the peer, and no rule has to apply to the certificate.
            return
        try:
            subject = names_of(certificate).subject
        except ValueError as error:
            raise LocalError(f"the client's certificate cannot be read: {error}") from error
        name = self._mapping.name_of(subject)
        if name is None:
            raise LocalError(f"no rule of ssl.principal.mapping.rules applies to {subject}")
        session.principal = Principal.user(name)

    def _has_expired(self) -> bool:
        """OpenSSL verifies no certificate if a session of TLS 1.2 is resumed, for up to two hours."""
        last = (self._tls.getpeercert() or {}).get("notAfter")
        return isinstance(last, str) and ssl.cert_time_to_seconds(last) < time.time()

    def fail(self, reason: str) -> None:
        """End the handshake, or the stream after it, with the alert that OpenSSL has made, if any."""
        if self._phase not in (_Phase.HANDSHAKE, _OPEN):
            return
        is_handshake = self._phase is _Phase.HANDSHAKE
        self._move(_Event.FAIL)
        self._send_pending()
        self.connection.tls_failed(reason, is_handshake=is_handshake)
        if self._socket is not None:
            self._socket.resume_reading()
            self._socket.write_eof()
            self._lingering = self._handshakes.call_later(_LINGER_S, self.abort)

    # ---- the transport of the connection

    def set_write_buffer_limits(self, high: int) -> None:
        self._high_bytes = high

    def is_closing(self) -> bool:
        return self._phase is not _OPEN

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        # Not here: the connection may be in the middle of something.
        self._handshakes.call_soon(self._resume)

    def _resume(self) -> None:
        if self._may_deliver():
            self._decrypt()
        if self._may_deliver() and self._socket is not None:
            self._socket.resume_reading()

    def _may_deliver(self) -> bool:
        return self._phase is _OPEN and not self._is_paused

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, buffers: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._phase is not _OPEN:
            return
        for buffer in buffers:
            if buffer:
                self._backlog.append(memoryview(buffer))
                self._backlog_bytes += len(buffer)
        self._encrypt()

    def close(self) -> None:
        """Send the rest and close_notify, then close."""
        if self._phase is _OPEN:
            self._move(_Event.CLOSE)
            if self._socket is not None:
                self._socket.pause_reading()
            self._encrypt()

    def abort(self) -> None:
        if self._phase not in (_Phase.CLOSING, _Phase.LOST):
            self._move(_Event.CLOSE)
        if self._socket is not None:
            self._socket.abort()

    # ---- both ways

    def _decrypt(self) -> None:
        """Give the connection the received bytes, until it pauses or closes."""
        connection, incoming = self.connection, self._incoming
        # With a buffer it returns the number of bytes, which its annotations leave out.
        read = cast(Callable[[int, memoryview], int], self._tls.read)
        while self._may_deliver():
            buffer = connection.get_buffer(-1)
            size, filled, problem = len(buffer), 0, ""
            while filled < size:
                try:
                    count = read(size - filled, buffer[filled:] if filled else buffer)
                except ssl.SSLWantReadError:
                    break
                except ssl.SSLError as error:
                    problem = reason_of(error)
                    break
                if not count:
                    self._peer_ended = True
                    break
                filled += count
            if filled:
                connection.buffer_updated(filled)
            if problem:
                self.fail(f"SSL failed: {problem}")
            elif filled < size or not (incoming.pending or self._tls.pending()):
                break
        if self._outgoing.pending and self._phase is _OPEN:
            self._answer_change_of_keys()
        if self._peer_ended and not self._end_is_told and self._may_deliver():
            self._end_is_told = True
            connection.eof_received()

    def _answer_change_of_keys(self) -> None:
        """OpenSSL has answered each one, so the answers are as many as the peer likes."""
        if not self._socket_is_full:
            self._send_pending()
        elif self._outgoing.pending > _MOST_UNREAD_BYTES:
            self.connection.close("it changes keys again and again, and does not read the answers")

    def _encrypt(self) -> None:
        """Send waiting bytes until the socket is full, and let the connection know how many remain."""
        socket, backlog = self._socket, self._backlog
        while backlog and not self._socket_is_full and socket is not None:
            try:
                self._tls.write(self._next_piece())
            except ssl.SSLError as error:
                self.connection.close(f"SSL failed: {reason_of(error)}")
                return
            socket.write(self._outgoing.read())
        if self._phase is _Phase.CLOSING:
            if not backlog:
                self._say_goodbye()
        elif self._is_told_to_pause:
            if self._backlog_bytes <= self._high_bytes // 4:
                self._is_told_to_pause = False
                self.connection.resume_writing()
        elif self._backlog_bytes > self._high_bytes:
            self._is_told_to_pause = True
            self.connection.pause_writing()

    def _next_piece(self) -> memoryview | bytes:
        """The next bytes to encrypt: a part of a large buffer, or several buffers that fill a record."""
        backlog = self._backlog
        first = backlog.popleft()
        if len(first) >= _RECORD_BYTES or not backlog:
            if len(first) > _ENCRYPTED_AT_ONCE_BYTES:
                backlog.appendleft(first[_ENCRYPTED_AT_ONCE_BYTES:])
                first = first[:_ENCRYPTED_AT_ONCE_BYTES]
            self._backlog_bytes -= len(first)
            return first
        pieces, room = [first], _RECORD_BYTES - len(first)
        while backlog and room:
            piece = backlog.popleft()
            if len(piece) > room:
                backlog.appendleft(piece[room:])
                piece = piece[:room]
            pieces.append(piece)
            room -= len(piece)
        joined = b"".join(pieces)
        self._backlog_bytes -= len(joined)
        return joined

    def _send_pending(self) -> None:
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    def _say_goodbye(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            # It has made our close_notify; the peer's is not awaited.
            logger.debug("%s has not said goodbye", self.connection.peer.connection_id)
        self._send_pending()
        if self._socket is not None:
            self._socket.close()

    def _move(self, event: _Event) -> None:
        after = _TRANSITIONS.get((self._phase, event))
        if after is None:
            raise InvariantViolation(f"{event.name} in phase {self._phase.name} of TLS")
        self._phase = after
