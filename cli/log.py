"""`barnabas log`: dump a log's files (`log_dump.py`), verify a stopped broker's log dir, repair its replicas.

``verify`` reads all files and reports damage. Exit code 0: whole; 1: damaged; 2: a broker uses the dir, or it
is not a log dir. It also reports, but not as damage, a tail torn by a crash and files that are not sound: the
next start truncates and rebuilds them.

``repair`` sets damaged logs aside, so that their leaders rebuild them. The folder of such a log is renamed
``<topic>-<partition>.<id>-damaged`` and kept; at the next start the broker creates the replica empty and it
follows its leader, so another replica must have the records. The command refuses unless the cluster
(``--bootstrap-server``) says that another broker leads the partition and that this broker is out of the ISR,
or ``--accept-data-loss`` is given.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from barnabas.broker.log.file_system import FILE_SYSTEM, MAX_NAME_BYTES, parse_partition_name
from barnabas.broker.log.log_dir import META_FILE, LogDir, ScannedLog
from barnabas.broker.log.verification import (
    Finding,
    LogVerdict,
    bytes_to_read,
    scan_to_verify,
    verify_checkpoints,
    verify_log,
)
from barnabas.cli import log_dump
from barnabas.cli.arguments import add_bootstrap_argument, named_bootstrap, run_async
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.output import count, print_json
from barnabas.client.admin.admin import Admin
from barnabas.client.metadata import PartitionInfo
from barnabas.protocol.ids import TopicPartition

DAMAGED_SUFFIX: Final = "-damaged"


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    log_dump.add_action(actions)

    verify = actions.add_parser("verify", help="report damage in the log dir of a stopped broker")
    verify.add_argument("dir", type=Path, metavar="DIR", help="a log dir, or the folder of a partition in it")
    verify.epilog = "exit code: 0 whole, 1 damaged, 2 not a log dir, or in use by a running broker"

    repair = actions.add_parser("repair", help="set damaged replicas of a stopped broker aside")
    repair.add_argument("dir", type=Path, metavar="DIR", help="a log dir of the stopped broker")
    repair.add_argument(
        "partitions", nargs="*", metavar="TOPIC-PARTITION", help="only these (default: all damaged ones)"
    )
    add_bootstrap_argument(repair)
    repair.add_argument(
        "--accept-data-loss",
        action="store_true",
        help="also if no other replica is known to have the records, which may then be lost",
    )

    for action in (verify, repair):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    return {"dump": log_dump.run, "verify": _verify, "repair": _repair}[options.action](options)


# -- verify --------------------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace) -> int:
    root, only = _log_dir_of(options.dir)
    with _locked(root) as log_dir:
        logs = [log for log in scan_to_verify(log_dir) if only is None or log.folder == only]
        findings = verify_checkpoints(log_dir)
        verdicts = _verify_all(logs)
    findings += [finding for verdict in verdicts for finding in verdict.findings]
    damaged = any(finding.is_damage for finding in findings)
    if options.json:
        print_json(_as_json(root, verdicts, findings))
    else:
        _print_verdicts(verdicts, findings)
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
def _locked(path: Path) -> Iterator[LogDir]:
    """Keep brokers out of a log dir within the block. Raises CommandError, InvalidConfiguration (in use)."""
    if not (path / META_FILE).exists():
        raise CommandError(f"{path} is not a broker's log dir: it has no {META_FILE}", USAGE)
    log_dir = LogDir.acquire(path)
    try:
        yield log_dir
    finally:
        log_dir.release()


def _verify_all(logs: Sequence[ScannedLog]) -> list[LogVerdict]:
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


def _describe(finding: Finding) -> str:
    """One line for a person."""
    at = "" if finding.position is None else f" at byte {finding.position}"
    offset = "" if finding.offset is None else f", offset {finding.offset}"
    is_torn = finding.position is not None
    repair = "torn by a crash, to be cut at the next start," if is_torn else "to be rebuilt at the next start"
    kind = "damaged" if finding.is_damage else repair
    return f"{finding.path}: {kind}{at}{offset}: {finding.reason}"


def _print_verdicts(verdicts: Sequence[LogVerdict], findings: Sequence[Finding]) -> None:
    for finding in findings:
        print(_describe(finding))
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


# -- repair --------------------------------------------------------------------------------------------------


def _repair(options: argparse.Namespace) -> int:
    """Set the damaged logs aside. If that is not safe for one of them, change nothing and return FAILED."""
    path = options.dir.absolute()
    if not path.is_dir():
        raise CommandError(f"{options.dir}: there is no such folder", USAGE)
    with _locked(path) as log_dir:
        damaged = _damaged(log_dir, options.partitions)
        if damaged and not options.accept_data_loss:
            refusals = _refusals(damaged, _broker_id(log_dir), named_bootstrap(options))
            if refusals:
                raise CommandError(
                    "nothing was changed, because records could be lost:\n  " + "\n  ".join(refusals), FAILED
                )
        moved: list[tuple[LogVerdict, Path]] = []
        try:
            for verdict in damaged:
                moved.append((verdict, _set_aside(log_dir, verdict)))
        finally:
            # If a rename fails, report the logs that were renamed before.
            _print_moved(path, moved, as_json=options.json)
    if not options.json:
        print(
            "start the broker: it rebuilds the replicas from their leaders" if moved else "nothing is damaged"
        )
    return OK


def _print_moved(path: Path, moved: Sequence[tuple[LogVerdict, Path]], *, as_json: bool) -> None:
    if as_json:
        repaired = [{"partition": str(verdict.partition), "kept_as": str(kept)} for verdict, kept in moved]
        print_json({"log_dir": str(path), "repaired": repaired})
        return
    for verdict, kept in moved:
        for finding in verdict.findings:
            print(_describe(finding))
        print(f"{verdict.partition}: its files are kept in {kept}; delete them when they are not needed")


def _damaged(log_dir: LogDir, names: Sequence[str]) -> list[LogVerdict]:
    """All damaged logs, or the named ones. Raises CommandError if a named log is intact or missing."""
    logs = scan_to_verify(log_dir)
    unknown = sorted(set(names) - {str(log.key) for log in logs})
    if unknown:
        raise CommandError(f"not in {log_dir.path}: {', '.join(unknown)}", NOT_FOUND)
    verdicts = _verify_all([log for log in logs if not names or str(log.key) in names])
    whole = [str(verdict.partition) for verdict in verdicts if not verdict.is_damaged]
    if names and whole:
        raise CommandError(f"not damaged: {', '.join(whole)}", USAGE)
    return [verdict for verdict in verdicts if verdict.is_damaged]


def _broker_id(log_dir: LogDir) -> int:
    text = (log_dir.read_meta() or {}).get("broker.id", "")
    if not text.isdecimal():
        raise CommandError(f"{log_dir.path}: meta.properties names no broker.id", FAILED)
    return int(text)


def _refusals(damaged: Sequence[LogVerdict], broker_id: int, bootstrap: str | None) -> list[str]:
    """The reasons why logs must not be set aside, one sentence each."""
    if bootstrap is None:
        return [
            f"{verdict.partition}: this may be its only replica; name running brokers with "
            "--bootstrap-server, or give --accept-data-loss"
            for verdict in damaged
        ]
    partitions = run_async(fetch_partitions(bootstrap, {verdict.partition.topic for verdict in damaged}))
    refusals = []
    for verdict in damaged:
        partition = partitions.get(verdict.partition)
        if partition is None:
            reason = "the cluster does not know it"
        elif set(partition.replicas) <= {broker_id}:
            reason = f"broker {broker_id} has its only replica"
        elif partition.leader < 0 or partition.leader == broker_id:
            reason = "no other broker leads it, so no other replica is known to have all records"
        elif broker_id in partition.isr:
            reason = f"broker {broker_id} is still in its ISR; try again when the cluster has seen the stop"
        else:
            continue
        refusals.append(f"{verdict.partition}: {reason}")
    return refusals


async def fetch_partitions(bootstrap: str, topics: set[str]) -> dict[TopicPartition, PartitionInfo]:
    """The partitions of those topics that the cluster has."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        existing = topics.intersection(await admin.list_topics(include_internal=True))
        described = await admin.describe_topics(existing)
    return {
        TopicPartition(topic.name, partition.partition): partition
        for topic in described.values()
        for partition in topic.partitions
    }


def _set_aside(log_dir: LogDir, verdict: LogVerdict) -> Path:
    """Rename the folder durably, and remove the log's entries from the checkpoints."""
    tail = f"-{verdict.partition.partition}.{uuid.uuid4().hex}{DAMAGED_SUFFIX}"
    kept = verdict.folder.with_name(verdict.partition.topic[: MAX_NAME_BYTES - len(tail)] + tail)
    FILE_SYSTEM.rename(verdict.folder, kept)
    FILE_SYSTEM.fsync(log_dir.path)
    log_dir.forget(verdict.partition)
    return kept
