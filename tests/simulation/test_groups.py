"""One consumer group in thousands of random histories: joins, leaves, crashes, late answers, moves, failures.

How many and which: see `seeds`.
"""

from __future__ import annotations

import pytest

from barnabas.broker.coordinators.group_state import GroupState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.invariants import InvariantViolation
from tests.simulation.group_chaos import Chaos
from tests.simulation.group_mutations import MUTATIONS
from tests.simulation.mutations import Mutation
from tests.simulation.seeds import seeds_of, seeds_to_run, told_with_seed

SEEDS = seeds_to_run(2_000)
CHUNKS = 8
SEEDS_TO_FIND_A_MISTAKE = 500


def run(seed: int) -> Chaos:
    chaos = Chaos(seed)
    with told_with_seed(seed, chaos.world.trace, lambda: ""):
        chaos.run()
    return chaos


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_group_keeps_its_promises_in_every_schedule(chunk: int) -> None:
    for seed in seeds_of(chunk, CHUNKS, SEEDS):
        run(seed)


def test_the_schedules_reach_what_they_are_to_try() -> None:
    refusals: set[ErrorCode] = set()
    moved_in: set[GroupState] = set()
    for seed in range(200):
        judge = run(seed).judge
        refusals |= judge.refusals
        moved_in |= judge.moved_in
    assert moved_in >= set(GroupState) - {GroupState.DEAD}
    assert refusals >= {
        ErrorCode.NONE,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_known_mistake_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch.setattr)
    for seed in range(SEEDS_TO_FIND_A_MISTAKE):
        try:
            run(seed)
        except (AssertionError, InvariantViolation, KeyError):
            return
    pytest.fail(f"{mutation.__name__} went unnoticed in {SEEDS_TO_FIND_A_MISTAKE} schedules")
