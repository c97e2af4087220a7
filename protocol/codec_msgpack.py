"""The native codec: msgpack heads with the record batches behind them, untouched.

A frame's payload is a msgpack array, the head, followed by the bytes of all records fields in the order in
which they occur::

    request   [head_bytes, api_key, correlation_id, client_id, body] records…
    response  [head_bytes, correlation_id, body]                     records…

``head_bytes`` is always written as a uint32, so that the end of the head is known before it is parsed; in the
body a records field is only a length (nil for null). So no codec ever copies a record batch: the sender
passes on the buffers that it was given, and the receiver gets views of the frame.

Structures are arrays by position. A shorter array takes the defaults of the fields that it lacks, the surplus
of a longer one is ignored, so that old and new peers understand each other. For the same reason bytes behind
the last records field are ignored (a newer peer may have appended one); bytes that follow the array within
the head are rejected. Encoders and decoders are compiled once per class into straight Python; decoders check
every type and range and raise `MalformedFrame` naming the field, for any malformed bytes.

A head has a bound of its own beside its frame's (`MAX_HEAD_BYTES`, `MAX_ARRAY_LENGTH`), because a parsed byte
may become many, and a parser allocates an array before its elements have arrived.

Everything here may be called from any thread.
"""

from __future__ import annotations

import reprlib
import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgpack

import barnabas.protocol.messages  # noqa: F401 - importing the declarations fills APIS
from barnabas.protocol.errors import MalformedFrame, MessageTooComplex
from barnabas.protocol.ids import NO_TOPIC_ID
from barnabas.protocol.schema import (
    APIS,
    INTEGER_BITS,
    Buffer,
    RequestOf,
    WireField,
    WireType,
    native_fields,
    wire_fields,
)

Encoder = Callable[[Any, list[Buffer]], list[Any]]
Decoder = Callable[[Any, "_RecordsReader"], Any]

MAX_HEAD_BYTES: Final = 8 * 1024 * 1024
"""The maximum size of a message without its records; room for some 200,000 partitions."""
MAX_ARRAY_LENGTH: Final = 1 << 17
"""The maximum length of an array in a message."""

_REQUEST_FIELDS: Final = 5
_RESPONSE_FIELDS: Final = 3
_UINT32_MAX: Final = 0xFFFFFFFF
_HEAD_START = struct.Struct(">BBI")
_FRAME_START = struct.Struct(">IBBI")
_FIXARRAY: Final = 0x90
_UINT32_MARK: Final = 0xCE


class RequestHead(NamedTuple):
    """A decoded request: ``body`` is an instance of the class that the API key declares."""

    api_key: int
    correlation_id: int
    client_id: str
    body: Any


class _RecordsReader:
    """Splits the bytes behind the head into the records fields, in order."""

    __slots__ = ("_position", "_view")

    def __init__(self, view: memoryview, position: int) -> None:
        self._view = view
        self._position = position

    def take(self, length: Any, where: str) -> memoryview:
        if type(length) is not int or length < 0:
            raise MalformedFrame(f"{where} has length {length!r}; expected a count of bytes or nil")
        start, end = self._position, self._position + length
        if end > len(self._view):
            raise MalformedFrame(f"{where} claims {length} bytes, but only {len(self._view) - start} follow")
        self._position = end
        return self._view[start:end]


def is_native(payload: memoryview) -> bool:
    """Whether a request's payload is native: a msgpack array marker, where Kafka has a zero byte."""
    return len(payload) > 0 and payload[0] == _FIXARRAY | _REQUEST_FIELDS


def encode_request(correlation_id: int, client_id: str, body: RequestOf[Any]) -> list[Buffer]:
    """A whole frame, length bytes included, as buffers to be sent one after another."""
    attached: list[Buffer] = []
    values = _encoder(type(body))(body, attached)
    return _frame(
        _REQUEST_FIELDS, [_UINT32_MAX, int(body.api_key), correlation_id, client_id, values], attached
    )


def encode_response(correlation_id: int, body: Any) -> list[Buffer]:
    """A whole frame, length bytes included, as buffers to be sent one after another."""
    attached: list[Buffer] = []
    values = _encoder(type(body))(body, attached)
    return _frame(_RESPONSE_FIELDS, [_UINT32_MAX, correlation_id, values], attached)


def decode_request(payload: memoryview) -> RequestHead:
    """Read a request. Raises MalformedFrame for malformed bytes and for an unknown API key."""
    head, records = _head(payload, _REQUEST_FIELDS)
    _, api_key, correlation_id, client_id, values = head
    if type(api_key) is not int or api_key not in APIS:
        raise MalformedFrame(f"unknown api key {api_key!r}")
    if type(correlation_id) is not int or not 0 <= correlation_id <= 0x7FFFFFFF:
        raise MalformedFrame(f"correlation id {correlation_id!r} is not within 0..2^31-1")
    if type(client_id) is not str:
        raise MalformedFrame(f"client id {client_id!r} is not a string")
    return RequestHead(api_key, correlation_id, client_id, _decoder(APIS[api_key].request)(values, records))


class OpenResponse(NamedTuple):
    """A response whose head has been parsed and whose body waits for its class."""

    correlation_id: int
    values: Any
    records: _RecordsReader

    def body(self, response_type: type[Any]) -> Any:
        """The response as an instance of its class. Raises MalformedFrame."""
        return _decoder(response_type)(self.values, self.records)


def open_response(payload: memoryview) -> OpenResponse:
    """Parse a response's head; the correlation id determines the class of the body."""
    head, records = _head(payload, _RESPONSE_FIELDS)
    return OpenResponse(_correlation_id(head[1]), head[2], records)


def _correlation_id(value: Any) -> int:
    if type(value) is not int:
        raise MalformedFrame(f"correlation id {value!r} is not a number")
    return value


def _frame(fields: int, head: list[Any], attached: list[Buffer]) -> list[Buffer]:
    packed: bytes = msgpack.packb(head)
    length = len(packed)
    if length > MAX_HEAD_BYTES:
        raise MessageTooComplex(f"a message takes {length} bytes without its records; {MAX_HEAD_BYTES} may")
    for part in attached:
        length += len(part)
    start = _FRAME_START.pack(length, _FIXARRAY | fields, _UINT32_MARK, len(packed))
    return [start + packed[_HEAD_START.size :], *attached]


def _head(payload: memoryview, fields: int) -> tuple[list[Any], _RecordsReader]:
    if len(payload) < _HEAD_START.size:
        raise MalformedFrame(f"a frame of {len(payload)} bytes is too short for a head")
    marker, mark, head_bytes = _HEAD_START.unpack_from(payload)
    if marker != _FIXARRAY | fields or mark != _UINT32_MARK:
        raise MalformedFrame(f"a frame does not start with bytes {marker:02x} {mark:02x}")
    if head_bytes > min(len(payload), MAX_HEAD_BYTES):
        raise MalformedFrame(
            f"the head claims {head_bytes} bytes of a frame of {len(payload)}; {MAX_HEAD_BYTES} are allowed"
        )
    try:
        head = msgpack.unpackb(
            payload[:head_bytes], strict_map_key=True, max_array_len=min(head_bytes, MAX_ARRAY_LENGTH)
        )
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError, MemoryError) as error:
        raise MalformedFrame(f"the head is not msgpack: {type(error).__name__}: {error}") from None
    return head, _RecordsReader(payload, head_bytes)


# The following functions make the encoders and decoders. `source_of` returns the generated source.

_SHOWN: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict})
_shown = reprlib.Repr()
_shown.maxlevel = 2

_NO_TOPIC_ID_BYTES: Final = NO_TOPIC_ID.bytes
_encoders: dict[type[Any], Encoder] = {}
_decoders: dict[type[Any], Decoder] = {}


def _encoder(cls: type[Any]) -> Encoder:
    found = _encoders.get(cls)
    if found is None:
        found = _encoders[cls] = _compile(cls, _encoder_source(cls))
    return found


def _decoder(cls: type[Any]) -> Decoder:
    found = _decoders.get(cls)
    if found is None:
        found = _decoders[cls] = _compile(cls, _decoder_source(cls))
    return found


def source_of(cls: type[Any]) -> str:
    """The Python that encodes and decodes a declared class."""
    return _encoder_source(cls) + "\n" + _decoder_source(cls)


def _compile(cls: type[Any], source: str) -> Any:
    scope: dict[str, Any] = {
        "_cls": cls,
        "_new": object.__new__,
        "_attach": _attach,
        "_wrong": _wrong,
        "_wrong_struct": _wrong_struct,
        "_uuid": _uuid,
        "_defaults": {name: maker for name, _, maker in wire_fields(cls)},
        "_complete": _complete,
    }
    for name, wire, _ in native_fields(cls):
        if wire.struct is not None:
            scope[f"_encode_{name}"] = _encoder(wire.struct)
            scope[f"_decode_{name}"] = _decoder(wire.struct)
    exec(compile(source, f"<msgpack codec of {cls.__name__}>", "exec"), scope)
    return scope["run"]


def _encoder_source(cls: type[Any]) -> str:
    parts = []
    for name, wire, _ in native_fields(cls):
        value = f"_m.{name}"
        if wire.struct is not None and wire.is_array:
            text = f"[_encode_{name}(_x, _out) for _x in {value}]"
        elif wire.struct is not None:
            text = f"_encode_{name}({value}, _out)"
        elif wire.kind is WireType.RECORDS:
            text = f"_attach({value}, _out)"
        elif wire.kind is WireType.UUID:
            text = f"[_x.bytes for _x in {value}]" if wire.is_array else f"{value}.bytes"
        else:
            text = value
        if wire.nullable_since is not None and text != value and wire.kind is not WireType.RECORDS:
            text = f"None if {value} is None else {text}"
        parts.append(text)
    return f"def run(_m, _out):\n    return [{', '.join(parts)}]\n"


def _decoder_source(cls: type[Any]) -> str:
    fields = native_fields(cls)
    names = [name for name, _, _ in fields]
    count = len(fields)
    required = sum(1 for _, _, maker in fields if maker is None)
    lines = [
        "def run(_v, _in):",
        f"    if type(_v) is not list: raise _wrong_struct({cls.__name__!r}, _v)",
        f"    if len(_v) != {count}: _v = _complete({cls.__name__!r}, _v, _defaults, {required})",
    ]
    if names:
        lines.append(f"    [{', '.join(names)}] = _v")
    for name, wire, _ in fields:
        where = repr(f"{cls.__name__}.{name}")
        if wire.is_array:
            lines += _array_lines(name, wire, where)
        else:
            lines += _check_lines(name, wire, where, "    ", name, wire.nullable_since is not None)
    # Setting each slot is faster than `__init__`, which takes keywords alone.
    lines.append("    _m = _new(_cls)")
    lines += [f"    _m.{name} = {name}" for name in names]
    lines += [
        f"    _m.{name} = _defaults[{name!r}]()" for name, wire, _ in wire_fields(cls) if wire.kafka_only
    ]
    lines.append("    return _m")
    return "\n".join(lines) + "\n"


def _array_lines(name: str, wire: WireField, where: str) -> list[str]:
    lines = []
    indent = "    "
    if wire.nullable_since is not None:
        lines.append(f"{indent}if {name} is not None:")
        indent += "    "
    lines.append(f"{indent}if type({name}) is not list: raise _wrong({where}, 'an array', {name})")
    if wire.struct is not None:
        lines.append(f"{indent}{name} = [_decode_{name}(_x, _in) for _x in {name}]")
        return lines
    checks = _check_lines("_x", wire, where, indent + "    ", "_x", False)
    lines.append(f"{indent}for _x in {name}:")
    lines += checks
    if wire.kind is WireType.UUID:
        lines[-len(checks) - 1 :] = [f"{indent}{name} = [_uuid(_x, {where}) for _x in {name}]"]
    return lines


def _check_lines(
    name: str, wire: WireField, where: str, indent: str, target: str, nullable: bool
) -> list[str]:
    unless_null = f"{name} is not None and " if nullable else ""
    if wire.kind in INTEGER_BITS:
        limit = 1 << (INTEGER_BITS[wire.kind] - 1)
        # msgpack has no integers below those of 64 bits.
        least = f"{-limit} <= " if limit < 1 << 63 else ""
        test = f"type({name}) is not int or not {least}{name} < {limit}"
    elif wire.kind is WireType.BOOLEAN:
        test = f"type({name}) is not bool"
    elif wire.kind is WireType.STRING:
        test = f"type({name}) is not str"
    elif wire.kind is WireType.BYTES:
        test = f"type({name}) is not bytes"
    else:
        call = {
            WireType.UUID: f"_uuid({name}, {where})",
            WireType.RECORDS: f"_in.take({name}, {where})",
            WireType.STRUCT: f"_decode_{name}({name}, _in)",
        }[wire.kind]
        if nullable:
            return [f"{indent}if {name} is not None: {target} = {call}"]
        return [f"{indent}{target} = {call}"]
    return [f"{indent}if {unless_null}({test}): raise _wrong({where}, {wire.kind.value!r}, {name})"]


def _attach(value: Any, attached: list[Buffer]) -> int | None:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        attached.extend(value)
        return sum(map(len, value))
    attached.append(value)
    return len(value)


def _uuid(value: Any, where: str) -> uuid.UUID:
    if type(value) is not bytes or len(value) != 16:
        raise _wrong(where, "a uuid of 16 bytes", value)
    # Most messages of brokers name topics, and making a UUID costs as much as the rest of a small message.
    return NO_TOPIC_ID if value == _NO_TOPIC_ID_BYTES else uuid.UUID(bytes=value)


def _wrong(where: str, expected: str, value: Any) -> MalformedFrame:
    # The value may be huge or deep, so it is never shown as a whole.
    shown = _shown.repr(value) if type(value) in _SHOWN else f"of type {type(value).__name__}"
    return MalformedFrame(f"{where} is {shown}; expected {expected}")


def _wrong_struct(name: str, value: Any) -> MalformedFrame:
    return _wrong(name, "an array of its fields", value)


def _complete(name: str, values: Sequence[Any], defaults: dict[str, Any], required: int) -> list[Any]:
    """A list with exactly one value per field: cut if longer, filled with defaults if shorter."""
    found = list(values[: len(defaults)])
    for field, maker in list(defaults.items())[len(found) :]:
        if maker is None:
            raise MalformedFrame(
                f"{name} has {len(values)} fields; {field} has no default ({required} required)"
            )
        default = maker()
        found.append(_raw(default))
    return found


def _raw(default: Any) -> Any:
    """A default in its form on the wire."""
    if isinstance(default, uuid.UUID):
        return default.bytes
    if hasattr(default, "__dataclass_fields__"):
        return _encoder(type(default))(default, [])
    return default
