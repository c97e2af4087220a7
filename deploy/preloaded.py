"""Starts brokers by forking a process that has imported them, so that none imports its modules again.

The imports are two thirds of the CPU time of a broker's start, 0.3 s, at each start and restart. The first
start makes the process (`barnabas.cli.fork_brokers`); it lives as long as ours. A broker that it forks has
its own session, output and environment, like one started directly, and dies with it as it dies with us: no
broker survives us. May be called from any thread; a call waits for the imports, at most `_TIMEOUT_S`.

Linux only: libraries of macOS may abort a fork that goes on without a new program.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from barnabas.deploy.process import start_child, uninterrupted

_FORKS: Final = sys.platform == "linux"
_TIMEOUT_S: Final = 60.0
_READ_AT_START: Final = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
"""Variables that an interpreter and its libraries read only when they start."""


class ForkedBroker:
    """A forked broker, with the part of `subprocess.Popen` that a `ManagedProcess` needs."""

    def __init__(self, pid: int, ask: Callable[[Mapping[str, object]], Any]) -> None:
        self.pid = pid
        self._ask = ask
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Its exit code once it has ended (negative: the signal), else None; reaps it."""
        if self._exit_code is None:
            try:
                self._exit_code = self._ask({"poll": self.pid})
            except OSError:
                # The process that forked it has ended, and it with that.
                self._exit_code = -signal.SIGKILL
        return self._exit_code


class BrokerForks:
    """The process that forks brokers, as its owner sees it."""

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        ours, its = socket.socketpair()
        ours.settimeout(_TIMEOUT_S)
        command = [sys.executable, "-m", "barnabas.cli.fork_brokers", str(its.fileno())]
        with its:
            self._process = start_child(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[its.fileno()]
            )
        self._socket = ours
        self._answers = ours.makefile("rb")
        self._lock = threading.Lock()
        self._environment = _read_at_start(os.environ)

    @property
    def is_usable(self) -> bool:
        return self.owner_pid == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """End the process, and with it its forks; in a fork of ours, only let go of it."""
        self._answers.close()
        self._socket.close()
        if self.owner_pid == os.getpid():
            self._process.kill()
            self._process.wait()

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork can have this environment; some variables are read only at a start."""
        return _read_at_start(environment) == self._environment

    def start(
        self, arguments: Sequence[str], *, log_file: Path, environment: Mapping[str, str]
    ) -> ForkedBroker:
        """Run the command ``barnabas`` with these arguments; raises OSError if it cannot be forked."""
        started = self._ask(
            {
                "arguments": list(arguments),
                "log_file": str(log_file.absolute()),
                "environment": dict(environment),
                "directory": os.getcwd(),
            },
            undo=_kill_fork,
        )
        if isinstance(started, str):
            raise OSError(started)
        return ForkedBroker(started, self._ask)

    def _ask(self, request: Mapping[str, object], undo: Callable[[Any], object] = id) -> Any:
        def exchange() -> Any:
            with self._lock:
                self._socket.sendall(json.dumps(request).encode() + b"\n")
                answer = self._answers.readline()
            if not answer:
                raise ConnectionResetError("the process that forks brokers has ended")
            return json.loads(answer)

        # An answer that an interrupted caller does not read would be read as the next one.
        return uninterrupted(exchange, undo)


def _kill_fork(started: int | str) -> None:
    if isinstance(started, int):
        os.killpg(started, signal.SIGKILL)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


_lock = threading.Lock()
_forks: list[BrokerForks] = []


def _usable_forks() -> BrokerForks:
    with _lock:
        # After a fork of ours, the process belongs to our parent.
        if _forks and not _forks[0].is_usable:
            _forks.pop().close()
        if not _forks:
            _forks.append(BrokerForks())
            atexit.register(_forks[0].close)
        return _forks[0]


def preload() -> None:
    """Begin the imports, if no process has begun them; does not wait for them."""
    if _FORKS:
        _usable_forks()


def fork_broker(
    arguments: Sequence[str], *, log_file: Path, environment: Mapping[str, str]
) -> ForkedBroker | None:
    """A fork that runs the command ``barnabas`` with these arguments; None if it must be started directly."""
    if not _FORKS:
        return None
    forks = _usable_forks()
    if not forks.suits(environment):
        return None
    try:
        return forks.start(arguments, log_file=log_file, environment=environment)
    except OSError:
        # A direct start shows why, such as a package that is missing.
        return None
