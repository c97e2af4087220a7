"""The process that forks brokers of a local cluster (`barnabas.deploy.preloaded`); not a command for people.

It imports what a broker imports, then answers requests of its owner, one line of JSON each, until the owner
closes the socket. It has one thread and never a loop or a connection, so that a fork is safe.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

# What only the forks need.
import barnabas.broker.process
import barnabas.deploy.zookeeper  # noqa: F401 - as the one above, for the forks
from barnabas.cli.main import main as run_command
from barnabas.deploy.process import death_pact


def serve(control: socket.socket) -> list[str] | None:
    """Answer requests until the owner is gone; in a fork, return the arguments of its command."""
    exit_codes: dict[int, int] = {}
    with control, control.makefile("rb") as requests:
        for line in requests:
            request = json.loads(line)
            _reap(exit_codes)
            if "poll" in request:
                answer: Any = exit_codes.get(request["poll"])
            else:
                answer = _fork(request)
                if answer == 0:
                    break
                exit_codes.pop(answer, None)
            control.sendall(json.dumps(answer).encode() + b"\n")
        else:
            return None
    _become(request)
    return list(request["arguments"])


def _reap(exit_codes: dict[Any, int]) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            exit_codes[pid] = os.waitstatus_to_exitcode(status)


def _fork(request: Mapping[str, Any]) -> Any:
    """0 in the fork; else its pid, or why there is none."""
    agree = death_pact()
    try:
        output = os.open(request["log_file"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        # A signal to its process group reaches the fork only once it leads one, so the answer waits for that.
        is_ready, ready = os.pipe()
        pid = os.fork()
    except OSError as error:
        return str(error)
    if pid == 0:
        agree()
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
    os.close(ready)
    if pid:
        os.read(is_ready, 1)
    os.close(is_ready)
    os.close(output)
    return pid


def _become(request: Mapping[str, Any]) -> None:
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()


def main(arguments: Sequence[str]) -> int:
    gc.collect()
    gc.freeze()
    command = serve(socket.socket(fileno=int(arguments[0])))
    return 0 if command is None else run_command(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
