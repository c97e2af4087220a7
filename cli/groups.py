"""`barnabas groups list|describe|members|lag|reset-offsets|delete|delete-offsets`."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Final

from barnabas.cli.action import Column, Row, actions, answer, arg, flag, one_of, pick, repeated, show
from barnabas.cli.arguments import not_empty, on_cluster, states_option
from barnabas.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from barnabas.cli.output import print_json
from barnabas.client.admin.admin import Admin, GroupDescription
from barnabas.client.admin.group_lag import PartitionLag, lag_text, lags_of, total_lag
from barnabas.client.admin.offset_reset import (
    ShiftBy,
    Start,
    ToOffset,
    ToOffsets,
    ago,
    chosen_partitions,
    members_problem,
    partition_counts,
    plan_reset,
    time_ms,
)
from barnabas.client.ask import for_each
from barnabas.client.errors import GroupErrors
from barnabas.client.offsets import EARLIEST, LATEST
from barnabas.common.texts import count
from barnabas.protocol.ids import TopicPartition

_STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
_OFFSET_COLUMNS: Final = ("topic", "partition", "committed_offset", "log_end_offset", "lag")


async def _list(options: argparse.Namespace, admin: Admin) -> None:
    listed = await admin.list_groups(states=options.state)
    rows = [{"group": group.group_id} | pick(group, "state protocol_type") for group in listed]
    columns: dict[str, Column] = {
        "group": "group",
        "state": "state",
        "protocol type": lambda row: row["protocol_type"] or "-",
    }
    show(options, rows, columns, "no groups")


def _row(partition: PartitionLag) -> Row:
    owner = partition.member
    return {
        **partition.partition._asdict(),
        **pick(partition, "committed_offset log_end_offset lag"),
        "member_id": None if owner is None else owner.member_id,
        "client_id": None if owner is None else owner.client_id,
        "host": None if owner is None else owner.client_host,
    }


async def _described(
    options: argparse.Namespace, admin: Admin
) -> tuple[dict[str, GroupDescription], dict[str, list[PartitionLag]]]:
    groups = await admin.describe_groups(options.groups)
    committed = await for_each(groups, admin.group_offsets)
    return groups, await lags_of(admin, groups, committed)


async def _describe(options: argparse.Namespace, admin: Admin) -> None:
    groups, lags = await _described(options, admin)
    rows = {name: [_row(partition) for partition in partitions] for name, partitions in lags.items()}
    if options.json:
        fields = "state protocol_type protocol coordinator"
        print_json(
            [{"group": name} | pick(groups[name], fields) | {"partitions": rows[name]} for name in groups]
        )
        return
    for name, group in groups.items():
        print(
            f"{name}  {group.state}  {count(len(group.members), 'member')}  "
            f"{group.protocol or 'no assignor'}  coordinator {group.coordinator}  "
            f"{lag_text(lags[name])}"
        )
        show(options, rows[name], (*_OFFSET_COLUMNS, "member_id", "host"))


async def _members(options: argparse.Namespace, admin: Admin) -> None:
    rows: list[Row] = [
        {
            "group": group.group_id,
            **pick(member, "member_id group_instance_id client_id"),
            "host": member.client_host,
            "topics": list(member.topics),
            "partitions": [str(tp) for tp in member.assignment],
        }
        for group in (await admin.describe_groups(options.groups)).values()
        for member in group.members
    ]
    names = ("group", "member_id", "group_instance_id", "client_id", "host")
    columns: dict[str, Column] = {name: name for name in names}
    show(options, rows, columns | {"partitions": lambda row: " ".join(row["partitions"])}, "no members")


async def _lag(options: argparse.Namespace, admin: Admin) -> None:
    _, lags = await _described(options, admin)
    for name, partitions in lags.items():
        if not options.json:
            print(f"{name}  {lag_text(partitions)}")
        unknown = sum(partition.lag is None for partition in partitions)
        rows = [_row(partition) for partition in partitions]
        value = {"lag": total_lag(partitions), "unknown_lag_partitions": unknown, "partitions": rows}
        show(options, rows, _OFFSET_COLUMNS, value={"group": name} | value)


async def _reset_offsets(options: argparse.Namespace, admin: Admin) -> None:
    counts = await partition_counts(admin)
    start = _start(options)
    if isinstance(start, ToOffsets):
        for tp in start.offsets:
            if tp.partition >= counts.get(tp.topic, 0):
                raise CommandError(f"{options.from_file}: there is no partition {tp}", NOT_FOUND)
    partitions = None if options.topic is None else chosen_partitions(options.topic, counts)
    plan = await plan_reset(admin, options.group, start, partitions, counts)
    if not plan:
        raise CommandError(_why_nothing_to_reset(options), NOT_FOUND)
    for entry in plan:
        if entry.after != entry.requested:
            print(
                f"barnabas groups: {entry.partition} has no offset {entry.requested}, "
                f"only {entry.first} to {entry.end}: {entry.after} is used",
                file=sys.stderr,
            )
    # Also before a dry run, which shows the outcome of a real one.
    if (problem := await members_problem(admin, options.group)) is not None:
        raise CommandError(problem)
    if not options.dry_run:
        await admin.alter_group_offsets(options.group, {entry.partition: entry.after for entry in plan})
    rows: list[Row] = [entry.partition._asdict() | pick(entry, "before after") for entry in plan]
    if not options.json:
        print(f"group {options.group}: {'would be set' if options.dry_run else 'set'}")
    value = {"group": options.group, "changed": not options.dry_run, "offsets": rows}
    show(options, rows, ("topic", "partition", "before", "after"), value=value)


def _start(options: argparse.Namespace) -> Start:
    """Raises CommandError and InvalidConfiguration for a malformed text."""
    if options.from_file is not None:
        return ToOffsets(offsets_in(options.from_file))
    if options.to_earliest:
        return EARLIEST
    if options.to_latest:
        return LATEST
    if options.to_offset is not None:
        return ToOffset(options.to_offset)
    if options.shift_by is not None:
        return ShiftBy(options.shift_by)
    if options.to_datetime is not None:
        return time_ms(options.to_datetime)
    return ago(options.by_duration)


def _why_nothing_to_reset(options: argparse.Namespace) -> str:
    if options.topic is None:
        reason = "of topics that exist; name topics with --topic TOPIC"
    elif options.from_file is not None:
        return f"{options.from_file} names none of the partitions of --topic"
    else:
        reason = "there, so none can be shifted; give --to-offset or another start"
    return f"group {options.group!r} has committed no offsets {reason}"


async def _delete(options: argparse.Namespace, admin: Admin) -> None:
    deleted = list(dict.fromkeys(options.groups))
    failure: GroupErrors | None = None
    try:
        await admin.delete_groups(deleted)
    except GroupErrors as error:
        failure = error
        deleted = [group for group in deleted if group not in error.errors]
    answer(options, {"deleted": deleted}, *(f"group {group} deleted" for group in deleted))
    if failure is not None:
        raise failure


async def _delete_offsets(options: argparse.Namespace, admin: Admin) -> None:
    named = chosen_partitions(options.topic, await partition_counts(admin))
    committed = await admin.group_offsets(options.group)
    # This also raises the error for a group that does not exist.
    await admin.delete_group_offsets(options.group, named)
    partitions = [tp for tp in named if committed.get(tp) is not None]
    if not partitions:
        raise CommandError(
            f"group {options.group!r} has committed no offsets of {', '.join(options.topic)}", NOT_FOUND
        )
    value = {"group": options.group, "deleted": [str(tp) for tp in partitions]}
    answer(options, value, f"group {options.group}: offsets of {count(len(partitions), 'partition')} deleted")


def offsets_in(path: Path) -> dict[TopicPartition, int]:
    """Lines of ``topic,partition,offset``.

    Raises CommandError naming the file, and the line if known, and OSError.
    """
    offsets: dict[TopicPartition, int] = {}
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CommandError(
            f"{path}: expected text of topic,partition,offset; it is not valid UTF-8", USAGE
        ) from None
    try:
        for number, row in enumerate(csv.reader(content.splitlines()), 1):
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if len(cells) != 3 or not all(cell.isascii() and cell.isdecimal() for cell in cells[1:]):
                raise CommandError(f"{path}, line {number}: expected topic,partition,offset", USAGE)
            tp = TopicPartition(cells[0], int(cells[1]))
            if tp in offsets:
                raise CommandError(f"{path}, line {number}: {tp} comes twice", USAGE)
            offsets[tp] = int(cells[2])
    except csv.Error as error:
        raise CommandError(f"{path}: expected lines of topic,partition,offset ({error})", USAGE) from None
    if not offsets:
        raise CommandError(f"{path}: expected lines of topic,partition,offset; there are none", USAGE)
    return offsets


# -- the table ---------------------------------------------------------------------------------------------

_GROUP = arg("group", type=not_empty)
_GROUPS = arg("groups", "GROUP", nargs="+", type=not_empty)
_RESET = (
    one_of(
        repeated("--topic", "TOPIC[:0,1]", default=None),
        flag("--all-topics", "all committed topics (default)"),
    ),
    one_of(
        flag("--to-earliest", "the first offset of the log"),
        flag("--to-latest", "the end of the log"),
        arg("--to-offset", "N", type=int),
        arg("--to-datetime", "TIME", "for example 2025-01-31T12:00:00; UTC without a zone"),
        arg("--by-duration", "DURATION", "this long ago, for example P1DT2H30M"),
        arg("--shift-by", "N", "forwards, or back if negative", type=int),
        arg("--from-file", "FILE", "lines of topic,partition,offset", type=Path),
        required=True,
    ),
    flag("--dry-run", "show the new offsets and change nothing"),
)

add_arguments = actions(
    on_cluster("list", "list groups", _list, states_option(_STATES)),
    on_cluster("describe", "show state, committed offsets, lag and assignments", _describe, _GROUPS),
    on_cluster("members", "show members and their assignments", _members, _GROUPS),
    on_cluster("lag", "show the lag of a group", _lag, _GROUPS),
    on_cluster(
        "reset-offsets",
        "set a group's committed offsets; its members must be stopped",
        _reset_offsets,
        _GROUP,
        *_RESET,
    ),
    on_cluster("delete", "delete groups without members, and their offsets", _delete, _GROUPS),
    on_cluster(
        "delete-offsets",
        "delete committed offsets of a group",
        _delete_offsets,
        _GROUP,
        repeated("--topic", "TOPIC[:0,1]", required=True, default=None),
    ),
)
