"""The native codec: msgpack heads, followed by the record batches, which are never copied.

A frame's payload is a msgpack array, the head, followed by the bytes of all records fields in their order::

    request   [head_bytes, api_key, correlation_id, client_id, body] records…
    response  [head_bytes, correlation_id, body]                     records…

``head_bytes`` is always written as a uint32, so that the end of the head is known before it is parsed; in the
body a records field is only a length (nil for null). The sender passes on the buffers that it was given, and
the receiver gets views of the frame.

Structures are arrays by position. A shorter array takes the defaults of the fields that it lacks, the surplus
of a longer one is ignored, so that old and new peers understand each other. For the same reason bytes after
the last records field are ignored; bytes that follow the array within the head are rejected. msgspec checks
every type and range; for any malformed bytes the outcome is `MalformedFrame`.

A head has bounds of its own (`MAX_HEAD_BYTES`, `MAX_ARRAY_LENGTH`, in requests `MAX_INNER_ELEMENTS`), because
a parsed byte may become many. The strings of a request that Kafka has too fit into Kafka's protocol
(`MAX_STRING_BYTES`): a name that only native clients can send would be one that others cannot be told.

Everything here may be called from any thread.
"""

from __future__ import annotations

import struct
import threading
from typing import Annotated, Any, Final, NamedTuple

import msgspec

import barnabas.protocol.messages  # noqa: F401 - importing the declarations fills APIS
from barnabas.protocol.errors import BeyondBound, MalformedFrame, MessageTooComplex, Unencodable
from barnabas.protocol.schema import (
    APIS,
    INTEGER_BITS,
    MAX_HEAD_BYTES,
    MAX_INNER_ELEMENTS,
    MAX_STRING_BYTES,
    Api,
    Buffer,
    RequestHead,
    RequestOf,
    WireField,
    WireType,
    wire_fields,
)

_UINT32_MAX: Final = 0xFFFFFFFF
_UTF8_BYTES: Final = 4
"""The most that a character takes."""
_HEAD_START = struct.Struct(">BBI")
_FRAME_START = struct.Struct(">IBBI")
_FIXARRAY: Final = 0x90
_UINT32_MARK: Final = 0xCE
_INT_BYTES: Final = {0xCC: 2, 0xCD: 3, _UINT32_MARK: 5}
"""The length of a correlation id by its first byte; 1 for others."""
_MALFORMED: Final = (msgspec.MsgspecError, ValueError, RecursionError, MemoryError)
_UNENCODABLE: Final = (msgspec.MsgspecError, TypeError, OverflowError, ValueError, RecursionError)
_encoder: Final = msgspec.msgpack.Encoder(uuid_format="bytes")
_astuple = msgspec.structs.astuple


class _RequestHead(msgspec.Struct, array_like=True):
    head_bytes: int
    api_key: int
    correlation_id: Annotated[int, msgspec.Meta(ge=0, le=0x7FFFFFFF)]
    client_id: str
    body: msgspec.Raw


class _ResponseHead(msgspec.Struct, array_like=True):
    head_bytes: int
    correlation_id: int
    body: msgspec.Raw


_request_decoder: Final = msgspec.msgpack.Decoder(_RequestHead)
_response_decoder: Final = msgspec.msgpack.Decoder(_ResponseHead)
_FIRST_REQUEST_BYTE: Final = _FIXARRAY | len(_RequestHead.__struct_fields__)
_FIRST_RESPONSE_BYTE: Final = _FIXARRAY | len(_ResponseHead.__struct_fields__)


class _Step(NamedTuple):
    place: int
    name: str


class _Branch(NamedTuple):
    """A field that is checked, or a structure, or an array of structures, with such fields in it."""

    name: str
    is_array: bool
    inner: tuple[_Branch, ...]
    """The fields of the structure."""


class _BodyCodec(NamedTuple):
    decoder: msgspec.msgpack.Decoder[Any]
    path_to_records: tuple[_Step, ...]
    """The fields that lead to the records of a message; empty for a message without records."""


_strings: Final[dict[type[Any], tuple[_Branch, ...]]] = {}
_body_codecs: Final[dict[type[Any], _BodyCodec]] = {}
_building: Final = threading.Lock()


class OpenResponse(NamedTuple):
    """A response whose correlation id is known, but not yet the class of its body."""

    correlation_id: int
    raw_body: msgspec.Raw
    records: memoryview

    def body(self, response_type: type[Any]) -> Any:
        """The response as an instance of its class. Raises MalformedFrame."""
        return _decode(response_type, self.raw_body, self.records)


def is_native(payload: memoryview) -> bool:
    """Whether a request's payload is native: a msgpack array marker, where Kafka has a zero byte."""
    return len(payload) > 0 and payload[0] == _FIRST_REQUEST_BYTE


def check_values(message: Any) -> None:
    """Raise Unencodable, with the name of the field, for a value that does not have the type of its field.

    Encoders accept what msgpack has a type for; then the peer rejects the frame and closes the connection.
    For messages without records.
    """
    try:
        _body_codec(type(message)).decoder.decode(_encoder.encode(message))
    except _UNENCODABLE as error:
        raise Unencodable(_wrong_value(message, type(message).__name__) or str(error)) from None


def _wrong_value(message: Any, name: str) -> str | None:
    """The first wrong value within a structure of this name, and the expected type."""
    for field, wire, _ in wire_fields(type(message)):
        value, path = getattr(message, field), f"{name}.{field}"
        if value is None and wire.nullable_since is not None:
            continue
        if not wire.is_array:
            wrong = _wrong_element(value, path, wire)
        elif isinstance(value, list | tuple | set | frozenset):
            checked = (_wrong_element(part, f"{path}[{index}]", wire) for index, part in enumerate(value))
            wrong = next(filter(None, checked), None)
        else:
            wrong = f"{path}={value!r}: expected an array"
        if wrong is not None:
            return wrong
    return None


def _wrong_element(value: Any, path: str, wire: WireField) -> str | None:
    if wire.struct is not None and isinstance(value, wire.struct):
        return _wrong_value(value, path)
    try:
        msgspec.msgpack.decode(_encoder.encode(value), type=wire.element_type)
    except _UNENCODABLE:
        expected = wire.kind.value if wire.struct is None else wire.struct.__name__
        return f"{path}={value!r}: expected {expected}"
    return None


def encode_request(correlation_id: int, client_id: str, body: RequestOf[Any]) -> list[Buffer]:
    """A whole frame, length bytes included, as buffers to be sent one after another.

    Raises MessageTooComplex, and Unencodable for a string that is too long.
    """
    records: list[Buffer] = []
    head = (_UINT32_MAX, int(body.api_key), correlation_id, client_id, _without_records(body, records))
    frame = _frame(_FIRST_REQUEST_BYTE, head, records)
    if len(frame[0]) > MAX_STRING_BYTES and not APIS[body.api_key].is_native_only:
        _check_strings(body, client_id, Unencodable)
    return frame


def encode_response(correlation_id: int, body: Any) -> list[Buffer]:
    """A whole frame, length bytes included, as buffers to be sent one after another."""
    records: list[Buffer] = []
    head = (_UINT32_MAX, correlation_id, _without_records(body, records))
    return _frame(_FIRST_RESPONSE_BYTE, head, records)


def for_another_request(buffers: list[Buffer], correlation_id: int) -> list[Buffer]:
    """The buffers of `encode_response`, with the correlation id of another request."""
    first = bytes(buffers[0])
    length, marker, mark, head_bytes = _FRAME_START.unpack_from(first)
    end = _FRAME_START.size + _INT_BYTES.get(first[_FRAME_START.size], 1)
    number = _encoder.encode(correlation_id)
    more = _FRAME_START.size + len(number) - end
    start = _FRAME_START.pack(length + more, marker, mark, head_bytes + more)
    return [b"".join((start, number, first[end:])), *buffers[1:]]


def decode_request(payload: memoryview, most_head_bytes: int = MAX_HEAD_BYTES) -> RequestHead:
    """Read a request.

    Raises MalformedFrame for malformed bytes and for an unknown API key, BeyondBound for a larger head.
    """
    if len(payload) > most_head_bytes < _HEAD_START.unpack_from(payload)[2] <= MAX_HEAD_BYTES:
        raise BeyondBound(f"a head has more than {most_head_bytes} bytes")
    head, records = _open(_request_decoder, payload, _FIRST_REQUEST_BYTE)
    api = APIS.get(head.api_key)
    if api is None:
        raise MalformedFrame(f"unknown api key {head.api_key}")
    body = _decode(api.request, head.body, records)
    # Each element takes a byte at least.
    if len(memoryview(head.body)) > MAX_INNER_ELEMENTS:
        _check_inner_elements(api, body)
    if head.head_bytes > MAX_STRING_BYTES and not api.is_native_only:
        _check_strings(body, head.client_id, MalformedFrame)
    return RequestHead(api.key, None, head.correlation_id, head.client_id, body)


def open_response(payload: memoryview) -> OpenResponse:
    """Parse a response's head; the correlation id determines the class of the body. Raises MalformedFrame."""
    head, records = _open(_response_decoder, payload, _FIRST_RESPONSE_BYTE)
    return OpenResponse(head.correlation_id, head.body, records)


def _frame(first_byte: int, head: tuple[Any, ...], records: list[Buffer]) -> list[Buffer]:
    packed = _encoder.encode(head)
    length = len(packed)
    if length > MAX_HEAD_BYTES:
        raise MessageTooComplex(f"a message takes {length} bytes without its records; {MAX_HEAD_BYTES} may")
    for part in records:
        length += len(part)
    start = _FRAME_START.pack(length, first_byte, _UINT32_MARK, len(packed))
    return [start + packed[_HEAD_START.size :], *records]


def _open(decoder: Any, payload: memoryview, first_byte: int) -> tuple[Any, memoryview]:
    """The head of a payload, and a view of the bytes after it."""
    if len(payload) < _HEAD_START.size:
        raise MalformedFrame(f"a frame of {len(payload)} bytes is too short for a head")
    marker, mark, head_bytes = _HEAD_START.unpack_from(payload)
    if marker != first_byte or mark != _UINT32_MARK:
        expected = f"{first_byte:02x} {_UINT32_MARK:02x}"
        raise MalformedFrame(f"a frame starts with bytes {marker:02x} {mark:02x}, not {expected}")
    if head_bytes > min(len(payload), MAX_HEAD_BYTES):
        raise MalformedFrame(
            f"the head claims {head_bytes} bytes of a frame of {len(payload)}; {MAX_HEAD_BYTES} are allowed"
        )
    try:
        return decoder.decode(payload[:head_bytes]), payload[head_bytes:]
    except _MALFORMED as error:
        raise MalformedFrame(f"malformed head: {error}") from None


def _decode(cls: type[Any], raw_body: msgspec.Raw, records: memoryview) -> Any:
    decoder, path = _body_codec(cls)
    try:
        body = decoder.decode(raw_body)
    except _MALFORMED as error:
        raise MalformedFrame(f"malformed {cls.__name__}: {error}") from None
    if path:
        _take_records(body, path, records)
    return body


def _check_inner_elements(api: Api, body: Any) -> None:
    arrays = _arrays_of(api.request, numbers_count=not api.is_native_only, is_inner=False)
    count = _inner_elements(body, arrays, is_inner=False)
    if count > MAX_INNER_ELEMENTS:
        name = api.request.__name__
        raise MalformedFrame(f"{name} has {count} elements in inner arrays; {MAX_INNER_ELEMENTS} are allowed")


def _arrays_of(cls: type[Any], *, numbers_count: bool, is_inner: bool) -> tuple[_Branch, ...]:
    """The arrays whose elements count, and the fields that have such arrays."""
    arrays = []
    for name, wire, _ in wire_fields(cls):
        inner: tuple[_Branch, ...] = ()
        if wire.struct is not None:
            within = is_inner or wire.is_array
            inner = _arrays_of(wire.struct, numbers_count=numbers_count, is_inner=within)
        counts = is_inner and wire.is_array and (numbers_count or wire.kind not in INTEGER_BITS)
        if counts or inner:
            arrays.append(_Branch(name, wire.is_array, inner))
    return tuple(arrays)


def _inner_elements(message: Any, arrays: tuple[_Branch, ...], *, is_inner: bool) -> int:
    """The number of elements of all arrays within arrays."""
    count = 0
    for name, is_array, inner in arrays:
        value = getattr(message, name)
        if not is_array:
            count += _inner_elements(value, inner, is_inner=is_inner)
        elif value:
            if is_inner:
                count += len(value)
            if inner:
                count += sum(_inner_elements(element, inner, is_inner=True) for element in value)
    return count


def _check_strings(body: Any, client_id: str, error: type[Exception]) -> None:
    """Raise the error for a string that is too long for Kafka's protocol."""
    _check_length(client_id, "the client id", error)
    _check_strings_of(body, _strings_of(type(body)), error)


def _check_strings_of(message: Any, fields: tuple[_Branch, ...], error: type[Exception]) -> None:
    for name, is_array, inner in fields:
        value = getattr(message, name)
        for element in value or () if is_array else (value,):
            if element is None:
                continue
            if inner:
                _check_strings_of(element, inner, error)
            elif len(element) > MAX_STRING_BYTES // _UTF8_BYTES:
                _check_length(element, f"{type(message).__name__}.{name}", error)


def _check_length(text: str, name: str, error: type[Exception]) -> None:
    size = len(text.encode())
    if size > MAX_STRING_BYTES:
        raise error(f"{name} has a string of {size} bytes; at most {MAX_STRING_BYTES} are allowed")


def _strings_of(cls: type[Any]) -> tuple[_Branch, ...]:
    """The strings of a structure, and its fields that have some."""
    strings = _strings.get(cls)
    if strings is None:
        fields = []
        for name, wire, _ in wire_fields(cls):
            inner = () if wire.struct is None else _strings_of(wire.struct)
            if inner or wire.kind is WireType.STRING:
                fields.append(_Branch(name, wire.is_array, inner))
        strings = _strings[cls] = tuple(fields)
    return strings


def _body_codec(cls: type[Any]) -> _BodyCodec:
    codec = _body_codecs.get(cls)
    if codec is None:
        # msgspec keeps what it knows of a class from before it is complete: a second thread would decode
        # with null pointers.
        with _building:
            codec = _body_codecs[cls] = _BodyCodec(msgspec.msgpack.Decoder(cls), _path_to_records(cls))
    return codec


def _path_to_records(cls: type[Any]) -> tuple[_Step, ...]:
    for place, (name, wire, _) in enumerate(wire_fields(cls)):
        if wire.kind is WireType.RECORDS:
            return (_Step(place, name),)
        if wire.struct is not None and (rest := _path_to_records(wire.struct)):
            return (_Step(place, name), *rest)
    return ()


def _take_records(body: Any, path: tuple[_Step, ...], records: memoryview) -> None:
    """Replace the lengths in the records fields by views of the bytes after the head."""
    holders = [body]
    for _, name in path[:-1]:
        holders = [inner for outer in holders for inner in getattr(outer, name)]
    name = path[-1].name
    start = 0
    for holder in holders:
        length = getattr(holder, name)
        if length is not None:
            end = start + length
            if end > len(records):
                where = f"{type(holder).__name__}.{name}"
                raise MalformedFrame(f"{where} claims {length} bytes, but only {len(records) - start} follow")
            setattr(holder, name, records[start:end])
            start = end


def _without_records(body: Any, records: list[Buffer]) -> Any:
    """The message for the head: with lengths in place of records, which are appended to the list."""
    path = _body_codec(type(body)).path_to_records
    return _with_lengths(body, path, records) if path else body


def _with_lengths(message: Any, path: tuple[_Step, ...], records: list[Buffer]) -> list[Any]:
    values = list(_astuple(message))
    place = path[0].place
    value = values[place]
    rest = path[1:]
    if rest:
        values[place] = [_with_lengths(inner, rest, records) for inner in value]
    elif type(value) is list or type(value) is tuple:
        records += value
        values[place] = sum(map(len, value))
    elif value is not None:
        records.append(value)
        values[place] = len(value)
    return values
