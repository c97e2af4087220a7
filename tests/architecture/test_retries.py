"""Retried tests and their report: runs of pytest over tests made for it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tests.conftest as real

_TESTS = Path(__file__).parents[1]

_CONFTEST = """
from pathlib import Path
import tests.conftest as real
from tests.support.retries import mark_retried, show_flaky

pytest_configure = real.pytest_configure

def pytest_collection_modifyitems(config, items):
    mark_retried(config, items, Path(__file__).parent)

def pytest_terminal_summary(terminalreporter):
    show_flaky(terminalreporter)
"""

_FAILS_ONCE = """
from pathlib import Path

def test_that_fails_once():
    tries = Path(__file__).with_suffix(".tries")
    tries.write_text((tries.read_text() if tries.exists() else "") + "x")
    assert tries.read_text() != "x", "the machine was busy"
"""

_FAILS_ALWAYS = """
def test_that_fails_always():
    assert False, "broken"
"""

_HEARS_SIGINT = """
import signal, subprocess, sys

def test_a_child_hears_sigint():
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    assert subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout == "False\\n"
"""


def _run(directory: Path, *arguments: str, ignoring_sigint: bool = False) -> tuple[int, str]:
    (directory / "conftest.py").write_text(_CONFTEST)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    root = Path(__file__).parents[2]
    # Not by `preexec_fn`, which runs Python in a child of a process that may have other threads.
    ignoring = ["sh", "-c", 'trap "" INT; exec "$0" "$@"'] if ignoring_sigint else []
    done = subprocess.run(
        [*ignoring, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "pytest.ini", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
    )
    return done.returncode, done.stdout


def _outcomes(said: str) -> dict[str, int]:
    """The counts of the last line, without warnings: pytest and its plugins may add some of their own."""
    counts = re.findall(r"(\d+) (passed|failed|rerun)", said.rstrip().rpartition("\n")[2])
    return {outcome: int(count) for count, outcome in counts}


@pytest.fixture
def tests_of(tmp_path: Path) -> Path:
    for folder, body in [
        ("cluster", _FAILS_ONCE),
        ("unit", _FAILS_ONCE),
        ("chaos", _FAILS_ALWAYS),
        ("sigint", _HEARS_SIGINT),
    ]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"test_{folder}.py").write_text(body)
    return tmp_path


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_cluster_test_is_retried_once_and_children_receive_sigint_though_the_run_ignores_it(
    tests_of: Path, workers: tuple[str, ...]
) -> None:
    code, said = _run(tests_of, *workers, "cluster", "sigint", ignoring_sigint=True)
    assert code == 0, said
    assert _outcomes(said) == {"passed": 2, "rerun": 1}, said
    flaky = said.partition("flaky: failed at first")[2]
    assert "cluster/test_cluster.py::test_that_fails_once" in flaky
    assert "the machine was busy" in flaky
    assert "1 flaky:" in flaky


def test_a_second_failure_fails_and_unit_tests_are_tried_once(tests_of: Path) -> None:
    code, said = _run(tests_of, "chaos", "unit")
    assert code == 1
    assert _outcomes(said) == {"failed": 2, "rerun": 1}, said
    assert (tests_of / "unit" / "test_unit.tries").read_text() == "x"


def test_nothing_is_retried_if_the_plugin_is_off(tests_of: Path) -> None:
    code, said = _run(tests_of, "-p", "no:rerunfailures", "cluster")
    assert code == 1
    assert _outcomes(said) == {"failed": 1}, said
    assert "flaky" not in said


def test_this_project_retries_its_tests_with_real_processes(request: pytest.FixtureRequest) -> None:
    """A path in which no test lies would retry none and report nothing."""
    if not request.config.pluginmanager.hasplugin("rerunfailures"):
        pytest.skip("nothing is retried with -p no:rerunfailures")
    folders = ["chaos", "cluster", "compat", "spark", "unit", "simulation"]
    items = [
        pytest.Function.from_parent(
            pytest.Module.from_parent(request.session, path=_TESTS / folder / "test_example.py"),
            name="test_example",
            callobj=lambda: None,
        )
        for folder in folders
    ]
    real.pytest_collection_modifyitems(request.config, items)
    retried = [item.path.parent.name for item in items if item.get_closest_marker("flaky")]
    assert sorted(retried) == ["chaos", "cluster", "compat", "spark"]
