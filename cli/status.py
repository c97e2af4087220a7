"""`barnabas status`: brokers, controller, and every partition with leader, ISR and each replica's offsets.

Those are LEO and HW, and the LSO where open transactions keep it below the HW. Partitions that are being
reassigned are listed with their progress. Exit code 0 without problems,
1 if a broker does not answer, a partition lacks its leader or a replica in the ISR, or a log cannot be
compacted, 3 if no broker can be reached. Each broker has two seconds to answer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.arguments import (
    add_cluster_arguments,
    chosen_bootstrap,
    chosen_dir,
    named_bootstrap,
    run_async,
)
from barnabas.cli.exit_codes import FAILED, OK, USAGE, CommandError
from barnabas.cli.output import make_console, make_table, print_json
from barnabas.client.admin.admin import Admin
from barnabas.client.admin.placement import PartitionReassignment
from barnabas.client.metadata import PartitionInfo
from barnabas.deploy.local_broker import LocalBroker
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.state import STATE_FILE
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import Endpoint, TopicPartition
from barnabas.protocol.messages.replicas import CleanerDescription, ReplicaDescription
from barnabas.protocol.schema import wire_fields

if TYPE_CHECKING:
    from rich.console import RenderableType

_TIMEOUT_MS: Final = 2_000
_CONNECT_TIMEOUT_MS: Final = 1_000
_WATCH_INTERVAL_S: Final = 1.0


@dataclass(kw_only=True)
class BrokerView:
    """A broker in the metadata; `error` is the reason if it did not answer."""

    id: int
    endpoint: Endpoint
    rack: str | None = None
    is_controller: bool
    error: str | None = None
    strays: list[str] = field(default_factory=list)
    """Folders of logs that belong to no known topic and are kept."""
    cleaner: CleanerDescription = field(default_factory=CleanerDescription)


@dataclass(kw_only=True)
class PartitionView:
    """A partition by metadata, and its replicas as their brokers report them (absent: no answer)."""

    info: PartitionInfo
    replicas: dict[int, ReplicaDescription] = field(default_factory=dict)
    moving: PartitionReassignment | None = None

    @property
    def name(self) -> str:
        return f"{self.info.topic}-{self.info.partition}"

    @property
    def added_in_sync(self) -> list[int]:
        """The replicas that a reassignment adds and that are in sync; once all are, it ends."""
        return [] if self.moving is None else sorted(set(self.moving.adding) & set(self.info.isr))

    @property
    def not_in_sync(self) -> list[int]:
        """The replicas that should be in sync: not those that a reassignment adds."""
        added = set() if self.moving is None else set(self.moving.adding)
        return sorted(set(self.info.replicas) - set(self.info.isr) - added)

    def progress(self) -> str:
        """The phase of the reassignment."""
        if self.moving is None:
            return ""
        listed = [f"to {_listed(self.moving.target)}"]
        if self.moving.adding:
            in_sync = f"{len(self.added_in_sync)} of {len(self.moving.adding)} in sync"
            listed.append(f"adding {_listed(self.moving.adding)} ({in_sync})")
        if self.moving.removing:
            listed.append(f"removing {_listed(self.moving.removing)}")
        return f"{self.name} is being reassigned {', '.join(listed)}"


@dataclass(kw_only=True)
class ClusterView:
    """The state of a cluster, joined from the answers of its brokers.

    ``processes`` are the cluster's brokers on this machine, if it was started here. ``moves_error`` is set
    if the controller did not say which partitions are being reassigned.
    """

    cluster_id: str | None
    controller_id: int
    brokers: list[BrokerView]
    partitions: list[PartitionView]
    processes: list[LocalBroker] = field(default_factory=list)
    moves_error: str | None = None

    def problems(self) -> list[str]:
        """The problems of the cluster, one sentence each."""
        problems = []
        members = {broker.id for broker in self.brokers}
        for process in self.processes:
            if process.state != "running":
                problems.append(f"broker {process.id} is {_process_state(process)}")
            elif process.id not in members:
                problems.append(f"broker {process.id} runs but has not joined the cluster")
        problems += [
            f"broker {broker.id} does not answer: {broker.error}" for broker in self.brokers if broker.error
        ]
        if self.controller_id < 0:
            problems.append("there is no controller")
        elif self.moves_error is not None:
            problems.append(f"the controller does not list the reassignments: {self.moves_error}")
        for partition in self.partitions:
            if partition.info.leader < 0:
                problems.append(f"{partition.name} has no leader")
            problems += [
                f"{partition.name} on broker {broker_id}: {replica.failure}"
                for broker_id, replica in sorted(partition.replicas.items())
                if replica.failure
            ]
            problems += [
                f"{partition.name} on broker {broker_id} cannot be compacted: {replica.cleaning_problem}"
                for broker_id, replica in sorted(partition.replicas.items())
                if replica.cleaning_problem
            ]
            if partition.not_in_sync:
                problems.append(f"{partition.name}: not in sync: {_listed(partition.not_in_sync)}")
        return problems

    def as_json(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "controller": self.controller_id if self.controller_id >= 0 else None,
            "brokers": [
                {
                    "id": broker.id,
                    "host": broker.endpoint.host,
                    "port": broker.endpoint.port,
                    "rack": broker.rack,
                    "is_controller": broker.is_controller,
                    "error": broker.error,
                    "strays": broker.strays,
                    "cleaner": _cleaner_json(broker.cleaner),
                }
                for broker in self.brokers
            ],
            "partitions": [_partition_json(partition) for partition in self.partitions],
            "processes": [
                {
                    "id": int(process.id),
                    "state": process.state,
                    "pid": process.process.pid if process.process else None,
                    "metrics": process.metrics_url,
                }
                for process in self.processes
            ],
            "problems": self.problems(),
        }


def _cleaner_json(cleaner: CleanerDescription) -> dict[str, Any] | None:
    if not cleaner.threads:
        return None
    return {name: getattr(cleaner, name) for name, _, _ in wire_fields(CleanerDescription)}


def _partition_json(view: PartitionView) -> dict[str, Any]:
    replicas = []
    for broker_id in view.info.replicas:
        replica = view.replicas.get(broker_id)
        shown: dict[str, Any] = {"broker": broker_id}
        for name in ("log_start_offset", "high_watermark", "log_end_offset"):
            shown[name] = None if replica is None else getattr(replica, name)
        if replica is not None:
            shown["last_stable_offset"] = (
                replica.last_stable_offset if replica.last_stable_offset >= 0 else None
            )
            shown["size_bytes"] = replica.size_bytes
            shown["is_offline"] = replica.is_offline
            shown["failure"] = replica.failure or None
            shown["cleaning_problem"] = replica.cleaning_problem or None
        replicas.append(shown)
    return {
        "topic": view.info.topic,
        "partition": view.info.partition,
        "leader": view.info.leader if view.info.leader >= 0 else None,
        "leader_epoch": view.info.leader_epoch,
        "isr": list(view.info.isr),
        "replicas": replicas,
        "reassignment": None
        if view.moving is None
        else {
            "target": list(view.moving.target),
            "adding": list(view.moving.adding),
            "adding_in_sync": view.added_in_sync,
            "removing": list(view.moving.removing),
        },
    }


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    add_cluster_arguments(parser, json_help="print one JSON object")
    parser.add_argument("--topic", action="append", metavar="TOPIC", help="only this topic (may be repeated)")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=_WATCH_INTERVAL_S,
        metavar="SECONDS",
        help="refresh until Ctrl-C, every second or at this interval",
    )
    parser.epilog = (
        "exit code 1 means: a broker does not answer, a partition is not fully replicated, "
        "or a log cannot be compacted"
    )


def run(options: argparse.Namespace) -> int:
    if options.watch is not None:
        _watch(options)
    view = _look(options)
    if options.json:
        print_json(view.as_json())
    else:
        make_console().print(render(view))
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
                    print_json(view.as_json())
                    sys.stdout.flush()
                elif console.is_terminal:
                    live.update(render(view), refresh=True)
                else:
                    console.print(render(view))
            time.sleep(options.watch)


def _look(options: argparse.Namespace) -> ClusterView:
    bootstrap = chosen_bootstrap(options)
    view = run_async(fetch_view(bootstrap, options.topic))
    directory = chosen_dir(options)
    if (directory / STATE_FILE).exists():
        processes = RunningCluster.open(directory).brokers
        addresses = {str(process.endpoint) for process in processes}
        # The environment may name another cluster than the directory.
        if named_bootstrap(options) is None or addresses.intersection(bootstrap.split(",")):
            view.processes = processes
    return view


async def fetch_view(bootstrap: str, topics: Sequence[str] | None = None) -> ClusterView:
    """The view of all topics, or of some. Raises NoBrokerReachable, and ApiError for an unknown topic."""
    async with Admin(
        bootstrap_servers=bootstrap,
        request_timeout_ms=_TIMEOUT_MS,
        socket_connection_setup_timeout_ms=_CONNECT_TIMEOUT_MS,
    ) as admin:
        cluster = await admin.describe_cluster()
        described = await admin.describe_topics(topics)
        answers, (moves, moves_error) = await asyncio.gather(
            admin.describe_replicas(topics), _moves(admin, cluster.controller_id)
        )
    partitions = [
        PartitionView(info=info, moving=moves.get(TopicPartition(info.topic, info.partition)))
        for _, topic in sorted(described.items())
        for info in sorted(topic.partitions, key=lambda info: info.partition)
    ]
    brokers = []
    for answer in answers:
        brokers.append(
            BrokerView(
                id=answer.node.node_id,
                endpoint=answer.node.endpoint,
                rack=answer.node.rack,
                is_controller=answer.node.node_id == cluster.controller_id,
                error=None if answer.error is None else str(answer.error),
                strays=list(answer.strays),
                cleaner=answer.cleaner,
            )
        )
        for partition in partitions:
            replica = answer.replicas.get(TopicPartition(partition.info.topic, partition.info.partition))
            if replica is not None:
                partition.replicas[answer.node.node_id] = replica
    return ClusterView(
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=brokers,
        partitions=partitions,
        moves_error=moves_error,
    )


async def _moves(
    admin: Admin, controller_id: int
) -> tuple[dict[TopicPartition, PartitionReassignment], str | None]:
    """The reassignments under way, or why they are unknown."""
    if controller_id < 0:
        return {}, None
    try:
        return await admin.list_partition_reassignments(timeout_ms=_TIMEOUT_MS), None
    except BarnabasError as error:
        return {}, str(error)


def render(view: ClusterView) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(f"cluster {view.cluster_id or '(without id)'}"),
        make_table(("broker", "endpoint", "rack", "state", "pid", ""), _broker_rows(view)),
    ]
    parts += [
        Text(f"metrics of broker {process.id}: {process.metrics_url}")
        for process in view.processes
        if process.metrics_url is not None
    ]
    if view.partitions:
        columns = ("partition", "leader", "epoch", "isr", "replicas (broker: LEO / HW)")
        parts.append(make_table(columns, [_partition_row(partition) for partition in view.partitions]))
    else:
        parts.append(Text("no topics"))
    parts += [Text(partition.progress()) for partition in view.partitions if partition.moving is not None]
    parts += [
        Text(f"broker {broker.id} keeps a log that belongs to no known topic: {folder}")
        for broker in view.brokers
        for folder in broker.strays
    ]
    parts += [Text(f"! {problem}", style="bold red") for problem in view.problems()]
    return Group(*parts)


def _is_held_back(replica: ReplicaDescription) -> bool:
    """True if an open transaction keeps read_committed readers below the high watermark."""
    return 0 <= replica.last_stable_offset < replica.high_watermark


def _process_state(process: LocalBroker) -> str:
    return "down" if process.state == "gone" else process.state


def _broker_rows(view: ClusterView) -> list[tuple[object, ...]]:
    processes = {int(process.id): process for process in view.processes}
    rows: list[tuple[object, ...]] = []
    for broker in view.brokers:
        process = processes.pop(broker.id, None)
        state = "does not answer" if broker.error else "up"
        if process is not None and process.state == "paused":
            state = "paused"
        pid = process.process.pid if process is not None and process.process else None
        role = "controller" if broker.is_controller else ""
        rows.append((broker.id, broker.endpoint, broker.rack, state, pid, role))
    for broker_id, process in sorted(processes.items()):
        rows.append((broker_id, process.endpoint, None, _process_state(process), None, ""))
    return rows


def _partition_row(view: PartitionView) -> tuple[object, ...]:
    replicas = []
    for broker_id in view.info.replicas:
        replica = view.replicas.get(broker_id)
        if replica is None:
            shown = "? / ?"
        elif replica.is_offline:
            shown = "failed" if replica.failure else "offline"
        else:
            shown = f"{replica.log_end_offset} / {replica.high_watermark}"
            if _is_held_back(replica):
                shown += f" (LSO {replica.last_stable_offset})"
        replicas.append(f"{broker_id}: {shown}")
    leader = str(view.info.leader) if view.info.leader >= 0 else "none"
    isr = ",".join(map(str, view.info.isr))
    return view.name, leader, view.info.leader_epoch, isr, "   ".join(replicas)
