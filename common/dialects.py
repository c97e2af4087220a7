"""The two protocols of a channel: the native codec, or Kafka's protocol in negotiated versions.

A dialect belongs to one connection. The native one is the same everywhere. Kafka's first requests the peer's
versions (`Negotiation`), and then uses the highest common version of each API. Only the negotiation does I/O,
on its connection's event loop.

Source: KIP-35 (ApiVersions), KIP-511 (its first request and the way back to version 0).
"""

from __future__ import annotations

import asyncio
import struct
from enum import Enum
from typing import Any, Final, NamedTuple

from barnabas.common.connection import Connection
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.errors import ConnectionClosed, ErrorCode, MalformedFrame, api_error
from barnabas.protocol.frames import Frame
from barnabas.protocol.ids import NO_TOPIC_ID, Endpoint
from barnabas.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.protocol.messages.fetch import FetchRequest
from barnabas.protocol.schema import ApiKey, Buffer, RequestOf

Versions = dict[int, tuple[int, int]]
"""First and last version of every API that a peer supports, by API key."""

SOFTWARE_NAME: Final = "barnabas"
SOFTWARE_VERSION: Final = "1"
_LAST_FETCH_BY_NAME: Final = 12
_ATTEMPTS: Final = 2
_ERROR_CODE = struct.Struct(">h")
_ERROR_CODE_AT: Final = 4


class Wire(Enum):
    """The protocol of a channel, by the values of the setting."""

    NATIVE = "native"
    KAFKA = "kafka"


class Features(NamedTuple):
    """The features that a cluster has finalized (KIP-584); of two answers, that of the later epoch counts."""

    epoch: int
    levels: dict[str, int]


NO_FEATURES: Final = Features(-1, {})


class Dialect:
    """Encodes requests to frames and decodes frames to responses: in the native codec, without versions."""

    features = NO_FEATURES

    def version_of(self, message: RequestOf[Any], at_most: int | None = None) -> int:
        """The version to send a request in. Raises UNSUPPORTED_VERSION if the peer shares no version."""
        return 0

    def encode(
        self, version: int, correlation_id: int, client_id: str, message: RequestOf[Any]
    ) -> list[Buffer]:
        """A whole frame."""
        return codec_msgpack.encode_request(correlation_id, client_id, message)

    def open(self, view: memoryview) -> tuple[int, Any]:
        """The correlation id of a response, and the argument for `read`. Raises MalformedFrame."""
        opened = codec_msgpack.open_response(view)
        return opened.correlation_id, opened

    def read(self, opened: Any, request_type: type[RequestOf[Any]], version: int) -> Any:
        """The body of a response. Raises MalformedFrame."""
        return opened.body(request_type.response_type)


class KafkaDialect(Dialect):
    """Kafka's protocol, in the highest common versions of ours and the peer's ``versions``."""

    def __init__(self, endpoint: Endpoint, versions: Versions, features: Features = NO_FEATURES) -> None:
        self.features = features
        self._endpoint = endpoint
        self._versions = versions

    def version_of(self, message: RequestOf[Any], at_most: int | None = None) -> int:
        ours = codec_kafka.supported_versions(message.api_key)
        theirs = self._versions.get(message.api_key)
        if theirs is None:
            raise self._unsupported(message, "which does not have it at all")
        last = ours[1] if at_most is None else min(ours[1], at_most)
        if type(message) is FetchRequest and last > _LAST_FETCH_BY_NAME and _names_topics(message):
            last = _LAST_FETCH_BY_NAME
        version = min(last, theirs[1])
        if version < max(ours[0], theirs[0]):
            raise self._unsupported(message, f"which has versions {theirs[0]} to {theirs[1]}")
        return version

    def _unsupported(self, message: RequestOf[Any], what: str) -> Exception:
        first, last = codec_kafka.supported_versions(message.api_key)
        have = f"we have versions {first} to {last}" if first <= last else "it is not of Kafka's protocol"
        text = f"{message.api_key.name} cannot be sent to {self._endpoint}, {what}; {have}"
        return api_error(ErrorCode.UNSUPPORTED_VERSION, text)

    def encode(
        self, version: int, correlation_id: int, client_id: str, message: RequestOf[Any]
    ) -> list[Buffer]:
        return codec_kafka.encode_request(version, correlation_id, client_id, message)

    def open(self, view: memoryview) -> tuple[int, memoryview]:
        return codec_kafka.correlation_id_of(view), view

    def read(self, opened: memoryview, request_type: type[RequestOf[Any]], version: int) -> Any:
        return codec_kafka.decode_response(request_type, version, opened)[1]


def _names_topics(message: FetchRequest) -> bool:
    """Whether a fetch has a topic without an id: later versions have no room for names."""
    return any(topic.topic_id == NO_TOPIC_ID for topic in message.topics)


NATIVE: Final = Dialect()


class Negotiation:
    """Requests the peer's versions on a new connection; the channel passes the frames on.

    The first request has our highest version. A peer that does not support it answers in version 0, perhaps
    with its range, and gets one more request.
    """

    def __init__(self, connection: Connection, endpoint: Endpoint, client_id: str) -> None:
        self.connection = connection
        self._endpoint = endpoint
        self._client_id = client_id
        self._answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._ended: ConnectionClosed | None = None

    async def run(self) -> KafkaDialect:
        """The negotiated dialect. Raises ConnectionClosed if the negotiation fails."""
        version = codec_kafka.supported_versions(ApiKey.API_VERSIONS)[1]
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[])
        for attempt in range(_ATTEMPTS):
            response = await self._ask(version, correlation_id=attempt)
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
            offered = _ranges(response).get(ApiKey.API_VERSIONS)
            version = 0 if offered is None else max(0, min(version - 1, offered[1]))
        if response.error_code != ErrorCode.NONE:
            error = api_error(response.error_code, "this is its answer to ApiVersions")
            raise ConnectionClosed(f"{self._endpoint} did not send its versions: {error}")
        if self._ended is not None:
            # After the answer arrived and before it was read.
            raise self._ended
        levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
        features = Features(response.finalized_features_epoch, levels)
        return KafkaDialect(self._endpoint, _ranges(response), features)

    def received(self, frames: list[Frame]) -> None:
        """Take the one expected frame. Raises MalformedFrame for any other."""
        if len(frames) != 1 or self._answer.done():
            raise MalformedFrame("more came than the answer to ApiVersions")
        self._answer.set_result(frames[0].view)

    def lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        why = f"{type(error).__name__}: {error}" if error is not None else "closed by the peer"
        self._ended = ConnectionClosed(f"{self._endpoint} at ApiVersions: {why}")
        if not self._answer.done():
            self._answer.set_exception(self._ended)
            # The waiting caller sees it; without one, as after a timeout, asyncio must not warn.
            self._answer.exception()

    async def _ask(self, version: int, correlation_id: int) -> ApiVersionsResponse:
        self._answer = asyncio.get_running_loop().create_future()
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
        )
        self.connection.write(codec_kafka.encode_request(version, correlation_id, self._client_id, request))
        view = await self._answer
        try:
            answered, body = codec_kafka.decode_response(
                ApiVersionsRequest, 0 if _is_refusal(view) else version, view
            )
        except MalformedFrame as error:
            raise ConnectionClosed(f"{self._endpoint} at ApiVersions: {error}") from error
        if answered != correlation_id:
            raise ConnectionClosed(f"{self._endpoint} at ApiVersions: correlation id {answered} was not used")
        response: ApiVersionsResponse = body
        return response


def _is_refusal(view: memoryview) -> bool:
    """Whether this is the answer to an unknown version, which always has version 0."""
    if len(view) < _ERROR_CODE_AT + _ERROR_CODE.size:
        return False
    code: int = _ERROR_CODE.unpack_from(view, _ERROR_CODE_AT)[0]
    return code == ErrorCode.UNSUPPORTED_VERSION


def _ranges(response: ApiVersionsResponse) -> Versions:
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
