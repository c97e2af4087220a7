"""`barnabas down`, `env`, `kill`, `pause`, `resume`, `restart`: commands on the local cluster."""

from __future__ import annotations

import argparse
import json
import os
from typing import Final

from barnabas.cli.arguments import (
    add_dir_argument,
    check_broker,
    chosen_dir,
    exports,
    open_cluster,
    open_running_cluster,
)
from barnabas.cli.exit_codes import OK, CommandError
from barnabas.deploy.process import ManagedProcess
from barnabas.deploy.running_cluster import STOP_TIMEOUT_S, RunningCluster
from barnabas.deploy.state import ask_restart

_OWNER_STOP_TIMEOUT_S: Final = STOP_TIMEOUT_S + 10
_RESTART_TIMEOUT_S: Final = 60.0


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    add_dir_argument(parser)
    if name == "env":
        return
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    if name == "down":
        parser.add_argument(
            "--now", action="store_true", help="kill at once, without controlled shutdown of the brokers"
        )
    else:
        parser.add_argument("broker", type=int, metavar="BROKER", help="the broker's id")


def run(options: argparse.Namespace) -> int:
    if options.command == "down":
        return _down(options)
    cluster = open_running_cluster(options)
    if options.command == "env":
        print("\n".join(exports(cluster)))
        return OK
    broker_id: int = options.broker
    check_broker(cluster, broker_id)
    match options.command:
        case "kill":
            cluster.kill(broker_id)
            done = "killed"
        case "pause":
            cluster.pause(broker_id)
            done = "paused"
        case "resume":
            cluster.resume(broker_id)
            done = "running again"
        case _:
            _restart(cluster, broker_id)
            cluster = open_running_cluster(options)
            done = "started again"
    process = cluster.broker(broker_id).process
    pid = process.pid if process is not None and process.is_alive else None
    if options.json:
        print(json.dumps({"broker": broker_id, "state": cluster.broker(broker_id).state, "pid": pid}))
    else:
        print(f"broker {broker_id}: {done}" + (f" (pid {pid})" if pid else ""))
    return OK


def _restart(cluster: RunningCluster, broker_id: int) -> None:
    owner = cluster.owner
    if owner is None or owner.state == "gone":
        cluster.restart(broker_id)
    elif cluster.takes_requests:
        ask_restart(cluster.directory, broker_id, _RESTART_TIMEOUT_S)
    else:
        raise CommandError(
            f"the cluster belongs to the program with pid {owner.pid}, and only that one can restart brokers"
        )


def _down(options: argparse.Namespace) -> int:
    cluster = open_cluster(options)
    was_running = cluster.is_running
    owner = cluster.owner
    if options.now:
        cluster.kill_all()
    if owner is not None and owner.state != "gone" and owner.pid != os.getpid() and cluster.takes_requests:
        # The owner stops everything in order and ends.
        running = ManagedProcess("the program that runs the cluster", owner, leads_group=False)
        running.terminate(_OWNER_STOP_TIMEOUT_S)
        cluster = open_cluster(options)
    if cluster.is_running:
        cluster.stop()
    if options.json:
        print(json.dumps({"dir": str(chosen_dir(options)), "was_running": was_running}))
    else:
        print("stopped" if was_running else f"the cluster in {cluster.directory} was not running")
    return OK
