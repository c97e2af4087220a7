"""The question of the messages page, as its URL asks it: topic, range, filters, format.

Pure: texts in, values out. Invalid ones raise ValueError naming the value and what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final
from urllib.parse import urlencode

from barnabas.common.settings import LONG_MAX

FORMATS: Final = ("auto", "json", "text", "hex", "avro")
DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 500
HEX_PREFIX: Final = "hex:"
_MAX_SAID: Final = 100
_PLACES: Final = "latest, earliest, offset:N or time: with ISO 8601 or ms since 1970"


class Where(Enum):
    """The kinds of places in a log. AT and BEFORE have an offset for each partition, from links."""

    LATEST = "latest"
    EARLIEST = "earliest"
    OFFSET = "offset"
    TIME = "time"
    AT = "at"
    BEFORE = "before"


@dataclass(frozen=True)
class Place:
    """A place in each partition; the number is an offset or a time in ms."""

    where: Where
    number: int = 0
    offsets: Mapping[int, int] | None = None

    @property
    def is_backward(self) -> bool:
        """Whether the records before the place are shown, the newest first."""
        return self.where in (Where.LATEST, Where.BEFORE)


LATEST: Final = Place(Where.LATEST)


@dataclass(frozen=True, kw_only=True)
class Query:
    """`texts` are the parameters as given, from which links are made."""

    texts: Mapping[str, str]
    topic: str
    partition: int | None
    start: Place
    end: Place
    key: bytes | None
    value: bytes | None
    header: tuple[str, bytes | None] | None
    format: str
    limit: int
    has_markers: bool

    @property
    def has_filter(self) -> bool:
        return self.key is not None or self.value is not None or self.header is not None

    def link(self, page: str = "messages", **changes: str) -> str:
        """A link with this query, some of its parameters changed."""
        return link(page, {**self.texts, **changes})


def link(page: str, texts: Mapping[str, object]) -> str:
    """A relative link with these parameters, without the empty ones."""
    return f"{page}?{urlencode({name: text for name, text in texts.items() if text != ''})}"


NAMES: Final = (
    *("topic", "partition", "from", "to", "key", "value", "header", "format", "limit", "markers"),
)


def parse_query(parameters: Mapping[str, str]) -> Query:
    texts = {name: parameters.get(name, "").strip() for name in NAMES}
    header, separator, header_value = texts["header"].partition("=")
    if separator and not header:
        raise ValueError(f"header {texts['header']!r}: expected name=value, or a name")
    expected = ", ".join(FORMATS)
    name = texts["format"] or FORMATS[0]
    if name not in FORMATS:
        raise ValueError(f"format {name!r}: expected one of {expected}")
    end = parse_place("to", texts["to"] or "latest")
    if end.where not in (Where.LATEST, Where.OFFSET, Where.TIME):
        raise ValueError(f"to {texts['to']!r}: expected latest, offset:N or time:…")
    return Query(
        texts=texts,
        topic=texts["topic"],
        partition=parse_number("partition", texts["partition"], 0, 2**31 - 1) if texts["partition"] else None,
        start=parse_place("from", texts["from"] or "latest"),
        end=end,
        key=parse_bytes("key", texts["key"]) if texts["key"] else None,
        value=parse_bytes("value", texts["value"]) if texts["value"] else None,
        header=(header, parse_bytes("header", header_value) if separator else None) if header else None,
        format=name,
        limit=parse_number("limit", texts["limit"] or str(DEFAULT_LIMIT), 1, MAX_LIMIT),
        has_markers=bool(texts["markers"]),
    )


def parse_number(name: str, text: str, at_least: int, at_most: int) -> int:
    digits = text.removeprefix("-") if at_least < 0 else text
    # int() takes signs, underscores and the digits of every script, and has a limit of its own.
    if digits.isascii() and digits.isdecimal() and len(digits) < 20 and at_least <= int(text) <= at_most:
        return int(text)
    raise ValueError(f"{name} {_cut(text)!r}: expected a whole number from {at_least:,} to {at_most:,}")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SAID else text[:_MAX_SAID] + "…"


def parse_bytes(name: str, text: str) -> bytes:
    """The UTF-8 of a text, or the bytes of ``hex:…``."""
    if not text.startswith(HEX_PREFIX):
        return text.encode()
    try:
        return bytes.fromhex(text.removeprefix(HEX_PREFIX))
    except ValueError:
        raise ValueError(f"{name} {text!r}: expected hexadecimal digits after {HEX_PREFIX}") from None


def bytes_text(data: bytes) -> str:
    """The text that `parse_bytes` reads as these bytes."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return HEX_PREFIX + data.hex()
    # Parameters are stripped, and an empty one is none.
    is_ambiguous = not text or text != text.strip() or text.startswith(HEX_PREFIX)
    return HEX_PREFIX + data.hex() if is_ambiguous else text


def parse_place(name: str, text: str) -> Place:
    kind, separator, rest = text.partition(":")
    try:
        where = Where(kind)
    except ValueError:
        raise ValueError(f"{name} {text!r}: expected {_PLACES}") from None
    if where in (Where.LATEST, Where.EARLIEST):
        if separator:
            raise ValueError(f"{name} {text!r}: expected {_PLACES}")
        return Place(where)
    if where is Where.OFFSET:
        return Place(where, parse_number(f"{name} offset", rest, 0, LONG_MAX))
    if where is Where.TIME:
        return Place(where, parse_time(name, rest))
    return Place(where, offsets=_offsets(name, rest))


def parse_time(name: str, text: str) -> int:
    """The time in ms; a time without a zone is in UTC."""
    if text.isascii() and text.isdecimal():
        return parse_number(f"{name} time", text, 0, LONG_MAX)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        example = "2026-01-31T12:00:00Z or 1769860800000"
        raise ValueError(f"{name} time {text!r}: expected a time like {example}") from None
    time_ms = round((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)
    if time_ms < 0:
        raise ValueError(f"{name} time {text!r}: expected a time since 1970")
    return time_ms


def _offsets(name: str, text: str) -> dict[int, int]:
    offsets: dict[int, int] = {}
    for entry in text.split(","):
        partition, separator, offset = entry.partition("=")
        if not separator:
            raise ValueError(f"{name} {entry!r}: expected partition=offset")
        offsets[parse_number(f"{name} partition", partition, 0, 2**31 - 1)] = parse_number(
            f"{name} offset", offset, 0, LONG_MAX
        )
    return offsets


def offsets_text(where: Where, offsets: Mapping[int, int]) -> str:
    """The text that `parse_place` reads as these offsets."""
    listed = ",".join(f"{partition}={offset}" for partition, offset in sorted(offsets.items()))
    return f"{where.value}:{listed}"
