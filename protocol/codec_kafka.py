"""The Kafka codec: the wire protocol of every Kafka client, from the same declarations as the native one.

A request is api key, version, correlation id and client id, then the body in that version; a response is the
correlation id and the body. From an API's first flexible version on, headers end with tagged fields, except
in the response of ApiVersions, which a client must read before it knows the versions (KIP-511).

Encoders and decoders are compiled per message and version at first use (`codec_kafka_encoder`,
`codec_kafka_decoder`). Records are never copied: the sender's buffers are passed on, and the receiver gets
views of the frame. Bytes after a message are ignored, because one client sends some.

Everything here may be called from any thread.

Source: https://kafka.apache.org/protocol, KIP-35, KIP-482, KIP-511.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

import barnabas.protocol.messages  # noqa: F401 - importing the declarations fills APIS
from barnabas.protocol.codec_kafka_decoder import Decoder, compile_decoder, read_uvarint, skip_tagged_field
from barnabas.protocol.codec_kafka_encoder import Encoder, compile_encoder
from barnabas.protocol.errors import (
    ApiError,
    BeyondBound,
    LocalError,
    MalformedFrame,
    MessageTooComplex,
    Unencodable,
)
from barnabas.protocol.frames import LENGTH_BYTES
from barnabas.protocol.schema import (
    APIS,
    MAX_ARRAY_LENGTH,
    MAX_INNER_ELEMENTS,
    NATIVE_ONLY,
    ApiKey,
    Buffer,
    RequestHead,
    RequestOf,
)

_REQUEST_START = struct.Struct(">hhih")
_FRAME_START = struct.Struct(">ihhih")
_RESPONSE_START = struct.Struct(">ii")
_INT32 = struct.Struct(">i")
_VERSION = struct.Struct(">h")
_CORRELATION_ID_AT: Final = LENGTH_BYTES
_FIRST_WITH_SESSIONS: Final = 7
_SESSION_ID_AT: Final = 6
"""In the body of an answer to a fetch, after the throttle time and the error code."""
_HEADER_BYTES: Final = _REQUEST_START.size
_MAX_FRAME_BYTES: Final = 0x7FFFFFFF
_UNENCODABLE: Final = (struct.error, AttributeError, TypeError, ValueError, OverflowError)


M = TypeVar("M")


class UnsupportedVersion(LocalError):
    """A request with an unsupported API or version: only its header can be read."""

    def __init__(self, api_key: int, api_version: int, correlation_id: int) -> None:
        first, last = supported_versions(api_key)
        super().__init__(
            f"api key {api_key} version {api_version} is not supported"
            + (f"; versions {first} to {last} are" if first <= last else "")
        )
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id


# Faster than the Python function that is a NamedTuple's constructor.
_new_tuple = tuple.__new__


class _ApiVersionCodec:
    """One API in one version; each of the four functions is compiled at its first call."""

    __slots__ = (
        "api_key",
        "decode_request",
        "decode_response",
        "encode_request",
        "encode_response",
        "has_response_tags",
        "is_flexible",
    )
    encode_request: Encoder
    encode_response: Encoder
    decode_request: Decoder
    decode_response: Decoder

    def __init__(self, api_key: int, version: int) -> None:
        api = APIS[api_key]
        flexible = api.flexible_since is not None and version >= api.flexible_since
        self.api_key = api.key
        self.is_flexible = flexible
        self.has_response_tags = flexible and api.key is not ApiKey.API_VERSIONS

        for name, compile_codec, cls in (
            ("encode_request", compile_encoder, api.request),
            ("encode_response", compile_encoder, api.response),
            ("decode_request", compile_decoder, api.request),
            ("decode_response", compile_decoder, api.response),
        ):
            self._compile_at_first_call(name, partial(compile_codec, cls, version, flexible))

    def _compile_at_first_call(self, name: str, make: Callable[[], Callable[..., Any]]) -> None:
        def first(*arguments: Any) -> Any:
            setattr(self, name, make())
            return getattr(self, name)(*arguments)

        setattr(self, name, first)


_codecs: dict[tuple[int, int], _ApiVersionCodec] = {}


def supported_versions(api_key: int) -> tuple[int, int]:
    """The first and last offered version; the empty range 0, -1 for an API that Kafka does not have."""
    api = APIS.get(api_key)
    return api.versions if api is not None else NATIVE_ONLY


def decode_request(view: memoryview, most_elements: int = MAX_INNER_ELEMENTS) -> RequestHead:
    """Read a request; its records are views of the frame.

    Raises MalformedFrame, BeyondBound, UnsupportedVersion.
    """
    if len(view) < _HEADER_BYTES:
        raise MalformedFrame(f"a frame of {len(view)} bytes is too short for a request header")
    api_key, version, correlation_id, length = _REQUEST_START.unpack_from(view)
    codec = _codecs.get((api_key, version)) or _make_codec(api_key, version)
    if codec is None:
        raise UnsupportedVersion(api_key, version, correlation_id)
    position = _HEADER_BYTES
    client_id = None
    if length != -1:
        position += length
        if not _HEADER_BYTES <= position <= len(view):
            raise MalformedFrame(f"the client id claims {length} bytes; {len(view) - _HEADER_BYTES} follow")
        try:
            client_id = view[_HEADER_BYTES:position].tobytes().decode()
        except UnicodeDecodeError as error:
            raise MalformedFrame(f"the client id is not a string: {error}") from None
    if codec.is_flexible:
        # A header without tagged fields, as from every client, is skipped without a call.
        if position < len(view) and not view[position]:
            position += 1
        else:
            position = _after_tags(view, position, most_elements)
    body = codec.decode_request(view, position, most_elements)
    return _new_tuple(RequestHead, (codec.api_key, version, correlation_id, client_id, body))


def encode_response(api_key: int, api_version: int, correlation_id: int, body: Any) -> list[Buffer]:
    """A whole frame, length bytes included, as buffers to be sent one after another.

    Raises MessageTooComplex, Unencodable; UNSUPPORTED_VERSION if the version lacks a field that is needed.
    """
    codec = _codec_of(api_key, api_version)
    out = bytearray(_RESPONSE_START.pack(0, correlation_id))
    if codec.has_response_tags:
        out.append(0)
    parts: list[Buffer] = []
    try:
        return _frame(codec.encode_response(body, out, parts), parts)
    except _UNENCODABLE as error:
        raise _unencodable(body, api_version, error) from error


def for_another_request(buffers: list[Buffer], correlation_id: int) -> list[Buffer]:
    """The buffers of `encode_response`, with the correlation id of another request of that version."""
    first = memoryview(buffers[0])
    length, _ = _RESPONSE_START.unpack_from(first)
    return [_RESPONSE_START.pack(length, correlation_id), first[_RESPONSE_START.size :], *buffers[1:]]


def for_another_fetch(
    buffers: list[Buffer], api_version: int, correlation_id: int, session_id: int
) -> list[Buffer]:
    """The buffers of the answer to a fetch, for another fetch of that version, perhaps of another session."""
    first = bytearray(buffers[0])
    _INT32.pack_into(first, _CORRELATION_ID_AT, correlation_id)
    if api_version >= _FIRST_WITH_SESSIONS:
        tags = _codec_of(ApiKey.FETCH, api_version).has_response_tags
        _INT32.pack_into(first, _RESPONSE_START.size + tags + _SESSION_ID_AT, session_id)
    return [first, *buffers[1:]]


def encode_request(
    api_version: int, correlation_id: int, client_id: str, body: RequestOf[Any]
) -> list[Buffer]:
    """A whole frame, length bytes included, as buffers to be sent one after another.

    Raises as `encode_response`.
    """
    codec = _codec_of(body.api_key, api_version)
    parts: list[Buffer] = []
    try:
        name = client_id.encode()
        out = bytearray(_FRAME_START.pack(0, codec.api_key, api_version, correlation_id, len(name)))
        out += name
        if codec.is_flexible:
            out.append(0)
        return _frame(codec.encode_request(body, out, parts), parts)
    except _UNENCODABLE as error:
        raise _unencodable(body, api_version, error) from error


def correlation_id_of(view: memoryview) -> int:
    """The request that a response answers. Raises MalformedFrame."""
    if len(view) < _INT32.size:
        raise MalformedFrame(f"a frame of {len(view)} bytes is too short for a response header")
    correlation_id: int = _INT32.unpack_from(view)[0]
    return correlation_id


def decode_response(
    request_type: type[RequestOf[Any]], api_version: int, view: memoryview
) -> tuple[int, Any]:
    """The correlation id and the body of a response; records are views of it. Raises MalformedFrame."""
    correlation_id = correlation_id_of(view)
    codec = _codec_of(request_type.api_key, api_version)
    position = _INT32.size
    if codec.has_response_tags:
        position = _after_tags(view, position)
    return correlation_id, codec.decode_response(view, position)


class VersionedCodec(Generic[M]):
    """A message outside of requests, such as a stored record: two bytes of version, then the fields."""

    def __init__(self, cls: type[M], versions: range, *, flexible_since: int | None = None) -> None:
        self._cls = cls
        self._versions = versions
        self._flexible_since = flexible_since
        self._compiled: dict[int, tuple[Encoder, Decoder]] = {}

    def encode(self, message: M, version: int) -> bytes:
        """Raises Unencodable."""
        encode, _ = self._compiled.get(version) or self._compile(version)
        try:
            return bytes(encode(message, bytearray(_VERSION.pack(version)), []))
        except (*_UNENCODABLE, ApiError) as error:
            raise _unencodable(message, version, error) from error

    def decode(self, data: bytes, *, highest: int | None = None) -> M:
        """The message in its own version; with ``highest``, a later version is read as ``highest``.

        Bytes after the message are ignored. Raises MalformedFrame, also for an unknown version.
        """
        version = self.version_of(data)
        if highest is not None:
            version = min(version, highest)
        _, decode = self._compiled.get(version) or self._compile(version)
        message: M = decode(memoryview(data), _VERSION.size)
        return message

    def version_of(self, data: bytes) -> int:
        """The version that the bytes name. Raises MalformedFrame."""
        if len(data) < _VERSION.size:
            raise MalformedFrame(f"{len(data)} bytes are too short for the version of a {self._cls.__name__}")
        version: int = _VERSION.unpack_from(data)[0]
        return version

    def _compile(self, version: int) -> tuple[Encoder, Decoder]:
        if version not in self._versions:
            versions = f"{self._versions[0]} to {self._versions[-1]}"
            raise MalformedFrame(
                f"{self._cls.__name__} has no version {version}; the versions are {versions}"
            )
        form = (self._cls, version, self._flexible_since is not None and version >= self._flexible_since)
        self._compiled[version] = compile_encoder(*form), compile_decoder(*form)
        return self._compiled[version]


def _make_codec(api_key: int, version: int) -> _ApiVersionCodec | None:
    api = APIS.get(api_key)
    if api is None or not api.versions[0] <= version <= api.served_to:
        return None
    return _codecs.setdefault((int(api_key), version), _ApiVersionCodec(api_key, version))


def _codec_of(api_key: int, version: int) -> _ApiVersionCodec:
    codec = _codecs.get((api_key, version)) or _make_codec(api_key, version)
    if codec is None:
        raise UnsupportedVersion(api_key, version, -1)
    return codec


def _after_tags(view: memoryview, position: int, most: int = MAX_ARRAY_LENGTH) -> int:
    """The position after the tagged fields of a header, all of which are ignored."""
    try:
        count, position = read_uvarint(view, position)
        if count > (limit := min(most, MAX_ARRAY_LENGTH)):
            raise BeyondBound(f"a header claims {count} tagged fields; at most {limit} are allowed")
        for _ in range(count):
            position = skip_tagged_field(view, position, len(view))
    except IndexError:
        raise MalformedFrame(f"a frame of {len(view)} bytes ends within its header") from None
    return position


def _frame(last: bytearray, parts: list[Buffer]) -> list[Buffer]:
    parts.append(last)
    size = -LENGTH_BYTES
    for part in parts:
        size += len(part)
    if size > _MAX_FRAME_BYTES:
        raise MessageTooComplex(f"a message takes {size} bytes; at most {_MAX_FRAME_BYTES} are allowed")
    first = parts[0]
    _INT32.pack_into(first, 0, size)
    return parts


def _unencodable(body: Any, version: int, error: Exception) -> Unencodable:
    return Unencodable(f"{type(body).__name__} cannot be sent in version {version}: {error}")
