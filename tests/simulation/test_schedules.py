"""Hundreds of random histories, each from its seed; and proof that they find what is wrong.

``BARNABAS_SIMULATION_SEEDS=20000`` runs that many (a soak); ``BARNABAS_SIMULATION_SEED=4711`` runs that one
and shows its steps.
"""

from __future__ import annotations

import os

import pytest

from barnabas.protocol.invariants import InvariantViolation
from tests.simulation.chaos import Chaos
from tests.simulation.mutations import FOUND_BY_CHANCE, Mutation

SEEDS = int(os.environ.get("BARNABAS_SIMULATION_SEEDS", "800"))
ONE_SEED = os.environ.get("BARNABAS_SIMULATION_SEED")
CHUNKS = 8
STEPS = 200
SEEDS_TO_FIND_A_MISTAKE = 1_500


def _run(seed: int) -> Chaos:
    chaos = Chaos(seed)
    try:
        chaos.run(STEPS)
    except (AssertionError, InvariantViolation) as error:
        error.add_note(
            f"seed {seed}: run it alone with BARNABAS_SIMULATION_SEED={seed}\n"
            f"after {len(chaos.trace)} steps, the last of them: {', '.join(chaos.trace[-40:])}\n"
            f"{chaos.world.describe()}"
        )
        raise
    return chaos


def _seeds(chunk: int) -> range:
    if ONE_SEED is not None:
        return range(int(ONE_SEED), int(ONE_SEED) + 1) if chunk == 0 else range(0)
    return range(chunk, SEEDS, CHUNKS)


@pytest.mark.timeout(max(180, SEEDS // 10))
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_history_keeps_the_promises_and_comes_to_rest(chunk: int) -> None:
    acknowledged = 0
    for seed in _seeds(chunk):
        chaos = _run(seed)
        acknowledged += chaos.world.truth.acknowledged_end
        if ONE_SEED is not None:
            print("\n".join(chaos.trace), chaos.world.describe(), sep="\n")
    if ONE_SEED is None:
        # A simulation in which nothing is ever written would keep every promise.
        assert acknowledged > len(_seeds(chunk))


def test_a_seed_always_gives_the_same_history() -> None:
    first, second = _run(11), _run(11)
    assert first.trace == second.trace
    assert first.world.describe() == second.world.describe()
    assert first.world.truth.committed == second.world.truth.committed


@pytest.mark.parametrize("mutation", FOUND_BY_CHANCE, ids=lambda mutation: mutation.__name__)
def test_the_random_histories_find(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch.setattr)
    first = FOUND_BY_CHANCE[mutation]
    for seed in range(first, first + SEEDS_TO_FIND_A_MISTAKE):
        try:
            _run(seed)
        except (AssertionError, InvariantViolation):
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_MISTAKE} histories did not notice the mistake")
