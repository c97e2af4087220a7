"""Where settings come from, as ``{name: text}``: a properties file, the environment, ``--set key=value``.

Later sources win: file, environment, command line. Problems are collected as sentences, so that one error can
name all of them. Read once at start, on the main thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from barnabas.protocol.suggestions import did_you_mean

ENVIRONMENT_PREFIX: Final = "BARNABAS_"

OTHER_ENVIRONMENT: Final = frozenset(
    {
        "BARNABAS_BOOTSTRAP",
        "BARNABAS_BOOTSTRAP_SERVERS",
        "BARNABAS_CACHE",
        "BARNABAS_CONFIG",
        "BARNABAS_DIR",
        "BARNABAS_HOME",
        "BARNABAS_JAVA",
        "BARNABAS_LOG_LEVEL",
        "BARNABAS_ZOOKEEPER",
        "BARNABAS_ZOOKEEPER_JARS",
    }
)
"""Variables with this prefix that other parts read; they are not settings of a broker."""

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK: Final = " \t\f"


def parse_properties(text: str) -> dict[str, str]:
    """Read the format of ``java.util.Properties``; of a repeated key the last counts.

    Raises ValueError with the line number for a broken ``\\uXXXX`` or a line without a key.
    """
    settings: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key_end = _key_end(line)
        key = _unescape(line[:key_end], number)
        rest = line[key_end:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        if not key:
            raise ValueError(f"line {number} has no name before its value: {line!r}")
        settings[key] = _unescape(rest, number)
    return settings


def read_properties_file(path: Path, problems: list[str]) -> dict[str, str]:
    """The settings of a file; an error is added to `problems`."""
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        problems.append(f"the settings file {path} cannot be read: {error}")
        return {}


def read_environment(
    environment: Mapping[str, str], known: Iterable[str], problems: list[str]
) -> dict[str, str]:
    """``BARNABAS_LOG_SEGMENT_BYTES`` as ``log.segment.bytes``; unknown names are added to `problems`."""
    by_variable = {ENVIRONMENT_PREFIX + name.upper().replace(".", "_"): name for name in known}
    settings: dict[str, str] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OTHER_ENVIRONMENT:
            continue
        name = by_variable.get(variable)
        if name is None:
            hint = did_you_mean(variable, [*by_variable, *OTHER_ENVIRONMENT])
            problems.append(f"environment variable {variable}={value!r} names no setting{hint}")
        else:
            settings[name] = value
    return settings


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Lines without comments and blank lines, continuations joined, each with its first line's number."""
    joined, first = "", 0
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        line = raw.lstrip(_BLANK)
        if not joined:
            if not line or line[0] in "#!":
                continue
            first = number
        # An even number of backslashes at the end is not a continuation: they escape each other.
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1]
            continue
        yield first, joined + line
        joined = ""
    if joined:
        yield first, joined


def _key_end(line: str) -> int:
    escaped = False
    for position, character in enumerate(line):
        if not escaped and character in "=: \t\f":
            return position
        escaped = character == "\\" and not escaped
    return len(line)


def _unescape(text: str, line_number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            out.append(character)
            continue
        character = text[position]
        position += 1
        if character == "u":
            digits = text[position : position + 4]
            if len(digits) != 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise ValueError(f"line {line_number}: \\u{digits} is not \\u and four hexadecimal digits")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(character, character))
    return "".join(out)
