"""A broker's process: the lines of its log, and the limit of open files."""

import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NoReturn

import pytest

from barnabas.broker import process
from barnabas.broker.process import MAX_LINE_LENGTH, raise_descriptor_limit, run_broker, set_up_logging
from barnabas.deploy.process import ManagedProcess
from tests.support.defaults import make_config
from tests.support.waiting import wait_for

STOPS = [signal.SIGINT, signal.SIGTERM]
FILES = {
    "barnabas": "server.log",
    "barnabas.controller": "controller.log",
    "barnabas.state_change": "state-change.log",
    "kafka.authorizer.logger": "kafka-authorizer.log",
}


@pytest.fixture
def kept_logging() -> Iterator[None]:
    kept = {
        name: (list(log.handlers), log.propagate, log.level)
        for name in (*FILES, "kazoo")
        if (log := logging.getLogger(name))
    }
    yield
    for name, (handlers, propagates, level) in kept.items():
        log = logging.getLogger(name)
        for handler in set(log.handlers) - set(handlers):
            handler.close()
        log.handlers[:], log.propagate = handlers, propagates
        log.setLevel(level)


@pytest.fixture
def server_log(tmp_path: Path, kept_logging: None) -> Path:
    set_up_logging(tmp_path / "new" / "logs")
    return tmp_path / "new" / "logs" / "server.log"


def test_a_name_that_a_peer_chose_cannot_begin_a_line(server_log: Path) -> None:
    logging.getLogger("barnabas.x").info("no topic %s", "a\n2026-01-01 ERROR all is lost\r\x1b[2J\x00\u2028b")
    [line] = server_log.read_text().splitlines()
    assert line.endswith(r"no topic a\n2026-01-01 ERROR all is lost\r\x1b[2J\x00\u2028b")


def test_a_long_name_does_not_fill_the_log(server_log: Path) -> None:
    logging.getLogger("barnabas.x").info("no topic %s", "y" * 32_000)
    [line] = server_log.read_text().splitlines()
    assert len(line) < MAX_LINE_LENGTH + 200
    assert line.endswith("y… (32009 characters)")


def test_a_traceback_keeps_its_lines(server_log: Path) -> None:
    try:
        raise ValueError("of this value")
    except ValueError:
        logging.getLogger("barnabas.x").error("it failed", exc_info=sys.exc_info())
    lines = server_log.read_text().splitlines()
    assert lines[0].endswith("it failed")
    assert lines[-1] == "ValueError: of this value"
    assert len(lines) > 3


@pytest.mark.usefixtures("kept_logging")
def test_warnings_and_the_controllers_decisions_have_places_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    set_up_logging(tmp_path)
    for name in FILES:
        logging.getLogger(name).info("good news of %s", name)
        logging.getLogger(name).warning("bad news\nof %s", name)
    terminal = capsys.readouterr().err.splitlines()
    assert [line.split("] ")[1] for line in terminal] == [rf"bad news\nof {name}" for name in FILES]
    for name, file in FILES.items():
        lines = (tmp_path / file).read_text().splitlines()
        assert [line.split("] ")[1] for line in lines] == [f"good news of {name}", rf"bad news\nof {name}"]


@pytest.mark.usefixtures("kept_logging")
def test_without_a_folder_everything_goes_to_standard_error(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    set_up_logging(None)
    # It repeats what the session says.
    logging.getLogger("kazoo").warning("connection lost")
    assert caplog.text == ""
    logging.getLogger("barnabas.controller").info("elected")
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("] elected")


@pytest.mark.parametrize(
    ("soft", "hard", "highest", "said"),
    [
        (200, 300, 300, "at most 300, raised from 200 to the hard limit"),
        (300, 300, None, "at most 300, which is the hard limit"),
        (200, resource.RLIM_INFINITY, 1 << 20, "at most 1048576, raised from 200"),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, "which is the hard limit"),
    ],
)
def test_the_soft_limit_becomes_the_hard_one(
    soft: int,
    hard: int,
    highest: int | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    changes: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: changes.append((kind, limits)))
    assert raise_descriptor_limit() == (soft if highest is None else highest)
    assert changes == ([] if highest is None else [(resource.RLIMIT_NOFILE, (highest, hard))])
    assert said in caplog.text


def test_macos_raises_an_unlimited_hard_limit_to_open_max_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, resource.RLIM_INFINITY)]

    def change(kind: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(wanted)

    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", change)
    assert raise_descriptor_limit() == 10_240
    assert limits[-1] == (10_240, resource.RLIM_INFINITY)
    # The user has set more than that already.
    limits.append((20_000, resource.RLIM_INFINITY))
    assert raise_descriptor_limit() == 20_000


def test_a_limit_that_cannot_be_raised_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (200, 300))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_descriptor_limit() == 200
    assert "at most 200; the limit could not be raised to 300: not allowed" in caplog.text


def test_a_thread_that_dies_ends_the_process_with_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exit_(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", exit_)
    with pytest.raises(SystemExit) as ended:
        process._die(ValueError("a bug"))
    assert ended.value.code == process.EXIT_FATAL
    first, *_, last = capsys.readouterr().err.splitlines()
    assert (first, last) == ("barnabas broker: a thread died, so the broker ends", "ValueError: a bug")


class Started:
    """A broker that starts, or fails to."""

    error: Exception | None = None
    calls: ClassVar[list[str]] = []

    def __init__(self, config: object, *, on_fatal: object) -> None:
        assert on_fatal is process._die

    def start(self) -> None:
        self.calls.append("start")
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.mark.usefixtures("kept_logging")
@pytest.mark.parametrize(
    ("error", "code", "calls"),
    [(None, 0, ["collect", "freeze", f"sigwait {STOPS}", "stop"]), (OSError("the port is taken"), 1, [])],
)
def test_a_broker_runs_until_a_signal(
    error: Exception | None,
    code: int,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(process, "Broker", Started)
    monkeypatch.setattr(Started, "error", error)
    monkeypatch.setattr(Started, "calls", [])
    others = {"raise_descriptor_limit": process, "setswitchinterval": sys}
    others |= dict.fromkeys(("set_threshold", "disable", "enable", "collect", "freeze"), gc)
    for name, module in others.items():
        monkeypatch.setattr(module, name, lambda *_, name=name: Started.calls.append(name))
    for name in ("pthread_sigmask", "sigwait"):
        monkeypatch.setattr(
            signal, name, lambda *values, name=name: Started.calls.append(f"{name} {sorted(values[-1])}")
        )
    assert run_broker(make_config()) == code
    assert Started.calls == [
        "raise_descriptor_limit",
        "setswitchinterval",
        "set_threshold",
        f"pthread_sigmask {STOPS}",
        "disable",
        "start",
        "enable",
        *calls,
    ]
    if error is not None:
        assert "broker 1 does not start: the port is taken" in capsys.readouterr().err


WITH_THREADS = """
import gc, os, threading, time
from barnabas.broker import process
from tests.support.defaults import make_config

class Broker:
    def __init__(self, config, *, on_fatal): ...
    def start(self):
        for _ in range(20):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        # The main thread is the last that runs.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    def stop(self):
        print("stopped in order", flush=True)

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
process.Broker = Broker
gc.freeze = lambda: print("about to wait", flush=True)
process.run_broker(make_config())
"""


def test_a_paused_broker_that_continues_obeys_the_signal_to_stop(tmp_path: Path) -> None:
    log = tmp_path / "log"
    broker = ManagedProcess.spawn("broker", [sys.executable, "-c", WITH_THREADS], log_file=log)
    try:
        wait_for(lambda: "about to wait" in log.read_text(), "the broker does not start")
        main_thread = Path(f"/proc/{broker.pid}/stat")
        wait_for(lambda: ") S " in main_thread.read_text(), "the main thread does not wait")
        broker.pause()
        broker.send(signal.SIGTERM)
        broker.send(signal.SIGCONT)
        assert broker.wait(20), "the signal is lost"
        assert log.read_text().endswith("stopped in order\n")
    finally:
        broker.kill()
