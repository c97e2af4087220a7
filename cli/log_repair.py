"""`barnabas log repair`: sets damaged logs aside, so that their leaders rebuild them.

If only indexes of aborted transactions are wrong, they are written again from the batches, and the log stays
in its place.

The folder of such a log is renamed ``<topic>-<partition>.<id>-damaged`` and kept; at the next start the
broker creates the replica empty and it follows its leader, so another replica must have the records. The
command refuses unless the cluster (``--bootstrap-server``) says that another broker leads the partition and
that this broker is out of the ISR, or ``--accept-data-loss`` is given.

A damaged future log, the copy of a log that moves into the dir, is set aside under the same rule, because a
stop in the middle of the swap leaves this copy as the only one. That ends the move.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from barnabas.broker.log.file_system import FILE_SYSTEM, MAX_NAME_BYTES, TXN_INDEX_SUFFIX
from barnabas.broker.log.log_dir import LogDir
from barnabas.cli.arguments import add_bootstrap_argument, named_bootstrap, run_async
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.log_cluster import cluster_of
from barnabas.cli.log_verify import describe, locked, verify_all
from barnabas.cli.output import print_json
from barnabas.client.metadata import PartitionInfo
from barnabas.logtools.transaction_check import Replay, index_path, rebuild_index
from barnabas.logtools.verification import LogVerdict, scan_to_verify
from barnabas.protocol.ids import TopicPartition

DAMAGED_SUFFIX: Final = "-damaged"


def add_action(actions: Any) -> None:
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
    repair.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Set the damaged logs aside. If that is not safe for one of them, change nothing and return FAILED."""
    path = options.dir.absolute()
    with locked(path) as log_dir:
        verdicts = _damaged(log_dir, options.partitions)
        damaged = [verdict for verdict in verdicts if not _has_only_wrong_indexes(verdict)]
        if damaged and not options.accept_data_loss:
            refusals = _refusals(log_dir, damaged, named_bootstrap(options))
            if refusals:
                raise CommandError(
                    "nothing was changed, because records could be lost:\n  " + "\n  ".join(refusals), FAILED
                )
        rebuilt = [verdict for verdict in verdicts if _has_only_wrong_indexes(verdict)]
        for verdict in rebuilt:
            _rebuild_indexes(verdict)
        moved: list[tuple[LogVerdict, Path]] = []
        try:
            for verdict in damaged:
                moved.append((verdict, _set_aside(log_dir, verdict)))
        finally:
            # If a rename fails, report the logs that were renamed before.
            _print_repaired(path, moved, rebuilt, as_json=options.json)
    if not options.json:
        if moved:
            print("start the broker: it rebuilds the replicas from their leaders")
        elif not rebuilt:
            print("nothing is damaged")
    return OK


def _has_only_wrong_indexes(verdict: LogVerdict) -> bool:
    return all(finding.path.suffix == TXN_INDEX_SUFFIX for finding in verdict.findings if finding.is_damage)


def _rebuild_indexes(verdict: LogVerdict) -> None:
    wrong = {finding.path for finding in verdict.findings if finding.is_damage}
    replay = Replay(verdict.reports[0].base_offset)
    for report in verdict.reports:
        entries = [expected.entry for expected in replay.aborted_in(report.transactions)]
        if index_path(report.path) in wrong:
            rebuild_index(report.path, report.base_offset, entries)


def _print_repaired(
    path: Path,
    moved: Sequence[tuple[LogVerdict, Path]],
    rebuilt: Sequence[LogVerdict],
    *,
    as_json: bool,
) -> None:
    if as_json:
        repaired: list[dict[str, Any]] = [
            {"partition": str(verdict.partition), "kept_as": str(kept)} for verdict, kept in moved
        ]
        repaired += [{"partition": str(verdict.partition), "kept_as": None} for verdict in rebuilt]
        print_json({"log_dir": str(path), "repaired": repaired})
        return
    for verdict in rebuilt:
        for finding in verdict.findings:
            print(describe(finding))
        print(f"{verdict.partition}: its indexes of aborted transactions are rebuilt")
    for verdict, kept in moved:
        for finding in verdict.findings:
            print(describe(finding))
        print(f"{verdict.partition}: its files are kept in {kept}; delete them when they are not needed")


def _damaged(log_dir: LogDir, names: Sequence[str]) -> list[LogVerdict]:
    """All damaged logs, or the named ones. Raises CommandError if a named log is intact or missing."""
    scan = scan_to_verify(log_dir)
    logs = [*scan.logs, *scan.futures]
    unknown = sorted(set(names) - {str(log.key) for log in logs})
    if unknown:
        raise CommandError(f"not in {log_dir.path}: {', '.join(unknown)}", NOT_FOUND)
    verdicts = verify_all(log_dir, [log for log in logs if not names or str(log.key) in names])
    whole = [str(verdict.partition) for verdict in verdicts if not verdict.is_damaged]
    if names and whole:
        raise CommandError(f"not damaged: {', '.join(whole)}", USAGE)
    return [verdict for verdict in verdicts if verdict.is_damaged]


def _broker_id(log_dir: LogDir) -> int:
    text = (log_dir.read_meta() or {}).get("broker.id", "")
    if not text.isdecimal():
        raise CommandError(f"{log_dir.path}: meta.properties names no broker.id", FAILED)
    return int(text)


def _refusals(log_dir: LogDir, damaged: Sequence[LogVerdict], bootstrap: str | None) -> list[str]:
    """The reasons why logs must not be set aside, one sentence each."""
    broker_id = _broker_id(log_dir)
    if bootstrap is None:
        return [
            f"{verdict.partition}: this may be its only replica; name running brokers with "
            "--bootstrap-server, or give --accept-data-loss"
            for verdict in damaged
        ]
    topics = {verdict.partition.topic for verdict in damaged}
    partitions = run_async(fetch_partitions(log_dir, bootstrap, topics))
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


async def fetch_partitions(
    log_dir: LogDir, bootstrap: str, topics: set[str]
) -> dict[TopicPartition, PartitionInfo]:
    """The partitions of those topics that the dir's cluster has. Raises CommandError for another cluster."""
    async with cluster_of(log_dir, bootstrap) as admin:
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
