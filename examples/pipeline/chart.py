"""A chart of throughput over time, with marks, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

WIDTH, HEIGHT, MARGIN = 900, 300, 50


class Mark(NamedTuple):
    """An event at a number of seconds."""

    at_s: float
    text: str


def draw(path: Path, points: Sequence[tuple[float, float]], marks: Sequence[Mark]) -> None:
    """Write a chart of (seconds, rows per second)."""
    end = max([1.0, *(at for at, _ in points), *(mark.at_s for mark in marks)])
    top = max([1.0, *(value for _, value in points)])

    def x(at: float) -> float:
        return MARGIN + at / end * (WIDTH - 2 * MARGIN)

    def y(value: float) -> float:
        return HEIGHT - MARGIN - value / top * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{MARGIN},{MARGIN} V{HEIGHT - MARGIN} H{WIDTH - MARGIN}" fill="none" stroke="#888"/>',
        f'<text x="{MARGIN}" y="{MARGIN - 24}" font-size="14">rows per second, by batch</text>',
        f'<text x="{MARGIN - 6}" y="{MARGIN + 4}" text-anchor="end">{top:,.0f}</text>',
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - MARGIN + 16}" text-anchor="end">{end:.0f} s</text>',
    ]
    if points:
        line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="#1f6feb" stroke-width="2"/>')
    for mark in marks:
        parts.append(
            f'<path d="M{x(mark.at_s):.1f},{MARGIN} V{HEIGHT - MARGIN}" stroke="#d1242f" '
            f'stroke-dasharray="4 3"/>'
            f'<text x="{x(mark.at_s) + 4:.1f}" y="{MARGIN - 6}" fill="#d1242f">{escape(mark.text)}</text>'
        )
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")
