"""`barnabas log-dirs describe|move`: the log dirs of brokers, and the moves of replicas between them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from barnabas.cli.action import Row, actions, answer, arg, flag, pick, repeated
from barnabas.cli.arguments import await_moves, on_cluster, partition_of, seconds
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, CommandError, check_topics, exit_code_of
from barnabas.cli.output import print_json, print_table
from barnabas.client.admin.admin import Admin, BrokerLogDirs, TopicPartitionReplica
from barnabas.protocol.ids import BrokerId, TopicPartition


async def _describe(options: argparse.Namespace, admin: Admin) -> None:
    brokers = await admin.describe_log_dirs(options.broker)
    check_topics(options.topics, await admin.list_topics(include_internal=True))
    if options.json:
        print_json([_broker_object(broker, options.topics) for broker in brokers])
        return
    dirs: list[tuple[object, ...]] = []
    replicas: list[tuple[TopicPartition, int, str, int, int, str]] = []
    for broker in brokers:
        id = broker.node.node_id
        if broker.error is not None:
            dirs.append((id, str(broker.error), None, None, None))
        for log_dir in broker.log_dirs:
            size = sum(replica.size_bytes for replica in log_dir.replicas)
            state = log_dir.path if log_dir.error is None else f"{log_dir.path} ({log_dir.error})"
            dirs.append((id, state, len(log_dir.replicas), size, log_dir.usable_bytes))
            replicas += [
                (
                    replica.partition,
                    id,
                    log_dir.path,
                    replica.size_bytes,
                    replica.offset_lag,
                    "moving here" if replica.is_future else "",
                )
                for replica in log_dir.replicas
                if not options.topics or replica.partition.topic in options.topics
            ]
    print_table(("broker", "log dir", "replicas", "bytes", "bytes left"), dirs)
    if replicas:
        print_table(("partition", "broker", "log dir", "bytes", "lag", ""), sorted(replicas))


def _broker_object(broker: BrokerLogDirs, topics: Iterable[str]) -> Row:
    return {
        "broker": broker.node.node_id,
        "error": None if broker.error is None else str(broker.error),
        "log_dirs": [
            {
                "path": log_dir.path,
                "error": None if log_dir.error is None else str(log_dir.error),
                **pick(log_dir, "total_bytes usable_bytes"),
                "replicas": [
                    pick(replica.partition, "topic partition")
                    | pick(replica, "size_bytes offset_lag is_future")
                    for replica in log_dir.replicas
                    if not topics or replica.partition.topic in topics
                ],
            }
            for log_dir in broker.log_dirs
        ],
    }


def _check_move(options: argparse.Namespace) -> None:
    options.partitions = [partition_of(text) for text in options.partitions]


async def _move(options: argparse.Namespace, admin: Admin) -> None:
    replicas = [
        TopicPartitionReplica(tp.topic, tp.partition, BrokerId(options.broker)) for tp in options.partitions
    ]
    (broker,) = await admin.describe_log_dirs([options.broker])
    paths = [log_dir.path for log_dir in broker.log_dirs]
    if broker.error is None and options.to not in paths:
        raise CommandError(
            f"--to {options.to}: broker {options.broker} has the log dirs {', '.join(paths)}", NOT_FOUND
        )
    errors = await admin.alter_replica_log_dirs(dict.fromkeys(replicas, options.to))
    moving = [replica for replica, error in errors.items() if error is None]
    if options.wait:
        coming = {TopicPartition(*replica[:2]) for replica in moving}
        await await_moves(lambda: _lag(admin, options, coming), options.timeout, "not there", "copied")
    rows = [
        {**replica._asdict(), "log_dir": options.to, "error": None if error is None else str(error)}
        for replica, error in errors.items()
    ]
    done = f"{'is in' if options.wait else 'moves to'} {options.to}"
    named = [f"{replica.topic}:{replica.partition} on broker {replica.broker_id}" for replica in moving]
    answer(options, rows, *(f"{name} {done}" for name in named))
    failed = [error for error in errors.values() if error is not None]
    if failed:
        codes = set(map(exit_code_of, failed))
        raise CommandError("; ".join(map(str, failed)), codes.pop() if len(codes) == 1 else FAILED)


async def _lag(admin: Admin, options: argparse.Namespace, moving: set[TopicPartition]) -> int | None:
    """The number of offsets that are not copied yet; None if all replicas are in the log dir.

    Raises CommandError if they do not come there.
    """
    (broker,) = await admin.describe_log_dirs([options.broker])
    if broker.error is not None:
        return 0
    found = {
        replica.partition: replica
        for log_dir in broker.log_dirs
        if log_dir.path == options.to
        for replica in log_dir.replicas
    }
    lost = sorted(str(name) for name in moving - found.keys())
    if lost:
        raise CommandError(f"no longer on the way to {options.to}: {', '.join(lost)}", FAILED)
    lags = [found[name].offset_lag for name in moving if found[name].is_future]
    return sum(lags) if lags else None


add_arguments = actions(
    on_cluster(
        "describe",
        "show log dirs, their replicas, and the space left",
        _describe,
        arg("topics", "TOPIC", "only replicas of these; default: all", nargs="*"),
        repeated("--broker", "ID", "default: all", type=int, default=None),
    ),
    on_cluster(
        "move",
        "move replicas to another log dir of their broker; they serve on",
        _move,
        arg("partitions", "TOPIC:PARTITION", nargs="+"),
        arg("--broker", "ID", type=int, required=True),
        arg("--to", "DIR", "the absolute path of one of its log dirs", required=True),
        flag("--wait", "return when the replicas are there"),
        arg("--timeout", "SECONDS", "of --wait (default 3600)", type=seconds, default=3600.0),
        check=_check_move,
    ),
)
