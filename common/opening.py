"""The exchange on a new connection before any request of its owner: versions, then authentication.

`Opening` sends one request at a time and waits for its answer; the channel passes it the frames. `negotiate`
asks for the peer's versions of Kafka's protocol. `authenticate` carries out a SASL exchange, as messages, in
either protocol; a connected channel repeats it in place before the session ends. `Gate` holds the requests
back meanwhile. Everything runs on the event loop of the channel.

Sources: KIP-35 and KIP-511 (ApiVersions), KIP-43 and KIP-152 (SASL as messages), KIP-368 (again in place).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

from barnabas.common.connection import Connection
from barnabas.common.dialects import Dialect, Features, KafkaDialect, Versions
from barnabas.common.security.sasl_client import SaslClient
from barnabas.protocol import codec_kafka
from barnabas.protocol.errors import (
    ApiError,
    ConnectionClosed,
    ErrorCode,
    MalformedFrame,
    SaslAuthenticationFailed,
    api_error,
)
from barnabas.protocol.frames import Frame
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from barnabas.protocol.messages.features import NATIVE_PROTOCOL
from barnabas.protocol.schema import ApiKey, Buffer, RequestOf

SOFTWARE_NAME: Final = "barnabas"
SOFTWARE_VERSION: Final = "1"
_ATTEMPTS: Final = 2
_MAX_ROUNDS: Final = 4
"""More than any mechanism needs; a peer that goes on asking is cut off."""
_ERROR_CODE = struct.Struct(">h")
_ERROR_CODE_AT: Final = 4

Ask = Callable[[RequestOf[Any]], Awaitable[Any]]
"""Sends a request past the ones that are held back, and returns its answer."""


class Opening:
    """One request at a time on a connection that carries no others yet."""

    def __init__(self, connection: Connection, endpoint: Endpoint, client_id: str) -> None:
        self.connection = connection
        self.endpoint = endpoint
        self._client_id = client_id
        self._stage = "the opening"
        self._correlation_id = -1
        self._answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._ended: ConnectionClosed | None = None

    async def ask(self, dialect: Dialect, message: RequestOf[Any]) -> Any:
        """The answer, in the dialect. Raises ConnectionClosed, and UNSUPPORTED_VERSION without sending it."""
        version = dialect.version_of(message)
        view = await self._exchange(message, dialect.encode, version)
        try:
            correlation_id, opened = dialect.open(view)
            body = dialect.read(opened, type(message), version)
        except MalformedFrame as error:
            raise self._closed(str(error)) from error
        self._check(correlation_id)
        return body

    async def ask_versions(self, version: int) -> ApiVersionsResponse:
        """The answer to ApiVersions; one to an unknown version is of version 0."""
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
        )
        view = await self._exchange(request, codec_kafka.encode_request, version)
        try:
            answered, body = codec_kafka.decode_response(
                ApiVersionsRequest, 0 if _is_refusal(view) else version, view
            )
        except MalformedFrame as error:
            raise self._closed(str(error)) from error
        self._check(answered)
        response: ApiVersionsResponse = body
        return response

    @property
    def is_answered(self) -> bool:
        """Whether the peer has answered anything."""
        return self._correlation_id > 0 or (self._answer.done() and self._ended is None)

    def received(self, frames: list[Frame]) -> None:
        """Take the one expected frame. Raises MalformedFrame for any other."""
        if len(frames) != 1 or self._answer.done():
            raise MalformedFrame(f"more came than the answer to {self._stage}")
        self._answer.set_result(frames[0].view)

    def lost(self, reason: str, kind: type[ConnectionClosed]) -> None:
        """The connection has ended."""
        self._ended = self._closed(reason, kind)
        if not self._answer.done():
            self._answer.set_exception(self._ended)
            # The waiting caller sees it; without one, as after a timeout, asyncio must not warn.
            self._answer.exception()

    def check_open(self) -> None:
        """Raise ConnectionClosed if the connection ended after the last answer."""
        if self._ended is not None:
            raise self._ended

    async def _exchange(
        self,
        message: RequestOf[Any],
        encode: Callable[[int, int, str, RequestOf[Any]], list[Buffer]],
        version: int,
    ) -> memoryview:
        self.check_open()
        self._stage = type(message).__name__.removesuffix("Request")
        self._correlation_id += 1
        self._answer = asyncio.get_running_loop().create_future()
        self.connection.write(encode(version, self._correlation_id, self._client_id, message))
        return await self._answer

    def _check(self, correlation_id: int) -> None:
        if correlation_id != self._correlation_id:
            raise self._closed(f"correlation id {correlation_id} was not used")

    def _closed(self, reason: str, kind: type[ConnectionClosed] = ConnectionClosed) -> ConnectionClosed:
        return kind(f"{self.endpoint} at {self._stage}: {reason}")


async def negotiate(opening: Opening) -> KafkaDialect:
    """The highest common versions with the peer. Raises ConnectionClosed.

    The first request has our highest version. A peer that does not support it answers in version 0, perhaps
    with its range, and gets one more request.
    """
    version = codec_kafka.supported_versions(ApiKey.API_VERSIONS)[1]
    response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[])
    for _ in range(_ATTEMPTS):
        response = await opening.ask_versions(version)
        if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
            break
        offered = _ranges(response).get(ApiKey.API_VERSIONS)
        version = 0 if offered is None else max(0, min(version - 1, offered[1]))
    if response.error_code != ErrorCode.NONE:
        error = api_error(response.error_code, "this is its answer to ApiVersions")
        raise ConnectionClosed(f"{opening.endpoint} did not send its versions: {error}")
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    features = Features(response.finalized_features_epoch, levels)
    is_ours = any(feature.name == NATIVE_PROTOCOL for feature in response.supported_features)
    return KafkaDialect(opening.endpoint, _ranges(response), features, peer_is_ours=is_ours)


def _is_refusal(view: memoryview) -> bool:
    """Whether this is the answer to an unknown version, which always has version 0."""
    if len(view) < _ERROR_CODE_AT + _ERROR_CODE.size:
        return False
    code: int = _ERROR_CODE.unpack_from(view, _ERROR_CODE_AT)[0]
    return code == ErrorCode.UNSUPPORTED_VERSION


def _ranges(response: ApiVersionsResponse) -> Versions:
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


async def authenticate(endpoint: Endpoint, client: SaslClient, ask: Ask) -> int:
    """Authenticate to the peer; returns how long the session lasts in ms, 0 without a limit.

    Raises SaslAuthenticationFailed with the peer's text, and the errors of `ask`.
    """
    try:
        await _agree_on_mechanism(endpoint, client.mechanism, ask)
        token: bytes | None = client.first()
        response = SaslAuthenticateResponse(error_code=0)
        for _ in range(_MAX_ROUNDS):
            if token is None:
                return max(0, response.session_lifetime_ms)
            response = await ask(SaslAuthenticateRequest(auth_bytes=token))
            if response.error_code != ErrorCode.NONE:
                raise SaslAuthenticationFailed(
                    f"{endpoint}: {api_error(response.error_code, response.error_message or '')}"
                )
            token = client.answer(response.auth_bytes)
    except ApiError as error:
        # A peer without these APIs.
        raise SaslAuthenticationFailed(f"{endpoint} cannot authenticate: {error}") from error
    if token is None:
        return max(0, response.session_lifetime_ms)
    raise SaslAuthenticationFailed(f"{endpoint} goes on with {client.mechanism} after its last message")


async def _agree_on_mechanism(endpoint: Endpoint, mechanism: str, ask: Ask) -> None:
    response = await ask(SaslHandshakeRequest(mechanism=mechanism))
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        raise SaslAuthenticationFailed(
            f"{endpoint} does not take the SASL mechanism {mechanism}; "
            f"it takes {', '.join(sorted(response.mechanisms)) or 'none'}"
        )
    if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise SaslAuthenticationFailed(
            f"{endpoint} refused the SASL handshake: its listener may not use SASL; "
            "expected security_protocol=PLAINTEXT or SSL"
        )
    if response.error_code != ErrorCode.NONE:
        raise SaslAuthenticationFailed(f"{endpoint}: {api_error(response.error_code)}")


class Gate:
    """Holds requests back while a channel authenticates again, and lets them go on in their order."""

    def __init__(self) -> None:
        # It is fair: each release wakes the one that has waited longest.
        self._turn = asyncio.Lock()
        self._is_open = False
        self._waiting = 0

    @property
    def is_passed(self) -> bool:
        """Whether it is open and nobody waits any more, so a new request overtakes none."""
        return self._is_open and not self._waiting

    async def close(self) -> None:
        """At once: the gate is new."""
        await self._turn.acquire()

    def open(self) -> None:
        self._is_open = True
        self._turn.release()

    async def wait(self) -> None:
        """Wait until it is open and all earlier ones have gone on."""
        self._waiting += 1
        try:
            async with self._turn:
                pass
        finally:
            self._waiting -= 1
