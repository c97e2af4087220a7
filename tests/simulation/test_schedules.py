"""Hundreds of random histories of logs and replicas, each from its seed.

For the seeds that run see `kinds`. A seed that runs alone prints its steps.
"""

from collections import Counter
from typing import Any, Final

import pytest

from tests.simulation.kinds import ONE_SEED, USUAL_SEEDS, chunks, run, seeds_of
from tests.simulation.profiles import PROFILES, PUSHES, USUAL, Profile

_TIME_S: Final = max(180, USUAL_SEEDS // 10)
_A_PROFILE: Final = 1 / 48


def _histories(kind: str, seeds: range) -> list[Any]:
    histories = [run(kind, seed) for seed in seeds]
    if ONE_SEED is not None:
        for history in histories:
            print("\n".join(history.trace), history.world.describe(), sep="\n")
    return histories


@pytest.mark.timeout(_TIME_S)
@pytest.mark.parametrize("chunk", chunks(16))
def test_every_history_keeps_the_promises_and_comes_to_rest(chunk: int) -> None:
    seeds = seeds_of(chunk, 16)
    histories = _histories(USUAL.name, seeds[::2]) + _histories(PUSHES.name, seeds[1::2] or seeds)
    acknowledged = sum(truth.acknowledged_end for each in histories for truth in each.world.all_truths)
    topics: Counter[str] = Counter()
    for history in histories:
        topics.update({} if history.topics is None else history.topics.counts)
    if ONE_SEED is None:
        # A simulation without records would keep every promise.
        assert acknowledged > len(histories)
        # Topics were created, grown and deleted.
        assert len(+topics) == 3


@pytest.mark.long
@pytest.mark.timeout(_TIME_S)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_history_of_a_profile_keeps_the_promises(profile: Profile) -> None:
    worlds = [history.world for history in _histories(profile.name, seeds_of(0, 1, _A_PROFILE))]
    views = [broker.view for world in worlds for broker in world.brokers.values()]
    missing = sum(view.missing for view in views if view is not None)
    changes = [
        (world.settings.changes, world.settings.deleted_segments) for world in worlds if world.settings
    ]
    aborted = sum(one.is_aborted for world in worlds for one in world.truth.transactions.all)
    if ONE_SEED is None:
        # Without cleanings, logs of compacted topics would keep every promise.
        assert (missing > 0) == profile.is_compacted
        # Without changes, or segments that retention deletes, settings would keep theirs.
        assert all(map(sum, zip(*changes, strict=True)))
        assert bool(changes) == profile.has_settings
        # Without transactions, everything committed would be stable.
        assert (aborted > 0) == profile.has_transactions


@pytest.mark.parametrize("chunk", chunks(4))
def test_every_batch_of_an_idempotent_producer_is_committed_once_and_in_order(chunk: int) -> None:
    histories = _histories("idempotence", seeds_of(chunk, 4, 1 / 5))
    committed = sum(sum(history.world.truth.sequences.values()) for history in histories)
    assert committed >= 2 * len(histories)
