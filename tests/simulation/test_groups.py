"""One consumer group in hundreds of random histories: joins, leaves, crashes, late answers, moves, failures.

For the seeds that run see `seeds`.
"""

from __future__ import annotations

import pytest

from barnabas.broker.coordinators.rebalance import GroupState
from barnabas.protocol.errors import ErrorCode
from tests.simulation.group_chaos import Chaos
from tests.simulation.group_mutations import MUTATIONS
from tests.simulation.mutations import Mutation
from tests.simulation.seeds import assert_found, noting_the_seed, seeds_of, seeds_to_run

SEEDS = seeds_to_run(2_000) // 20
CHUNKS = 8
SEEDS_TO_FIND_A_MISTAKE = 300


def run(seed: int) -> Chaos:
    chaos = Chaos(seed)
    with chaos.world, noting_the_seed(seed, chaos.world.trace, chaos.world.describe):
        chaos.run()
    return chaos


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_group_keeps_its_promises_in_every_schedule(chunk: int) -> None:
    for seed in seeds_of(chunk, CHUNKS, SEEDS):
        run(seed)


def test_the_schedules_reach_the_states_and_errors() -> None:
    refusals: set[ErrorCode] = set()
    moved_in: set[GroupState] = set()
    for seed in range(40):
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
    assert_found(run, MUTATIONS[mutation], SEEDS_TO_FIND_A_MISTAKE, KeyError)
