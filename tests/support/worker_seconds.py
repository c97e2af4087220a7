"""Counts where the time of a test run goes: the seconds of its workers, by folder of tests.

Each report of a test carries the CPU time that its worker used since the report before, with that of the
child processes that ended meanwhile; each worker reports what its start and the collection took. The run ends
with a table of folders and the slowest modules, so that the change that makes the run longer shows it.
"""

import resource
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import psutil
import pytest

from tests.support.retries import WITH_PROCESSES
from tests.support.shares import folder_of

_CPU: Final = "worker_cpu_s"
_COLLECTION: Final = "collection_s"
_SLOWEST: Final = 12
"""So many modules are listed."""


def _cpu_s() -> float:
    """The CPU time of this process and of its children that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


@dataclass
class Spent:
    """One row of the table."""

    tests: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, tests: int, wall_s: float, cpu_s: float) -> None:
        self.tests += tests
        self.wall_s += wall_s
        self.cpu_s += cpu_s


def _children_cpu_s() -> float:
    """The CPU time of the running children and of their own children that have ended: the forked brokers."""
    spent_s = 0.0
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            spent_s += sum(child.cpu_times()[:4])
    return spent_s


class WorkerSeconds:
    """A plugin of pytest: counts in every worker, sums up in the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started_s = time.monotonic()
        self._cpu_s = _cpu_s()
        self._children_cpu_s = 0.0
        self._collection: tuple[float, float] = (0.0, 0.0)
        self._folders: defaultdict[str, Spent] = defaultdict(Spent)
        self._modules: defaultdict[str, Spent] = defaultdict(Spent)

    def _cpu_since_last(self) -> float:
        now_s = _cpu_s()
        since_s, self._cpu_s = now_s - self._cpu_s, now_s
        return since_s

    def pytest_collection_finish(self) -> None:
        self._collection = (time.monotonic() - self._started_s, self._cpu_since_last())
        if not hasattr(self._config, "workerinput"):
            self._folders["collection"].add(0, *self._collection)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        cpu_s = self._cpu_since_last()
        if report.when == "teardown" and folder_of(report.nodeid) in WITH_PROCESSES:
            now_s = _children_cpu_s()
            cpu_s, self._children_cpu_s = cpu_s + now_s - self._children_cpu_s, now_s
        report.user_properties = [*report.user_properties, (_CPU, cpu_s)]
        return report

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_COLLECTION] = self._collection

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist has ended; one that crashed has no output."""
        found = getattr(node, "workeroutput", {}).get(_COLLECTION)
        if found is not None:
            self._folders["collection"].add(0, *found)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tests = int(report.when == "call" or (report.when == "setup" and not report.passed))
        found = dict(report.user_properties).get(_CPU)
        cpu_s = found if isinstance(found, float) else 0.0
        module = report.nodeid.partition("::")[0]
        self._folders[folder_of(report.nodeid)].add(tests, report.duration, cpu_s)
        self._modules[module].add(tests, report.duration, cpu_s)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._modules:
            return
        terminalreporter.section("worker-seconds")
        terminalreporter.write_line(f"{'tests':>7}{'wall s':>9}{'CPU s':>9}")
        for name, spent in sorted(self._folders.items(), key=lambda row: -row[1].wall_s):
            terminalreporter.write_line(_row(name or "elsewhere", spent))
        total = Spent()
        for spent in self._folders.values():
            total.add(spent.tests, spent.wall_s, spent.cpu_s)
        terminalreporter.write_line(_row("together", total))
        slowest = sorted(self._modules.items(), key=lambda row: -row[1].wall_s)[:_SLOWEST]
        for name, spent in slowest:
            terminalreporter.write_line(_row(name, spent))


def _row(name: str, spent: Spent) -> str:
    return f"{spent.tests:7}{spent.wall_s:9.1f}{spent.cpu_s:9.1f}  {name}"
