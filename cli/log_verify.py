"""`barnabas log verify`: reads all files of a stopped broker's log dir and reports damage.

Exit code 0: whole; 1: damaged; 2: a broker uses the dir, or it is not a log dir. It also reports, but not as
damage, a tail torn by a crash and files that are not sound: the next start truncates and rebuilds them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from barnabas.broker.log.file_system import parse_partition_name
from barnabas.broker.log.log_dir import META_FILE, LogDir, ScannedLog
from barnabas.broker.log.verification import (
    Finding,
    LogVerdict,
    bytes_to_read,
    scan_to_verify,
    verify_checkpoints,
    verify_log,
)
from barnabas.cli.exit_codes import FAILED, OK, USAGE, CommandError
from barnabas.cli.output import count, print_json


def add_action(actions: Any) -> None:
    verify = actions.add_parser("verify", help="report damage in the log dir of a stopped broker")
    verify.add_argument("dir", type=Path, metavar="DIR", help="a log dir, or the folder of a partition in it")
    verify.add_argument("--json", action="store_true", help="print one JSON object")
    verify.epilog = "exit code: 0 whole, 1 damaged, 2 not a log dir, or in use by a running broker"


def run(options: argparse.Namespace) -> int:
    """Verify the dir; FAILED if anything is damaged."""
    root, only = _log_dir_of(options.dir)
    with locked(root) as log_dir:
        logs = [log for log in scan_to_verify(log_dir) if only is None or log.folder == only]
        findings = verify_checkpoints(log_dir)
        verdicts = verify_all(logs)
    findings += [finding for verdict in verdicts for finding in verdict.findings]
    damaged = any(finding.is_damage for finding in findings)
    if options.json:
        print_json(_as_json(root, verdicts, findings))
    else:
        _print(verdicts, findings)
    return FAILED if damaged else OK


def _log_dir_of(path: Path) -> tuple[Path, Path | None]:
    """The log dir, and the partition's folder if `path` is one."""
    folder = path.absolute()
    if not folder.is_dir():
        raise CommandError(f"{path}: there is no such folder", USAGE)
    if parse_partition_name(folder.name) is not None and (folder.parent / META_FILE).exists():
        return folder.parent, folder
    return folder, None


@contextmanager
def locked(path: Path) -> Iterator[LogDir]:
    """Keep brokers out of a log dir within the block. Raises CommandError, InvalidConfiguration (in use)."""
    if not (path / META_FILE).exists():
        raise CommandError(f"{path} is not a broker's log dir: it has no {META_FILE}", USAGE)
    log_dir = LogDir.acquire(path)
    try:
        yield log_dir
    finally:
        log_dir.release()


def verify_all(logs: Sequence[ScannedLog]) -> list[LogVerdict]:
    """The verdict on each log, with a progress bar if stderr is a terminal."""
    with _progress(bytes_to_read(list(logs))) as advance:
        return [verify_log(log, advance) for log in logs]


@contextmanager
def _progress(total_bytes: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    # Imported here, because the import takes longer than most commands.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda size: bar.advance(task, size)


def describe(finding: Finding) -> str:
    """One line for a person."""
    at = "" if finding.position is None else f" at byte {finding.position}"
    offset = "" if finding.offset is None else f", offset {finding.offset}"
    is_torn = finding.position is not None
    repair = "torn by a crash, to be cut at the next start," if is_torn else "to be rebuilt at the next start"
    kind = "damaged" if finding.is_damage else repair
    return f"{finding.path}: {kind}{at}{offset}: {finding.reason}"


def _print(verdicts: Sequence[LogVerdict], findings: Sequence[Finding]) -> None:
    for finding in findings:
        print(describe(finding))
    damaged = sum(verdict.is_damaged for verdict in verdicts)
    size = sum(verdict.size_bytes for verdict in verdicts)
    segments = count(sum(verdict.segments for verdict in verdicts), "segment")
    state = f"{count(damaged, 'partition')} damaged" if damaged else "whole"
    if not damaged and any(finding.is_damage for finding in findings):
        state = "whole, but files of the log dir itself are damaged"
    print(f"{count(len(verdicts), 'partition')}, {segments}, {size:,} bytes: {state}")


def _as_json(root: Path, verdicts: Sequence[LogVerdict], findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "log_dir": str(root),
        "partitions": len(verdicts),
        "segments": sum(verdict.segments for verdict in verdicts),
        "size_bytes": sum(verdict.size_bytes for verdict in verdicts),
        "damaged_partitions": [str(verdict.partition) for verdict in verdicts if verdict.is_damaged],
        "findings": [finding._asdict() | {"path": str(finding.path)} for finding in findings],
    }
