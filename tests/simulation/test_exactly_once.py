"""Transactions over several brokers in random histories, with all parts that take a share in them.

For the seeds that run see `kinds`; ``make soak SOAK_PROFILE="exactly once"`` runs many.
"""

import itertools

import pytest

from tests.simulation.exactly_once_judge import Judge
from tests.simulation.kinds import chunks, run, seeds_of

CHUNKS = 2


@pytest.mark.parametrize("chunk", chunks(CHUNKS))
def test_transactions_keep_their_promises_in_every_schedule(chunk: int) -> None:
    for seed in seeds_of(chunk, CHUNKS, 1 / 50):
        run("exactly once", seed)


def test_the_schedules_commit_and_abort_in_both_versions_and_check_every_promise() -> None:
    missing: set[object] = {*itertools.product((1, 2), (True, False)), *Judge.promises}
    for seed in range(8):
        judge = run("exactly once", seed).judge
        missing -= {(attempt.version, attempt.told) for attempt in judge.attempts} | judge.checked.keys()
        if not missing:
            return
    pytest.fail(f"8 histories have not reached {missing}")
