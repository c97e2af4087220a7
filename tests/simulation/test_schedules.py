"""Hundreds of random histories, each from its seed, and a proof that they find known mistakes.

For the seeds that run see `seeds`. A seed that runs alone prints its steps.
"""

from __future__ import annotations

from collections import Counter

import pytest

from barnabas.protocol.errors import ApiError
from tests.simulation import controller_mutations, mutations
from tests.simulation.chaos import Chaos
from tests.simulation.compaction_mutations import FOUND_IN_COMPACTION
from tests.simulation.controller_mutations import FOUND_IN_CONTROLLERS
from tests.simulation.follower_mutations import FOUND_IN_FOLLOWERS
from tests.simulation.log_transaction_mutations import FOUND_IN_TRANSACTIONS
from tests.simulation.move_mutations import FOUND_IN_MOVES
from tests.simulation.mutations import FOUND_BY_CHANCE, Mutation
from tests.simulation.profiles import (
    COMPACTION,
    DOORS,
    LOST_ANSWERS,
    MARKERS,
    MOVES,
    OLD_WORDS,
    PROFILES,
    RACES,
    RACKS,
    REBIRTHS,
    STRICT,
    USUAL,
    Profile,
)
from tests.simulation.seeds import ONE_SEED, assert_found, noting_the_seed, seeds_of, seeds_to_run
from tests.simulation.topic_mutations import FOUND_IN_TOPICS

SEEDS = seeds_to_run(2_000)
SEEDS_OF_A_PROFILE = 7 * SEEDS // 320
CHUNKS = 16
SEEDS_TO_FIND_A_MISTAKE = 1_500
FOUND_IN_PROFILES: dict[Mutation, tuple[Profile, int]] = {
    mutations.broker_epochs_of_fetches_are_not_checked: (REBIRTHS, 60),
    mutations.an_expansion_is_written_for_any_registration: (REBIRTHS, 0),
    mutations.a_joining_replica_is_not_waited_for: (DOORS, 170),
    mutations.one_of_a_lost_isr_is_kept: (RACKS, 0),
    mutations.a_new_leader_commits_below_min_isr: (STRICT, 0),
    controller_mutations.the_isr_is_written_from_memory: (RACES, 150),
    controller_mutations.a_lost_answer_is_a_refusal: (LOST_ANSWERS, 60),
    controller_mutations.late_requests_are_carried_out: (OLD_WORDS, 20),
    **{mutation: (COMPACTION, first) for mutation, first in FOUND_IN_COMPACTION.items()},
    **{mutation: (MARKERS, first) for mutation, first in FOUND_IN_TRANSACTIONS.items()},
    **{mutation: (MOVES, first) for mutation, first in FOUND_IN_MOVES.items()},
}
"""The usual histories find these rarely, the given profiles soon."""
MISTAKES: dict[Mutation, tuple[Profile, int]] = {
    mutation: (USUAL, first)
    for mutation, first in (
        FOUND_BY_CHANCE | FOUND_IN_FOLLOWERS | FOUND_IN_CONTROLLERS | FOUND_IN_TOPICS
    ).items()
} | FOUND_IN_PROFILES


def _run(seed: int, profile: Profile = USUAL) -> Chaos:
    chaos = Chaos(seed, profile)
    with chaos.world, noting_the_seed(seed, chaos.trace, chaos.world.describe):
        chaos.run()
    return chaos


@pytest.mark.timeout(max(180, SEEDS // 10))
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_history_keeps_the_promises_and_comes_to_rest(chunk: int) -> None:
    acknowledged = 0
    topics: Counter[str] = Counter()
    seeds = seeds_of(chunk, CHUNKS, SEEDS)
    for seed in seeds:
        chaos = _run(seed)
        acknowledged += sum(truth.acknowledged_end for truth in chaos.world.all_truths)
        topics.update({} if chaos.topics is None else chaos.topics.counts)
        if ONE_SEED is not None:
            print("\n".join(chaos.trace), chaos.world.describe(), sep="\n")
    if ONE_SEED is None:
        # A simulation without records would keep every promise.
        assert acknowledged > len(seeds)
        # Topics were created, grown and deleted.
        assert len(+topics) == 3


@pytest.mark.timeout(max(180, SEEDS // 10))
@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_history_of_a_profile_keeps_the_promises(profile: Profile) -> None:
    missing = aborted = 0
    for seed in seeds_of(0, 1, SEEDS_OF_A_PROFILE):
        world = _run(seed, profile).world
        views = [broker.view for broker in world.brokers.values()]
        missing += sum(view.missing for view in views if view is not None)
        aborted += sum(one.is_aborted for one in world.truth.transactions.all)
    if ONE_SEED is None:
        # Without cleanings, logs of compacted topics would keep every promise.
        assert (missing > SEEDS_OF_A_PROFILE) == profile.is_compacted
        # Without transactions, everything committed would be stable.
        assert (aborted > SEEDS_OF_A_PROFILE) == profile.has_transactions


@pytest.mark.parametrize("mutation", MISTAKES, ids=lambda mutation: mutation.__name__)
def test_the_random_histories_find(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch.setattr)
    profile, first = MISTAKES[mutation]
    assert_found(lambda seed: _run(seed, profile), first, SEEDS_TO_FIND_A_MISTAKE, ApiError)
