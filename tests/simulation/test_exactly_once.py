"""Transactions over several brokers in random histories, with all parts that take a share in them.

For the seeds that run see `seeds`; ``make soak SOAK_PROFILE=transactions`` runs many.
"""

from __future__ import annotations

import itertools

import pytest

from barnabas.protocol.invariants import InvariantViolation
from tests.simulation.exactly_once_chaos import Chaos
from tests.simulation.exactly_once_judge import BrokenPromises, Promise
from tests.simulation.exactly_once_mutations import FOUND_ALONE, MUTATIONS
from tests.simulation.mutations import Mutation
from tests.simulation.seeds import assert_found, noting_the_seed, seeds_of, seeds_to_run

SEEDS = seeds_to_run(2_000) // 100
CHUNKS = 2
SEEDS_TO_FIND_A_MISTAKE = 40


def run(seed: int) -> Chaos:
    chaos = Chaos(seed)
    with chaos.world, noting_the_seed(seed, chaos.trace, chaos.world.describe):
        chaos.run()
    return chaos


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_transactions_keep_their_promises_in_every_schedule(chunk: int) -> None:
    for seed in seeds_of(chunk, CHUNKS, SEEDS):
        run(seed)


def test_the_schedules_commit_and_abort_in_both_versions_and_check_every_promise() -> None:
    missing: set[object] = {*itertools.product((1, 2), (True, False)), *Promise}
    for seed in range(8):
        judge = run(seed).judge
        missing -= {(attempt.version, attempt.told) for attempt in judge.attempts} | judge.checked.keys()
        if not missing:
            return
    pytest.fail(f"8 histories have not reached {missing}")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_known_mistake_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch.setattr)
    assert_found(run, MUTATIONS[mutation], SEEDS_TO_FIND_A_MISTAKE)


def test_each_promise_has_a_mistake_that_breaks_it_alone() -> None:
    assert set(FOUND_ALONE) == set(Promise)


@pytest.mark.parametrize(
    ("promise", "mutation"),
    [(promise, mutation) for promise, mutations in FOUND_ALONE.items() for mutation in mutations],
    ids=lambda value: value.name if isinstance(value, Promise) else value.__name__,
)
def test_a_check_alone_finds_a_mistake(
    promise: Promise, mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch.setattr)
    first = FOUND_ALONE[promise][mutation]
    for seed in range(first, first + SEEDS_TO_FIND_A_MISTAKE):
        try:
            run(seed)
        except BrokenPromises as broken:
            if broken.promises == {promise}:
                return
        except (AssertionError, InvariantViolation):
            # Other histories cannot come to rest, or replicas break their promises too.
            continue
    pytest.fail(f"in no history is {promise} the only broken promise")
