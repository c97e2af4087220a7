"""Hostile peers of a broker: how far they get before they do harm, and the bytes both ways."""

import asyncio
import random
import socket
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from barnabas.common.opening import authenticate
from barnabas.common.security.channel_security import PasswordLogin
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.ids import Endpoint

from .raw_client import encoded

PATIENCE_S: Final = 0.2
_OPENING_S: Final = 20.0
_PIECE_BYTES: Final = 1 << 16
_LENGTH: Final = struct.Struct(">i")


@dataclass(frozen=True)
class Stage:
    """How far a peer has come when its plan begins: connected, through TLS, logged in.

    With `tls` it uses one of the contexts.
    """

    tls: Sequence[ssl.SSLContext] = ()
    login: PasswordLogin | None = None

    @property
    def is_unknown(self) -> bool:
        """Whether the broker still expects a login. A listener with TLS expects one."""
        return bool(self.tls) and self.login is None


CONNECTED: Final = Stage()


def hostile_contexts() -> list[ssl.SSLContext]:
    """A client context for each version of TLS that a broker offers; it trusts every certificate."""
    made = []
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        made.append(context)
    return made


class Peer:
    """A connection to some broker that takes few bytes at a time, and ends cleanly or by a reset."""

    def __init__(
        self, chance: random.Random, endpoints: Sequence[Endpoint], stage: Stage = CONNECTED
    ) -> None:
        self.stage = stage
        self._endpoint = chance.choice(endpoints)
        self._resets = chance.random() < 0.4
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        if stage.tls:
            self._tls = chance.choice(stage.tls).wrap_bio(self._incoming, self._outgoing)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_OPENING_S):
                await loop.sock_connect(self._socket, (self._endpoint.host, self._endpoint.port))
                if self._tls is not None:
                    while (flight := self.next_flight()) is not None:
                        await self.send_raw(flight)
                        self.take_in(await self._receive_raw())
                    await self.send_raw(self._outgoing.read())
                if self.stage.login is not None:
                    await authenticate(self._endpoint, await self.stage.login.start(), self.exchange)
        except BaseException:
            self._socket.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._resets:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    async def send(self, data: bytes, patience_s: float = PATIENCE_S) -> None:
        """Send as many bytes as the broker takes within the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                for at in range(0, len(data), _PIECE_BYTES):
                    await self.send_raw(self.sealed(data[at : at + _PIECE_BYTES]))

    async def ask(self, data: bytes, patience_s: float = PATIENCE_S) -> str:
        await self.send(data, patience_s)
        got = await self.receive(4, patience_s)
        return "left waiting" if got is None else "answered" if got else "closed"

    async def receive(self, size: int, patience_s: float = PATIENCE_S) -> bytes | None:
        """Some bytes; empty at the end, None if nothing comes within the time."""
        try:
            async with asyncio.timeout(patience_s):
                return await self._receive(size)
        except TimeoutError:
            return None

    # Below TLS

    def next_flight(self) -> bytes | None:
        """The next bytes of the handshake; None at its end."""
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return self._outgoing.read()
        return None

    def take_in(self, data: bytes) -> None:
        if not data:
            raise ConnectionError("closed during the handshake")
        self._incoming.write(data)

    def sealed(self, data: bytes) -> bytes:
        """The bytes as the broker expects them."""
        if self._tls is None or not data:
            return data
        self._tls.write(data)
        return self._outgoing.read()

    def goodbye(self) -> bytes:
        """The record that ends this side of TLS."""
        assert self._tls is not None
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        return self._outgoing.read()

    async def send_raw(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive_raw(self, patience_s: float = PATIENCE_S) -> bytes | None:
        """As `receive`, the bytes that came over the wire."""
        try:
            async with asyncio.timeout(patience_s):
                return await self._receive_raw()
        except TimeoutError:
            return None

    async def _receive_raw(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, _PIECE_BYTES)

    async def _receive(self, size: int) -> bytes:
        if self._tls is None:
            return await asyncio.get_running_loop().sock_recv(self._socket, size)
        while True:
            try:
                return self._tls.read(size)
            except ssl.SSLWantReadError:
                data = await self._receive_raw()
                if not data:
                    return b""
                self._incoming.write(data)

    async def _exactly(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = await self._receive(size - len(parts))
            if not part:
                raise ConnectionError("closed by the broker")
            parts += part
        return parts

    async def exchange(self, request: Any, version: int | None = None) -> Any:
        """The answer to a request, in the native protocol or in a version of Kafka's."""
        await self.send(encoded(request, version=version))
        payload = memoryview(await self._exactly(_LENGTH.unpack(await self._exactly(_LENGTH.size))[0]))
        if version is None:
            return codec_msgpack.open_response(payload).body(request.response_type)
        return codec_kafka.decode_response(type(request), version, payload)[1]
