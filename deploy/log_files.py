"""Log files of servers as entries with their times: the last ones, then new ones, across rotations.

Only reads. One thread at a time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

LOG_FILES: Final = {
    "server": "logs/server.log",
    "controller": "logs/controller.log",
    "state-change": "logs/state-change.log",
    "authorizer": "logs/kafka-authorizer.log",
    "output": "broker.log",
}
"""The files of a broker, in its folder."""
_MAX_TAIL_BYTES: Final = 4 * 1024 * 1024
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")


class LogEntry(NamedTuple):
    """One event of a log, with the traceback that follows it."""

    time: str
    label: str
    lines: list[str]


def entries_of(label: str, lines: Sequence[str]) -> Iterator[LogEntry]:
    entry = LogEntry("", label, [])
    for line in lines:
        match = _TIME.match(line)
        if match is not None:
            if entry.lines:
                yield entry
            entry = LogEntry(match[0], label, [])
        entry.lines.append(line)
    if entry.lines:
        yield entry


class LogFile:
    """The last lines of a file, then its new lines; a rotated file is read to its end first."""

    def __init__(self, label: str, path: Path) -> None:
        self._label = label
        self._path = path
        self._file = path.open("rb")
        self._rest = b""

    def last(self, lines: int) -> list[LogEntry]:
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - _MAX_TAIL_BYTES))
        return self._entries_of(self._file.read(), lines)

    def new(self) -> list[LogEntry]:
        try:
            is_rotated = self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            # Between the two renames of a rotation.
            is_rotated = False
        data = self._file.read()
        if is_rotated:
            self._file.close()
            self._file = self._path.open("rb")
            data += self._file.read()
        return self._entries_of(data)

    def close(self) -> None:
        self._file.close()

    def _entries_of(self, data: bytes, last: int | None = None) -> list[LogEntry]:
        """The complete lines as entries; an incomplete one waits for its end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        chosen = lines if last is None else lines[max(0, len(lines) - last) :]
        return list(entries_of(self._label, [line.decode("utf-8", "backslashreplace") for line in chosen]))
