"""JSON lines: what `consume` writes is what `produce` reads, byte for byte; lines written by hand."""

import json
import re

import pytest

from barnabas.client.consumer_record import ConsumerRecord
from barnabas.client.record_texts import RecordToWrite, json_line, parse_json_line
from barnabas.protocol.record_batch import TimestampType

Pairs = tuple[tuple[str, bytes | None], ...]


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (None, b"v", ()),
        (b"", b"", ()),
        (b"k", None, ()),
        (b"\xff\x00", b'\xfe\n\r\t"\\', ()),
        ("flügé \u2028\x00".encode(), b'{"a": 1}', ()),
        (b"null", b"5", (("a", b"1"), ("a", b"2"), ("", None), ("b", b""), ("value_base64", b"\x80"))),
    ],
)
def test_a_record_survives_its_line(key: bytes | None, value: bytes | None, headers: Pairs) -> None:
    record = ConsumerRecord("t", 3, 7, 1_700_000_000_123, key, value, headers, TimestampType.CREATE_TIME)
    line = json_line(record)
    assert b"\n" not in line
    assert parse_json_line(line) == RecordToWrite(value, key, 3, headers, 1_700_000_000_123)


def test_a_record_without_a_timestamp_leaves_it_open() -> None:
    record = ConsumerRecord("t", 0, 0, -1, None, b"v", (), TimestampType.CREATE_TIME)
    assert parse_json_line(json_line(record)).timestamp_ms is None


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('{"value": "x"}', RecordToWrite(b"x", None, None, (), None)),
        (' {"key": null, "value": null}\t', RecordToWrite(None, None, None, (), None)),
        (
            '{"value": {"a": [1, 2.5, "é", null]}}',
            (RecordToWrite('{"a":[1,2.5,"é",null]}'.encode(), *[None] * 2, (), None)),
        ),
        ('{"key": 5, "value": true}', RecordToWrite(b"true", b"5", None, (), None)),
        (
            '{"value": "", "headers": {"a": "1", "b": null}}',
            RecordToWrite(b"", None, None, (("a", b"1"), ("b", None)), None),
        ),
    ],
)
def test_a_line_written_by_hand_may_leave_out_everything_but_the_value(
    line: str, record: RecordToWrite
) -> None:
    assert parse_json_line(line.encode()) == record


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "'': expected a JSON object with a value"),
        (b"plain text", "'plain text': expected a JSON object with a value"),
        (b"5", "'5': expected a JSON object"),
        (b'{"value": "x"} {"value": "y"}', "Extra data"),
        (b'{"value": "\xff"}', "expected a JSON object"),
        (b'{"value": NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "fewer levels"),
        (b"{}", "expected a value; null is a tombstone"),
        (b'{"vlaue": "x"}', "field 'vlaue'; did you mean value"),
        (b'{"value": "x", "value_base64": "eA=="}', "expected value or value_base64, not both"),
        (b'{"value_base64": "e"}', "value_base64 'e': expected base64"),
        (b'{"value_base64": 5}', "value_base64 5: expected base64"),
        (b'{"value": "\\ud800"}', "value '\\ud800': expected Unicode text"),
        (b'{"value": [1e999]}', "value [inf]: expected Unicode text, null or JSON"),
        (b'{"value": "x", "partition": -1}', "partition -1: expected a whole number up to 2,147,483,647"),
        (b'{"value": "x", "partition": true}', "partition True: expected a whole number"),
        (b'{"value": "x", "timestamp_ms": "now"}', "timestamp_ms 'now': expected a whole number"),
        (b'{"value": "x", "headers": "a"}', "headers 'a': expected a list of names with values"),
        (b'{"value": "x", "headers": [["a", "b"]]}', "header ['a', 'b']: expected an object with a name"),
        (
            b'{"value": "x", "headers": [{"name": "a", "v": "b"}]}',
            "field of a header 'v'; expected one of name, value",
        ),
        (b'{"value": "x", "headers": {"\\ud800": "b"}}', "name '\\ud800': expected Unicode text"),
    ],
)
def test_a_wrong_line_names_the_field_and_what_was_expected(line: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        parse_json_line(line)
    assert len(str(refused.value)) < 300


def test_text_stays_readable_in_a_line() -> None:
    record = ConsumerRecord("t", 0, 0, 5, b"\xff", "é".encode(), (), TimestampType.CREATE_TIME)
    assert json.loads(json_line(record)) == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 5,
        "key_base64": "/w==",
        "value": "é",
    }
