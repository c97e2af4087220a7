"""`make flaky` finds the rate of a flaky test, and goes on after tests that do not end."""

from collections import Counter
from pathlib import Path

import pytest

from tests.flaky import Rates, Search, Settings, modules_of

_FLAKY = """
import os, signal, time
from pathlib import Path
import pytest

def number_of(name):
    tries = Path(__file__).with_name(name)
    with tries.open("a") as file:
        file.write("x")
    return len(tries.read_text())

@pytest.mark.parametrize("letter", ["a", "b"])
def test_one_time_in_three(letter):
    assert letter == "b" or number_of("thirds") % 3, "the machine was busy"

def test_that_kills_its_process_once():
    if number_of("deaths") == 1:
        os._exit(7)

@pytest.mark.timeout(0.5)
def test_that_hangs_once():
    if number_of("hangs") == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGINT})
        time.sleep(60)

def test_that_is_skipped():
    pytest.skip("no need")
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = timeout\n")
    (tmp_path / "test_flaky.py").write_text(_FLAKY)
    return Settings(tmp_path / "found", runs=6, root=tmp_path, grace_s=0.2)


def test_a_flaky_test_is_found_with_its_rate(settings: Settings) -> None:
    said: list[str] = []
    search = Search(settings, said.append)
    search.run(modules_of(["test_flaky.py"], settings.root)[0])
    rates = search.rates
    a, b = (f"test_flaky.py::test_one_time_in_three[{letter}]" for letter in "ab")
    death, hang = "test_flaky.py::test_that_kills_its_process_once", "test_flaky.py::test_that_hangs_once"
    assert rates.failures == {a: 2, b: 0, death: 1, hang: 1}, said
    assert {test: len(times) for test, times in rates.seconds.items()} == dict.fromkeys(
        (a, b, death, hang), 6
    )
    assert rates.broken == []
    kept = Counter(path.name for path in settings.folder.glob("*.txt"))
    assert sum(kept.values()) == 3
    assert any("the machine was busy" in path.read_text() for path in settings.folder.glob("*.txt"))
    assert said[-1].startswith("test_flaky.py: 30 runs, 4 failed")
    assert str(rates).splitlines()[-1] == "3 of 4 tests failed in 24 runs"


def test_a_module_that_cannot_run_is_named(settings: Settings) -> None:
    (settings.root / "test_broken.py").write_text("import nowhere_to_be_found")
    search = Search(settings, lambda text: None)
    search.run(modules_of(["test_broken.py"], settings.root)[0])
    assert len(search.rates.broken) == 1


def test_the_table_has_the_worst_tests_first() -> None:
    rates = Rates()
    for test, outcome, seconds in [("slow", "passed", 9.0), ("bad", "failed", 1.0), ("bad", "passed", 2.0)]:
        rates.add(test, outcome, seconds)
    assert [line.split() for line in str(rates).splitlines()[1:3]] == [
        ["2", "1", "1.50", "2.00", "bad"],
        ["1", "0", "9.00", "9.00", "slow"],
    ]


def test_paths_are_told_from_options(tmp_path: Path) -> None:
    for name in ("a/test_x.py", "a/b/test_y.py", "test_z.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    words = ["a", "test_z.py::test_1", "test_z.py::test_2", "-k", "fast"]
    modules, options = modules_of(words, tmp_path)
    assert modules == [["a/b/test_y.py"], ["a/test_x.py"], ["test_z.py::test_1", "test_z.py::test_2"]]
    assert options == ["-k", "fast"]
