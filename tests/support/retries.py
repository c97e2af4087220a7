"""Chooses the tests that may be retried, and reports the retries.

Tests with real processes (cluster, compat, chaos, spark) depend on a machine that they share with other work.
A failed one is retried once; a second failure fails the run. The run ends with a section "flaky" that shows
the first failure of each such test, because a flaky test is a defect. Unit, property and simulation tests
depend only on the code and are never retried.

`-p no:rerunfailures` runs everything once, as `make chaos` does: a soak looks for rare failures.
"""

from functools import cache
from pathlib import Path
from typing import Final

import pytest

WITH_PROCESSES: Final = ("cluster", "compat", "chaos", "spark")


def has_processes(item: pytest.Item, tests: Path) -> bool:
    """Whether it lies in a folder of `tests` whose tests start real processes."""
    return _is_with_processes(item.path, tests)


@cache
def _is_with_processes(path: Path, tests: Path) -> bool:
    return any(path.is_relative_to(tests / name) for name in WITH_PROCESSES)


def mark_retried(config: pytest.Config, items: list[pytest.Item], tests: Path) -> None:
    """Mark the items that may be retried, by their folder in `tests`; none if the plugin is off."""
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return
    for item in items:
        if has_processes(item, tests):
            item.add_marker(pytest.mark.flaky(reruns=1))


def show_flaky(reporter: pytest.TerminalReporter) -> None:
    """Print the first failure of every retried test, also if it passed the second time."""
    first_failures = reporter.stats.get("rerun", [])
    if not first_failures:
        return
    reporter.section("flaky: failed at first and tried again", yellow=True)
    for report in first_failures:
        reporter.write_sep("_", report.nodeid, yellow=True)
        reporter.write_line(report.longreprtext)
        for name, content in report.sections:
            reporter.write_sep("-", name)
            reporter.write_line(content)
    reporter.write_line(
        f"{len(first_failures)} flaky: {', '.join(report.nodeid for report in first_failures)}"
    )
