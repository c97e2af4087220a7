"""The lines of records: how `barnabas produce` reads them and `barnabas consume` writes them.

A template has the escapes of kcat's ``-f``, and those of rpk that mean nothing else in kcat. Bytes are
written as they are, null as nothing with the length -1, and no end of a line is added.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from typing import Final

from barnabas.cli.exit_codes import USAGE, CommandError
from barnabas.cli.output import is_utf_8
from barnabas.client.admin.offset_reset import time_ms
from barnabas.client.consumer_record import ConsumerRecord
from barnabas.client.metadata import TopicInfo
from barnabas.client.record_texts import RecordToWrite, json_line, parse_json_line, record_line
from barnabas.common.settings import LONG_MAX
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.records import Headers

INPUT_FORMATS: Final = ("value", "key-value", "json")
DEFAULT_KEY_SEPARATOR: Final = "\t"
OUTPUT_FORMATS: Final = ("value", "key-value", "full", "json")

RecordReader = Callable[
    [list[bytes]], Iterable[tuple[bytes | None, bytes | None, int | None, Headers, int | None]]
]
"""From lines to records, with the parts of a `RecordToWrite`.

The iterator raises ValueError with what was expected of the line after those that it returned.
"""

Formatter = Callable[[ConsumerRecord], bytes]
"""From a record to its bytes in the output, with the line's end."""

_PERCENT: Final[dict[str, Formatter]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "K": lambda record: _length(record.key),
    "s": lambda record: record.value or b"",
    "S": lambda record: _length(record.value),
    "T": lambda record: b"%d" % record.timestamp_ms,
    "h": lambda record: b",".join(
        b"%b=%b" % (name.encode(), b"NULL" if value is None else value) for name, value in record.headers
    ),
}
"""The letters of kcat."""
_FIELDS: Final = {**_PERCENT, "v": _PERCENT["s"], "V": _PERCENT["S"], "d": _PERCENT["T"]}
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE: Final = re.compile(r"%(?P<field>.?)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)|[^%\\]+", re.DOTALL)
_EXPECTED: Final = (
    "%t topic, %p partition, %o offset, %k key, %s or %v value, %K and %S their lengths, %h headers, "
    "%T or %d timestamp in ms, %% or one of \\n \\t \\r \\0 \\\\ \\xNN"
)
TEMPLATE_HELP: Final = f"in place of a format, with its own line's end: {_EXPECTED}".replace("%", "%%")


def _length(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


# -- reading -----------------------------------------------------------------------------------------------


def input_format(options: argparse.Namespace) -> str:
    """The format of the lines that the options name or imply. Raises CommandError if they do not fit."""
    implied = "key-value" if options.key_separator is not None else "json" if options.json else "value"
    name: str = options.format or implied
    if options.key_separator is not None and name != "key-value":
        raise CommandError(f"--key-separator: expected --format key-value, not {name}", USAGE)
    if options.key is not None and name == "key-value":
        raise CommandError("--key: every line has a key of its own", USAGE)
    if options.ignore_partition and name != "json":
        raise CommandError(f"--ignore-partition: expected --format json, not {name}", USAGE)
    return name


def header_of(text: str) -> tuple[str, bytes]:
    """A type for argparse: NAME=VALUE, whose value may have any bytes."""
    name, separator, value = text.partition("=")
    if not name or not separator or not is_utf_8(name):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    return name, os.fsencode(value)


def timestamp_of(text: str) -> int:
    """A type for argparse: a time as ISO 8601, in UTC without a zone, or in ms since 1970."""
    if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= LONG_MAX:
        return int(text)
    try:
        return time_ms(text)
    except InvalidConfiguration:
        expected = "a time like 2013-01-31T12:00:00Z, or in ms since 1970"
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}") from None


def make_reader(options: argparse.Namespace, topic: TopicInfo) -> RecordReader:
    """The reader of the chosen format. The fields of a line come before those of the options."""
    key = None if options.key is None else options.key.encode()
    partition, headers, timestamp_ms = options.partition, tuple(options.header), options.timestamp
    is_tombstone = options.null_value
    match input_format(options):
        case "json":
            return partial(map, partial(_json_record, options, topic, key, headers))
        case "key-value":
            separator = (options.key_separator or DEFAULT_KEY_SEPARATOR).encode()

            def split(line: bytes) -> RecordToWrite:
                own_key, found, value = line.partition(separator)
                if not found:
                    raise ValueError(f"no key separator {separator.decode()!r}")
                written = None if is_tombstone and not value else value
                return RecordToWrite(written, own_key, partition, headers, timestamp_ms)

            return partial(map, split)
    same = repeat(key), repeat(partition), repeat(headers), repeat(timestamp_ms)
    if is_tombstone:
        return lambda lines: zip((line or None for line in lines), *same, strict=False)
    return lambda lines: zip(lines, *same, strict=False)


def _json_record(
    options: argparse.Namespace, topic: TopicInfo, key: bytes | None, headers: Headers, line: bytes
) -> RecordToWrite:
    record = parse_json_line(line)
    partition = record.partition if options.partition is None else options.partition
    if options.ignore_partition:
        partition = None
    elif partition is not None and partition >= len(topic.partitions):
        last = len(topic.partitions) - 1
        raise ValueError(
            f"topic {topic.name} has no partition {partition}, only 0 to {last}; --ignore-partition places "
            "records by their keys"
        )
    return RecordToWrite(
        value=None if options.null_value and not record.value else record.value,
        key=key if record.key is None else record.key,
        partition=partition,
        headers=record.headers + headers,
        timestamp_ms=options.timestamp if record.timestamp_ms is None else record.timestamp_ms,
    )


# -- writing -----------------------------------------------------------------------------------------------


def make_formatter(name: str, key_separator: str) -> Formatter:
    separator = key_separator.encode()
    return {
        "value": lambda record: (record.value or b"") + b"\n",
        "key-value": lambda record: b"%b%b%b\n" % (record.key or b"", separator, record.value or b""),
        "full": lambda record: f"{record.topic}-{record.partition}  {record_line(record)}\n".encode(),
        "json": lambda record: json_line(record) + b"\n",
    }[name]


def compile_template(text: str) -> Formatter:
    """A type for argparse: the formatter of a template."""
    parts: list[bytes | Formatter] = []
    for piece in _PIECE.finditer(text):
        letter, digits, escaped = piece["field"], piece["hex"], piece["escape"]
        if letter is not None and letter != "%":
            if letter not in _FIELDS:
                raise argparse.ArgumentTypeError(f"{text!r}: %{letter}: expected {_EXPECTED}")
            parts.append(_FIELDS[letter])
        elif digits is not None:
            parts.append(bytes.fromhex(digits))
        elif escaped is not None:
            if escaped not in _ESCAPES:
                raise argparse.ArgumentTypeError(f"{text!r}: \\{escaped}: expected {_EXPECTED}")
            parts.append(_ESCAPES[escaped])
        else:
            parts.append(os.fsencode(letter or piece[0]))
    return lambda record: b"".join([part if isinstance(part, bytes) else part(record) for part in parts])
