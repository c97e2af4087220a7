"""A seed gives the same history in every process.

Python orders sets of strings and of objects differently in each process; so where the order of a set decides
something, a failed seed could not be repeated. `event_digest` shows the first event that differs.
"""

import os
import subprocess
import sys

import pytest

from tests.simulation.kinds import KINDS

_SEEDS = {"exactly once": (0, 9), "groups": (5,), "usual": (2, 4, 11)}


def _begin(hash_seed: int, histories: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.simulation.event_digest", *histories],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_a_seed_gives_the_same_history_in_every_process() -> None:
    """The second process runs them in another order: no history changes the next."""
    histories = [f"{name}:{seed}" for name in KINDS for seed in _SEEDS.get(name, (0,))]
    processes = _begin(1, histories), _begin(2, histories[::-1])
    first, second = (sorted(process.communicate()[0].splitlines()) for process in processes)
    assert len(first) == len(histories), f"{len(first)} of {len(histories)} histories have a digest"
    assert first == second
