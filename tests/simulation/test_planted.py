"""The random histories notice every mistake that is planted in the code; see `planted`."""

import pytest

from tests.simulation import exactly_once_judge, group_judge
from tests.simulation.find import HISTORIES_OF_A_HUNT, seed_of
from tests.simulation.planted import HUNTS, OF_COMPILED_CODE, Hunt
from tests.simulation.promises import PromiseKeeper
from tests.support.compiled import PURE_PYTHON_ONLY

_SAMPLE = 12
"""A short run tries one in so many."""


def _marks(at: int, hunt: Hunt) -> list[pytest.MarkDecorator]:
    long = [pytest.mark.long] if at % _SAMPLE else []
    return [*long, PURE_PYTHON_ONLY] if hunt.mistake in OF_COMPILED_CODE else long


@pytest.mark.parametrize(
    "hunt", [pytest.param(hunt, marks=_marks(at, hunt)) for at, hunt in enumerate(HUNTS)], ids=str
)
def test_a_planted_mistake_is_found(hunt: Hunt) -> None:
    found = seed_of(hunt, range(hunt.seed, hunt.seed + HISTORIES_OF_A_HUNT))
    assert found is not None, (
        f"stale seed: {HISTORIES_OF_A_HUNT} histories from {hunt.seed} on do not notice it; "
        f"`python -m tests.simulation.find --write {hunt.mistake.__name__}` looks for another"
    )


@pytest.mark.parametrize(
    ("kind", "judge"),
    [("exactly once", exactly_once_judge.Judge), ("groups", group_judge.Judge)],
)
def test_each_promise_has_a_mistake_that_its_check_alone_finds(kind: str, judge: type[PromiseKeeper]) -> None:
    assert {hunt.alone for hunt in HUNTS if hunt.kind == kind} >= judge.promises
