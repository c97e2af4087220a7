"""One transactional id in random histories: racing producers, late messages, coordinators that move.

For the seeds that run see `seeds`.
"""

from __future__ import annotations

import pytest

from barnabas.broker.coordinators.transaction_state import TransactionState
from barnabas.protocol.errors import ErrorCode
from tests.simulation.mutations import Mutation
from tests.simulation.seeds import assert_found, noting_the_seed, seeds_of, seeds_to_run
from tests.simulation.transaction_chaos import Chaos
from tests.simulation.transaction_mutations import MUTATIONS

SEEDS = seeds_to_run(2_000) // 5
CHUNKS = 4
SEEDS_TO_FIND_A_MISTAKE = 200


def run(seed: int) -> Chaos:
    chaos = Chaos(seed)
    with noting_the_seed(seed, chaos.world.trace, chaos.world.describe):
        chaos.run()
    return chaos


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_transactions_keep_their_promises_in_every_schedule(chunk: int) -> None:
    for seed in seeds_of(chunk, CHUNKS, SEEDS):
        run(seed)


def test_the_schedules_reach_the_states_and_errors() -> None:
    errors: set[ErrorCode] = set()
    states: set[TransactionState] = set()
    for seed in range(60):
        judge = run(seed).judge
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


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_known_mistake_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch.setattr)
    assert_found(run, MUTATIONS[mutation], SEEDS_TO_FIND_A_MISTAKE)
