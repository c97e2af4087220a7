"""Child processes: identity, signals, bounded ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barnabas.deploy.process import _WATCH, DeployError, ManagedProcess, ProcessId, _seconds, cpu_s, tail
from tests.support.waiting import DEADLINE_S, wait_for

_WAIT = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(60)"
_STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _WAIT.removeprefix(
    "import time\n"
)

Spawn = Callable[..., ManagedProcess]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    started: list[ManagedProcess] = []

    def start(code: str, line: str = "ready", **arguments: bool) -> ManagedProcess:
        log_file = tmp_path / f"{len(started)}.log"
        process = ManagedProcess.spawn("child", [sys.executable, "-c", code], log_file=log_file, **arguments)
        started.append(process)

        def is_said() -> bool:
            # Each argument of `print` may be a write of its own (PYTHONUNBUFFERED).
            said = log_file.read_text()
            return line in said and said.endswith("\n")

        wait_for(lambda: is_said() or not process.is_alive)
        return process

    yield start
    for process in started:
        process.kill()


def test_a_child_is_known_by_pid_and_start(spawn: Spawn) -> None:
    child = spawn(_WAIT)
    assert ProcessId.of(child.pid) == child.identity
    assert child.state == "running"


def test_a_child_is_known_whatever_its_name(spawn: Spawn) -> None:
    child = spawn("import ctypes\nctypes.CDLL(None).prctl(15, b'a) (\\xff')\n" + _WAIT)
    assert child.state == "running"
    assert ProcessId.of(child.pid) == child.identity
    child.kill()
    assert ProcessId.of(child.pid) is None


def test_a_process_with_the_same_pid_is_not_mistaken_for_ours(spawn: Spawn) -> None:
    other = spawn(_WAIT)
    ours = ManagedProcess("broker 1", ProcessId(other.pid, "started long ago"))
    assert not ours.is_alive
    ours.kill()
    assert other.is_alive
    with pytest.raises(DeployError, match=r"broker 1 .* is gone"):
        ours.resume()


def test_a_child_can_be_ended_by_its_recorded_identity(spawn: Spawn) -> None:
    child = spawn(_WAIT)
    recorded = ManagedProcess("child", child.identity)
    # Only the parent can reap the child, as in production.
    reaper = threading.Thread(target=lambda: child.wait(DEADLINE_S))
    reaper.start()
    assert recorded.terminate(DEADLINE_S)
    reaper.join()
    assert recorded.state == "gone"


def test_a_child_is_paused_resumed_and_terminated_while_paused(spawn: Spawn) -> None:
    child = spawn(_WAIT)
    child.pause()
    assert child.state == "paused"
    child.resume()
    wait_for(lambda: child.state == "running")
    child.pause()
    assert child.terminate(DEADLINE_S)


def test_a_child_that_ignores_sigterm_is_killed_after_the_time_out(spawn: Spawn) -> None:
    child = spawn(_STUBBORN)
    assert not child.terminate(0.1)
    assert child.exit_code == -9


def test_the_exit_code_and_the_output_of_an_ended_child_are_kept(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn("import sys; print('last words'); sys.exit(7)", line="never said")
    assert child.exit_code == 7
    assert tail(tmp_path / "0.log") == "last words"


def test_children_of_a_child_get_its_signals_too(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn(
        "import subprocess, sys\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('ready', inner.pid, flush=True)\n"
        "inner.wait()"
    )
    inner = ProcessId.of(int(tail(tmp_path / "0.log").split()[1]))
    assert inner is not None
    child.kill()
    wait_for(lambda: inner.state == "gone")


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="thing: cannot run /no/such/program: No such file"):
        ManagedProcess.spawn("thing", ["/no/such/program"], log_file=tmp_path / "log")


def child_of_a_program(
    log_file: Path, arguments: str, ending: str, platform: str = sys.platform
) -> ManagedProcess:
    """A child of a program that ends right after it started the child."""
    code = (
        "import os, pathlib, signal, sys\n"
        f"sys.platform = {platform!r}\n"
        "from barnabas.deploy.process import ManagedProcess\n"
        "child = ManagedProcess.spawn('child', [sys.executable, '-c', 'import time; time.sleep(600)'],\n"
        f"    log_file=pathlib.Path(sys.argv[1]), {arguments})\n"
        "print(*child.identity, flush=True)\n"
        f"{ending}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(log_file)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout, done.stderr
    pid, started = done.stdout.split()
    return ManagedProcess("child", ProcessId(int(pid), started))


def test_a_detached_child_outlives_its_parent(tmp_path: Path) -> None:
    child = child_of_a_program(tmp_path / "log", "die_with_parent=False", "")
    try:
        assert child.state == "running"
    finally:
        child.kill()
    assert not child.is_alive


def test_a_child_ends_with_its_parent_also_if_that_is_killed(tmp_path: Path) -> None:
    child = child_of_a_program(tmp_path / "log", "", "os.kill(os.getpid(), signal.SIGKILL)")
    wait_for(lambda: child.state == "gone")


# -- as on macOS -------------------------------------------------------------------------------------------


def test_ps_says_what_proc_would(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.deploy.process._boot_id", lambda: "")
    monkeypatch.setattr("barnabas.deploy.process._PS_FRESH_S", 0.0)
    child = spawn("for _ in range(10**7): pass\n" + _WAIT)
    assert child.identity.started.endswith(time.strftime("%Y", time.gmtime()))
    recorded = ManagedProcess("child", child.identity)
    assert recorded.state == "running"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert ProcessId.of(child.pid) == child.identity
    assert not ManagedProcess("other", ProcessId(child.pid, "Mon Nov 30 12:00:00 2020")).is_alive
    child.pause()
    assert recorded.state == "paused"
    assert cpu_s(child.pid) is not None
    os.kill(child.pid, signal.SIGKILL)
    # Nobody has waited for it yet.
    wait_for(lambda: recorded.state == "gone")
    child.kill()
    assert cpu_s(child.pid) is None


def test_ps_is_asked_again_after_a_signal(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.deploy.process._boot_id", lambda: "")
    monkeypatch.setattr("barnabas.deploy.process._PS_FRESH_S", 0.0)
    child = spawn(_WAIT)
    child.pause()
    monkeypatch.setattr("barnabas.deploy.process._PS_FRESH_S", DEADLINE_S)
    assert child.state == "paused"
    child.resume()
    assert child.state == "running"


def test_the_refusal_of_macos_to_signal_an_ended_group_is_no_other_user(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = spawn(_WAIT)
    recorded = ManagedProcess("child", child.identity)
    real = os.killpg

    def refuse(pid: int, number: int) -> None:
        real(pid, signal.SIGKILL)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.killpg", refuse)
    assert not recorded.send(signal.SIGTERM)


@pytest.mark.parametrize(
    ("text", "seconds"), [("00:01:02", 62), ("2-03:00:01", 183_601), ("1:02.50", 62.5), ("600:00.00", 36_000)]
)
def test_the_cpu_time_of_either_ps_is_read(text: str, seconds: float) -> None:
    assert _seconds(text) == seconds


def test_a_child_ends_with_its_parent_without_the_kernels_help(tmp_path: Path) -> None:
    """A fork of the parent lives on, and would keep the pipe to the shell open."""
    end = tmp_path / "end"
    ending = (
        "import time\n"
        "if os.fork() == 0:\n"
        "    for number in (0, 1, 2): os.close(number)\n"
        f"    while not os.path.exists({str(end)!r}): time.sleep(0.02)\n"
        "    os._exit(0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    try:
        child = child_of_a_program(tmp_path / "log", "", ending, platform="darwin")
        child.pause()
        wait_for(lambda: child.state == "gone")
    finally:
        end.touch()


def test_a_process_with_the_pid_of_an_ended_child_is_spared(spawn: Spawn, tmp_path: Path) -> None:
    other = spawn(_WAIT)
    ps = tmp_path / "ps"
    ps.write_text('#!/bin/sh\necho Mon Nov 30 12:00:0$(wc -l <"$0") 2026\necho "#" >>"$0"\n')
    ps.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = f"{other.pid}\n".encode()
    subprocess.run(["/bin/sh", "-c", _WATCH], input=said, env=environment, check=False)
    assert len(ps.read_text().splitlines()) == 5
    assert other.is_alive


def test_tail_gives_the_last_lines_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert tail(path, lines=2) == "line 9998\nline 9999"
    assert tail(tmp_path / "absent") == ""


def test_a_process_of_another_user_is_named_in_words(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    process = spawn(_WAIT)

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr("os.killpg", refuse)
        with pytest.raises(DeployError, match=f"child .pid {process.pid}. belongs to another user"):
            process.kill()
    process.kill()
