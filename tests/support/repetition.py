"""A plugin of pytest that repeats each test in shuffled order, and writes the outcomes to a file.

`tests/flaky.py` loads it. Repetitions are tests of their own, so fixtures are made for each; those of modules
and sessions are shared. A JSON object a line: ``start`` when a test starts, with its time-out, and ``end``
with its outcome. What pytest says of the first failure of a test becomes a file beside.
"""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

VARIABLE: Final = "FLAKY_REPETITION"
"""Not `BARNABAS_…`: a broker refuses what it does not know."""
_REPETITION: Final = re.compile(r"-~\d+~|~\d+~-|\[~\d+~\]")


class Repetition(NamedTuple):
    """How to repeat; `done` are the tests, in this order, that an earlier process has run."""

    runs: int
    seed: int
    done: int
    outcomes: str
    folder: str

    @classmethod
    def of_environment(cls) -> Repetition:
        return cls(*json.loads(os.environ[VARIABLE]))


def test_of(nodeid: str) -> str:
    """The name of a test without the number of its repetition."""
    return _REPETITION.sub("", nodeid)


def failure_file(folder: Path, test: str) -> Path:
    return folder / (re.sub(r"[^\w.\[\]-]+", "_", test)[-200:] + ".txt")


@pytest.fixture
def repetition(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    runs = Repetition.of_environment().runs
    metafunc.fixturenames.append("repetition")
    ids = [f"~{number}~" for number in range(runs)]
    metafunc.parametrize("repetition", range(runs), ids=ids, indirect=True, scope="function")


class _Recorder:
    def __init__(self, repetition: Repetition, default_timeout_s: float) -> None:
        self._repetition = repetition
        self._default_timeout_s = default_timeout_s
        self._reports: list[pytest.TestReport] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.nodeid)
        random.Random(self._repetition.seed).shuffle(items)
        del items[: self._repetition.done]

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        marker = item.get_closest_marker("timeout")
        timeout_s = marker.args[0] if marker is not None and marker.args else self._default_timeout_s
        self._write(start=test_of(item.nodeid), timeout_s=timeout_s)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Not earlier: a fixture adds the end of the brokers' logs to the report."""
        reports, self._reports = self._reports, []
        failed = [report for report in reports if report.failed]
        is_skipped = any(report.skipped for report in reports)
        if failed:
            path = failure_file(Path(self._repetition.folder), test_of(nodeid))
            if not path.exists():
                path.write_text("\n".join(map(_text_of, failed)))
        self._write(
            end=test_of(nodeid),
            outcome="failed" if failed else "skipped" if is_skipped else "passed",
            seconds=sum(report.duration for report in reports),
        )

    def _write(self, **line: object) -> None:
        with Path(self._repetition.outcomes).open("a") as file:
            file.write(json.dumps(line) + "\n")


def _text_of(report: pytest.TestReport) -> str:
    sections = [f"---- {name}\n{content}" for name, content in report.sections]
    return "\n".join([f"==== {report.when} of {report.nodeid}", report.longreprtext, *sections])


def pytest_configure(config: pytest.Config) -> None:
    default_timeout_s = float(config.getini("timeout") or 0) or 600.0
    config.pluginmanager.register(_Recorder(Repetition.of_environment(), default_timeout_s))
