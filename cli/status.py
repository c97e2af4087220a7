"""`barnabas status`: brokers, controller, and every partition with leader, ISR and each replica's LEO and HW.

Exit code 0 without problems, 1 if a broker does not answer or a partition lacks its leader or a replica in
the ISR, 3 if no broker can be reached.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from barnabas.cli.bootstrap import add_bootstrap_arguments, chosen_bootstrap, run_async
from barnabas.cli.cluster_dir import chosen_dir
from barnabas.cli.cluster_view import ClusterView, PartitionView, fetch_view
from barnabas.cli.exit_codes import FAILED, OK
from barnabas.cli.output import print_json, print_table
from barnabas.deploy.local_broker import LocalBroker
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.state import STATE_FILE
from barnabas.protocol.ids import parse_endpoints


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    add_bootstrap_arguments(parser)
    parser.add_argument("--topic", action="append", metavar="TOPIC", help="only this topic (may be repeated)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = "exit code 1 means: a broker does not answer, or a partition is not fully replicated"


def run(options: argparse.Namespace) -> int:
    bootstrap = parse_endpoints(chosen_bootstrap(options))
    view = run_async(fetch_view(bootstrap, options.topic))
    local = [] if options.bootstrap else _local_brokers(chosen_dir(options))
    problems = find_problems(view, local)
    if options.json:
        processes = [
            {
                "id": int(broker.id),
                "state": broker.state,
                "pid": broker.process.pid if broker.process else None,
                "metrics": broker.metrics_url,
            }
            for broker in local
        ]
        print_json(view.as_json() | {"processes": processes, "problems": problems})
    else:
        _print(view, local, problems)
    return FAILED if problems else OK


def _local_brokers(directory: Path) -> list[LocalBroker]:
    return RunningCluster.open(directory).brokers if (directory / STATE_FILE).exists() else []


def find_problems(view: ClusterView, local: list[LocalBroker]) -> list[str]:
    """The problems of a cluster, one sentence each."""
    problems = []
    known = {broker.id for broker in view.brokers}
    for process in local:
        if process.state != "running":
            problems.append(f"broker {process.id} is {'down' if process.state == 'gone' else process.state}")
        elif process.id not in known:
            problems.append(f"broker {process.id} runs but has not joined the cluster")
    problems += [
        f"broker {broker.id} does not answer: {broker.error}" for broker in view.brokers if broker.error
    ]
    if view.controller_id < 0:
        problems.append("there is no controller")
    for partition in view.partitions:
        name = f"{partition.topic}-{partition.partition}"
        if partition.leader < 0:
            problems.append(f"{name} has no leader")
        problems += [
            f"{name} on broker {broker_id}: {found.failure}"
            for broker_id, found in sorted(partition.offsets.items())
            if found.failure
        ]
        missing = sorted(set(partition.replicas) - set(partition.isr))
        if missing:
            problems.append(f"{name}: not in sync: {', '.join(map(str, missing))}")
    return problems


def _print(view: ClusterView, local: list[LocalBroker], problems: list[str]) -> None:
    states: dict[int, Any] = {int(broker.id): broker for broker in local}
    metrics = {broker.id: broker.metrics_url for broker in local if broker.metrics_url is not None}
    rows = []
    for broker in view.brokers:
        process = states.pop(broker.id, None)
        state = "does not answer" if broker.error else "up"
        if process is not None and process.state == "paused":
            state = "paused"
        pid = process.process.pid if process is not None and process.process else None
        rows.append((broker.id, broker.endpoint, state, pid, "controller" if broker.is_controller else ""))
    for broker_id, process in sorted(states.items()):
        rows.append(
            (broker_id, process.endpoint, "down" if process.state == "gone" else process.state, None, "")
        )
    print(f"cluster {view.cluster_id or '(without id)'}")
    print_table(("broker", "endpoint", "state", "pid", ""), rows)
    for broker_id, url in sorted(metrics.items()):
        print(f"metrics of broker {broker_id}: {url}")
    if view.partitions:
        columns = ("partition", "leader", "epoch", "isr", "replicas (broker: LEO / HW)")
        print_table(columns, [_partition_row(partition) for partition in view.partitions])
    else:
        print("no topics")
    for broker in view.brokers:
        for folder in broker.strays:
            print(f"broker {broker.id} keeps a log that belongs to no known topic: {folder}")
    for problem in problems:
        print(f"! {problem}")


def _partition_row(view: PartitionView) -> tuple[object, ...]:
    replicas = []
    for broker_id in view.replicas:
        found = view.offsets.get(broker_id)
        said = "? / ?" if found is None else f"{found.log_end_offset} / {found.high_watermark}"
        if found is not None and found.is_offline:
            said = "failed" if found.failure else "offline"
        replicas.append(f"{broker_id}: {said}")
    leader = str(view.leader) if view.leader >= 0 else "none"
    return (
        f"{view.topic}-{view.partition}",
        leader,
        view.leader_epoch,
        ",".join(map(str, view.isr)),
        "   ".join(replicas),
    )
