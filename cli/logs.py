"""`barnabas logs [BROKER]`: the ends of the local brokers' log files, in the order of their times.

With ``--follow`` it continues with new lines as they are written, across rotations, until Ctrl-C. Only reads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from barnabas.cli.action import arg, command, flag
from barnabas.cli.arguments import DIR_OPTION, check_broker, number, open_cluster
from barnabas.cli.exit_codes import NOT_FOUND, CommandError
from barnabas.common.settings import LONG_MAX
from barnabas.deploy.log_files import LOG_FILES, LogEntry, LogFile
from barnabas.deploy.running_cluster import RunningCluster

_INTERVAL_S: Final = 0.1


def _run(options: argparse.Namespace) -> None:
    files = _chosen_files(open_cluster(options), options.broker, options.file)
    logs = [LogFile(label, path) for label, path in files.items()]
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
            f"broker-{process.id}": process.directory / LOG_FILES[file]
            for process in cluster.brokers
            if broker in (None, process.id)
        }
    existing = {label: path for label, path in files.items() if path.exists()}
    if not existing:
        raise CommandError(f"nothing was logged yet: {', '.join(map(str, files.values()))}", NOT_FOUND)
    return existing


def _print(entries: Sequence[LogEntry]) -> None:
    for entry in entries:
        for line in entry.lines:
            print(f"{entry.label} | {line}")
    if entries:
        print(end="", flush=True)


add_arguments = command(
    _run,
    DIR_OPTION,
    arg("broker", "BROKER", "only this broker", nargs="?", type=int),
    flag("-f --follow", "continue with new lines, until Ctrl-C"),
    arg("-n --lines", "N", "of each file (default: 50)", type=number(0, LONG_MAX), default=50),
    arg(
        "--file",
        help="default: server; `output` has the process's own output: warnings and worse",
        choices=(*LOG_FILES, "zookeeper"),
        default="server",
    ),
)
