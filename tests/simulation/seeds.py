"""The seeds that run, the search for a planted mistake, and the note on a seed that breaks a promise.

``BARNABAS_SIMULATION_SEEDS=20000`` runs that many (a soak); ``BARNABAS_SIMULATION_SEED=4711`` runs that one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from barnabas.protocol.invariants import InvariantViolation

ONE_SEED = os.environ.get("BARNABAS_SIMULATION_SEED")


def seeds_to_run(default: int) -> int:
    """The number of seeds to run."""
    return int(os.environ.get("BARNABAS_SIMULATION_SEEDS", str(default)))


def seeds_of(chunk: int, chunks: int, seeds: int) -> range:
    """The seeds of one chunk; a single requested seed runs in the first chunk, and the others are empty."""
    if ONE_SEED is not None:
        return range(int(ONE_SEED), int(ONE_SEED) + 1) if chunk == 0 else range(0)
    return range(chunk, seeds, chunks)


def assert_found(run: Callable[[int], object], first: int, seeds: int, *errors: type[Exception]) -> None:
    """Fail unless a history from the first seed on notices a planted mistake, also by one of these errors."""
    for seed in range(first, first + seeds):
        try:
            run(seed)
        except (AssertionError, InvariantViolation, *errors):
            return
    pytest.fail(f"{seeds} histories did not notice the mistake")


@contextmanager
def noting_the_seed(seed: int, trace: list[str], describe: Callable[[], str]) -> Iterator[None]:
    """Add the seed, the last steps and the state of the world to the error of a broken promise."""
    try:
        yield
    except (AssertionError, InvariantViolation) as error:
        error.add_note(
            f"seed {seed}: run it alone with BARNABAS_SIMULATION_SEED={seed}\n"
            f"after {len(trace)} steps, the last of them: {'; '.join(trace[-40:])}\n"
            f"{describe()}"
        )
        raise
