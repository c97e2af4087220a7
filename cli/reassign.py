"""`barnabas reassign plan|execute|status|cancel` and `barnabas drain BROKER`: move replicas to other brokers.

A plan is JSON as Kafka's kafka-reassign-partitions reads and writes it, so either tool executes it.
Partitions are served while they move.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from barnabas.cli.action import Column, Row, actions, answer, arg, flag, show
from barnabas.cli.arguments import (
    SHORT_MAX,
    STDIN,
    await_moves,
    check_partitions,
    cluster_words,
    command_settings,
    dir_words,
    local_cluster,
    make_admin,
    number,
    on_cluster,
    seconds,
)
from barnabas.cli.exit_codes import NOT_FOUND, USAGE, CommandError, unknown_topic
from barnabas.cli.output import print_json, print_table
from barnabas.client.admin.admin import Admin, ConfigChange, ConfigResource, PartitionReassignment
from barnabas.client.admin.drain import (
    CannotDrain,
    NoSuchBroker,
    is_unknown,
    placements,
    plan_drain,
    racks,
    replica_sizes,
)
from barnabas.client.admin.placement_plan import Move, Placement, plan
from barnabas.client.config import AdminConfig
from barnabas.client.errors import TopicErrors
from barnabas.client.metadata import TopicInfo
from barnabas.common.settings import LONG_MAX
from barnabas.common.texts import count
from barnabas.protocol.errors import ApiError, BarnabasError
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.configs import ConfigResourceType
from barnabas.protocol.topic_names import INTERNAL_TOPICS

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_LONGEST_LIST: Final = 30_000
_EXAMPLE: Final = '{"partitions": [{"topic": "flights", "partition": 0, "replicas": [1, 2]}]}'

_LIMIT_TIMEOUT_MS: Final = 12_000
_LIMIT_REQUEST_MS: Final = 3_000
"""A broker that hangs must not take the time that another one needs to answer."""

Targets = Mapping[TopicPartition, Sequence[int]]
Limits = dict[ConfigResource, dict[str, ConfigChange]]


async def _plan(options: argparse.Namespace, admin: Admin) -> None:
    allowed = existing = await racks(admin)
    if options.brokers is not None:
        allowed = {broker: existing[broker] for broker in _broker_ids(options.brokers, existing)}
    placed = await _placements(admin, options.topics)
    moves = plan(placed, allowed, replication_factor=options.replication_factor)
    if options.json or not sys.stdout.isatty():
        print_json(_plan_object({tp: move.after for tp, move in moves.items()}))
    else:
        _print_moves(moves, options)


def _check_execute(options: argparse.Namespace) -> None:
    _check_throttle(options)
    options.plan = _read_plan(options.plan)


def _check_throttle(options: argparse.Namespace) -> None:
    if options.throttle is not None and not options.wait:
        raise CommandError("--throttle: expected --wait as well", USAGE)


async def _execute(options: argparse.Namespace, admin: Admin) -> None:
    await _move(admin, options.plan, options)
    done = "have moved" if options.wait else "are moving"
    answer(options, _plan_object(options.plan), f"{len(options.plan)} partitions {done}")


async def _drain(options: argparse.Namespace, admin: Admin) -> None:
    drained = BrokerId(options.broker)
    try:
        moves = await plan_drain(admin, drained)
    except NoSuchBroker as error:
        raise CommandError(str(error), NOT_FOUND) from None
    except CannotDrain as error:
        fewer = _fewer_replicas(options, error.topic, error.others) if error.others else ""
        raise CommandError(f"{error}{_another_broker(options, error.others + 2)}{fewer}") from None
    targets = {tp: move.after for tp, move in moves.items()}
    deleted = await _move(admin, targets, options, skips_deleted=True)
    moving = {tp: target for tp, target in targets.items() if tp not in deleted}
    lines = [f"broker {drained} has no replicas"]
    if moving:
        verb = "left" if options.wait else "began to leave"
        lines = [f"{count(len(moving), 'replica')} {verb} broker {drained}"]
    if deleted:
        lines.append(f"skipped {count(len(deleted), 'partition')} of topics that are being deleted")
    answer(options, _plan_object(moving), *lines)


def _another_broker(options: argparse.Namespace, brokers: int) -> str:
    """The commands for a cluster of this machine."""
    if local_cluster(options, options.connected_to) is None:
        return ""
    where = dir_words(options)
    return f": `barnabas down{where}`, then `barnabas up --brokers {brokers}{where}`"


def _fewer_replicas(options: argparse.Namespace, topic: str, replicas: int) -> str:
    where = cluster_words(options)
    made = f"barnabas reassign plan {shlex.quote(topic)} --replication-factor {replicas}{where} > plan.json"
    return f"; or give the topic fewer: `{made} && barnabas reassign execute plan.json --wait{where}`"


async def _status(options: argparse.Namespace, admin: Admin) -> None:
    under_way = sorted((await admin.list_partition_reassignments()).items())
    copied = await _copied(admin, dict(under_way))
    rows: list[Row] = [
        {
            **tp._asdict(),
            "replicas": list(moving.replicas),
            "adding": list(moving.adding),
            "removing": list(moving.removing),
            "copied_bytes": copied[tp][0],
            "total_bytes": copied[tp][1],
        }
        for tp, moving in under_way
    ]
    columns: dict[str, Column] = {
        "partition": lambda row: f"{row['topic']}:{row['partition']}",
        "to": lambda row: _listed(row["target"]),
        "adding": lambda row: _listed(row["adding"]),
        "removing": lambda row: _listed(row["removing"]),
        "copied": lambda row: _share(row["copied_bytes"], row["total_bytes"]),
    }
    shown = [row | {"target": moving.target} for row, (_, moving) in zip(rows, under_way, strict=True)]
    show(options, shown, columns, "no partition is moving", value=rows)


async def _cancel(options: argparse.Namespace, admin: Admin) -> None:
    cancelled = list(await admin.list_partition_reassignments()) if options.all else options.partitions
    _raise_first(await admin.alter_partition_reassignments(dict.fromkeys(cancelled)))
    answer(options, [tp._asdict() for tp in cancelled], f"{len(cancelled)} moves are cancelled")


# Reading the cluster


async def _placements(admin: Admin, topics: Collection[str]) -> dict[TopicPartition, Placement]:
    """Of these topics, or of all."""
    existing = await admin.describe_topics()
    for topic in topics:
        if topic not in existing:
            raise unknown_topic(topic, [name for name in existing if name not in INTERNAL_TOPICS])
    return await placements(admin, {name: existing[name] for name in topics or sorted(existing)})


async def _copied(
    admin: Admin, under_way: Mapping[TopicPartition, PartitionReassignment]
) -> dict[TopicPartition, tuple[int, int]]:
    """By partition: the bytes that the added replicas have, and those that they will have."""
    if not under_way:
        return {}
    sizes = await replica_sizes(admin, {tp.topic for tp in under_way})
    copied = {}
    for tp, moving in under_way.items():
        whole = max((sizes.get((tp, broker), 0) for broker in moving.replicas), default=0)
        there = sum(min(whole, sizes.get((tp, broker), 0)) for broker in moving.adding)
        copied[tp] = there, whole * len(moving.adding)
    return copied


# Changing it


async def _move(
    admin: Admin, targets: Targets, options: argparse.Namespace, *, skips_deleted: bool = False
) -> set[TopicPartition]:
    """Begin the moves, and wait for their end if that is asked for.

    With ``skips_deleted`` it returns the partitions whose topics have been deleted since `targets` was made.
    """
    async with AsyncExitStack() as stack:
        if options.throttle is not None and targets:
            await stack.enter_async_context(_throttled(targets, options))
        outcomes = await admin.alter_partition_reassignments(dict(targets))
        deleted = {tp for tp, error in outcomes.items() if skips_deleted and is_unknown(error)}
        _raise_first({tp: error for tp, error in outcomes.items() if tp not in deleted})
        if options.wait:
            moving = targets.keys() - deleted
            await await_moves(lambda: _missing(admin, moving), options.timeout, "not done")
        return deleted


@asynccontextmanager
async def _throttled(targets: Targets, options: argparse.Namespace) -> AsyncIterator[None]:
    """Limit the replication to added replicas, on all brokers, until the block ends.

    The rates are defaults for all brokers, not settings of each: any broker can remove these, also those of a
    broker that dies meanwhile. Limits that cannot be removed are an error with the commands that remove them.
    """
    settings = {**command_settings(options, AdminConfig), "request_timeout_ms": _LIMIT_REQUEST_MS}
    async with make_admin(options.connected_to, settings) as admin:
        limits = _limits(await admin.describe_topics({tp.topic for tp in targets}), targets, options.throttle)
        removals: Limits = {resource: dict.fromkeys(names) for resource, names in limits.items()}
        try:
            if failed := await _change_limits(admin, limits):
                raise next(iter(failed.values()))
            yield
        except BaseException:
            # The command fails for that reason; limits that remain are reported beside it.
            if failed := await _change_limits(admin, removals):
                print(f"barnabas {options.command}: {_still_limited(failed, options)}", file=sys.stderr)
            raise
        if failed := await _change_limits(admin, removals):
            raise CommandError(_still_limited(failed, options))


def _limits(topics: Mapping[str, TopicInfo], targets: Targets, bytes_per_second: int) -> Limits:
    limits: Limits = {ConfigResource.all_brokers(): dict.fromkeys(RATES, str(bytes_per_second))}
    for topic, info in topics.items():
        leaders: list[str] = []
        followers: list[str] = []
        for partition in info.partitions:
            target = targets.get(TopicPartition(topic, partition.partition))
            if target is not None:
                present = partition.replicas
                leaders += [f"{partition.partition}:{broker}" for broker in present]
                added = [broker for broker in target if broker not in present]
                followers += [f"{partition.partition}:{broker}" for broker in added]
        lists = (_listed_replicas(leaders), _listed_replicas(followers))
        limits[ConfigResource.topic(topic)] = dict(zip(LISTS, lists, strict=True))
    return limits


async def _change_limits(admin: Admin, changes: Limits) -> dict[ConfigResource, BarnabasError]:
    """The resources that could not be changed; a topic that is gone has no limits."""
    failed: Mapping[str, BarnabasError]
    try:
        await admin.alter_configs(changes, timeout_ms=_LIMIT_TIMEOUT_MS)
    except TopicErrors as error:
        failed = error.errors
    except BarnabasError as error:
        failed = {str(resource): error for resource in changes}
    else:
        return {}
    errors = {resource: failed[str(resource)] for resource in changes if str(resource) in failed}
    return {resource: error for resource, error in errors.items() if not is_unknown(error)}


def _still_limited(failed: Mapping[ConfigResource, BarnabasError], options: argparse.Namespace) -> str:
    """The limits that remain, and the commands that remove them."""
    commands = []
    for resource in failed:
        is_topic = resource.kind is ConfigResourceType.TOPIC
        which = f"--topic {shlex.quote(resource.name)}" if is_topic else "--all-brokers"
        deletes = " ".join(f"--delete {name}" for name in (LISTS if is_topic else RATES))
        commands.append(f"`barnabas configs alter {which} {deletes}{cluster_words(options)}`")
    names = ", ".join(map(str, failed))
    reason = next(iter(failed.values()))
    return f"the throttle remains set for {names} ({reason}); remove it: {', '.join(commands)}"


def _raise_first(outcomes: Mapping[TopicPartition, ApiError | None]) -> None:
    errors = [error for error in outcomes.values() if error is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise CommandError(f"{len(errors)} of {len(outcomes)} partitions were refused, first: {errors[0]}")


async def _missing(admin: Admin, partitions: Collection[TopicPartition]) -> int | None:
    """The bytes that the added replicas lack; None once none of the partitions is moving."""
    left = await admin.list_partition_reassignments(partitions)
    copied = await _copied(admin, left)
    return sum(whole - there for there, whole in copied.values()) if left else None


def _listed_replicas(names: Sequence[str]) -> str:
    """The value of a setting, which has a limit: all replicas of a topic instead of very many."""
    text = ",".join(names)
    return text if len(text) <= _LONGEST_LIST else "*"


# Plans


def _read_plan(path: Path) -> dict[TopicPartition, list[int]]:
    try:
        text = sys.stdin.read() if path == STDIN else path.read_text(encoding="utf-8")
        targets = {}
        for entry in json.loads(text)["partitions"]:
            tp = TopicPartition(str(entry["topic"]), int(entry["partition"]))
            if tp in targets:
                raise ValueError(f"{tp} is named twice")
            targets[tp] = [int(broker) for broker in entry["replicas"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{path} is not a plan ({error!r}); expected {_EXAMPLE}", USAGE) from None
    return targets


def _plan_object(targets: Targets) -> dict[str, Any]:
    return {
        "version": 1,
        "partitions": [tp._asdict() | {"replicas": list(replicas)} for tp, replicas in targets.items()],
    }


def _print_moves(moves: Mapping[TopicPartition, Move], options: argparse.Namespace) -> None:
    rows = [
        (f"{tp.topic}:{tp.partition}", _listed(move.before), _listed(move.after), move.copied_bytes)
        for tp, move in moves.items()
    ]
    if rows:
        print_table(("partition", "from", "to", "bytes to copy"), rows)
        words = [*options.topics]
        if options.brokers is not None:
            words += ["--brokers", options.brokers]
        if options.replication_factor is not None:
            words += ["--replication-factor", str(options.replication_factor)]
        where = cluster_words(options)
        made = f"barnabas reassign plan {shlex.join([*words, '--json'])}{where} > plan.json"
        print(f"`{made} && barnabas reassign execute plan.json{where}` does it")
    else:
        print("nothing to move")


def _broker_ids(text: str, known: Collection[BrokerId]) -> list[BrokerId]:
    ids = []
    for word in text.split(","):
        if not word.strip().isdecimal():
            raise CommandError(f"--brokers {text!r}: expected ids such as 1,2,3", USAGE)
        ids.append(BrokerId(int(word)))
    unknown = sorted(set(ids) - set(known))
    if unknown:
        raise CommandError(f"no live broker has the ids {unknown}; there are {sorted(known)}", NOT_FOUND)
    return ids


def _listed(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers)) or "-"


def _share(there: int, whole: int) -> str:
    return "-" if not whole else f"{100 * there // whole} %"


# The table

_WAIT = (
    flag("--wait", "return when the replicas have moved"),
    arg(
        "--throttle",
        "BYTES",
        "the most bytes per second that each broker sends or gets for the moves; with --wait, "
        "since the limit is removed at the end",
        type=number(1, LONG_MAX),
    ),
    arg("--timeout", "SECONDS", "of --wait (default 86400)", type=seconds, default=86_400.0),
)

_reassign = actions(
    on_cluster(
        "plan",
        "print a plan that spreads the replicas and moves few bytes",
        _plan,
        arg("topics", "TOPIC", "default: all, internal ones too", nargs="*"),
        arg("--brokers", "ID,ID,…", "the brokers to use; default: all live ones"),
        arg("--replication-factor", "N", "default: as it is", type=number(1, SHORT_MAX)),
    ),
    on_cluster(
        "execute",
        "begin the moves of a plan",
        _execute,
        arg("plan", "FILE", "a plan; - is standard input", type=Path),
        *_WAIT,
        check=_check_execute,
    ),
    on_cluster("status", "show the moves under way", _status),
    on_cluster(
        "cancel",
        "undo moves that are under way",
        _cancel,
        arg("partitions", "TOPIC:PARTITION", "or --all", nargs="*"),
        flag("--all", "all moves under way"),
        check=check_partitions,
    ),
)
_draining = on_cluster(
    "drain",
    "",
    _drain,
    arg("broker", "BROKER", "the broker that shall have no replicas", type=int),
    *_WAIT,
    check=_check_throttle,
    json_help="print the moves as JSON",
)


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    add = _draining.add_to if name == "drain" else _reassign
    add(parser, name)
