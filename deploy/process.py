"""One child process of a local cluster: started, signalled, waited for, and never left running by accident.

Guarantees. A process is identified by its pid *and* its start time, so that no signal reaches another process
that was given the same pid later. A process started with ``die_with_parent`` ends when this process ends,
however it ends, SIGKILL included: the kernel ends it on Linux (``PR_SET_PDEATHSIG``), a small shell on macOS.
Every process leads a process group of its own: Ctrl-C in a terminal reaches only the program that owns the
cluster, and a signal of ours reaches the children of the process too. Linux and macOS.

Callable from any thread; all waits are bounded and blocking (use ``asyncio.to_thread`` from a loop).
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from barnabas.protocol.errors import LocalError

T = TypeVar("T")

POLL_INTERVAL_S = 0.01
_HAS_DEATH_SIGNAL = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PS_TIMEOUT_S = 10.0
_PS_FRESH_S = 0.1
"""A page or a status asks several times about each process."""
_MOST_ANSWERS = 64
_ENDING_S = 0.5
_PS = ("ps", "-o", "stat=", "-o", "time=", "-o", "lstart=", "-p")
_PS_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}
"""The same text for the same time, in every shell."""
_WATCH = """\
start() { echo $(LC_ALL=C TZ=UTC ps -o lstart= -p "$1"); }
while read -r pid; do
    watched="$watched$pid $(start "$pid")
"
done
printf %s "$watched" | while read -r pid started; do
    [ "$started" = "$(start "$pid")" ] && kill -9 "-$pid"
done
"""
"""Reads pids until our end closes the pipe, then kills their groups.

It compares the starts, because a pid may belong to another process by then.
"""


class DeployError(LocalError):
    """A process of the cluster could not be started, found or stopped; the text names it and a remedy."""


def wait_until(condition: Callable[[], bool], timeout_s: float, interval_s: float = POLL_INTERVAL_S) -> bool:
    """Wait for a condition, at most `timeout_s`; returns whether it came true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval_s)
    return True


def tail(path: Path, lines: int = 12, max_bytes: int = 8192, *, start: int = 0) -> str:
    """The last lines of a log file from a position on, to quote in an error; empty without such a file."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - max_bytes))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


class ProcessId(NamedTuple):
    """A process by its pid and its start: boot id and ticks since boot, or the time that ``ps`` says.

    A change of the clock moves neither.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Identify a running process; None if it does not exist or is a zombie."""
        state = _look(pid)
        return None if state is None else cls(pid, state.started)

    @property
    def state(self) -> str:
        """``running``, ``paused`` (stopped by a signal) or ``gone``."""
        state = _look(self.pid)
        if state is None or state.started != self.started:
            return "gone"
        return "paused" if state.is_paused else "running"


class _State(NamedTuple):
    started: str
    is_paused: bool
    cpu_s: float


def _look(pid: int) -> _State | None:
    """None if the process does not exist or is a zombie."""
    return _look_in_proc(pid) if _boot_id() else _ask_ps(pid)


def cpu_s(pid: int) -> float | None:
    """The CPU seconds, of all threads and in the kernel too, that a process has used; None if it is gone."""
    state = _look(pid)
    return None if state is None else state.cpu_s


def _look_in_proc(pid: int) -> _State | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, a name, may contain anything, but ends at the last parenthesis.
    fields = stat.rpartition(")")[2].split()
    status, threads, start_ticks = fields[0], int(fields[17]), fields[19]
    # A killed process whose other threads have not ended yet is a zombie too, but still holds its ports.
    if status in "ZX" and threads <= 1:
        return None
    spent_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return _State(f"{_boot_id()}:{start_ticks}", status in "Tt", spent_s)


@cache
def _boot_id() -> str:
    """Empty on a system without ``/proc``."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return ""


_answers: dict[int, tuple[float, _State | None]] = {}
"""By pid: when ``ps`` was asked last, and what it said. A signal of ours makes it be asked again."""


def _ask_ps(pid: int) -> _State | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        # It is another user's.
        pass
    now = time.monotonic()
    asked_at, state = _answers.get(pid, (0.0, None))
    if now >= asked_at + _PS_FRESH_S or state is None:
        state = _run_ps(pid)
        if len(_answers) >= _MOST_ANSWERS:
            _answers.clear()
        _answers[pid] = now, state
    return state


def _run_ps(pid: int) -> _State | None:
    try:
        environment = {**os.environ, **_PS_ENVIRONMENT}
        said = subprocess.run(
            [*_PS, str(pid)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=_PS_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeployError(f"`ps` does not say whether process {pid} runs: {error}") from error
    status, spent, started = (*said.split(maxsplit=2), "", "", "")[:3]
    if not status or "Z" in status:
        return None
    return _State(" ".join(started.split()), "T" in status, _seconds(spent))


def _seconds(text: str) -> float:
    """The seconds in ``[days-]hours:minutes:seconds`` (Linux) or ``minutes:seconds.hundredths`` (macOS)."""
    days, _, rest = text.rpartition("-")
    total_s = 0.0
    for part in rest.split(":"):
        total_s = 60 * total_s + float(part)
    return total_s + 86_400 * int(days or 0)


class Child(Protocol):
    """A process that can be waited for: what is used here of a `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...


class ManagedProcess:
    """A process that this program started, or another one by its recorded `ProcessId`."""

    def __init__(
        self,
        name: str,
        identity: ProcessId,
        child: Child | None = None,
        *,
        leads_group: bool = True,
    ) -> None:
        """`leads_group`: whether signals go to its process group, as for all that `spawn` starts."""
        self.name = name
        self.identity = identity
        self._child = child
        self._leads_group = leads_group

    @classmethod
    def spawn(
        cls,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        env: Mapping[str, str] | None = None,
        die_with_parent: bool = True,
    ) -> ManagedProcess:
        """Start a process with its output appended to `log_file` and without input.

        Raises DeployError if the program cannot be run.
        """
        if sys.platform not in ("linux", "darwin"):
            raise DeployError(
                "local clusters need Linux or macOS; elsewhere use the compose file, or WSL on Windows"
            )
        try:
            with log_file.open("ab") as output:
                child = start_child(
                    command, dies_with_us=die_with_parent, stdout=output, stderr=subprocess.STDOUT, env=env
                )
        except OSError as error:
            raise DeployError(f"{name}: cannot run {command[0]}: {error.strerror or error}") from error
        return cls.of_child(name, child)

    @classmethod
    def of_child(cls, name: str, child: Child) -> ManagedProcess:
        # Until we wait for it, a child's pid cannot be given away, so the identity read here is the child's.
        # None means that it has ended already; then no process can match.
        identity = ProcessId.of(child.pid) or ProcessId(child.pid, "ended at once")
        return cls(name, identity, child)

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def state(self) -> str:
        """``running``, ``paused`` or ``gone``; reaps a child that has ended."""
        if self._child is not None and self._child.poll() is not None:
            return "gone"
        state = self.identity.state
        # A child exists until it is reaped; for a moment the system may already call it gone.
        return "running" if state == "gone" and self._child is not None else state

    @property
    def is_alive(self) -> bool:
        # The state of a child needs a look at the system, and on macOS a process that looks.
        return self.state != "gone" if self._child is None else self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of a child that has ended (negative: the signal); None while running or not ours."""
        return None if self._child is None else self._child.poll()

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to the process, and to its group if it leads one; False if it is gone.

        Raises DeployError if it belongs to another user.
        """
        if not self.is_alive:
            return False
        try:
            if self._leads_group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            # macOS refuses it too if the whole group has ended and is not waited for yet.
            if self.wait(_ENDING_S):
                return False
            raise DeployError(
                f"{self.name} (pid {self.pid}) belongs to another user, who alone may signal it"
            ) from None
        finally:
            _answers.pop(self.pid, None)
        return True

    def kill(self, timeout_s: float = 10.0) -> None:
        """SIGKILL, and wait until it is gone; raises DeployError if it does not end (stuck in the kernel)."""
        self.send(signal.SIGKILL)
        if not self.wait(timeout_s):
            raise DeployError(f"{self.name} (pid {self.pid}) still runs {timeout_s:g} s after SIGKILL")

    def terminate(self, timeout_s: float) -> bool:
        """SIGTERM (to a paused process too), then SIGKILL after `timeout_s`; False if that was needed."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        if self.wait(timeout_s):
            return True
        self.kill()
        return False

    def pause(self, timeout_s: float = 5.0) -> None:
        """SIGSTOP, and wait until it is stopped; raises DeployError if there is no such process."""
        if not self.send(signal.SIGSTOP) or not wait_until(lambda: self.state != "running", timeout_s):
            raise DeployError(f"{self.name} (pid {self.pid}) could not be paused: it is {self.state}")

    def resume(self) -> None:
        """SIGCONT; raises DeployError if there is no such process."""
        if not self.send(signal.SIGCONT):
            raise DeployError(f"{self.name} (pid {self.pid}) could not be resumed: it is gone")

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process is gone; False if it still runs after `timeout_s`."""
        return wait_until(lambda: not self.is_alive, timeout_s)


def start_child(
    command: Sequence[str], *, dies_with_us: bool = True, **popen: Any
) -> subprocess.Popen[bytes]:
    """A child in a session of its own, without input, that ends when we end. Raises OSError."""

    def start() -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=death_pact() if dies_with_us and _HAS_DEATH_SIGNAL else None,
            **popen,
        )
        if dies_with_us and not _HAS_DEATH_SIGNAL:
            try:
                _watcher().watch(child.pid)
            except OSError:
                child.kill()
                child.wait()
                raise
        return child

    return uninterrupted(start, undo=subprocess.Popen.kill)


def death_pact() -> Callable[[], None]:
    """A function for a child to call after the fork: Linux then ends it when its parent ends."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl

    def run_in_child() -> None:
        if prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            os._exit(126)
        if os.getppid() != parent:  # the parent died before the pact was made
            os._exit(127)

    return run_in_child


def uninterrupted(work: Callable[[], T], undo: Callable[[T], object] = id) -> T:
    """The outcome of work in the thread that starts children, which no signal interrupts.

    If one interrupts the caller, it waits for the outcome and undoes that.
    """
    done: Future[T] = Future()
    _spawner().put(lambda: _complete(done, work))
    try:
        return done.result()
    except BaseException:
        if done.exception(timeout=10.0) is None:
            undo(done.result())
        raise


def _complete(done: Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 - handed to the thread that asked
        done.set_exception(error)


@cache
def _spawner() -> queue.SimpleQueue[Callable[[], None]]:
    """The work of one thread that lives as long as this process and starts all children.

    The kernel sends the parent-death signal when the *thread* that started a child ends. A cluster may be
    started from a pool's thread that ends long before the program does, so children get this thread instead.
    """
    work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run() -> None:
        while True:
            work.get()()

    threading.Thread(target=run, name="barnabas-spawner", daemon=True).start()
    return work


class _Watcher:
    """A shell that outlives this process and ends its children; it ends next.

    Nothing is done in a child before its program runs: on macOS a fork of a program with threads may do
    nothing else. So a child survives if this process is killed within the moment of its start.
    """

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        try:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(reading)
        # A fork of ours would keep the pipe open after our end.
        os.register_at_fork(after_in_child=lambda: os.close(self._writing))

    def watch(self, pid: int) -> None:
        os.write(self._writing, b"%d\n" % pid)


@cache
def _watcher() -> _Watcher:
    return _Watcher()


# In a forked process the thread does not exist: it needs one of its own, and children of its own.
os.register_at_fork(after_in_child=_spawner.cache_clear)
os.register_at_fork(after_in_child=_watcher.cache_clear)
