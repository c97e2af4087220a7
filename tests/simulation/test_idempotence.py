"""Idempotent producers in hundreds of random histories: each batch is committed once and in order.

For the seeds that run see `kinds`.
"""

import pytest

from tests.simulation.kinds import chunks, run, seeds_of

CHUNKS = 4


@pytest.mark.parametrize("chunk", chunks(CHUNKS))
def test_every_batch_is_committed_once_and_in_order(chunk: int) -> None:
    seeds = seeds_of(chunk, CHUNKS, 1 / 5)
    committed = sum(sum(run("idempotence", seed).world.truth.sequences.values()) for seed in seeds)
    assert committed >= 2 * len(seeds)
