"""Idempotent producers in hundreds of random histories: each batch is committed once and in order.

For the seeds that run see `seeds`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.log import recovery
from barnabas.broker.log.log import Log
from barnabas.broker.log.producer_state import ProducerState, ProducerStates
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.ids import Offset
from tests.simulation.idempotence import IdempotentChaos
from tests.simulation.seeds import assert_found, noting_the_seed, seeds_of, seeds_to_run

SEEDS = seeds_to_run(800) // 2
CHUNKS = 4
SEEDS_TO_FIND_A_MISTAKE = 300

SetAttr = Callable[[object, str, object], None]


def _run(seed: int) -> IdempotentChaos:
    chaos = IdempotentChaos(seed)
    with chaos.world, noting_the_seed(seed, chaos.trace, chaos.world.describe):
        chaos.run()
    return chaos


@pytest.mark.timeout(max(180, SEEDS // 5))
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_batch_is_committed_once_and_in_order(chunk: int) -> None:
    seeds = seeds_of(chunk, CHUNKS, SEEDS)
    committed = sum(sum(_run(seed).world.truth.sequences.values()) for seed in seeds)
    assert committed >= 2 * len(seeds)


def duplicates_are_not_recognized(setattr_: SetAttr) -> None:
    setattr_(ProducerState, "find", lambda self, header: None)


def any_sequence_is_accepted(setattr_: SetAttr) -> None:
    setattr_(ProducerStates, "check", lambda *_, **options: [])


def followers_learn_nothing(setattr_: SetAttr) -> None:
    follow = Log.append_as_follower

    def forgetful(self: Log, *arguments: Any) -> Any:
        states = self.producers
        self.producers = ProducerStates()
        try:
            return follow(self, *arguments)
        finally:
            self.producers = states

    setattr_(Log, "append_as_follower", forgetful)


def a_restart_loses_the_producers(setattr_: SetAttr) -> None:
    setattr_(recovery, "load_producers", lambda *_: ProducerStates())


def truncated_batches_are_still_known(setattr_: SetAttr) -> None:
    setattr_(ProducerStates, "cut", lambda self, end: True)


def a_duplicate_is_acknowledged_at_once(setattr_: SetAttr) -> None:
    """The original batch may not be on all replicas yet."""
    append = Partition.append_as_leader

    def hasty(self: Partition, *arguments: Any, **named: Any) -> Any:
        done = append(self, *arguments, **named)
        return done if done.record_count else done._replace(last_offset=Offset(-1))

    setattr_(Partition, "append_as_leader", hasty)


MISTAKES = {
    duplicates_are_not_recognized: 0,
    any_sequence_is_accepted: 0,
    followers_learn_nothing: 0,
    a_restart_loses_the_producers: 0,
    truncated_batches_are_still_known: 870,
    a_duplicate_is_acknowledged_at_once: 0,
}
"""The search starts at the given seed to save time."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_random_histories_find(
    mistake: Callable[[SetAttr], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch.setattr)
    assert_found(_run, MISTAKES[mistake], SEEDS_TO_FIND_A_MISTAKE)
