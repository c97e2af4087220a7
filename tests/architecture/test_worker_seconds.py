"""The table of the time that a run took."""

import io
from typing import Literal

import pytest
from _pytest.terminal import TerminalReporter

from tests.support.worker_seconds import WorkerSeconds


def _report(
    nodeid: str,
    when: Literal["setup", "call", "teardown"],
    duration_s: float,
    cpu_s: float,
    outcome: Literal["passed", "skipped"] = "passed",
) -> pytest.TestReport:
    seconds = [("worker_cpu_s", cpu_s)]
    where = ("x.py", 1, "x")
    return pytest.TestReport(
        nodeid, where, {}, outcome, None, when, user_properties=seconds, duration=duration_s
    )


def test_the_seconds_of_workers_are_summed_by_folder_and_by_module(pytestconfig: pytest.Config) -> None:
    plugin = WorkerSeconds(pytestconfig)
    for report in (
        _report("tests/cluster/test_a.py::test_x", "setup", 2.0, 0.5),
        _report("tests/cluster/test_a.py::test_x", "call", 3.0, 0.25),
        _report("tests/cluster/test_a.py::test_x", "teardown", 1.0, 0.25),
        _report("tests/cluster/test_b.py::test_y", "setup", 0.5, 0.0, "skipped"),
        _report("tests/unit/test_c.py::test_z[1]", "call", 0.25, 0.25),
    ):
        plugin.pytest_runtest_logreport(report)
    node = type("Node", (), {"workeroutput": {"collection_s": (7.0, 6.0)}})()
    plugin.pytest_testnodedown(node)
    plugin.pytest_testnodedown(object())  # one that crashed
    said = io.StringIO()
    plugin.pytest_terminal_summary(TerminalReporter(pytestconfig, said))
    rows = [line.split() for line in said.getvalue().splitlines() if line[:7].strip().isdigit()]
    assert rows == [
        ["0", "7.0", "6.0", "collection"],
        ["2", "6.5", "1.0", "cluster"],
        ["1", "0.2", "0.2", "unit"],
        ["3", "13.8", "7.2", "together"],
        ["1", "6.0", "1.0", "tests/cluster/test_a.py"],
        ["1", "0.5", "0.0", "tests/cluster/test_b.py"],
        ["1", "0.2", "0.2", "tests/unit/test_c.py"],
    ]


def test_the_cpu_time_of_a_test_is_in_its_report(request: pytest.FixtureRequest) -> None:
    plugin = WorkerSeconds(request.config)
    sum(range(2_000_000))
    hook = plugin.pytest_runtest_makereport()
    next(hook)
    with pytest.raises(StopIteration) as stopped:
        hook.send(_report("tests/unit/test_c.py::test_z", "call", 1.0, 0.0))
    [_, (name, spent_s)] = stopped.value.value.user_properties
    assert name == "worker_cpu_s"
    assert spent_s > 0.005
