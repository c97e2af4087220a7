"""Finds which mutants the tests kill, and a small set of test functions that kills as many.

A test function with all its parameters is one unit. First each function runs in a fork of its own, which
records the mutants that each of its tests reaches; then each mutant runs in a fork with those tests alone,
until one fails. To choose, the mutants with the fewest tests come first. Each meets the chosen functions
that reach it, then the others from the cheapest on; the first that kills it is chosen. Afterwards each
chosen function is tried again, from the last on: if the others kill all that it killed, it is not needed.
"""

import inspect
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.mutants.forks import Outcomes, Run, run_all
from tests.mutants.operators import Mutant
from tests.mutants.switch import Mutated

_RECORDING_LIMIT_S: Final = 180.0
_SLOWER: Final = 10
"""With a mutant a test may take so many times its usual duration, and some seconds."""


@dataclass(eq=False)
class Function:
    name: str
    lines: int
    items: list[pytest.Item] = field(default_factory=list)
    seconds: float = 0.0
    killed: int = 0

    @property
    def cost(self) -> float:
        return self.lines * (0.01 + self.seconds)


def functions_of(items: Iterable[pytest.Item]) -> list[Function]:
    found: dict[str, Function] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name not in found:
            lines = inspect.getsourcelines(item.function)[0] if isinstance(item, pytest.Function) else []
            found[name] = Function(name, len(lines))
        found[name].items.append(item)
    return list(found.values())


class Judge:
    """``killers`` has the test function of each mutant that was killed."""

    def __init__(
        self,
        mutated: Mutated,
        mutants: Sequence[Mutant],
        functions: list[Function],
        outcomes: Outcomes,
        jobs: int,
        limit_s: float,
    ) -> None:
        self.mutants = mutants
        self.functions = functions
        self.killers: dict[Mutant, Function] = {}
        self.timed_out: list[Mutant] = []
        self.failing: list[str] = []
        """Tests that fail without a mutant; they judge nothing."""
        self._mutated = mutated
        self._outcomes = outcomes
        self._jobs = jobs
        self._limit_s = limit_s
        self._seconds: dict[pytest.Item, float] = {}
        self._owner = {item: function for function in functions for item in function.items}
        self._reaching: dict[int, dict[Function, list[pytest.Item]]] = defaultdict(dict)

    def record(self) -> None:
        reached: set[int] = set()

        def prepare() -> object:
            self._mutated.answer(reached.add)
            return lambda: (frozenset(reached), reached.clear())[0]

        runs = (
            Run(function.items, [_RECORDING_LIMIT_S] * len(function.items), prepare, stops_at_failure=False)
            for function in self.functions
        )
        for run in run_all(runs, self._outcomes, self._jobs):
            function = self._owner[run.items[0]]
            if run.failed is not None:
                self.failing.append(run.failed.nodeid)
                continue
            for item, seconds, numbers in run.results:
                self._seconds[item] = seconds
                function.seconds += seconds
                for number in numbers:
                    self._reaching[number].setdefault(function, []).append(item)

    def is_reached(self, mutant: Mutant) -> bool:
        return mutant.number in self._reaching

    def judge(self) -> None:
        """Fills ``killers``, in any order of the tests that is fast."""
        by_speed = sorted(self.functions, key=lambda function: function.seconds)
        for mutant, killer in self._killers((mutant, by_speed) for mutant in self.mutants):
            if killer is not None:
                self.killers[mutant] = killer

    def choose(self, kept: Sequence[Function], seed: int) -> list[Function]:
        """Fills ``killers`` with functions of a small set, which begins with those to keep in any case."""
        chosen = list(kept)
        by_cost = sorted(self.functions, key=lambda function: function.cost)
        mutants = list(self.mutants)
        random.Random(seed).shuffle(mutants)
        mutants.sort(key=lambda mutant: len(self._reaching[mutant.number]) if self.is_reached(mutant) else 0)
        orders = ((mutant, [*chosen, *(one for one in by_cost if one not in chosen)]) for mutant in mutants)
        for mutant, killer in self._killers(orders):
            if killer is not None:
                self.killers[mutant] = killer
                if killer not in chosen:
                    chosen.append(killer)
        for function in chosen[: len(kept) - 1 if kept else None : -1]:
            others = [one for one in chosen if one is not function]
            if self._replaced(function, others):
                chosen = others
        return chosen

    def _replaced(self, function: Function, others: list[Function]) -> bool:
        """Whether others kill all mutants of a function; if so, `killers` names them."""
        mine = [mutant for mutant, killer in self.killers.items() if killer is function]
        found: dict[Mutant, Function] = {}
        for mutant, killer in self._killers((mutant, others) for mutant in mine):
            if killer is None:
                return False
            found[mutant] = killer
        self.killers |= found
        return True

    def _killers(
        self, orders: Iterator[tuple[Mutant, Sequence[Function]]]
    ) -> Iterator[tuple[Mutant, Function | None]]:
        """Each mutant with the first function in its order that kills it."""
        mutants: dict[Run, Mutant] = {}

        def runs() -> Iterator[Run]:
            for mutant, order in orders:
                reaching = self._reaching.get(mutant.number, {})
                items = [item for function in order for item in reaching.get(function, ())]
                if items:
                    run = self._run(mutant.number, items)
                    mutants[run] = mutant
                    yield run
                else:
                    untouched.append(mutant)

        untouched: list[Mutant] = []
        for count, run in enumerate(run_all(runs(), self._outcomes, self._jobs), 1):
            mutant = mutants.pop(run)
            if count % 100 == 0:
                print(f"{count} mutants", file=sys.stderr, flush=True)
            if run.is_timed_out:
                self.timed_out.append(mutant)
            yield mutant, self._owner[run.failed] if run.failed is not None else None
        yield from ((mutant, None) for mutant in untouched)

    def _run(self, number: int, items: list[pytest.Item]) -> Run:
        def prepare() -> object:
            self._mutated.answer(number.__eq__)
            return lambda: None

        return Run(items, [self._limit_s + _SLOWER * self._seconds[item] for item in items], prepare)
