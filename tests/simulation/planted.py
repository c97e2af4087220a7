"""The register of planted mistakes: each is put into the code on purpose, and a history must notice it.

A mistake is a function that takes `setattr` (a monkeypatch's) and replaces one rule by its wrong form.
`found_in` names the kind of histories that notices it (see `kinds`), and the seed of one that does. A change
of the code may change the history of a seed: then ``python -m tests.simulation.find NAME`` looks for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.promises import Promise

SetAttr = Callable[[object, str, object], None]
Mutation = Callable[[SetAttr], None]


class Hunt(NamedTuple):
    """With `alone`, this promise is the only one whose check notices the mistake before the history ends."""

    mistake: Mutation
    kind: str
    seed: int
    alone: Promise | None

    def __str__(self) -> str:
        alone = "" if self.alone is None else f" by {self.alone.name} alone"
        return f"{self.mistake.__name__} in {self.kind}{alone}"


HUNTS: Final[list[Hunt]] = []
OF_COMPILED_CODE: Final[set[Mutation]] = set()
"""They replace what compiled code calls directly, so they are planted in pure Python only."""


def found_in(kind: str, seed: int, *, alone: Promise | None = None) -> Callable[[Mutation], Mutation]:
    """Register a mistake that the history of this kind and seed notices."""

    def register(mistake: Mutation) -> Mutation:
        HUNTS.append(Hunt(mistake, kind, seed, alone))
        return mistake

    return register


def of_compiled_code(mistake: Mutation) -> Mutation:
    OF_COMPILED_CODE.add(mistake)
    return mistake
