"""Hundreds of random histories, each from its seed.

For the seeds that run see `kinds`. A seed that runs alone prints its steps.
"""

from collections import Counter

import pytest

from tests.simulation.kinds import ONE_SEED, USUAL_SEEDS, chunks, run, seeds_of
from tests.simulation.profiles import PROFILES, USUAL, Profile

CHUNKS = 16
_A_PROFILE = 1 / 40


@pytest.mark.timeout(max(180, USUAL_SEEDS // 10))
@pytest.mark.parametrize("chunk", chunks(CHUNKS))
def test_every_history_keeps_the_promises_and_comes_to_rest(chunk: int) -> None:
    acknowledged = 0
    topics: Counter[str] = Counter()
    seeds = seeds_of(chunk, CHUNKS)
    for seed in seeds:
        history = run(USUAL.name, seed)
        acknowledged += sum(truth.acknowledged_end for truth in history.world.all_truths)
        topics.update({} if history.topics is None else history.topics.counts)
        if ONE_SEED is not None:
            print("\n".join(history.trace), history.world.describe(), sep="\n")
    if ONE_SEED is None:
        # A simulation without records would keep every promise.
        assert acknowledged > len(seeds)
        # Topics were created, grown and deleted.
        assert len(+topics) == 3


@pytest.mark.long
@pytest.mark.timeout(max(180, USUAL_SEEDS // 10))
@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_history_of_a_profile_keeps_the_promises(profile: Profile) -> None:
    missing = aborted = 0
    for seed in seeds_of(0, 1, _A_PROFILE):
        world = run(profile.name, seed).world
        views = [broker.view for broker in world.brokers.values()]
        missing += sum(view.missing for view in views if view is not None)
        aborted += sum(one.is_aborted for one in world.truth.transactions.all)
    if ONE_SEED is None:
        # Without cleanings, logs of compacted topics would keep every promise.
        assert (missing > 0) == profile.is_compacted
        # Without transactions, everything committed would be stable.
        assert (aborted > 0) == profile.has_transactions
