"""`barnabas status`: problems, brokers, controller, and every partition with leader, ISR and offsets.

Those are LEO and HW of each replica, and the LSO where open transactions keep it below the HW. Partitions
that are being reassigned are listed with their progress. On a terminal the page has at most its height:
problems come first, then brokers, then the partitions with problems. Exit code 0 without problems, 1 with
problems, 3 if no broker can be reached. Each broker has two seconds to answer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from barnabas.cli.action import Row, arg, command, flag, pick, repeated
from barnabas.cli.arguments import chosen_bootstrap, cluster_options, run_async, seconds
from barnabas.cli.cluster_view import look
from barnabas.cli.exit_codes import FAILED, NOT_REACHABLE, OK, USAGE, CommandError
from barnabas.cli.output import make_console, make_table, print_json
from barnabas.common.texts import count
from barnabas.deploy.cluster_view import UNKNOWN_REMOTE, ClusterView, PartitionView, is_silent, known
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.messages.replicas import CleanerDescription
from barnabas.protocol.schema import wire_fields

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_OFFSETS: Final = "log_start_offset high_watermark log_end_offset"
_CLEANER_FIELDS: Final = " ".join(name for name, _, _ in wire_fields(CleanerDescription))
_WATCH_INTERVAL_S: Final = 1.0
_MOST_PROBLEMS: Final = 8
"""Sentences on a terminal, unless all are asked for."""


def _run(options: argparse.Namespace) -> int:
    if options.watch is not None:
        _watch(options)
    view = _look(options)
    if options.json:
        print_json(view_json(view))
    else:
        console = make_console()
        console.print(_page(view, console, options, reserved=1))
    if view.unreachable is not None:
        return NOT_REACHABLE
    return FAILED if view.problems() else OK


def _watch(options: argparse.Namespace) -> None:
    """Refresh the view until Ctrl-C; an error is shown in its place and the next look follows."""
    if options.watch <= 0:
        raise CommandError(f"--watch {options.watch:g}: expected more than 0 seconds", USAGE)
    from rich.live import Live
    from rich.text import Text

    console = make_console()
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            try:
                view = _look(options)
            except BarnabasError as error:
                if options.json:
                    print(f"barnabas status: {error}", file=sys.stderr)
                else:
                    live.update(Text(str(error), style="bold red"), refresh=True)
            else:
                if options.json:
                    print_json(view_json(view))
                    sys.stdout.flush()
                elif console.is_terminal:
                    live.update(_page(view, console, options), refresh=True)
                else:
                    console.print(_page(view, console, options))
            time.sleep(options.watch)


def _look(options: argparse.Namespace) -> ClusterView:
    bootstrap = chosen_bootstrap(options)
    return run_async(look(options, bootstrap, options.topic))


def _page(
    view: ClusterView, console: Console, options: argparse.Namespace, *, reserved: int = 0
) -> RenderableType:
    """The view for this console; a terminal keeps `reserved` lines for its prompt."""
    shows_all = options.all
    # Not `console.is_terminal`, which FORCE_COLOR makes true in a pipe too.
    height = None if shows_all or not sys.stdout.isatty() else console.height - reserved
    folds = not shows_all and not options.topic
    return render(view, console=console, height=height, folds_internal=folds)


def render(
    view: ClusterView, *, console: Console, height: int | None = None, folds_internal: bool = True
) -> RenderableType:
    """The page; with `height` at most that many lines, as far as problems and brokers let it."""
    from rich.console import Group
    from rich.text import Text

    problems = view.problems()
    shown = problems if height is None else problems[:_MOST_PROBLEMS]
    parts: list[RenderableType] = [Text(f"cluster {view.cluster_id or '(without id)'}")]
    parts += [Text(f"! {problem}", style="bold red") for problem in shown]
    if len(shown) < len(problems):
        parts.append(Text(f"! … {len(problems) - len(shown)} more (`--all` shows them)", style="bold red"))
    columns = ("broker", "endpoint", "rack", "state", "pid")
    unbroken = ("broker", "endpoint", "pid")
    parts.append(make_table(columns, _broker_rows(view), has_edge=False, unbroken=unbroken))
    parts += [
        Text(f"metrics of broker {process.id}: {process.metrics_url}")
        for process in view.processes
        if process.metrics_url is not None
    ]
    rest: list[RenderableType] = []
    if folds_internal:
        rest += [Text(line) for line in _internal_topics(view.partitions)]
    rest += [Text(partition.progress()) for partition in view.partitions if partition.moving is not None]
    rest += [
        Text(f"broker {broker.node.node_id} keeps a log that belongs to no known topic: {folder}")
        for broker in view.brokers
        for folder in broker.strays
    ]
    partitions = [
        partition for partition in view.partitions if not (folds_internal and partition.is_internal)
    ]
    if height is not None:
        # Those that need a look are the last to be left out.
        partitions.sort(key=lambda partition: not partition.has_problem)
    if partitions:
        room = None if height is None else height - _lines(console, [*parts, *rest])
        parts += _partition_table(partitions, console, room)
    elif view.unreachable is None and not view.partitions:
        parts.append(Text("no topics"))
    return Group(*parts, *rest)


def _lines(console: Console, parts: Sequence[RenderableType]) -> int:
    return sum(len(console.render_lines(part)) for part in parts)


def _partition_table(
    partitions: Sequence[PartitionView], console: Console, room: int | None
) -> list[RenderableType]:
    """The table of the partitions, cut to so many lines with the number of those that are left out."""
    from rich.text import Text

    rows = [_partition_row(partition) for partition in partitions]
    columns = ("partition", "leader", "epoch", "isr", "replicas (broker:LEO/HW)")
    number = len(rows)
    while True:
        parts: list[RenderableType] = [Text("")]
        if number:
            parts.append(make_table(columns, rows[:number], has_edge=False))
        if number < len(rows):
            left_out = count(len(rows) - number, "more partition")
            parts.append(Text(f"… {left_out} (`--topic TOPIC` or `--all` shows them)"))
        excess = 0 if room is None else _lines(console, parts) - room
        if excess <= 0 or number == 0:
            return parts
        number = max(0, number - excess)


def _internal_topics(partitions: Iterable[PartitionView]) -> list[str]:
    by_topic: dict[str, list[PartitionView]] = {}
    for partition in partitions:
        if partition.is_internal:
            by_topic.setdefault(partition.info.topic, []).append(partition)
    lines = []
    for topic, own in sorted(by_topic.items()):
        affected = sum(partition.has_problem for partition in own)
        state = f"{affected} with problems" if affected else "all in sync"
        lines.append(f"{topic}: {count(len(own), 'partition')}, {state}")
    return lines


def _broker_rows(view: ClusterView) -> list[tuple[object, ...]]:
    processes = {int(process.id): process for process in view.processes}
    rows: list[tuple[object, ...]] = []
    state: str | Text
    for broker in view.brokers:
        id, endpoint, rack = broker.node
        process = processes.pop(id, None)
        is_paused = process is not None and process.state == "paused"
        named = "paused" if is_paused else "does not answer" if is_silent(broker) else "up"
        role = ", controller" if id == view.controller_id else ""
        state = named + role if named == "up" else _red(named + role)
        pid = process.process.pid if process is not None and process.process else None
        rows.append((id, endpoint, rack, state, pid))
    for broker_id, process in processes.items():
        named = "down" if process.state == "gone" else process.state
        rows.append((broker_id, process.endpoint, None, _red(named), None))
    rows.sort(key=lambda row: int(str(row[0])))
    zookeeper = view.zookeeper
    if zookeeper is not None:
        named = {"gone": "down", "silent": "does not answer"}.get(zookeeper.state, zookeeper.state)
        state = "up" if zookeeper.state == "running" else _red(named)
        rows.append(("zookeeper", zookeeper.endpoint, None, state, zookeeper.pid))
    return rows


def _red(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="bold red")


def _partition_row(view: PartitionView) -> tuple[object, ...]:
    from rich.text import Text

    replicas = Text()
    for broker_id in view.info.replicas:
        replica = view.replicas.get(broker_id)
        is_sound = False
        if replica is None:
            shown = "?/?"
        elif replica.is_offline:
            shown = "offline"
        elif replica.failure:
            shown = "failed"
        else:
            is_sound = True
            shown = f"{replica.log_end_offset}/{replica.high_watermark}"
            # An open transaction keeps read_committed readers below the high watermark.
            if 0 <= replica.last_stable_offset < replica.high_watermark:
                shown += f"(LSO:{replica.last_stable_offset})"
        # A line is broken between replicas only: none of them has a blank inside.
        replicas.append("  " if replicas else "")
        replicas.append(f"{broker_id}:{shown}", style="" if is_sound else "bold red")
    leader: object = str(view.info.leader) if view.info.leader >= 0 else _red("none")
    isr = Text(",".join(map(str, view.info.isr)), style="bold red" if view.not_in_sync else "")
    return view.name, leader, view.info.leader_epoch, isr, replicas


def view_json(view: ClusterView) -> Row:
    return {
        "cluster_id": view.cluster_id,
        "controller": view.controller_id if view.controller_id >= 0 else None,
        "brokers": [
            {
                "id": broker.node.node_id,
                **pick(broker.node.endpoint, "host port"),
                "rack": broker.node.rack,
                "is_controller": broker.node.node_id == view.controller_id,
                "error": None if broker.error is None else str(broker.error),
                "strays": list(broker.strays),
                "cleaner": pick(broker.cleaner, _CLEANER_FIELDS) if broker.cleaner.threads else None,
            }
            for broker in view.brokers
        ],
        "zookeeper": None if view.zookeeper is None else asdict(view.zookeeper),
        "partitions": [_partition_json(partition) for partition in view.partitions],
        "processes": [
            {
                "id": int(process.id),
                "state": process.state,
                "pid": process.process.pid if process.process else None,
                "metrics": process.metrics_url,
            }
            for process in view.processes
        ],
        "problems": view.problems(),
    }


def _partition_json(view: PartitionView) -> Row:
    replicas, remotes = [], view.remotes()
    for broker_id in view.info.replicas:
        replica = view.replicas.get(broker_id)
        shown: Row = {"broker": broker_id}
        if replica is None:
            shown |= dict.fromkeys(_OFFSETS.split())
        else:
            shown |= pick(replica, f"{_OFFSETS} size_bytes is_offline")
            shown["last_stable_offset"] = known(replica.last_stable_offset)
            shown["failure"] = replica.failure or None
            shown["cleaning_problem"] = replica.cleaning_problem or None
        shown |= remotes.get(broker_id, UNKNOWN_REMOTE)._asdict()
        replicas.append(shown)
    moving: Row | None = None
    if view.moving is not None:
        added = {"adding_in_sync": view.added_in_sync}
        moving = pick(view.moving, "target adding") | added | pick(view.moving, "removing")
    fields = pick(view.info, "topic partition leader leader_epoch isr")
    return fields | {
        "leader": view.info.leader if view.info.leader >= 0 else None,
        "is_under_min_isr": view.is_under_min_isr,
        "replicas": replicas,
        "reassignment": moving,
    }


add_arguments = command(
    _run,
    *cluster_options("print one JSON object"),
    repeated("--topic", "TOPIC", "only this topic", default=None),
    flag(
        "--all",
        "every partition, also of internal topics, and if they are more than the terminal's lines",
    ),
    arg(
        "--watch",
        "SECONDS",
        "refresh until Ctrl-C, every second or at this interval",
        nargs="?",
        type=seconds,
        const=_WATCH_INTERVAL_S,
    ),
    epilog="exit code 1 means: a broker does not answer, a partition is not fully replicated, "
    "or a log cannot be compacted",
)
