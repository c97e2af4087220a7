"""Records as text: the JSON line that `barnabas consume` and the live page write, a line for a person.

Bytes are text if they are UTF-8; JSON has base64 for others, a person sees escapes. `parse_json_line` reads
every JSON line back: key, value, headers, timestamp and partition are those of the record, byte for byte.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from barnabas.common.settings import INT_MAX, LONG_MAX
from barnabas.common.suggestions import suggestion
from barnabas.common.texts import iso_time

if TYPE_CHECKING:
    from barnabas.client.consumer_record import ConsumerRecord
    from barnabas.protocol.records import Headers, Record

_encode: Final = json.JSONEncoder(ensure_ascii=False).encode
"""`json.dumps` with options makes an encoder for each record."""
_BASE64: Final = "_base64"
_FIELDS: Final = (
    *("key", "key_base64", "value", "value_base64", "headers", "timestamp_ms", "partition"),
    *("topic", "offset"),
)
_HEADER_FIELDS: Final = ("name", "value", "value_base64")
_NO_TIMESTAMP: Final = -1
_MAX_SAID: Final = 100


def field(name: str, data: bytes | memoryview | None) -> dict[str, str | None]:
    """Bytes as a JSON field: ``{name: text}``, or ``{name + "_base64": …}`` if they are not UTF-8."""
    if data is None:
        return {name: None}
    raw = bytes(data)
    try:
        return {name: raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {name + _BASE64: base64.b64encode(raw).decode("ascii")}


def record_fields(record: ConsumerRecord | Record) -> dict[str, Any]:
    """A record's own fields as plain data for JSON."""
    fields: dict[str, Any] = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
    fields |= field("key", record.key) | field("value", record.value)
    if record.headers:
        fields["headers"] = [{"name": name} | field("value", value) for name, value in record.headers]
    return fields


def json_line(record: ConsumerRecord) -> bytes:
    """The line of one record, without its end."""
    fields = {"topic": record.topic, "partition": record.partition} | record_fields(record)
    return _encode(fields).encode()


def record_line(record: ConsumerRecord | Record) -> str:
    """A record's own fields on one line for a person."""
    line = f"{record.offset}  {iso_time(record.timestamp_ms)}  {text(record.key)}: {text(record.value)}"
    return line + "".join(f"  [{name}={text(value)}]" for name, value in record.headers)


def text(data: bytes | memoryview | None) -> str:
    """Bytes for a person: UTF-8, with invalid bytes as escapes; null as ``null``."""
    return "null" if data is None else bytes(data).decode("utf-8", "backslashreplace")


# -- from a JSON line to a record --------------------------------------------------------------------------


class RecordToWrite(NamedTuple):
    """The parts of a record that its writer chooses; a partition or a timestamp of None is left open."""

    value: bytes | None
    key: bytes | None
    partition: int | None
    headers: Headers
    timestamp_ms: int | None


def parse_json_line(line: bytes) -> RecordToWrite:
    """The record that a line of `json_line` describes, or a shorter one written by hand.

    Only the value is required. A key or value that is neither text nor null is written as compact JSON.
    Headers may be an object too. Topic and offset are ignored: they are the place that the record had.
    Raises ValueError with the field and what was expected.
    """
    try:
        fields = _decode(line.decode())
    except RecursionError:
        raise ValueError("expected JSON with fewer levels") from None
    except ValueError as error:
        raise ValueError(f"{_start_of(line)}: expected a JSON object with a value ({error})") from None
    if type(fields) is not dict:
        raise ValueError(f"{_start_of(line)}: expected a JSON object with a value")
    _check_names(fields, _FIELDS)
    headers = fields.get("headers")
    timestamp_ms = _number(fields, "timestamp_ms", _NO_TIMESTAMP, LONG_MAX)
    return RecordToWrite(
        value=_bytes_of(fields, "value", is_required=True),
        key=_bytes_of(fields, "key"),
        partition=_number(fields, "partition", 0, INT_MAX),
        headers=_headers_of(headers) if headers else (),
        timestamp_ms=None if timestamp_ms == _NO_TIMESTAMP else timestamp_ms,
    )


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_decode: Final = json.JSONDecoder(parse_constant=_refuse_constant).decode
_compact: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _check_names(fields: dict[str, Any], names: Sequence[str], of: str = "field") -> None:
    for name in fields:
        if name not in names:
            raise ValueError(f"{of} {name!r}{suggestion(name, names)}")


def _bytes_of(fields: dict[str, Any], name: str, *, is_required: bool = False) -> bytes | None:
    """The inverse of `field`."""
    text = fields.get(name)
    encoded = fields.get(name + _BASE64)
    if encoded is not None:
        if text is not None:
            raise ValueError(f"expected {name} or {name}{_BASE64}, not both")
        try:
            return base64.b64decode(encoded, validate=True)
        except (ValueError, TypeError):
            raise ValueError(f"{name}{_BASE64} {_start_of(encoded)}: expected base64") from None
    if text is None:
        if is_required and name not in fields:
            raise ValueError(f"expected a {name}; null is a tombstone")
        return None
    try:
        return (text if type(text) is str else _compact(text)).encode()
    except ValueError as error:
        raise ValueError(f"{name} {_start_of(text)}: expected Unicode text, null or JSON ({error})") from None


def _number(fields: dict[str, Any], name: str, at_least: int, at_most: int) -> int | None:
    number = fields.get(name)
    if number is not None and not (type(number) is int and at_least <= number <= at_most):
        raise ValueError(f"{name} {_start_of(number)}: expected a whole number up to {at_most:,}")
    return number


def _headers_of(headers: Any) -> Headers:
    if isinstance(headers, dict):
        headers = [{"name": name, "value": value} for name, value in headers.items()]
    if not isinstance(headers, list):
        raise ValueError(f"headers {_start_of(headers)}: expected a list of names with values, or an object")
    pairs = []
    for header in headers:
        if not (isinstance(header, dict) and isinstance(header.get("name"), str)):
            raise ValueError(f"header {_start_of(header)}: expected an object with a name and a value")
        _check_names(header, _HEADER_FIELDS, "field of a header")
        _bytes_of(header, "name")
        pairs.append((header["name"], _bytes_of(header, "value")))
    return tuple(pairs)


def _start_of(value: object) -> str:
    shown = repr(value.decode(errors="backslashreplace") if isinstance(value, bytes) else value)
    return shown if len(shown) <= _MAX_SAID else shown[:_MAX_SAID] + "…"
