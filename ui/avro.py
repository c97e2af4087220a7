"""Avro values by local schema files: `barnabas ui --avro TOPIC=FILE.avsc`.

Confluent's wire format is recognised: a zero byte and the id of a schema, four bytes, before the value. Only
a value that the schema reads to its last byte fits.

fastavro's reader in Python is used, not the one in C: a record with a deep value of a recursive schema
overflows the C stack and ends the process, here it is a RecursionError.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from barnabas.protocol.errors import InvalidConfiguration
from barnabas.ui.message_formats import Decode, jsonable

_PREFIX_BYTES: Final = 5


def load_schemas(texts: Iterable[str]) -> dict[str, Decode]:
    """The decoders by topic for options ``TOPIC=FILE``. Raises InvalidConfiguration naming the option."""
    decoders = {}
    for text in texts:
        topic, _, name = text.partition("=")
        if not topic or not name:
            raise InvalidConfiguration(f"--avro {text!r}: expected TOPIC=FILE.avsc")
        decoders[topic] = _load(text, Path(name))
    return decoders


def _load(option: str, path: Path) -> Decode:
    try:
        from fastavro import parse_schema
        from fastavro._read_py import schemaless_reader
        from fastavro.schema import SchemaParseException
    except ImportError as error:
        raise InvalidConfiguration(f"--avro {option!r}: {error}; `pip install 'barnabas[ui]'`") from None
    try:
        declared = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidConfiguration(f"--avro {option!r}: {error}") from None
    try:
        schema = parse_schema(declared)
    except (
        SchemaParseException,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        text = f"{type(error).__name__}: {error}"
        raise InvalidConfiguration(f"--avro {option!r}: no Avro schema: {text}") from None
    if _has_endless_array(schema):
        text = "an array of items that take no bytes could have any length"
        raise InvalidConfiguration(f"--avro {option!r}: {text}")

    def read(data: bytes) -> Any:
        source = io.BytesIO(data)
        try:
            value = schemaless_reader(source, schema, None)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except Exception as error:  # noqa: BLE001 - fastavro raises any kind for foreign bytes
            raise ValueError(f"{type(error).__name__} {error}".strip()) from None
        if left := len(data) - source.tell():
            raise ValueError(f"{left} bytes follow the value")
        return value

    def decode(data: bytes) -> str:
        if data[:1] == b"\x00" and len(data) >= _PREFIX_BYTES:
            try:
                return _text(read(data[_PREFIX_BYTES:]))
            except ValueError:
                # Its value may begin with a zero byte.
                return _text(read(data))
        return _text(read(data))

    return decode


def _text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=2, default=jsonable)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _has_endless_array(schema: Any) -> bool:
    """Whether a schema has an array whose items take no bytes."""
    if isinstance(schema, list):
        return any(map(_has_endless_array, schema))
    if not isinstance(schema, dict):
        return False
    if schema.get("type") == "array" and _is_empty(schema["items"]):
        return True
    below = [schema.get("type"), schema.get("items"), schema.get("values")]
    below += [entry["type"] for entry in schema.get("fields", ())]
    return any(map(_has_endless_array, below))


def _is_empty(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return bool(schema == "null")
    if schema.get("type") == "record":
        return all(_is_empty(entry["type"]) for entry in schema["fields"])
    return schema.get("size") == 0 or _is_empty(schema.get("type"))
