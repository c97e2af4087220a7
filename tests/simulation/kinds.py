"""The kinds of random histories: each gives a history for a seed, with the world that it happens in.

`run` runs one, and adds to the error of a broken promise how to repeat it. The seeds follow from the day, so
that every day other histories run. ``BARNABAS_SIMULATION_SEED=4711`` runs that one,
``BARNABAS_SIMULATION_SEEDS=20000`` that many of the usual histories, and as many more of the others.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import pytest

from barnabas.protocol.errors import ApiError
from barnabas.protocol.invariants import InvariantViolation
from tests.simulation import chaos, exactly_once_chaos, group_chaos, idempotence
from tests.simulation.profiles import PROFILES, USUAL
from tests.support.soak import DAY

ONE_SEED: Final = os.environ.get("BARNABAS_SIMULATION_SEED")
FIRST_SEED: Final = DAY * 1_000
USUAL_SEEDS: Final = int(os.environ.get("BARNABAS_SIMULATION_SEEDS", "800"))
_BROKEN: Final = (AssertionError, InvariantViolation)


class Kind(NamedTuple):
    make: Callable[[int], Any]
    errors: tuple[type[Exception], ...] = _BROKEN
    """The errors that show a planted mistake."""


KINDS: Final = {
    "exactly once": Kind(exactly_once_chaos.Chaos),
    "exactly once, pushes": Kind(partial(exactly_once_chaos.Chaos, pushes=True)),
    "groups": Kind(group_chaos.Chaos, (*_BROKEN, KeyError)),
    "groups, pushes": Kind(partial(group_chaos.Chaos, pushes=True), (*_BROKEN, KeyError)),
    "idempotence": Kind(idempotence.IdempotentChaos),
    **{
        name: Kind(partial(chaos.Chaos, profile=profile), (*_BROKEN, ApiError))
        for name, profile in (PROFILES | {USUAL.name: USUAL}).items()
    },
}


def chunks(count: int) -> list[Any]:
    """Parameters of a test that divides its seeds; a short run takes the first chunk alone."""
    return [0, *(pytest.param(chunk, marks=pytest.mark.long) for chunk in range(1, count))]


def seeds_of(chunk: int, chunks: int, part: float = 1.0) -> range:
    """The seeds of one chunk of a part of the usual number; one that is asked for is in the first chunk."""
    if ONE_SEED is not None:
        return range(int(ONE_SEED), int(ONE_SEED) + 1) if chunk == 0 else range(0)
    return range(FIRST_SEED + chunk, FIRST_SEED + round(part * USUAL_SEEDS), chunks)


def run(kind: str, seed: int) -> Any:
    """Run one history; an error tells the seed, the last steps and the state of the world."""
    history = KINDS[kind].make(seed)
    with history.world as world:
        try:
            history.run()
        except _BROKEN as error:
            error.add_note(
                f"{kind}, seed {seed}: run it alone with BARNABAS_SIMULATION_SEED={seed}\n"
                f"after {len(history.trace)} steps, the last of them: {'; '.join(history.trace[-40:])}\n"
                f"{world.describe()}"
            )
            raise
    return history
