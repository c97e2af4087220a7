"""Values as text: JSON with its own tokens, hex, Avro by a schema file; and the texts of a query."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.protocol.errors import InvalidConfiguration
from barnabas.ui.avro import load_schemas
from barnabas.ui.message_formats import Shown, pretty_json, show
from barnabas.ui.message_query import Where, bytes_text, offsets_text, parse_bytes, parse_place
from barnabas.ui.message_scan import cut

POINT: Any = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "long"}, {"name": "tag", "type": ["null", "bytes"]}],
}
LIST: Any = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}

# Of the characters that matter: with all of Unicode most of the time is spent on its tables.
TEXTS = st.text('ab1 {}[]:,"\\\n\t\u2028é')
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@settings(max_examples=40)
@given(VALUES)
def test_pretty_json_is_what_the_library_writes(value: Any) -> None:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert pretty_json(text) == json.dumps(value, indent=2, ensure_ascii=False)


def test_pretty_json_changes_no_number_and_drops_no_key() -> None:
    text = '{"a":1.10000000000000000001,"a":1E400,"b":"\\u0041 , :"}'
    pretty = pretty_json(text)
    assert pretty is not None
    assert pretty.replace("\n  ", "").replace("\n", "").replace(": 1", ":1").replace(': "', ':"') == text


@pytest.mark.parametrize("text", ["{", "NaN", "", "{'a': 1}", "[" * 100_000, "1 2"])
def test_other_texts_are_no_json(text: str) -> None:
    assert pretty_json(text) is None


@pytest.mark.parametrize(
    ("data", "style", "kind", "line", "note"),
    [
        (None, "auto", "null", "null", ""),
        (b"", "auto", "text", "", ""),
        (b"plain \xc3\xa9", "auto", "text", "plain é", ""),
        (b"a\x00b", "auto", "hex", "61 00 62", ""),
        (b"\xff", "auto", "hex", "ff", ""),
        (b"\xff", "text", "hex", "ff", "not UTF-8"),
        (b"{}", "auto", "json", "{}", ""),
        (b"{}", "hex", "hex", "7b 7d", ""),
        (b"{}", "text", "text", "{}", ""),
        (b"text", "json", "text", "text", "not JSON"),
        (
            b"{}",
            "avro",
            "hex",
            "7b 7d",
            "this topic has no schema; `barnabas ui --avro TOPIC=FILE.avsc` gives one",
        ),
    ],
)
def test_a_value_is_shown_in_the_first_format_that_fits(
    data: bytes | None, style: str, kind: str, line: str, note: str
) -> None:
    shown = show(cut(data), style)
    assert (shown.kind, shown.line, shown.note) == (kind, line, note)


def test_a_value_that_was_cut_inside_of_a_character_is_text() -> None:
    shown = show(cut("é".encode() * 3_000, 4_095), "auto")
    assert shown.kind == "text"
    assert shown.full == "é" * 2_047
    assert shown.line.endswith("…")


def decoder(folder: Path, schema: Any) -> Any:
    file = folder / "schema.avsc"
    file.write_text(json.dumps(schema))
    return load_schemas([f"t={file}"])["t"]


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(schema), value)
    return out.getvalue()


@pytest.mark.parametrize("x", [0, -7, 300])
@pytest.mark.parametrize("prefix", [b"", b"\x00\x00\x00\x00\x05"])
def test_avro_is_read_with_and_without_the_prefix_of_a_registry(
    x: int, prefix: bytes, tmp_path: Path
) -> None:
    shown = show(cut(prefix + encoded(POINT, {"x": x, "tag": b"\xff"})), "auto", decoder(tmp_path, POINT))
    assert shown.kind == "avro"
    assert json.loads(shown.full) == {"x": x, "tag": "ff"}


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"\x02", "EOFError"), (b"\x02\x00\x00", "1 bytes follow the value"), (b"\x02\x08", "IndexError")],
)
def test_a_value_that_does_not_fit_is_hex_with_the_reason(data: bytes, reason: str, tmp_path: Path) -> None:
    shown: Shown = show(cut(data), "auto", decoder(tmp_path, POINT))
    assert shown.kind == "hex"
    assert reason in shown.note


def test_a_deep_value_of_a_recursive_schema_ends_no_process(tmp_path: Path) -> None:
    """fastavro's reader in C overflows the stack of the process."""
    shown = show(cut(b"\x02" * 100_000 + b"\x00", 1 << 20), "auto", decoder(tmp_path, LIST))
    assert "nested too deeply" in shown.note


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting"),
        ('{"type": "recod"}', "no Avro schema"),
        ("[1]", "no Avro schema"),
        ('{"type": "array", "items": "null"}', "could have any length"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": '
            '{"type": "record", "name": "E", "fields": []}}}]}',
            "could have any length",
        ),
    ],
)
def test_a_bad_schema_file_is_an_error_at_the_start(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.avsc"
    file.write_text(text)
    with pytest.raises(InvalidConfiguration, match=reason):
        load_schemas([f"t={file}"])


@pytest.mark.parametrize("option", ["t", "=x", "t=", "t=/absent.avsc"])
def test_a_wrong_option_is_named(option: str) -> None:
    with pytest.raises(InvalidConfiguration, match="--avro"):
        load_schemas([option])


@settings(max_examples=40)
@given(st.binary(min_size=1))
def test_bytes_have_a_text_that_is_read_as_them(data: bytes) -> None:
    text = bytes_text(data)
    assert parse_bytes("key", text) == data
    assert text == text.strip() != ""


@settings(max_examples=40)
@given(st.dictionaries(st.integers(0, 300), st.integers(0, 2**63 - 1), min_size=1))
def test_offsets_have_a_text_that_is_read_as_them(offsets: dict[int, int]) -> None:
    place = parse_place("from", offsets_text(Where.AT, offsets))
    assert (place.where, place.offsets) == (Where.AT, offsets)


def test_a_time_without_a_zone_is_in_utc() -> None:
    assert parse_place("from", "time:1970-01-01T00:00:01").number == 1_000
    assert parse_place("from", "time:1970-01-01T01:00:01+01:00").number == 1_000
    assert parse_place("from", "time:1000").number == 1_000
