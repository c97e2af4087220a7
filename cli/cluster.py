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
from barnabas.cli.exit_codes import CommandError
from barnabas.deploy.process import ManagedProcess
from barnabas.deploy.running_cluster import STOP_TIMEOUT_S, RunningCluster
from barnabas.deploy.state import ZOOKEEPER, ask_restart

_OWNER_STOP_TIMEOUT_S: Final = STOP_TIMEOUT_S + 10
_RESTART_TIMEOUT_S: Final = 60.0


def _process_name(text: str) -> str:
    if text.isdecimal() or text == ZOOKEEPER:
        return text
    raise argparse.ArgumentTypeError(f"{text!r}: expected the id of a broker, or {ZOOKEEPER}")


def _env(options: argparse.Namespace) -> None:
    print("\n".join(exports(open_running_cluster(options))))


def _run(options: argparse.Namespace) -> None:
    """Do what the command says with one process, and print what it is then."""
    cluster = open_running_cluster(options)
    name: str = options.process
    if name != ZOOKEEPER:
        check_broker(cluster, int(name))
    server = cluster.server(name)
    match options.command:
        case "kill":
            server.kill()
            done = "killed"
        case "stop":
            in_time = server.running_process.terminate(STOP_TIMEOUT_S)
            done = "stopped" if in_time else f"killed: it had not stopped within {STOP_TIMEOUT_S:g} s"
        case "pause":
            server.pause()
            done = "paused"
        case "resume":
            server.resume()
            done = "running again"
        case _:
            _restart(cluster, name)
            server = open_running_cluster(options).server(name)
            done = "started again"
    state = server.state
    pid = server.process.pid if server.process is not None and state != "gone" else None
    named: dict[str, object] = {"zookeeper": True} if name == ZOOKEEPER else {"broker": int(name)}
    value = named | {"state": state, "pid": pid}
    answer(options, value, f"{server.name}: {done}" + (f" (pid {pid})" if pid else ""))


def _restart(cluster: RunningCluster, name: str) -> None:
    owner = cluster.record.owner
    if owner is None or owner.state == "gone":
        cluster.restart_server(name)
    elif cluster.record.takes_requests:
        ask_restart(cluster.directory, name, _RESTART_TIMEOUT_S)
    else:
        raise CommandError(
            f"the cluster belongs to the program with pid {owner.pid}, and only that one can restart "
            "its processes"
        )


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
    arg("process", "BROKER", f"the broker's id, or {ZOOKEEPER}", type=_process_name),
)


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    add = {"down": _DOWN, "env": _ENV}.get(name, _PROCESS)
    add(parser, name)
