"""Hundreds of random histories, each from its seed; and proof that they find what is wrong.

How many and which: see `seeds`. The one that is run alone shows its steps.
"""

from __future__ import annotations

import pytest

from barnabas.protocol.errors import ApiError
from barnabas.protocol.invariants import InvariantViolation
from tests.simulation.chaos import Chaos
from tests.simulation.controller_mutations import FOUND_IN_CONTROLLERS
from tests.simulation.follower_mutations import FOUND_IN_FOLLOWERS
from tests.simulation.mutations import FOUND_BY_CHANCE, Mutation
from tests.simulation.seeds import ONE_SEED, seeds_of, seeds_to_run, told_with_seed

SEEDS = seeds_to_run(2_000)
CHUNKS = 16
STEPS = 200
SEEDS_TO_FIND_A_MISTAKE = 1_500
MISTAKES = FOUND_BY_CHANCE | FOUND_IN_FOLLOWERS | FOUND_IN_CONTROLLERS


def _run(seed: int) -> Chaos:
    chaos = Chaos(seed)
    with chaos.world, told_with_seed(seed, chaos.trace, chaos.world.describe):
        chaos.run(STEPS)
    return chaos


@pytest.mark.timeout(max(180, SEEDS // 10))
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_history_keeps_the_promises_and_comes_to_rest(chunk: int) -> None:
    acknowledged = 0
    seeds = seeds_of(chunk, CHUNKS, SEEDS)
    for seed in seeds:
        chaos = _run(seed)
        acknowledged += chaos.world.truth.acknowledged_end
        if ONE_SEED is not None:
            print("\n".join(chaos.trace), chaos.world.describe(), sep="\n")
    if ONE_SEED is None:
        # A simulation in which nothing is ever written would keep every promise.
        assert acknowledged > len(seeds)


def test_a_seed_always_gives_the_same_history() -> None:
    first, second = _run(11), _run(11)
    assert first.trace == second.trace
    assert first.world.describe() == second.world.describe()
    assert first.world.truth.committed == second.world.truth.committed


@pytest.mark.parametrize("mutation", MISTAKES, ids=lambda mutation: mutation.__name__)
def test_the_random_histories_find(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch.setattr)
    first = MISTAKES[mutation]
    for seed in range(first, first + SEEDS_TO_FIND_A_MISTAKE):
        try:
            _run(seed)
        except (AssertionError, InvariantViolation, ApiError):
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_MISTAKE} histories did not notice the mistake")
