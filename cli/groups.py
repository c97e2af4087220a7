"""`barnabas groups list|describe|members|lag|reset-offsets|delete|delete-offsets`."""

from __future__ import annotations

import argparse
import csv
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from barnabas.cli.action import Column, Row, actions, answer, arg, flag, one_of, pick, repeated, show
from barnabas.cli.arguments import not_empty, on_cluster, states_option
from barnabas.cli.exit_codes import NOT_FOUND, USAGE, CommandError, unknown_topic
from barnabas.cli.output import print_json
from barnabas.client.admin.admin import Admin, GroupDescription, MemberDescription
from barnabas.client.ask import for_each
from barnabas.client.errors import GroupErrors
from barnabas.client.offsets import EARLIEST, LATEST, OffsetAndMetadata
from barnabas.common.texts import count
from barnabas.protocol.errors import GroupIdNotFoundError
from barnabas.protocol.ids import NO_BROKER, TopicPartition

_STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
_OFFSET_COLUMNS: Final = ("topic", "partition", "committed_offset", "log_end_offset", "lag")
_DURATION: Final = re.compile(
    r"P(?=[^P]*\d)(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,3})?)S)?)?"
)


async def _list(options: argparse.Namespace, admin: Admin) -> None:
    listed = await admin.list_groups(states=options.state)
    rows = [{"group": group.group_id} | pick(group, "state protocol_type") for group in listed]
    columns: dict[str, Column] = {
        "group": "group",
        "state": "state",
        "protocol type": lambda row: row["protocol_type"] or "-",
    }
    show(options, rows, columns, "no groups")


async def _rows(admin: Admin, groups: Mapping[str, GroupDescription]) -> dict[str, list[Row]]:
    """Rows by group, one per committed or assigned partition.

    Without a leader the lag is None, and without a committed offset unless the partition is empty. It is None
    for an offset beyond the end, as after the loss of records: where the group goes on is not known.
    """
    committed = await for_each(groups, admin.group_offsets)
    partitions = {
        name: sorted({*committed[name], *(tp for member in group.members for tp in member.assignment)})
        for name, group in groups.items()
    }
    led = {
        TopicPartition(name, partition.partition)
        for name, topic in (await admin.describe_topics()).items()
        for partition in topic.partitions
        if partition.leader != NO_BROKER
    }
    shown = led.intersection(tp for of_group in partitions.values() for tp in of_group)
    uncommitted = {
        tp for name, of_group in partitions.items() for tp in of_group if committed[name].get(tp) is None
    }
    ends = await _offsets_at(admin, shown, LATEST)
    starts = await _offsets_at(admin, shown & uncommitted, EARLIEST)
    return {
        name: _rows_of(group, partitions[name], committed[name], starts, ends)
        for name, group in groups.items()
    }


def _rows_of(
    group: GroupDescription,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata | None],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> list[Row]:
    owners: dict[TopicPartition, MemberDescription] = {
        tp: member for member in group.members for tp in member.assignment
    }
    rows: list[Row] = []
    for tp in partitions:
        offset, owner, end = committed.get(tp), owners.get(tp), ends.get(tp)
        lag = None
        if offset is not None and end is not None and offset.offset <= end:
            lag = end - offset.offset
        if offset is None and tp in starts and starts[tp] == end:
            lag = 0
        rows.append(
            {
                **tp._asdict(),
                "committed_offset": None if offset is None else offset.offset,
                "log_end_offset": end,
                "lag": lag,
                "member_id": None if owner is None else owner.member_id,
                "client_id": None if owner is None else owner.client_id,
                "host": None if owner is None else owner.client_host,
            }
        )
    return rows


async def _counts(admin: Admin) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in (await admin.describe_topics()).items()}


def lag_summary(rows: Sequence[Row]) -> Row:
    """The lag of a group; None if that of a partition is unknown, because the sum would be too low."""
    unknown = sum(row["lag"] is None for row in rows)
    total = sum(row["lag"] for row in rows) if rows and not unknown else None
    return {"lag": total, "unknown_lag_partitions": unknown}


def lag_text(rows: Sequence[Row]) -> str:
    total = lag_summary(rows)["lag"]
    if total is not None:
        return f"lag {total:,}"
    leaderless = sum(row["log_end_offset"] is None for row in rows)
    unknown = [row for row in rows if row["lag"] is None and row["log_end_offset"] is not None]
    uncommitted = sum(row["committed_offset"] is None for row in unknown)
    beyond = len(unknown) - uncommitted
    reasons = []
    if uncommitted:
        reasons.append(f"{count(uncommitted, 'partition')} without a committed offset")
    if beyond:
        reasons.append(f"{count(beyond, 'partition')} with a committed offset beyond its end")
    if leaderless:
        reasons.append(f"{count(leaderless, 'partition')} without a leader")
    if lags := [row["lag"] for row in rows if row["lag"] is not None]:
        reasons.append(f"{sum(lags):,} in the others")
    return f"lag - ({', '.join(reasons) or 'no committed offsets'})"


async def _described(
    options: argparse.Namespace, admin: Admin
) -> tuple[dict[str, GroupDescription], dict[str, list[Row]]]:
    groups = await admin.describe_groups(options.groups)
    return groups, await _rows(admin, groups)


async def _describe(options: argparse.Namespace, admin: Admin) -> None:
    groups, rows = await _described(options, admin)
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
            f"{lag_text(rows[name])}"
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
    _, rows = await _described(options, admin)
    for name, partitions in rows.items():
        if not options.json:
            print(f"{name}  {lag_text(partitions)}")
        value = {"group": name} | lag_summary(partitions) | {"partitions": partitions}
        show(options, partitions, _OFFSET_COLUMNS, value=value)


async def _reset_offsets(options: argparse.Namespace, admin: Admin) -> None:
    before = {
        tp: committed.offset
        for tp, committed in (await admin.group_offsets(options.group)).items()
        if committed is not None
    }
    after = await _new_offsets(options, admin, before)
    if not after:
        raise CommandError(_why_nothing_to_reset(options), NOT_FOUND)
    await _check_has_no_members(admin, options.group)
    if not options.dry_run:
        await admin.alter_group_offsets(options.group, after)
    rows: list[Row] = [
        tp._asdict() | {"before": before.get(tp), "after": offset} for tp, offset in sorted(after.items())
    ]
    if not options.json:
        print(f"group {options.group}: {'would be set' if options.dry_run else 'set'}")
    value = {"group": options.group, "changed": not options.dry_run, "offsets": rows}
    show(options, rows, ("topic", "partition", "before", "after"), value=value)


def _why_nothing_to_reset(options: argparse.Namespace) -> str:
    if options.topic is None:
        reason = "of topics that exist; name topics with --topic TOPIC"
    elif options.from_file is not None:
        return f"{options.from_file} names none of the partitions of --topic"
    else:
        reason = "there, so none can be shifted; give --to-offset or another start"
    return f"group {options.group!r} has committed no offsets {reason}"


async def _check_has_no_members(admin: Admin, group_id: str) -> None:
    """Also before a dry run, which shows the outcome of a real one."""
    try:
        group = (await admin.describe_groups(group_id))[group_id]
    except GroupIdNotFoundError:
        return
    if group.members:
        raise CommandError(
            f"group {group_id!r} is {group.state} with {count(len(group.members), 'member')}, which commit "
            "offsets of their own: stop them first"
        )


async def _new_offsets(
    options: argparse.Namespace, admin: Admin, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The offsets to commit, only for partitions that exist."""
    counts = await _counts(admin)
    from_file: dict[TopicPartition, int] | None = None
    if options.from_file is not None:
        from_file = offsets_in(options.from_file)
        for tp in from_file:
            if tp.partition >= counts.get(tp.topic, 0):
                raise CommandError(f"{options.from_file}: there is no partition {tp}", NOT_FOUND)
    if options.topic is not None:
        partitions = chosen_partitions(options.topic, counts)
    else:
        partitions = [tp for tp in before if tp.partition < counts.get(tp.topic, 0)]
    if from_file is not None:
        partitions = [tp for tp in from_file if options.topic is None or tp in partitions]
    first = await _offsets_at(admin, partitions, EARLIEST)
    end = await _offsets_at(admin, partitions, LATEST)
    if options.to_earliest:
        return first
    if options.to_latest:
        return end
    named = from_file
    if options.to_offset is not None:
        named = dict.fromkeys(partitions, options.to_offset)
    elif options.shift_by is not None:
        named = {tp: offset + options.shift_by for tp, offset in before.items()}
    if named is not None:
        return {tp: within(tp, named[tp], first[tp], end[tp]) for tp in partitions if tp in named}
    if options.to_datetime is not None:
        since = time_ms(options.to_datetime)
    else:
        since = max(0, int(time.time() * 1000) - duration_ms(options.by_duration))
    listed = await _offsets_at(admin, partitions, since)
    return {tp: offset if offset >= 0 else end[tp] for tp, offset in listed.items()}


async def _offsets_at(
    admin: Admin, partitions: Iterable[TopicPartition], spec: str | int
) -> dict[TopicPartition, int]:
    listed = await admin.list_offsets(dict.fromkeys(partitions, spec))
    return {tp: entry.offset for tp, entry in listed.items()}


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
    named = chosen_partitions(options.topic, await _counts(admin))
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


# -- new offsets, as an operator names them ----------------------------------------------------------------


def time_ms(text: str) -> int:
    """``2025-01-31T12:00:00`` as ms since 1970. Raises CommandError (usage)."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{text!r}: expected a time as 2025-01-31T12:00:00.000", USAGE) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    milliseconds = round(time.timestamp() * 1000)
    if milliseconds < 0:
        raise CommandError(f"{text!r}: expected a time since 1970", USAGE)
    return milliseconds


def duration_ms(text: str) -> int:
    """``P1DT2H30M`` as ms. Raises CommandError (usage)."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise CommandError(f"{text!r}: expected a duration as P1DT2H30M15S", USAGE)
    days, hours, minutes = (int(match[name] or 0) for name in ("days", "hours", "minutes"))
    return round((((days * 24 + hours) * 60 + minutes) * 60 + float(match["seconds"] or 0)) * 1000)


def chosen_partitions(texts: Iterable[str], counts: dict[str, int]) -> list[TopicPartition]:
    """``topic`` or ``topic:0,2`` as partitions; ``counts`` has the existing topics.

    Raises CommandError for a topic or a partition that does not exist, and for a malformed text.
    """
    partitions: dict[TopicPartition, None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if topic not in counts:
            raise unknown_topic(topic, counts)
        chosen = numbers.split(",") if colon else [str(number) for number in range(counts[topic])]
        for number in chosen:
            is_number = number.isascii() and number.isdecimal()
            if not is_number or int(number) >= counts[topic]:
                raise CommandError(
                    f"--topic {text!r}: expected partitions from 0 to {counts[topic] - 1}, as {topic}:0,1",
                    NOT_FOUND if is_number else USAGE,
                )
            partitions[TopicPartition(topic, int(number))] = None
    return list(partitions)


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


def within(tp: TopicPartition, offset: int, beginning: int, end: int) -> int:
    """The nearest offset that the partition has; says so if that is another one."""
    nearest = max(beginning, min(end, offset))
    if nearest != offset:
        print(
            f"barnabas groups: {tp} has no offset {offset}, only {beginning} to {end}: {nearest} is used",
            file=sys.stderr,
        )
    return nearest


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
