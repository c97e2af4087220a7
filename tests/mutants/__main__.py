"""Finds small changes of a module that its unit tests do not notice: ``make mutants MODULE=broker/log``.

``MODULE`` is a file or a folder; the tests are those of the same folder in tests/unit, or ``TESTS``. With
``CHOOSE=1``, it looks for a small set of test functions that kills all that the tests kill, and lists the
others. Whether one of those shows a promise of the documentation is for a person to say. ``KEEP`` names
parts of names of functions to choose in any case. ``SAMPLE`` is the
number of mutants to judge, drawn by the seed.
"""

import argparse
import json
import random
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.mutants.forks import Outcomes
from tests.mutants.judging import Function, Judge, functions_of
from tests.mutants.operators import Mutant
from tests.mutants.switch import ROOT, Mutated

EQUIVALENT = Path(__file__).with_name("equivalent.toml")


class Check:
    """A pytest plugin that judges mutants by the collected tests instead of running these."""

    def __init__(self, arguments: argparse.Namespace, files: list[str]) -> None:
        self._arguments = arguments
        self._files = files
        self.mutated = Mutated(files)
        self.outcomes = Outcomes()
        self.is_complete = False

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        # A failed example is enough; to make it smaller would take minutes.
        settings.register_profile("mutants", settings.default, phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._judge(session.items)
        return True

    def _judge(self, items: list[pytest.Item]) -> None:
        arguments = self._arguments
        start = time.monotonic()
        mutants = self.mutated.mutants
        if arguments.sample < len(mutants):
            mutants = random.Random(arguments.seed).sample(mutants, arguments.sample)
        judge = Judge(
            self.mutated, mutants, functions_of(items), self.outcomes, arguments.jobs, arguments.limit
        )
        judge.record()
        print(f"{len(judge.functions)} functions, {len(items)} tests: {time.monotonic() - start:.0f} s")
        for name in judge.failing:
            print(f"fails without a mutant, not used: {name}")
        chosen: list[Function] | None = None
        if arguments.choose:
            kept = [f for f in judge.functions if any(part in f.name for part in arguments.keep)]
            chosen = judge.choose(kept, arguments.seed)
            _show_unneeded(judge.functions, chosen)
        else:
            judge.judge()
        _show(self._files, self.mutated.mutants, judge)
        print(f"{time.monotonic() - start:.0f} s, {len(judge.timed_out)} runs were ended by their time limit")
        if arguments.json:
            arguments.json.write_text(json.dumps(_as_data(judge, chosen), indent=1))
        self.is_complete = not judge.failing


def _show(files: list[str], every: list[Mutant], judge: Judge) -> None:
    mutants = sorted(judge.mutants, key=lambda mutant: mutant.number)
    reasons = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))
    for file in files:
        equivalent = reasons.get(file, {})
        for mutant in mutants:
            if mutant.file == file and mutant not in judge.killers and mutant.key not in equivalent:
                said = "" if judge.is_reached(mutant) else " (no test reaches it)"
                print(f"survives: {file}:{mutant.line} {mutant.key}{said}")
        keys = {mutant.key: mutant for mutant in every if mutant.file == file}
        for key in equivalent:
            if key not in keys or keys[key] in judge.killers:
                print(f"not equivalent: {file} {key} {'is killed' if key in keys else 'does not exist'}")
    print(f"{'module':60} mutants  killed equivalent survive  score")
    totals: Counter[str] = Counter()
    for file in files:
        mine = [mutant for mutant in mutants if mutant.file == file]
        killed = sum(mutant in judge.killers for mutant in mine)
        same = sum(mutant not in judge.killers and mutant.key in reasons.get(file, {}) for mutant in mine)
        totals.update(mutants=len(mine), killed=killed, same=same)
        _row(file, len(mine), killed, same)
    _row("all", totals["mutants"], totals["killed"], totals["same"])


def _row(name: str, mutants: int, killed: int, same: int) -> None:
    score = killed / max(mutants - same, 1)
    print(f"{name:60} {mutants:7} {killed:7} {same:10} {mutants - same - killed:7} {score:6.1%}")


def _show_unneeded(functions: list[Function], chosen: list[Function]) -> None:
    unneeded = [function for function in functions if function not in chosen]
    for function in unneeded:
        print(f"not needed: {function.name} ({function.lines} lines, {function.seconds:.2f} s)")
    lines = [sum(function.lines for function in some) for some in (unneeded, functions)]
    print(f"not needed: {len(unneeded)} of {len(functions)} functions, {lines[0]} of {lines[1]} lines")


def _as_data(judge: Judge, chosen: list[Function] | None) -> object:
    return {
        "mutants": [
            {
                "file": mutant.file,
                "line": mutant.line,
                "key": mutant.key,
                "reached": judge.is_reached(mutant),
                "killer": judge.killers[mutant].name if mutant in judge.killers else None,
            }
            for mutant in judge.mutants
        ],
        "functions": [
            {
                "name": function.name,
                "lines": function.lines,
                "seconds": round(function.seconds, 4),
                "chosen": chosen is None or function in chosen,
            }
            for function in judge.functions
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("module", nargs="+")
    parser.add_argument("--tests", nargs="+", default=[])
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--keep", nargs="+", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=sys.maxsize)
    parser.add_argument(
        "--jobs", type=int, default=1, help="with more than one, the choice is not repeatable"
    )
    parser.add_argument("--limit", type=float, default=2.0, help="seconds for a test with a mutant")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = [path for name in arguments.module for path in _modules(ROOT / name)]
    folders = {ROOT / "tests" / "unit" / path.parent.relative_to(ROOT) for path in found}
    check = Check(arguments, [str(path.relative_to(ROOT)) for path in found])
    plugins = ["xdist", "rerunfailures", "cacheprovider"]
    pytest.main(
        [
            *(arguments.tests or map(str, sorted(folders))),
            *(f"-pno:{name}" for name in plugins),
            f"--config-file={ROOT / 'pyproject.toml'}",
            *("-q", "-s", "--assert=plain", "--tb=native", "--timeout=0"),
        ],
        plugins=[check, check.outcomes],
    )
    return 0 if check.is_complete else 1


def _modules(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


if __name__ == "__main__":
    sys.exit(main())
