"""One outgoing TCP connection: the socket side of a `Channel`, which interprets the frames.

Runs on the event loop that opened it. It passes whole frames to its owner and, once, reports its end.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from barnabas.common.traffic import Traffic
from barnabas.protocol.errors import ConnectionClosed, MalformedFrame, TlsHandshakeFailed
from barnabas.protocol.frames import BufferPool, FrameReceiver
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.schema import Buffer

if TYPE_CHECKING:
    # A channel makes its connections, and each knows the other.
    from barnabas.common.channel import Channel

_WRITE_HIGH_WATER_BYTES: Final = 4 * 1024 * 1024
_SILENT_HOST_MS: Final = 1_500
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 1), ("TCP_KEEPALIVE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 1))


class Connection(asyncio.BufferedProtocol):
    """``writable`` is cleared while the peer does not read what is sent to it."""

    def __init__(
        self,
        owner: Channel,
        pool: BufferPool,
        max_frame_bytes: int,
        *,
        traffic: Traffic | None = None,
        ends_with_silent_host: bool = False,
    ) -> None:
        self._owner = owner
        self._traffic = traffic or Traffic()
        self._ends_with_silent_host = ends_with_silent_host
        self._receiver = FrameReceiver(pool, max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._ended = False
        self.opened_at = asyncio.get_running_loop().time()
        self.has_answered = False
        """Whether the peer has answered a request of the channel's owner."""
        self.ended = asyncio.Event()
        """Set once it is closed."""
        self.writable = asyncio.Event()
        self.writable.set()

    @property
    def is_usable(self) -> bool:
        """Whether written bytes may still reach the peer."""
        return self._transport is not None and not self._ended and not self._transport.is_closing()

    @property
    def peer_address(self) -> tuple[Any, ...] | None:
        """The peer's address; None without a connection."""
        return None if self._transport is None else self._transport.get_extra_info("peername")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the same methods, but not the base class.
        self._transport = cast(asyncio.Transport, transport)
        self._traffic.opened += 1
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        sock = transport.get_extra_info("socket")
        # macOS refuses the options of a connection that its peer has closed already.
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._ends_with_silent_host:
                end_with_silent_host(sock)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        self._traffic.received_bytes += nbytes
        try:
            frames = self._receiver.buffer_updated(nbytes)
            if frames:
                self._traffic.responses += len(frames)
                self._owner.received(self, frames)
        except MalformedFrame as error:
            self._end(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def write(self, buffers: list[Buffer]) -> None:
        """Send the buffers of one request, without a copy if the loop can. Raises ConnectionClosed."""
        if self._transport is None or not self.is_usable:
            raise ConnectionClosed("the connection is closing")
        self._traffic.requests += 1
        self._traffic.sent_bytes += sum(map(len, buffers))
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    def close(self) -> None:
        """Close at once, without a call of the owner's `lost`. Idempotent."""
        if self._transport is not None and not self._ended:
            self._traffic.closed += 1
        self._ended = True
        # Waiting callers go on after the owner's `lost`; a writer checks `is_usable` next.
        self.ended.set()
        self.writable.set()
        if self._transport is not None:
            self._transport.abort()

    def is_to_itself(self) -> bool:
        """Whether both ends are one socket.

        TCP allows that if a local port without a listener is also chosen for this end; such a connection
        would keep the restarted broker from binding its own port.
        """
        transport = self._transport
        return transport is not None and (
            transport.get_extra_info("sockname") == transport.get_extra_info("peername")
        )

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self.close()
            self._owner.lost(self, error)


def end_with_silent_host(sock: socket.socket) -> None:
    """Let the kernel end a connection, idle or not, two seconds after the last sign of the peer's kernel.

    So the loss of a host, or of the way to it, is noticed. A process that is stopped or busy is no silence,
    because its kernel answers for it, but it must read: a full receive buffer also ends the connection.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (*_KEEPALIVE, ("TCP_USER_TIMEOUT", _SILENT_HOST_MS)):
        # Not every system has all of them.
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


async def open_connection(
    endpoint: Endpoint, make: Callable[[], Connection], tls: ssl.SSLContext | None = None
) -> Connection:
    """Connect to the first address of a host that can be reached, and carry out the TLS handshake.

    The certificate is verified for the endpoint's host, which may be an address, not for a resolved one.
    Raises OSError: an `ssl.SSLError` if one address was reached and the handshake failed there, else
    ConnectionRefusedError if no address was reached and one refused, so that a name with two addresses, such
    as localhost, shows a dead broker as clearly as a number does.
    """
    errors: list[OSError] = []
    loop = asyncio.get_running_loop()
    server_hostname = None if tls is None else endpoint.host
    for host in await resolve(endpoint):
        try:
            _, connection = await loop.create_connection(
                make, host, endpoint.port, ssl=tls, server_hostname=server_hostname
            )
        except OSError as error:
            errors.append(error)
            continue
        if connection.is_to_itself():
            connection.close()
            errors.append(ConnectionRefusedError(f"no process listens on {endpoint}"))
        elif not connection.is_usable:
            errors.append(ConnectionResetError(f"{endpoint} closed the connection at once"))
        else:
            return connection
    for kind in (ssl.SSLError, ConnectionRefusedError):
        for found in errors:
            if isinstance(found, kind):
                raise found
    raise errors[-1]


_HOST_NAME_MISMATCH: Final = 62
_ADDRESS_MISMATCH: Final = 64
_UNKNOWN_ISSUER: Final = frozenset({18, 19, 20, 21})
"""Codes of OpenSSL: self-signed, self-signed in the chain, and two forms of an issuer that is not known."""
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"}
)


def tls_failure(endpoint: Endpoint, error: ssl.SSLError) -> ConnectionClosed:
    """The error of a failed handshake, with its reason; a connection that just ended may be tried again."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or "EOF" in reason:
        return ConnectionClosed(f"{endpoint} ended the connection during the TLS handshake")
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"certificate verify failed: {error.verify_message.rstrip('.')}"
        if error.verify_code in (_HOST_NAME_MISMATCH, _ADDRESS_MISMATCH):
            text = f"certificate verify failed: host name mismatch: {error.verify_message.rstrip('.')}"
        elif error.verify_code in _UNKNOWN_ISSUER:
            text += "; is its certificate authority among the trusted ones (ssl_truststore_location)?"
    elif reason in _NO_TLS:
        text = "the peer does not speak TLS; does its listener need security_protocol=PLAINTEXT?"
    elif "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        text = f"{_words(reason)}; does it need a client certificate (ssl_keystore_location)?"
    else:
        text = _words(reason) or type(error).__name__
    return TlsHandshakeFailed(f"{endpoint}: TLS handshake failed: {text}")


def _words(reason: str) -> str:
    """``TLSV1_ALERT_UNKNOWN_CA`` as words."""
    return reason.lower().replace("_", " ")


async def resolve(endpoint: Endpoint) -> list[str]:
    """The numeric addresses of a host, in the resolver's order. Raises OSError if it has no address."""
    try:
        ipaddress.ip_address(endpoint.host)
    except ValueError:
        loop = asyncio.get_running_loop()
        try:
            infos = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except UnicodeError:
            # It is encoded before it is looked up, which fails for empty and too long parts.
            raise OSError(f"{endpoint.host!r} is not the name of a host") from None
        return list(dict.fromkeys(str(info[4][0]) for info in infos))
    return [endpoint.host]
