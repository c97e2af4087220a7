"""The output of commands: JSON on one line, tables by rich, bytes as text if they are UTF-8."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

_TABLE_WIDTH: Final = 200


def print_json(value: Any) -> None:
    """One value on one line, so that every line of output is JSON."""
    print(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table on stdout; numbers to the right. Into a pipe or file it is as wide as it needs to be."""
    # Imported late: it takes longer than most commands.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    materialised = [tuple(row) for row in rows]
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        numeric = bool(materialised) and all(isinstance(row[index], int) for row in materialised)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in materialised:
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    console = Console() if sys.stdout.isatty() else Console(width=_TABLE_WIDTH)
    console.print(table)


def field(name: str, data: bytes | memoryview | None) -> dict[str, str | None]:
    """Bytes as a JSON field: ``{name: text}``, or ``{name + "_base64": …}`` if they are not UTF-8."""
    if data is None:
        return {name: None}
    raw = bytes(data)
    try:
        return {name: raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode("ascii")}


def text(data: bytes | memoryview | None) -> str:
    """Bytes for a person: UTF-8, with invalid bytes as escapes; null as ``null``."""
    return "null" if data is None else bytes(data).decode("utf-8", "backslashreplace")


def iso_time(timestamp_ms: int) -> str:
    """A timestamp as ISO 8601 in UTC with milliseconds; ``-`` if there is none."""
    from datetime import UTC, datetime

    if timestamp_ms < 0:
        return "-"
    try:
        found = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def count(number: int, noun: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
