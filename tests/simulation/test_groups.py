"""One consumer group in hundreds of random histories: joins, leaves, crashes, late answers, moves, failures.

For the seeds that run see `kinds`.
"""

import pytest

from barnabas.broker.coordinators.rebalance import GroupState
from barnabas.protocol.errors import ErrorCode
from tests.simulation.kinds import chunks, run, seeds_of

CHUNKS = 8


@pytest.mark.parametrize("chunk", chunks(CHUNKS))
def test_a_group_keeps_its_promises_in_every_schedule(chunk: int) -> None:
    for seed in seeds_of(chunk, CHUNKS, 1 / 16):
        run("groups", seed)


@pytest.mark.long
def test_the_schedules_reach_the_states_and_errors() -> None:
    missing: set[object] = set(GroupState) - {GroupState.DEAD}
    missing |= {
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
    for seed in range(40):
        judge = run("groups", seed).judge
        missing -= judge.refusals | judge.moved_in
        if not missing:
            return
    pytest.fail(f"40 histories have not reached {missing}")
