"""The Kafka codec: the wire protocol of every Kafka client, from the same declarations as the native one.

A request is api key, version, correlation id and client id, then the body in that version; a response is the
correlation id and the body. From an API's first flexible version on, headers end with tagged fields, but for
the response of ApiVersions, which must be readable by who does not know the versions yet (KIP-511).

Encoders and decoders are compiled per message and version at first use (`codec_kafka_encoder`,
`codec_kafka_decoder`). Records are never copied: the sender's buffers are passed on, and the receiver gets
views of the frame. Bytes behind a message are ignored, for one of the clients leaves some.

Everything here may be called from any thread.

Source: https://kafka.apache.org/protocol, KIP-35, KIP-482, KIP-511.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import barnabas.protocol.messages  # noqa: F401 - importing the declarations fills APIS
from barnabas.protocol.codec_kafka_decoder import Decoder, compile_decoder, read_uvarint, skip_tagged_field
from barnabas.protocol.codec_kafka_encoder import Encoder, compile_encoder
from barnabas.protocol.errors import LocalError, MalformedFrame, MessageTooComplex, Unencodable
from barnabas.protocol.schema import APIS, NATIVE_ONLY, ApiKey, Buffer, RequestOf

_REQUEST_START = struct.Struct(">hhih")
_FRAME_START = struct.Struct(">ihhi")
_RESPONSE_START = struct.Struct(">ii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_LENGTH_BYTES: Final = 4
_MAX_FRAME_BYTES: Final = 0x7FFFFFFF
_UNENCODABLE: Final = (struct.error, AttributeError, TypeError, ValueError, OverflowError)


class UnsupportedVersion(LocalError):
    """A request whose API or version we do not speak; its head could be read, its body cannot be."""

    def __init__(self, api_key: int, api_version: int, correlation_id: int) -> None:
        first, last = supported_versions(api_key)
        super().__init__(
            f"api key {api_key} version {api_version} is not spoken here"
            + (f"; versions {first} to {last} are" if first <= last else "")
        )
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id


class RequestHead(NamedTuple):
    """A request as it came: ``body`` is an instance of the class that the API key declares."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    body: Any


class _Spoken:
    """One API in one version: whether it is flexible, and its four functions, each compiled when needed."""

    __slots__ = (
        "_decode_request",
        "_decode_response",
        "_encode_request",
        "_encode_response",
        "_request",
        "_response",
        "api_key",
        "has_response_tags",
        "is_flexible",
        "version",
    )

    def __init__(self, api_key: int, version: int) -> None:
        api = APIS[api_key]
        self.api_key = api.key
        self.version = version
        self.is_flexible = api.flexible_since is not None and version >= api.flexible_since
        self.has_response_tags = self.is_flexible and api.key is not ApiKey.API_VERSIONS
        self._request = api.request
        self._response = api.response
        self._encode_request: Encoder | None = None
        self._encode_response: Encoder | None = None
        self._decode_request: Decoder | None = None
        self._decode_response: Decoder | None = None

    def encode_request(self, body: Any, out: bytearray, parts: list[Buffer]) -> bytearray:
        if self._encode_request is None:
            self._encode_request = compile_encoder(self._request, self.version, self.is_flexible)
        return self._encode_request(body, out, parts)

    def encode_response(self, body: Any, out: bytearray, parts: list[Buffer]) -> bytearray:
        if self._encode_response is None:
            self._encode_response = compile_encoder(self._response, self.version, self.is_flexible)
        return self._encode_response(body, out, parts)

    def decode_request(self, view: memoryview, position: int) -> Any:
        if self._decode_request is None:
            self._decode_request = compile_decoder(self._request, self.version, self.is_flexible)
        return self._decode_request(view, position)

    def decode_response(self, view: memoryview, position: int) -> Any:
        if self._decode_response is None:
            self._decode_response = compile_decoder(self._response, self.version, self.is_flexible)
        return self._decode_response(view, position)


_spoken: dict[tuple[int, int], _Spoken] = {}


def supported_versions(api_key: int) -> tuple[int, int]:
    """The first and last version that are declared; the empty range 0, -1 for what Kafka's clients lack."""
    api = APIS.get(api_key)
    return api.versions if api is not None else NATIVE_ONLY


def is_kafka(payload: memoryview) -> bool:
    """Whether a request's payload is Kafka's: no api key is above 255, so it starts with a zero byte."""
    return len(payload) > 0 and payload[0] == 0


def decode_request(view: memoryview) -> RequestHead:
    """Read a request; its records are views of the frame. Raises MalformedFrame, UnsupportedVersion."""
    if len(view) < _REQUEST_START.size:
        raise MalformedFrame(f"a frame of {len(view)} bytes is too short for a request header")
    api_key, version, correlation_id, length = _REQUEST_START.unpack_from(view)
    spoken = _spoken.get((api_key, version)) or _speak(api_key, version)
    if spoken is None:
        raise UnsupportedVersion(api_key, version, correlation_id)
    position = _REQUEST_START.size
    client_id = None
    if length != -1:
        start, position = position, position + length
        if not start <= position <= len(view):
            raise MalformedFrame(f"the client id claims {length} bytes; {len(view) - start} follow")
        try:
            client_id = str(view[start:position], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedFrame(f"the client id is not a string: {error}") from None
    if spoken.is_flexible:
        position = _after_tags(view, position)
    body = spoken.decode_request(view, position)
    return RequestHead(spoken.api_key, version, correlation_id, client_id, body)


def encode_response(api_key: int, api_version: int, correlation_id: int, body: Any) -> list[Buffer]:
    """A whole frame, length bytes included, as buffers to be sent one after another.

    Raises MessageTooComplex, Unencodable; UNSUPPORTED_VERSION when the version has no field for what is said.
    """
    spoken = _must_speak(api_key, api_version)
    out = bytearray(_RESPONSE_START.pack(0, correlation_id))
    if spoken.has_response_tags:
        out.append(0)
    parts: list[Buffer] = []
    try:
        return _frame(spoken.encode_response(body, out, parts), parts)
    except _UNENCODABLE as error:
        raise _unencodable(body, api_version, error) from error


def encode_request(
    api_version: int, correlation_id: int, client_id: str, body: RequestOf[Any]
) -> list[Buffer]:
    """A whole frame, length bytes included, as buffers to be sent one after another.

    Raises as `encode_response`.
    """
    spoken = _must_speak(body.api_key, api_version)
    parts: list[Buffer] = []
    try:
        out = bytearray(_FRAME_START.pack(0, body.api_key, api_version, correlation_id))
        name = client_id.encode()
        out += _INT16.pack(len(name))
        out += name
        if spoken.is_flexible:
            out.append(0)
        return _frame(spoken.encode_request(body, out, parts), parts)
    except _UNENCODABLE as error:
        raise _unencodable(body, api_version, error) from error


def correlation_id_of(view: memoryview) -> int:
    """The request that a response answers. Raises MalformedFrame."""
    if len(view) < _INT32.size:
        raise MalformedFrame(f"a frame of {len(view)} bytes is too short for a response header")
    found: int = _INT32.unpack_from(view)[0]
    return found


def decode_response(
    request_type: type[RequestOf[Any]], api_version: int, view: memoryview
) -> tuple[int, Any]:
    """The correlation id and the body of a response; records are views of it. Raises MalformedFrame."""
    correlation_id = correlation_id_of(view)
    spoken = _must_speak(request_type.api_key, api_version)
    position = _INT32.size
    if spoken.has_response_tags:
        position = _after_tags(view, position)
    return correlation_id, spoken.decode_response(view, position)


def _speak(api_key: int, version: int) -> _Spoken | None:
    first, last = supported_versions(api_key)
    if not first <= version <= last:
        return None
    return _spoken.setdefault((int(api_key), version), _Spoken(api_key, version))


def _must_speak(api_key: int, version: int) -> _Spoken:
    spoken = _spoken.get((api_key, version)) or _speak(api_key, version)
    if spoken is None:
        raise UnsupportedVersion(api_key, version, -1)
    return spoken


def _after_tags(view: memoryview, position: int) -> int:
    """The position after the tagged fields of a header, all of which are ignored."""
    try:
        if view[position] == 0:
            return position + 1
        count, position = read_uvarint(view, position)
        for _ in range(count):
            position = skip_tagged_field(view, position, len(view))
    except IndexError:
        raise MalformedFrame(f"a frame of {len(view)} bytes ends within its header") from None
    return position


def _frame(last: bytearray, parts: list[Buffer]) -> list[Buffer]:
    parts.append(last)
    size = sum(map(len, parts)) - _LENGTH_BYTES
    if size > _MAX_FRAME_BYTES:
        raise MessageTooComplex(f"a message takes {size} bytes; {_MAX_FRAME_BYTES} may")
    first = parts[0]
    _INT32.pack_into(first, 0, size)
    return parts


def _unencodable(body: Any, version: int, error: Exception) -> Unencodable:
    return Unencodable(f"{type(body).__name__} cannot be sent in version {version}: {error}")
