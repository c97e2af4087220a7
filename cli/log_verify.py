"""`barnabas log verify`: reads all files of a stopped broker's log dir, and reports damage.

It also reports, but not as damage, a tail torn by a crash and files that are not sound, which the next start
truncates and rebuilds, and doubtful content, from which nothing is lost. Future logs, the copies of logs that
move into the dir, are left out: the next start makes new ones, or ends a swap that was interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.broker.log.file_system import parse_partition_name
from barnabas.broker.log.log_dir import META_FILE, LogDir, ScannedLog
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.output import print_json, progress
from barnabas.common.texts import count
from barnabas.logtools.index_check import Finding, Severity
from barnabas.logtools.replica_comparison import Replica, compare_replicas
from barnabas.logtools.verification import (
    LogVerdict,
    scan_to_verify,
    verify_checkpoints,
    verify_logs,
)
from barnabas.protocol.ids import Offset, TopicPartition


class VerifiedDir(NamedTuple):
    """A log dir, or one partition in it, after the check of its files."""

    root: Path
    verdicts: list[LogVerdict]
    replicas: dict[TopicPartition, Replica]
    findings: list[Finding]
    """Of the dir and its logs."""


def run(options: argparse.Namespace) -> int:
    named = [log_dir_of(path)[0].resolve() for path in (options.dir, *options.compare)]
    if len(set(named)) < len(named):
        raise CommandError("--compare: expected another log dir than those named before", USAGE)
    with ExitStack() as stack:
        dirs = [_verify_dir(stack, path, options) for path in (options.dir, *options.compare)]
        findings = [finding for verified in dirs for finding in verified.findings]
        findings += _differences(dirs)
    verdicts = [verdict for verified in dirs for verdict in verified.verdicts]
    damaged = any(finding.is_damage for finding in findings)
    if options.json:
        print_json(_as_json(dirs, verdicts, findings))
    else:
        _print_verdicts(verdicts, findings)
    return FAILED if damaged else OK


def _verify_dir(stack: ExitStack, path: Path, options: argparse.Namespace) -> VerifiedDir:
    """Verify a dir, which stays locked within the stack."""
    root, only = log_dir_of(path)
    log_dir = stack.enter_context(locked(root))
    scan = scan_to_verify(log_dir)
    logs = [log for log in scan.logs if only is None or log.folder == only]
    findings = verify_checkpoints(log_dir, scan)
    verdicts = verify_all(log_dir, logs, is_deep=not options.quick, jobs=options.jobs)
    findings += [finding for verdict in verdicts for finding in verdict.findings]
    high_watermarks = log_dir.high_watermarks.read_or_empty()
    replicas = {
        log.key: Replica(log, high_watermarks.get(log.key, Offset(0)), verdict.segments)
        for log, verdict in zip(logs, verdicts, strict=True)
    }
    return VerifiedDir(root, verdicts, replicas, findings)


def _differences(dirs: Sequence[VerifiedDir]) -> list[Finding]:
    """The first difference of each replica of the first dir from that of any other."""
    first, *others = dirs
    found = [
        compare_replicas(replica, other.replicas[key])
        for other in others
        for key, replica in first.replicas.items()
        if key in other.replicas
    ]
    return [finding for finding in found if finding is not None]


def log_dir_of(path: Path) -> tuple[Path, Path | None]:
    """The log dir, and the log's folder if `path` is one."""
    folder = path.absolute()
    if parse_partition_name(folder.name) and (folder.parent / META_FILE).exists():
        return folder.parent, folder
    return folder, None


@contextmanager
def locked(path: Path) -> Iterator[LogDir]:
    """Keep brokers out of a log dir within the block. Raises CommandError, InvalidConfiguration (in use)."""
    if not path.is_dir():
        if path.exists():
            raise CommandError(f"{path} is a file; expected a folder", USAGE)
        raise CommandError(f"{path}: there is no such folder", NOT_FOUND)
    if not (path / META_FILE).exists():
        raise CommandError(f"{path} is not a broker's log dir: it has no {META_FILE}", USAGE)
    log_dir = LogDir.acquire(path)
    try:
        yield log_dir
    finally:
        log_dir.release()


def verify_all(
    log_dir: LogDir, logs: Sequence[ScannedLog], *, is_deep: bool = False, jobs: int | None = None
) -> list[LogVerdict]:
    """The verdict on each log, with a progress bar if stderr is a terminal."""
    try:
        return verify_logs(log_dir, logs, progress, is_deep=is_deep, jobs=jobs)
    except BrokenProcessPool:
        raise CommandError("a process that checks logs ended too early", FAILED) from None


# -- the report ----------------------------------------------------------------------------------------------


def describe(finding: Finding) -> str:
    """One line for a person."""
    at = "" if finding.position is None else f" at byte {finding.position}"
    offset = "" if finding.offset is None else f", offset {finding.offset}"
    is_torn = finding.position is not None
    kind = {
        Severity.DAMAGE: "damaged",
        Severity.REPAIRED: "torn by a crash, to be cut at the next start,"
        if is_torn
        else "to be rebuilt after the next start",
        Severity.DOUBTFUL: "doubtful",
    }[finding.severity]
    return f"{finding.path}: {kind}{at}{offset}: {finding.reason}"


def _print_verdicts(verdicts: Sequence[LogVerdict], findings: Sequence[Finding]) -> None:
    for finding in findings:
        print(describe(finding))
    size = sum(verdict.size_bytes for verdict in verdicts)
    segments = count(sum(len(verdict.segments) for verdict in verdicts), "segment")
    damaged = sum(verdict.is_damaged for verdict in verdicts)
    state = f"{count(damaged, 'partition')} damaged" if damaged else "whole"
    if not damaged and any(finding.is_damage for finding in findings):
        state = "whole, but files of the log dir itself are damaged"
    print(f"{count(len(verdicts), 'partition')}, {segments}, {size:,} bytes: {state}")


def _as_json(
    dirs: Sequence[VerifiedDir], verdicts: Sequence[LogVerdict], findings: Sequence[Finding]
) -> dict[str, Any]:
    first, *others = dirs
    return {
        "log_dir": str(first.root),
        "compared_with": [str(other.root) for other in others],
        "partitions": len(verdicts),
        "segments": sum(len(verdict.segments) for verdict in verdicts),
        "size_bytes": sum(verdict.size_bytes for verdict in verdicts),
        "damaged_partitions": [str(verdict.partition) for verdict in verdicts if verdict.is_damaged],
        "findings": [
            finding._asdict() | {"path": str(finding.path), "is_damage": finding.is_damage}
            for finding in findings
        ],
    }
