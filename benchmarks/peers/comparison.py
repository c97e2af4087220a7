"""Two systems, one load: figures side by side, their ratio, and whether the ratio meets its goal.

Pure: no clock, no process, no file. A ratio is that of the medians of the rounds, ours to theirs.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_ROUNDING: Final = 1e-9
_FIGURES: Final = range(2, 6)
"""The columns of figures."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The goal of a ratio: a least or a greatest value; exactly one of the two is given."""

    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"at_least={self.at_least}, at_most={self.at_most}: expected one of them")

    def is_met(self, ratio: float) -> bool:
        # A ratio of measured figures is no more exact than this; what is shown as the limit has met it.
        if self.at_least is not None:
            return ratio >= self.at_least * (1 - _ROUNDING)
        return self.at_most is not None and ratio <= self.at_most * (1 + _ROUNDING)

    def __str__(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One figure of both systems, round by round; `a` is the one that the goal speaks of."""

    name: str
    unit: str
    a: Sequence[float] = field(default_factory=list)
    b: Sequence[float] = field(default_factory=list)
    goal: Goal | None = None

    @property
    def ratio(self) -> float | None:
        """Median of `a` to median of `b`; None while one of them has no round, or when b's is 0."""
        if not self.a or not self.b:
            return None
        theirs = statistics.median(self.b)
        return statistics.median(self.a) / theirs if theirs else None

    @property
    def verdict(self) -> str:
        """``met``, ``MISSED``, or empty where there is no goal or no ratio."""
        ratio = self.ratio
        if self.goal is None or ratio is None:
            return ""
        return "met" if self.goal.is_met(ratio) else "MISSED"

    def described(self) -> dict[str, Any]:
        """The comparison as plain data, for JSON."""
        return {
            "name": self.name,
            "unit": self.unit,
            "a": list(self.a),
            "b": list(self.b),
            "ratio": self.ratio,
            "goal": None if self.goal is None else str(self.goal),
            "verdict": self.verdict,
        }


def number(value: float) -> str:
    """A figure as a person reads it: three digits, thousands grouped."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def rounds(values: Sequence[float]) -> str:
    """The median, and the least and most of several rounds; ``-`` when there is none."""
    if not values:
        return "-"
    middle = number(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({number(min(values))} to {number(max(values))})"


def _rows(comparisons: Sequence[Comparison], a: str, b: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("what", "", a, b, "ratio", "goal", "")]
    for one in comparisons:
        ratio = one.ratio
        rows.append(
            (
                one.name,
                one.unit,
                rounds(one.a),
                rounds(one.b),
                "-" if ratio is None else number(ratio),
                "" if one.goal is None else str(one.goal),
                one.verdict,
            )
        )
    return rows


def markdown(comparisons: Sequence[Comparison], a: str, b: str) -> str:
    """The table as Markdown, for a document."""
    return markdown_rows(_rows(comparisons, a, b), _FIGURES)


def table(comparisons: Sequence[Comparison], a: str, b: str) -> str:
    """All comparisons in aligned columns, under the names of the two systems."""
    return aligned_rows(_rows(comparisons, a, b), _FIGURES)


def markdown_rows(rows: Sequence[tuple[str, ...]], figures: Collection[int]) -> str:
    """A table in Markdown; the first row is its head, and `figures` are the columns of figures."""
    head, *rest = rows
    rule = tuple("---:" if column in figures else "---" for column in range(len(head)))
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *rest))


def aligned_rows(rows: Sequence[tuple[str, ...]], figures: Collection[int]) -> str:
    """Rows in aligned columns, those of figures to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in figures else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
