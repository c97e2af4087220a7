"""`barnabas transactions`: list and describe transactions, and end hanging transactions.

The actions have the names and options of `kafka-transactions.sh`. Prepared transactions have no time-out:
`list` shows them first, the oldest on top, and `complete` ends them.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Final

from barnabas.cli.action import (
    Argument,
    Column,
    Row,
    actions,
    answer,
    arg,
    flag,
    one_of,
    pick,
    repeated,
    show,
)
from barnabas.cli.arguments import SHORT_MAX, number, on_cluster, states_option
from barnabas.cli.exit_codes import FAILED, OK, USAGE, CommandError
from barnabas.client.admin.admin import Admin, TransactionDescription
from barnabas.client.admin.transactions import (
    DEFAULT_MAX_TRANSACTION_TIMEOUT_MS,
    NO_DURATION,
    OPEN_STATES,
    STATES,
)
from barnabas.common.settings import LONG_MAX
from barnabas.common.texts import age_text, iso_time
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import TopicPartition

_MINUTE_MS: Final = 60_000
_LIST_COLUMNS: Final = "transactional_id coordinator producer_id state age_ms"
_DESCRIBE_COLUMNS: Final = (
    "transactional_id coordinator producer_id producer_epoch state timeout_ms start_time_ms age_ms partitions"
)
_PRODUCER_COLUMNS: Final = (
    "producer_id producer_epoch coordinator_epoch last_sequence last_timestamp_ms transaction_start_offset"
)
_HANGING_COLUMNS: Final = (
    "topic partition transaction_start_offset producer_id producer_epoch coordinator_epoch last_timestamp_ms "
    "silent_for_ms transactional_id"
)


def _show(options: argparse.Namespace, names: str, rows: list[Row], nothing: str) -> None:
    """Print these fields; ages and times are shown for people, and exact in JSON."""
    columns: dict[str, Column] = {}
    for name in names.split():
        heading = name if name == "timeout_ms" else name.removesuffix("_ms")
        columns[heading.replace("_", " ")] = partial(_cell, name)
    show(options, rows, columns, nothing)


def _cell(name: str, row: Row) -> object:
    value = row[name]
    match name:
        case "age_ms" | "silent_for_ms":
            return None if value is None else age_text(value)
        case "start_time_ms" | "last_timestamp_ms":
            return None if value is None else iso_time(value)
        case "state":
            return f"{value}, prepared" if row["is_prepared"] else value
        case "partitions":
            return " ".join(value)
    return value


def _described_row(described: TransactionDescription, now_ms: int) -> Row:
    names = (
        "transactional_id coordinator producer_id producer_epoch state is_prepared timeout_ms start_time_ms"
    )
    since_ms = described.start_time_ms
    return pick(described, names) | {
        "age_ms": None if since_ms is None else max(0, now_ms - since_ms),
        "partitions": [str(tp) for tp in described.partitions],
    }


async def _list(options: argparse.Namespace, admin: Admin) -> None:
    listed = await admin.list_transactions(
        states=options.state, producer_ids=options.producer_id, duration_ms=options.duration_filter
    )

    # The list itself has no ages; only an open transaction has one.
    described = await admin.survey_transactions(each for each in listed if each.state in OPEN_STATES)
    now_ms = int(time.time() * 1000)
    rows = []
    for listing in listed:
        description = described.get(listing.transactional_id)
        row = pick(listing, "transactional_id coordinator producer_id state")
        row |= {"is_prepared": False, "age_ms": None}
        if isinstance(description, BarnabasError) and description.retriable:
            # Its coordinator moves; without its age and partitions the row would be wrong.
            raise description
        if isinstance(description, TransactionDescription):
            present = _described_row(description, now_ms)
            row = {name: present[name] for name in row}
        if row["is_prepared"] or not options.prepared:
            rows.append(row)
    rows.sort(key=lambda row: (not row["is_prepared"], -(row["age_ms"] or 0) if row["is_prepared"] else 0))
    _show(options, _LIST_COLUMNS, rows, "no transactions")


async def _describe(options: argparse.Namespace, admin: Admin) -> None:
    described = await admin.describe_transactions(options.ids)
    now_ms = int(time.time() * 1000)
    rows = [_described_row(description, now_ms) for description in described.values()]
    _show(options, _DESCRIBE_COLUMNS, rows, "")


async def _existing_partition(options: argparse.Namespace, admin: Admin) -> TopicPartition:
    """Raises ApiError at once for a missing topic; the client would wait for it."""
    await admin.describe_topics(options.topic)
    return TopicPartition(options.topic, options.partition)


async def _describe_producers(options: argparse.Namespace, admin: Admin) -> None:
    tp = await _existing_partition(options, admin)
    producers = await admin.describe_producers([tp], broker_id=options.broker_id)
    rows = [pick(producer, _PRODUCER_COLUMNS) for producer in producers[tp]]
    _show(options, _PRODUCER_COLUMNS, rows, f"no producers of {tp}")


async def _find_hanging(options: argparse.Namespace, admin: Admin) -> int:
    if options.partition is not None and options.topic is None:
        raise CommandError(f"--partition {options.partition}: expected --topic as well", USAGE)
    partitions: list[TopicPartition] | None = None
    if options.partition is not None:
        partitions = [await _existing_partition(options, admin)]
    elif options.topic is not None:
        infos = (await admin.describe_topics(options.topic))[options.topic].partitions
        partitions = [
            TopicPartition(options.topic, info.partition)
            for info in infos
            if options.broker_id is None or options.broker_id in info.replicas
        ]
    hanging = await admin.find_hanging_transactions(
        partitions,
        broker_id=options.broker_id,
        max_transaction_timeout_ms=options.max_transaction_timeout * _MINUTE_MS,
    )
    now_ms = int(time.time() * 1000)
    rows = [
        entry.partition._asdict()
        | pick(entry.producer, _PRODUCER_COLUMNS)
        | {
            "silent_for_ms": max(0, now_ms - entry.producer.last_timestamp_ms),
            "transactional_id": entry.transactional_id,
        }
        for entry in hanging
    ]
    _show(options, _HANGING_COLUMNS, rows, "no hanging transactions")
    return FAILED if rows else OK


async def _abort(options: argparse.Namespace, admin: Admin) -> None:
    by_offset = options.start_offset is not None
    by_producer = options.producer_id is not None and options.producer_epoch is not None
    if by_offset == (options.producer_id is not None) or not (by_offset or by_producer):
        raise CommandError("expected either --start-offset or --producer-id with --producer-epoch", USAGE)
    tp = await _existing_partition(options, admin)
    await admin.abort_transaction(
        tp,
        start_offset=options.start_offset,
        producer_id=options.producer_id,
        producer_epoch=options.producer_epoch,
        coordinator_epoch=options.coordinator_epoch,
    )
    answer(options, tp._asdict() | {"aborted": True}, f"aborted in {tp}")


async def _complete(options: argparse.Namespace, admin: Admin) -> None:
    await admin.complete_transaction(options.id, commit=options.commit)
    outcome = "committed" if options.commit else "aborted"
    answer(options, {"transactional_id": options.id, "outcome": outcome}, f"{options.id}: {outcome}")


async def _force_terminate(options: argparse.Namespace, admin: Admin) -> None:
    # The id must exist: to fence an unknown one would create it.
    await admin.describe_transactions(options.id)
    producer = (await admin.fence_producers(options.id))[options.id]
    value = {
        "transactional_id": options.id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }
    answer(options, value, f"{options.id}: its producer is fenced, and its transaction aborted")


# -- the table ---------------------------------------------------------------------------------------------


def _place(*, required: bool) -> tuple[Argument, ...]:
    return (
        arg("--topic", "TOPIC", required=required),
        arg("--partition", "P", type=number(0), required=required),
    )


_ID = number(0, LONG_MAX)

add_arguments = actions(
    on_cluster(
        "list",
        "list transactional ids; prepared transactions come first",
        _list,
        states_option(STATES),
        repeated("--producer-id", "ID", type=_ID),
        arg("--duration-filter", "MS", "only those open for longer", type=_ID, default=NO_DURATION),
        flag("--prepared", "only prepared transactions"),
    ),
    on_cluster(
        "describe", "show the transactions of transactional ids", _describe, arg("ids", "ID", nargs="+")
    ),
    on_cluster(
        "describe-producers",
        "show the producers of a partition",
        _describe_producers,
        *_place(required=True),
        arg("--broker-id", "ID", "as this broker knows them (default: the leader)", type=int),
    ),
    on_cluster(
        "find-hanging",
        "find open transactions that nothing will end; exit code 1 if there are any",
        _find_hanging,
        *_place(required=False),
        arg("--broker-id", "ID", "only the replicas of this broker", type=int),
        arg(
            "--max-transaction-timeout",
            "MINUTES",
            "the brokers' limit of time-outs; younger transactions are left out (default: %(default)s)",
            type=number(0),
            default=DEFAULT_MAX_TRANSACTION_TIMEOUT_MS // _MINUTE_MS,
        ),
    ),
    on_cluster(
        "abort",
        "end a hanging transaction in one partition",
        _abort,
        *_place(required=True),
        arg("--start-offset", "N", "where the transaction begins", type=_ID),
        arg("--producer-id", "ID", "in place of --start-offset", type=_ID),
        arg("--producer-epoch", "EPOCH", "with --producer-id", type=number(0, SHORT_MAX)),
        arg("--coordinator-epoch", "EPOCH", "with --producer-id", type=number(0), default=0),
    ),
    on_cluster(
        "complete",
        "commit or abort a prepared transaction",
        _complete,
        arg("id", "ID"),
        one_of(flag("--commit"), flag("--abort"), required=True),
    ),
    on_cluster(
        "force-terminate",
        "fence the producer of a transactional id, and abort its transaction",
        _force_terminate,
        arg("id", "ID"),
    ),
)
