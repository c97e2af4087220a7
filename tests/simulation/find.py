"""Looks for seeds of planted mistakes: ``python -m tests.simulation.find NAME...``, or all that are stale.

A hunt (see `planted`) may try `HISTORIES_OF_A_HUNT` seeds. ``--write`` puts the seeds into the code.
"""

import argparse
import inspect
import logging
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from tests.simulation import (  # noqa: F401 - they register their mistakes
    controller_mutations,
    coordinated_mutations,
    group_mutations,
    mutations,
    settings_mutations,
    transaction_mutations,
)
from tests.simulation.kinds import KINDS, run
from tests.simulation.planted import HUNTS, Hunt
from tests.simulation.promises import BrokenPromises
from tests.simulation.world import OPEN_WORLDS

HISTORIES_OF_A_HUNT: Final = 3
_HISTORIES_OF_A_SEARCH: Final = 5_000


def is_found(hunt: Hunt, seed: int) -> bool:
    """Whether the history of a seed notices a mistake that is planted now."""
    try:
        run(hunt.kind, seed)
    except KINDS[hunt.kind].errors as error:
        if hunt.alone is None:
            return True
        # Other histories cannot come to rest, or replicas break their promises too.
        return isinstance(error, BrokenPromises) and error.promises == {hunt.alone}
    finally:
        for world in list(OPEN_WORLDS):
            world.close()
    return False


def seed_of(hunt: Hunt, seeds: Iterable[int]) -> int | None:
    """The first of these seeds whose history notices the mistake, which is planted meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        hunt.mistake(patch.setattr)
        return next((seed for seed in seeds if is_found(hunt, seed)), None)


def _search(hunt: Hunt) -> int | None:
    """The first seed, from the present one on, whose history fails only if the mistake is planted."""
    seeds = iter(range(hunt.seed, hunt.seed + _HISTORIES_OF_A_SEARCH))
    while (seed := seed_of(hunt, seeds)) is not None and is_found(hunt._replace(alone=None), seed):
        print(f"{hunt.kind}, seed {seed} fails without any mistake", flush=True)
    return seed


def _write(hunt: Hunt, seed: int) -> None:
    path = Path(inspect.getsourcefile(hunt.mistake) or "")
    source = path.read_text()
    function = inspect.getsource(hunt.mistake)
    alone = "" if hunt.alone is None else f", alone=Promise.{hunt.alone.name}"
    there = f'@found_in("{hunt.kind}", {hunt.seed}{alone})'
    assert function.count(there) == 1, there
    better = function.replace(there, f'@found_in("{hunt.kind}", {seed}{alone})')
    path.write_text(source.replace(function, better))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of mistakes; all without any")
    parser.add_argument("--write", action="store_true", help="write the seeds into the code")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    missing = 0
    for hunt in HUNTS:
        if arguments.names and hunt.mistake.__name__ not in arguments.names:
            continue
        began = time.process_time()
        seed = _search(hunt)
        missing += seed is None
        print(f"{hunt}: seed {seed}, was {hunt.seed}, {time.process_time() - began:.1f} s", flush=True)
        if arguments.write and seed is not None and seed != hunt.seed:
            _write(hunt, seed)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
