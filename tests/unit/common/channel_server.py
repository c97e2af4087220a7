"""A small server for channels, in either dialect: it answers, waits, lies or hangs up as a test sets it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

from barnabas.common.channel import Channel
from barnabas.common.dialects import Wire
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.errors import ConnectionClosed, RequestTimedOutLocally
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from barnabas.protocol.messages.metadata import MetadataResponse
from barnabas.protocol.schema import ApiKey, RequestHead
from tests.support.waiting import DEADLINE_S

VERSIONS = {
    ApiKey.METADATA: (0, 12),
    ApiKey.FETCH: (4, 17),
    ApiKey.PRODUCE: (0, 11),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
}


class Peer:
    """One accepted connection and its requests, except for ApiVersions in Kafka's dialect."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self.writer = writer
        self.requests: list[RequestHead] = []
        self.at_end = False

    async def read(self) -> None:
        try:
            while True:
                length = struct.unpack(">I", await self._reader.readexactly(4))[0]
                self._received(memoryview(await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.at_end = True
            self.writer.close()

    def _received(self, data: memoryview) -> None:
        server = self._server
        if server.wire is Wire.NATIVE:
            head = codec_msgpack.decode_request(data)
        else:
            key, version, correlation_id = struct.unpack_from(">hhi", data)
            if key == ApiKey.API_VERSIONS:
                server.greetings.append(version)
                answer = server.greet(version, correlation_id)
                if answer is None:
                    self.writer.transport.abort()
                else:
                    self.writer.write(answer)
                return
            head = codec_kafka.decode_request(data)
        self.requests.append(head)
        if server.answers:
            self.answer(head)

    def answer(self, request: RequestHead) -> None:
        """Echo the correlation id as a throttle time, so that a test sees which answer it got."""
        body = MetadataResponse(brokers=[], topics=[], throttle_time_ms=request.correlation_id)
        body = self._server.bodies.get(request.api_key, body)
        self.send(request, body(request) if callable(body) else body)

    def send(self, request: RequestHead, body: Any) -> None:
        self.writer.writelines(self.encoded(request, body))

    def encoded(self, request: RequestHead, body: Any) -> list[Any]:
        if request.api_version is None:
            return codec_msgpack.encode_response(request.correlation_id, body)
        return codec_kafka.encode_response(request.api_key, request.api_version, request.correlation_id, body)

    def reset(self) -> None:
        """Hang up with a reset, as the kernel does for a process that was killed."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


class Server:
    """Accepts and reads; answers at once while ``answers``."""

    def __init__(self, wire: Wire = Wire.NATIVE) -> None:
        self.wire = wire
        self.answers = True
        self.hangs_up = False
        self.reads = True
        self.bodies: dict[int, Any] = {}
        """The answers by API key, or functions of the request; the others are `Peer.answer`'s echo."""
        self.tls: ssl.SSLContext | None = None
        self.versions: dict[ApiKey, tuple[int, int]] = dict(VERSIONS)
        self.api_versions = (0, 5)
        self.names_its_range = True
        self.greet: Callable[[int, int], bytes | None] = self.greet_well
        """Answers ApiVersions by its version and correlation id; None hangs up."""
        self.greetings: list[int] = []
        """The version of each ApiVersions request."""
        self.peers: list[Peer] = []
        self.endpoint = Endpoint("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def peer(self) -> Peer:
        """The connection accepted last."""
        return self.peers[-1]

    @property
    def requests(self) -> list[Any]:
        return [request for peer in self.peers for request in peer.requests]

    @property
    def has_no_connection(self) -> bool:
        return all(peer.at_end for peer in self.peers)

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", port, ssl=self.tls)
        self.endpoint = Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(self, reader, writer)
        if self.hangs_up:
            peer.reset()
            return
        self.peers.append(peer)
        if self.reads:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.append(task)
            await peer.read()

    def greet_well(self, version: int, correlation_id: int) -> bytes:
        if not self.api_versions[0] <= version <= self.api_versions[1]:
            own = [ApiVersion(api_key=18, min_version=self.api_versions[0], max_version=self.api_versions[1])]
            body = ApiVersionsResponse(error_code=35, api_keys=own if self.names_its_range else [])
            version = 0
        else:
            keys = [
                ApiVersion(api_key=k, min_version=v[0], max_version=v[1]) for k, v in self.versions.items()
            ]
            body = ApiVersionsResponse(error_code=0, api_keys=keys)
        return b"".join(codec_kafka.encode_response(ApiKey.API_VERSIONS, version, correlation_id, body))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in self.peers:
            peer.writer.transport.abort()
        await asyncio.gather(*self._tasks)


async def ask_until_answered(channel: Channel, message: Any, **arguments: int) -> Any:
    """Ask again until there is an answer: a short limit may pass before the server receives the request."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await channel.request(message, **arguments)
            except (ConnectionClosed, RequestTimedOutLocally):
                await asyncio.sleep(0.001)
