"""`barnabas log repair`: sets damaged logs of a stopped broker aside, so that their leaders rebuild them.

The folder of such a log is renamed ``<topic>-<partition>.<id>-damaged`` and kept; at the next start the
broker creates the replica empty and it follows its leader, so another replica must have the records. The
command refuses unless the cluster that the dir belongs to says that another broker leads the partition and
that this broker is out of the ISR, or ``--accept-data-loss`` is given. Future logs are left out. One that a
stop in the middle of the swap left as the only copy gets the partition's name at the next start.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from barnabas.broker.log.file_system import FILE_SYSTEM, unique_name
from barnabas.broker.log.log_dir import META_FILE, LogDir, ScannedLog
from barnabas.cli.arguments import (
    BOOTSTRAP_VARIABLE,
    command_settings,
    make_admin,
    named_bootstrap,
    run_async,
)
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.log_verify import locked, verify_all
from barnabas.client.config import AdminConfig
from barnabas.client.metadata import PartitionInfo
from barnabas.logtools.verification import scan_to_verify
from barnabas.protocol.ids import TopicPartition

DAMAGED_SUFFIX: Final = "-damaged"


def run(options: argparse.Namespace) -> int:
    """Set the logs aside. If that is not safe for one of them, change nothing and return FAILED."""
    with locked(options.dir.absolute()) as log_dir:
        logs = _chosen(log_dir, options.partitions)
        refusals = [] if options.accept_data_loss else _refusals(log_dir, logs, options)
        if refusals:
            text = "\n  ".join(["nothing was changed, because records could be lost:", *refusals])
            raise CommandError(text, FAILED)
        for log in logs:
            kept = log.folder.with_name(unique_name(log.key, DAMAGED_SUFFIX))
            FILE_SYSTEM.rename(log.folder, kept)
            FILE_SYSTEM.fsync(log_dir.path)
            log_dir.forget(log.key)
            print(f"{log.key}: its files are kept in {kept}; delete them when they are not needed")
    print("start the broker: it rebuilds the replicas from their leaders" if logs else "nothing is damaged")
    return OK


def _chosen(log_dir: LogDir, names: Sequence[str]) -> list[ScannedLog]:
    """The named logs, or without names all damaged ones."""
    logs = scan_to_verify(log_dir).logs
    unknown = sorted(set(names) - {str(log.key) for log in logs})
    if unknown:
        raise CommandError(f"not in {log_dir.path}: {', '.join(unknown)}", NOT_FOUND)
    if names:
        return [log for log in logs if str(log.key) in names]
    return [log for log, verdict in zip(logs, verify_all(log_dir, logs), strict=True) if verdict.is_damaged]


def _refusals(log_dir: LogDir, logs: Sequence[ScannedLog], options: argparse.Namespace) -> list[str]:
    """The reasons why logs must not be set aside, one sentence each."""
    if not logs:
        return []
    bootstrap = named_bootstrap(options)
    if bootstrap is None:
        names = ", ".join(str(log.key) for log in logs)
        return [f"{names}: name running brokers with --bootstrap-server, or give --accept-data-loss"]
    broker_id = (log_dir.read_meta() or {}).get("broker.id", "")
    if not broker_id.isdecimal():
        raise CommandError(f"{log_dir.path}: {META_FILE} names no broker.id", FAILED)
    settings = command_settings(options, AdminConfig)
    partitions = run_async(fetch_partitions(log_dir, bootstrap, {log.key.topic for log in logs}, settings))
    found = ((log.key, _refusal(partitions.get(log.key), int(broker_id))) for log in logs)
    return [f"{key}: {reason}" for key, reason in found if reason is not None]


def _refusal(partition: PartitionInfo | None, broker_id: int) -> str | None:
    """Why an empty replica on this broker could cost records."""
    if partition is None:
        return "the cluster does not know it"
    if partition.leader < 0 or partition.leader == broker_id:
        return "no other broker leads it, so no other replica is known to have all records"
    if broker_id in partition.isr:
        return f"broker {broker_id} is still in its ISR; try again when the cluster has seen the stop"
    return None


async def fetch_partitions(
    log_dir: LogDir, bootstrap: str, topics: set[str], settings: Mapping[str, Any]
) -> dict[TopicPartition, PartitionInfo]:
    """The partitions of those topics. Raises CommandError if the brokers are not of the dir's cluster.

    Another cluster may have the same topics with other leaders; and the brokers may come from the
    environment, so that nobody typed them.
    """
    own = (log_dir.read_meta() or {}).get("cluster.id")
    async with make_admin(bootstrap, settings) as admin:
        asked = (await admin.describe_cluster()).cluster_id
        if own != asked:
            owner = f"belongs to the cluster {own}" if own else f"names no cluster.id in {META_FILE}"
            raise CommandError(
                f"{log_dir.path} {owner}, and {bootstrap} to the cluster {asked}: nothing was changed; name "
                f"brokers of its own cluster with --bootstrap-server, or unset {BOOTSTRAP_VARIABLE}",
                USAGE,
            )
        described = await admin.describe_topics()
    return {
        TopicPartition(topic.name, partition.partition): partition
        for topic in described.values()
        if topic.name in topics
        for partition in topic.partitions
    }
