"""Records as text: the JSON line that `barnabas consume` and the live page write, a line for a person.

Bytes are text if they are UTF-8; JSON has base64 for others, a person sees escapes.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from barnabas.common.texts import iso_time

if TYPE_CHECKING:
    from barnabas.client.consumer.partition_state import ConsumerRecord
    from barnabas.protocol.records import Record

_encode: Final = json.JSONEncoder(ensure_ascii=False).encode
"""`json.dumps` with options makes an encoder for each record."""


def field(name: str, data: bytes | memoryview | None) -> dict[str, str | None]:
    """Bytes as a JSON field: ``{name: text}``, or ``{name + "_base64": …}`` if they are not UTF-8."""
    if data is None:
        return {name: None}
    raw = bytes(data)
    try:
        return {name: raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode("ascii")}


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
