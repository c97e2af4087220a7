"""docs/track-record.md has a row for each mistake that somebody has made, and names targets that exist."""

import inspect
import re
from pathlib import Path
from typing import Final

from tests.simulation import (
    controller_mutations,
    coordinated_mutations,
    group_mutations,
    mutations,
    settings_mutations,
    transaction_mutations,
)
from tests.simulation.planted import HUNTS, Mutation
from tests.simulation.test_histories import HISTORIES

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = (
    mutations,
    controller_mutations,
    coordinated_mutations,
    transaction_mutations,
    group_mutations,
    settings_mutations,
)
MISTAKES: Final[dict[str, Mutation]] = {
    name: mistake
    for module in MODULES
    for name, mistake in inspect.getmembers(module, inspect.isfunction)
    if mistake.__module__ == module.__name__ and not name.startswith("_")
}
PLANTED: Final = {hunt.mistake for hunt in HUNTS}.union(*HISTORIES.values())
ROWS: Final = re.findall(r"\| `([^`]+)` \|$", (ROOT / "docs/track-record.md").read_text(), flags=re.MULTILINE)


def _exists(target: str) -> bool:
    """Whether a target is a mistake that a test plants, a history, or a test of a file."""
    file, is_of_file, test = target.partition("::")
    if is_of_file:
        return re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE) is not None
    return MISTAKES.get(target) in PLANTED or target in {history.__name__ for history in HISTORIES}


def test_every_target_is_run_by_a_test() -> None:
    assert len(ROWS) > 25
    assert [target for target in ROWS if not _exists(target)] == []


def test_every_mistake_that_somebody_made_has_a_row() -> None:
    made = {name for name, mistake in MISTAKES.items() if re.search("Found in|Kafka", mistake.__doc__ or "")}
    assert sorted(made - set(ROWS)) == []
