"""Keys, values and headers as text for a page: JSON, text, hex, or Avro by a schema.

Nothing is changed on the way: pretty JSON has the tokens of the original. A value that does not fit a format
is shown as hex, with the reason. Pure functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from barnabas.ui.message_scan import Cut

Decode = Callable[[bytes], str]
"""An Avro value as JSON text; raises ValueError with the reason."""

_LINE_CHARACTERS: Final = 160
_BYTES_PER_LINE: Final = 16
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_MAX_DEPTH: Final = 100
# Controls other than tab and line ends: bytes that happen to be UTF-8.
_BINARY: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Shown(NamedTuple):
    """``line`` is for a table, ``full`` for everything that is there; they are equal if it is short."""

    kind: str
    line: str
    full: str
    note: str = ""


def show(data: Cut | None, style: str, avro: Decode | None = None) -> Shown:
    """The text of a value in a style of `FORMATS`; ``auto`` takes the first that fits."""
    if data is None:
        return Shown("null", "null", "null")
    if style in ("auto", "avro") and avro is not None:
        if not data.is_whole:
            return _hex(data, "only the whole value can be decoded")
        try:
            return _of_text("avro", avro(data.data), data)
        except ValueError as error:
            return _hex(data, f"not Avro of this schema: {error}")
    if style == "avro":
        return _hex(data, "this topic has no schema; `barnabas ui --avro TOPIC=FILE.avsc` gives one")
    if style == "hex":
        return _hex(data)
    try:
        # A cut may be inside of a character.
        text = data.data.decode("utf-8", "strict" if data.is_whole else "ignore")
    except UnicodeDecodeError:
        return _hex(data, "" if style == "auto" else "not UTF-8")
    if style == "text":
        return _of_text("text", text, data)
    pretty = pretty_json(text) if data.is_whole else None
    if pretty is not None:
        return _of_text("json", pretty, data)
    if style == "json":
        note = "not JSON" if data.is_whole else "only the whole value can be read as JSON"
        return _of_text("text", text, data, note)
    return _hex(data) if _BINARY.search(text) else _of_text("text", text, data)


def _of_text(kind: str, text: str, data: Cut, note: str = "") -> Shown:
    line = " ".join(text[: 4 * _LINE_CHARACTERS].split())
    is_long = len(line) > _LINE_CHARACTERS or len(text) > 4 * _LINE_CHARACTERS or not data.is_whole
    return Shown(kind, line[:_LINE_CHARACTERS] + "…" if is_long else line, text, note)


def _hex(data: Cut, note: str = "") -> Shown:
    shown = data.data[: _BYTES_PER_LINE * 2]
    line = shown.hex(" ") + ("…" if data.size_bytes > len(shown) else "")
    return Shown("hex", line, hex_dump(data.data), note)


def hex_dump(data: bytes) -> str:
    """Lines of offset, bytes, and the ASCII characters among them."""
    lines = []
    for start in range(0, len(data), _BYTES_PER_LINE):
        part = data[start : start + _BYTES_PER_LINE]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * _BYTES_PER_LINE}} {characters}")
    return "\n".join(lines)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def pretty_json(text: str) -> str | None:
    """A JSON text with lines and indents, its tokens unchanged; None for any other text."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth = 0
    tokens = _JSON_TOKEN.findall(text)
    for index, token in enumerate(tokens):
        if token in ("}", "]"):
            depth -= 1
            if tokens[index - 1] not in ("{", "["):
                parts.append(_new_line(depth))
        parts.append(token)
        if token in ("{", "["):
            depth += 1
            if tokens[index + 1] not in ("}", "]"):
                parts.append(_new_line(depth))
        elif token == ",":
            parts.append(_new_line(depth))
        elif token == ":":
            parts.append(" ")
    return "".join(parts)


def _new_line(depth: int) -> str:
    # Deeper levels do not move further to the right: 4 KB of brackets would become megabytes of spaces.
    return "\n" + "  " * min(depth, _MAX_DEPTH)


def jsonable(value: Any) -> str:
    """For values of Avro that JSON lacks: bytes as hex, times and decimals as text."""
    return value.hex() if isinstance(value, bytes) else str(value)
