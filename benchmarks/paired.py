"""Figures of two trees that took turns: the ratio of each pair of turns, their median, and its mark.

Every figure is a cost: less is better, and a ratio above 1 means that the new tree costs more. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.peers.comparison import number

MARKED_BEYOND: Final = 0.10
"""The share by which a median must differ to be marked; two clusters of one tree differ by less."""
_CONFIDENCE: Final = 0.95
FIGURES: Final = range(2, 6)
"""The columns of figures in `rows`."""


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values, between which the median of all such values is with 95 % confidence.

    It uses the ranks alone, for any distribution. Of fewer than six values it takes least and greatest.
    """
    ranked, rank, beyond = sorted(values), 0, 0.0
    while True:
        # The chance that at most `rank` of the values are on one side of the true median, for both sides.
        beyond += 2 * math.comb(len(ranked), rank) / 2 ** len(ranked)
        if beyond > 1 - _CONFIDENCE:
            break
        rank += 1
    rank = max(0, rank - 1)
    return ranked[rank], ranked[-1 - rank]


@dataclass(frozen=True, kw_only=True)
class Paired:
    """One cost, turn by turn; `new[i]` and `old[i]` were measured right after each other."""

    name: str
    unit: str
    new: Sequence[float]
    old: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        return [new / old for new, old in zip(self.new, self.old, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def is_loss(self, beyond: float = MARKED_BEYOND) -> bool:
        """Whether the new tree costs more by more than this share, and more than noise can explain."""
        return self.ratio > 1 + beyond and median_interval(self.ratios)[0] > 1

    @property
    def mark(self) -> str:
        if self.is_loss():
            return "LOSS"
        is_gain = self.ratio < 1 / (1 + MARKED_BEYOND) and median_interval(self.ratios)[1] < 1
        return "gain" if is_gain else ""

    def described(self) -> dict[str, Any]:
        """The figures as plain data, for JSON."""
        return {
            "name": self.name,
            "unit": self.unit,
            "new": list(self.new),
            "old": list(self.old),
            "ratio": self.ratio,
            "interval": median_interval(self.ratios),
            "mark": self.mark,
        }


def rows(figures: Sequence[Paired], new: str, old: str) -> list[tuple[str, ...]]:
    """The rows of a table, under the names of the two trees."""
    found: list[tuple[str, ...]] = [("what", "", new, old, "ratio", "95 % of medians", "")]
    for figure in figures:
        low, high = median_interval(figure.ratios)
        found.append(
            (
                figure.name,
                figure.unit,
                number(statistics.median(figure.new)),
                number(statistics.median(figure.old)),
                f"{figure.ratio:.2f}",
                f"{low:.2f} to {high:.2f}",
                figure.mark,
            )
        )
    return found
