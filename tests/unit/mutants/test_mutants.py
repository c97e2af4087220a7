"""The mutation check: its changes, the switch between them, and a run over a small module."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.operators import SWITCH, mutated

ROOT = Path(__file__).parents[3]


def changes(body: str) -> list[str]:
    source = "def f(a, b):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return [mutant.key.removeprefix("f: ") for mutant in mutated(source, "m.py", 0)[1]]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x = a < b", ["a < b → a <= b", "a < b → a >= b"]),
        ("x = a is b", ["a is b → a is not b"]),
        ("x = 0 < a < 5", ["0 < a < 5 → 0 <= a < 5", "0 < a < 5 → 0 < a <= 5"]),
        ("x = a and b", ["a and b → a or b"]),
        ("x = a * b // a", ["a * b // a → a * b * a", "a * b → a // b"]),
        ("if a and b: pass", ["a and b → a or b", "a → not a", "b → not b"]),
        ("if not a: pass", ["not a → a"]),
        ("x = [y for y in a if y]", ["y → not y"]),
        ("while True: break", ["True → False", "break → continue"]),
        ("x = a[-1:]", ["1 → 2"]),
        ("a.b()\nawait_()", ["without a.b()", "without await_()"]),
        ("a.b = b\na[b] += b\ndel a[b]\na.c: int = b", ["without a.b = b", "without a[b] += b"]),
        ("del a[b]\na.c: list[int] = b", ["without del a[b]", "without a.c = b"]),
        ("raise ValueError(a)", ["without raise ValueError(a)"]),
        ("return a", ["return a → return None"]),
        ("a.f()\na.f()", ["without a.f()", "without a.f() (2)"]),
    ],
)
def test_each_place_has_its_mutants(body: str, expected: list[str]) -> None:
    found = changes(body)
    assert [key for key in expected if key not in found] == []
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    "body",
    [
        '"""Text: 1 < 2."""',
        'logger.info("%d", 1 + 1)',
        'self.state_change_log.error("%d", 1)',
        'x = f"{1 + 1}"',
        "x: Literal[1]",
        "raise NotImplementedError",
        "invariant(a < 5, 'why')",
        "return None",
        "match a:\n    case 1: pass",
        "x = 'text'",
    ],
)
def test_some_places_have_none(body: str) -> None:
    assert changes(body) == []


@pytest.mark.parametrize(
    "source",
    ["X = 1 < 2\nclass C:\n    y = 1\n", "def f(a=1) -> None:\n    return\n", "@f(1)\ndef g(): ...\n"],
)
def test_code_that_runs_while_a_module_is_imported_has_none(source: str) -> None:
    assert mutated(source, "m.py", 0)[1] == []


def test_exactly_the_active_mutant_changes_what_is_done() -> None:
    source = "def f(a, b):\n    found = []\n    found.append(a + 1 < b)\n    return found\n"
    tree, mutants = mutated(source, "m.py", 5)
    scope: dict[str, Any] = {}
    exec(compile(tree, "m.py", "exec"), scope)
    function: Callable[[int, int], object] = scope["f"]
    results = {}
    for number in [0, *(mutant.number for mutant in mutants)]:
        scope[SWITCH] = number.__eq__
        results[number] = [function(1, 3), function(1, 2)]
    assert [mutant.number for mutant in mutants] == list(range(5, 5 + len(mutants)))
    assert results.pop(0) == [[True], [False]]
    assert [r for r in results.values() if r == [[True], [False]]] == []
    reached: set[int] = set()
    scope[SWITCH] = reached.add
    assert function(1, 3) == [True]
    assert reached == set(results)


TOPIC_TESTS = """
import os
import signal
import subprocess
import time
from pathlib import Path
import pytest
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.topic_names import metric_name, validate_topic_name

@pytest.mark.parametrize("length", [1, 248])
def test_legal(length):
    validate_topic_name("a" * length)

@pytest.mark.parametrize("name", ["", "a" * 250])
def test_illegal(name):
    with pytest.raises(BarnabasError):
        validate_topic_name(name)

def test_illegal_too():
    with pytest.raises(BarnabasError):
        validate_topic_name("..")

def test_waits_for_ever_without_a_name():
    while metric_name("a") is None:
        time.sleep(0.01)

def is_legal(name):
    try:
        validate_topic_name(name)
    except BarnabasError:
        return False
    return True

def test_stalls_with_the_survivor():
    if is_legal("a" * 248) and not is_legal("a" * 249):
        with subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -CONT {os.getpid()}"]):
            os.kill(os.getpid(), signal.SIGSTOP)
        Path(__file__).with_name("stalled").touch()
"""


def run(folder: Path, *options: str) -> Any:
    """Run the mutation check with ``TOPIC_TESTS``; returns the JSON that it writes."""
    (folder / "test_topics.py").write_text(TOPIC_TESTS)
    found = folder / "found.json"
    command = [sys.executable, "-m", "tests.mutants", "protocol/topic_names.py", "--tests", folder]
    done = subprocess.run(
        [*command, "--limit", "1", "--json", found, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(found.read_text())


def test_a_run_finds_survivors_and_functions_that_are_not_needed(tmp_path: Path) -> None:
    data = run(tmp_path, "--choose")
    killers = {mutant["key"]: mutant["killer"] for mutant in data["mutants"]}
    killer_of_last = killers["metric_name: return topic.replace('.', '_') → return None"]
    assert killer_of_last.endswith("::test_waits_for_ever_without_a_name")
    assert [key for key, killer in killers.items() if killer is None] == [
        "validate_topic_name: len(name) > MAX_NAME_LENGTH → len(name) >= MAX_NAME_LENGTH"
    ]
    assert (tmp_path / "stalled").exists()
    unneeded = {function["name"].split("::")[1] for function in data["functions"] if not function["chosen"]}
    unneeded.remove("test_stalls_with_the_survivor")
    assert unneeded in ({"test_illegal"}, {"test_illegal_too"})


def test_a_sample_is_drawn_by_the_seed(tmp_path: Path) -> None:
    judged = run(tmp_path, "--sample", "2", "--seed", "1")["mutants"]
    _, mutants = mutated((ROOT / "protocol" / "topic_names.py").read_text(), "m.py", 0)
    drawn = random.Random(1).sample([mutant.key for mutant in mutants], 2)
    assert {mutant["key"] for mutant in judged} == set(drawn)
