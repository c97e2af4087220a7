"""`barnabas down`, `env`, `kill`, `stop`, `pause`, `resume`, `restart`: commands on the local cluster."""

from __future__ import annotations

import argparse
import os
from typing import Final

from barnabas.cli.action import answer, arg, command, flag
from barnabas.cli.arguments import (
    DIR_OPTION,
    check_broker,
    chosen_dir,
    exports,
    open_cluster,
    open_running_cluster,
)
from barnabas.deploy.faults import Aim, inject
from barnabas.deploy.private_files import exclusively
from barnabas.deploy.process import ManagedProcess
from barnabas.deploy.running_cluster import STOP_TIMEOUT_S
from barnabas.deploy.state import SERVERS

_OWNER_STOP_TIMEOUT_S: Final = STOP_TIMEOUT_S + 10


def _process_name(text: str) -> str:
    if text.isdecimal() or text in SERVERS:
        return text
    raise argparse.ArgumentTypeError(f"{text!r}: expected the id of a broker, or {' or '.join(SERVERS)}")


def _env(options: argparse.Namespace) -> None:
    print("\n".join(exports(open_running_cluster(options))))


def _run(options: argparse.Namespace) -> None:
    """Do what the command says with one process, and print what it is then."""
    cluster = open_running_cluster(options)
    name: str = options.process
    if name not in SERVERS:
        check_broker(cluster, int(name))
    done = inject(cluster, options.command, Aim(target=name))
    # Only the record has a process that the owner of the cluster has started.
    server = open_cluster(options).server(name)
    state = server.state
    pid = server.process.pid if server.process is not None and state != "gone" else None
    named: dict[str, object] = {name: True} if name in SERVERS else {"broker": int(name)}
    value = named | {"state": state, "pid": pid}
    answer(options, value, done + (f" (pid {pid})" if pid else ""))


def _down(options: argparse.Namespace) -> None:
    cluster = open_cluster(options)
    was_running = cluster.is_running
    owner, takes_requests = cluster.record.owner, cluster.record.takes_requests
    if options.now:
        cluster.kill_all()
    if takes_requests and owner is not None and owner.state != "gone" and owner.pid != os.getpid():
        # The owner stops everything in order and ends.
        running = ManagedProcess("the program that runs the cluster", owner, leads_group=False)
        running.terminate(_OWNER_STOP_TIMEOUT_S)
    # Not while another program restarts a process: that would outlive the cluster.
    with exclusively(cluster.directory, _OWNER_STOP_TIMEOUT_S):
        cluster = open_cluster(options)
        if cluster.is_running:
            cluster.stop()
    done = "stopped" if was_running else f"the cluster in {cluster.directory} was not running"
    answer(options, {"dir": str(chosen_dir(options)), "was_running": was_running}, done)


_JSON = flag("--json", "print the result as JSON")
_DOWN = command(
    _down, DIR_OPTION, _JSON, flag("--now", "kill at once, without controlled shutdown of the brokers")
)
_ENV = command(_env, DIR_OPTION)
_PROCESS = command(
    _run,
    DIR_OPTION,
    _JSON,
    arg("process", "BROKER", f"the broker's id, or {' or '.join(SERVERS)}", type=_process_name),
)


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    add = {"down": _DOWN, "env": _ENV}.get(name, _PROCESS)
    add(parser, name)
