"""One consumer group in thousands of random histories: joins, leaves, crashes, late answers, moves, failures.

``BARNABAS_SIMULATION_SEEDS`` and ``BARNABAS_SIMULATION_SEED`` as in `test_schedules`.
"""

from __future__ import annotations

import os

import pytest

from barnabas.broker.coordinators.group_state import GroupState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.invariants import InvariantViolation
from tests.simulation.group_chaos import Chaos
from tests.simulation.group_mutations import MUTATIONS
from tests.simulation.mutations import Mutation

SEEDS = int(os.environ.get("BARNABAS_SIMULATION_SEEDS", "2000"))
ONE_SEED = os.environ.get("BARNABAS_SIMULATION_SEED")
CHUNKS = 8
SEEDS_TO_FIND_A_MISTAKE = 500


def run(seed: int) -> Chaos:
    chaos = Chaos(seed)
    try:
        chaos.run()
    except (AssertionError, InvariantViolation) as error:
        error.add_note(
            f"seed {seed}: run it alone with BARNABAS_SIMULATION_SEED={seed}\n"
            f"the last of what happened: {'; '.join(chaos.world.trace[-40:])}"
        )
        raise
    return chaos


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_group_keeps_its_promises_in_every_schedule(chunk: int) -> None:
    seeds = [int(ONE_SEED)] if ONE_SEED is not None else range(chunk, SEEDS, CHUNKS)
    for seed in seeds:
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
