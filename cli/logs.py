"""`barnabas logs [BROKER]`: the ends of the local brokers' log files, in the order of their times.

With ``--follow`` it continues with new lines as they are written, across rotations, until Ctrl-C. Only reads.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.cli.action import arg, command, flag
from barnabas.cli.arguments import DIR_OPTION, check_broker, number, open_cluster
from barnabas.cli.exit_codes import NOT_FOUND, CommandError
from barnabas.common.settings import LONG_MAX
from barnabas.deploy.running_cluster import RunningCluster

_FILES: Final = {
    "server": "logs/server.log",
    "controller": "logs/controller.log",
    "state-change": "logs/state-change.log",
    "authorizer": "logs/kafka-authorizer.log",
    "output": "broker.log",
}
_INTERVAL_S: Final = 0.1
_MAX_TAIL_BYTES: Final = 4 * 1024 * 1024
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")


class _Entry(NamedTuple):
    """One event of a log, with the traceback that follows it."""

    time: str
    label: str
    lines: list[str]


def _run(options: argparse.Namespace) -> None:
    files = _chosen_files(open_cluster(options), options.broker, options.file)
    logs = [_LogFile(label, path) for label, path in files.items()]
    try:
        last = [entry for log in logs for entry in log.last(options.lines)]
        _print(sorted(last, key=lambda entry: entry.time))
        while options.follow:
            _print([entry for log in logs for entry in log.new()])
            time.sleep(_INTERVAL_S)
    finally:
        for log in logs:
            log.close()


def _chosen_files(cluster: RunningCluster, broker: int | None, file: str) -> dict[str, Path]:
    """The files by the label of their lines; raises CommandError if the broker or every file is missing."""
    if broker is not None:
        check_broker(cluster, broker)
    if file == "zookeeper":
        files = {"zookeeper": cluster.directory / "zookeeper" / "zookeeper.log"}
    else:
        files = {
            f"broker-{process.id}": process.directory / _FILES[file]
            for process in cluster.brokers
            if broker in (None, process.id)
        }
    existing = {label: path for label, path in files.items() if path.exists()}
    if not existing:
        raise CommandError(f"nothing was logged yet: {', '.join(map(str, files.values()))}", NOT_FOUND)
    return existing


def _entries(label: str, lines: Sequence[str]) -> Iterator[_Entry]:
    entry = _Entry("", label, [])
    for line in lines:
        match = _TIME.match(line)
        if match is not None:
            if entry.lines:
                yield entry
            entry = _Entry(match[0], label, [])
        entry.lines.append(line)
    if entry.lines:
        yield entry


def _print(entries: Sequence[_Entry]) -> None:
    for entry in entries:
        for line in entry.lines:
            print(f"{entry.label} | {line}")
    if entries:
        print(end="", flush=True)


class _LogFile:
    """The last lines of a file, then its new lines; a rotated file is read to its end first."""

    def __init__(self, label: str, path: Path) -> None:
        self._label = label
        self._path = path
        self._file = path.open("rb")
        self._rest = b""

    def last(self, lines: int) -> list[_Entry]:
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - _MAX_TAIL_BYTES))
        return self._entries_of(self._file.read(), lines)

    def new(self) -> list[_Entry]:
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

    def _entries_of(self, data: bytes, last: int | None = None) -> list[_Entry]:
        """The complete lines as entries; an incomplete one waits for its end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        chosen = lines if last is None else lines[max(0, len(lines) - last) :]
        return list(_entries(self._label, [line.decode("utf-8", "backslashreplace") for line in chosen]))


add_arguments = command(
    _run,
    DIR_OPTION,
    arg("broker", "BROKER", "only this broker", nargs="?", type=int),
    flag("-f --follow", "continue with new lines, until Ctrl-C"),
    arg("-n --lines", "N", "of each file (default: 50)", type=number(0, LONG_MAX), default=50),
    arg(
        "--file",
        help="default: server; `output` has the process's own output: warnings and worse",
        choices=(*_FILES, "zookeeper"),
        default="server",
    ),
)
