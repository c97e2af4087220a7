"""Brokers are forked from a process that has imported them, and behave like ones started directly."""

import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from barnabas.deploy import preloaded
from barnabas.deploy.preloaded import BrokerForks, ForkedBroker, fork_broker
from barnabas.deploy.process import ManagedProcess, ProcessId
from tests.support.waiting import wait_for


def _fork(tmp_path: Path, *arguments: str, **environment: str) -> ForkedBroker:
    log_file = tmp_path / "broker.log"
    child = fork_broker(arguments, log_file=log_file, environment={**os.environ, **environment})
    assert child is not None
    return child


def _wait_ended(child: ForkedBroker) -> int:
    wait_for(lambda: child.poll() is not None, "the fork ends")
    code = child.poll()
    assert code is not None
    return code


def test_a_fork_has_its_own_output_environment_and_exit_code(tmp_path: Path) -> None:
    child = _fork(tmp_path, "broker", BARNABAS_NO_SUCH_SETTING="x")
    assert _wait_ended(child) == 2
    assert "BARNABAS_NO_SUCH_SETTING='x' names no setting" in (tmp_path / "broker.log").read_text()


def test_a_killed_fork_tells_the_signal_and_the_next_one_starts(tmp_path: Path) -> None:
    # Nothing answers there, so it waits until it is killed.
    waits = ("broker", "--await-zookeeper", "--set", "zookeeper.connect=127.0.0.1:1")
    process = ManagedProcess.of_child("broker", _fork(tmp_path, *waits))
    assert (process.exit_code, process.state) == (None, "running")
    assert os.getsid(process.pid) == process.pid
    process.kill()
    assert process.exit_code == -signal.SIGKILL
    assert _wait_ended(_fork(tmp_path, "--version")) == 0


_OWNER = """
import os, sys, time
from pathlib import Path
from barnabas.deploy.preloaded import fork_broker
waits = ["broker", "--await-zookeeper", "--set", "zookeeper.connect=127.0.0.1:1"]
child = fork_broker(waits, log_file=Path(sys.argv[1]), environment=dict(os.environ))
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_fork_dies_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path / "broker.log")], stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        forked = ProcessId.of(int(owner.stdout.readline()))
        owner.kill()
    assert forked is not None
    wait_for(lambda: forked.state == "gone", "the fork dies with its owner")


def test_an_interrupted_start_leaves_neither_a_fork_nor_an_answer_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = _fork(tmp_path, "--version")
    pid = preloaded._forks[0]._process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    # Clusters of other tests in this process may run, or end meanwhile.
    others = set(children.read_text().split())

    def interrupt(future: Future[object]) -> None:
        # As Ctrl-C does while the answer is under way.
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _fork(tmp_path, "broker", "--await-zookeeper", "--set", "zookeeper.connect=127.0.0.1:1")
    assert _wait_ended(ended) == 0

    def is_killed() -> bool:
        return ended.poll() == 0 and others.issuperset(children.read_text().split())

    wait_for(is_killed, "the fork is killed")


def test_variables_that_are_read_at_a_start_need_a_direct_start(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONMALLOC": "debug"}
    assert fork_broker(["--version"], log_file=tmp_path / "broker.log", environment=environment) is None


def test_after_the_end_of_the_process_its_forks_are_dead_and_another_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks: list[BrokerForks] = []
    monkeypatch.setattr(preloaded, "_forks", forks)
    child = _fork(tmp_path, "broker", "--await-zookeeper", "--set", "zookeeper.connect=127.0.0.1:1")
    first = forks[0]
    first._process.kill()
    first._process.wait()
    assert _wait_ended(child) == -signal.SIGKILL
    assert _wait_ended(_fork(tmp_path, "--version")) == 0
    assert forks != [first]
    forks[0].close()


def test_nothing_is_forked_on_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloaded, "_FORKS", False)
    monkeypatch.setattr(preloaded, "_usable_forks", lambda: pytest.fail("a process that forks was started"))
    preloaded.preload()
    assert fork_broker(["broker"], log_file=tmp_path / "broker.log", environment={}) is None
