"""One transactional id in random histories: racing producers, late messages, coordinators that move.

For the seeds that run see `kinds`.
"""

import pytest

from barnabas.broker.coordinators.transaction_state import TransactionState
from barnabas.protocol.errors import ErrorCode
from tests.simulation.kinds import chunks, run, seeds_of

CHUNKS = 4


@pytest.mark.parametrize("chunk", chunks(CHUNKS))
def test_transactions_keep_their_promises_in_every_schedule(chunk: int) -> None:
    for seed in seeds_of(chunk, CHUNKS, 1 / 4):
        run("one transactional id", seed)


def test_the_schedules_reach_the_states_and_errors() -> None:
    errors: set[ErrorCode] = set()
    states: set[TransactionState] = set()
    for seed in range(60):
        judge = run("one transactional id", seed).judge
        errors |= judge.errors
        states |= judge.states
    assert states == set(TransactionState)
    assert errors >= {
        ErrorCode.NONE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
