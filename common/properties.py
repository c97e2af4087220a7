"""The format of ``java.util.Properties``, as brokers, Java clients and ZooKeeper read their files.

What `to_properties` writes is ASCII: Java takes the bytes of such a file for Latin-1. Pure; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_KEY_VALUE: Final = re.compile(r"^((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)$")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t"}
_NOT_PLAIN: Final = re.compile(r"[^ -~]")


def parse_properties(text: str) -> dict[str, str]:
    r"""Read a file's settings; of a repeated key the last counts.

    A backslash continues a line, makes a character such as ``:`` part of a name or a value, or begins
    ``\n``, ``\r``, ``\t`` or ``\u00fc``. Raises ValueError with the line number if it is before another
    letter or digit, where Java drops it, and for a line without a name.
    """
    settings: dict[str, str] = {}
    joined, first = "", 0
    for number, raw in enumerate([*re.split("\r\n|\r|\n", text), ""], start=1):
        line = raw.lstrip()
        if not joined and line[:1] in ("", "#", "!"):
            continue
        line, first = joined + line, first if joined else number
        # An even number of backslashes at the end is not a continuation: they escape each other.
        joined = line[:-1] if (len(line) - len(line.rstrip("\\"))) % 2 else ""
        if joined:
            continue
        ((key, value),) = _KEY_VALUE.findall(line)
        if not key:
            raise ValueError(f"line {first} has no name before its value")
        for _, escaped in _ESCAPE.findall(line):
            if escaped.isalnum() and escaped not in _CONTROLS:
                raise ValueError(f"line {first} has \\{escaped}: write two backslashes for one")
        settings[_unescaped(key)] = _unescaped(value)
    return settings


def _unescaped(text: str) -> str:
    plain = _ESCAPE.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _CONTROLS.get(found[2], found[2]), text
    )
    # A character beyond the first 65,536 is two escapes, the halves of its UTF-16.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16")


def to_properties(settings: Mapping[str, str]) -> str:
    """The text of a file, for names that need no escapes."""
    lines = []
    for name, value in settings.items():
        escaped = _NOT_PLAIN.sub(_utf16_escapes, value.replace("\\", "\\\\"))
        if escaped[:1] == " ":
            escaped = "\\" + escaped
        lines.append(f"{name}={escaped}\n")
    return "".join(lines)


def _utf16_escapes(found: re.Match[str]) -> str:
    return re.sub("(....)", r"\\u\1", found[0].encode("utf-16-be").hex())
