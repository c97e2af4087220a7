"""The demo's output: steps, progress and verdicts, for a terminal or a log file.

In a terminal progress is a moving bar; elsewhere it is an occasional line. With ``--json`` everything goes to
stderr, so that stdout has only the report.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

_LOG_WIDTH: Final = 120
_LINES_PER_STEP: Final = 5
_INDENT: Final = "   "


class _RateColumn(ProgressColumn):
    """Records per second since the start of the task."""

    def render(self, task: Task) -> Text:
        elapsed = task.finished_time if task.finished else task.elapsed
        rate = task.completed / elapsed if elapsed else 0.0
        return Text(f"{rate:>9,.0f} records/s", style="cyan")


class ProgressLine:
    """The progress of a step; `update` is cheap enough to be called every few hundred records."""

    def __init__(self, screen: Screen, label: str, total: int, bar: Progress | None) -> None:
        self._screen = screen
        self._label = label
        self._total = total
        self._bar = bar
        self._task = None if bar is None else bar.add_task(label, total=total)
        self._started = time.monotonic()
        self._next_line = total // _LINES_PER_STEP

    def update(self, done: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)
        elif done >= self._next_line:
            self._next_line += max(1, self._total // _LINES_PER_STEP)
            rate = done / max(time.monotonic() - self._started, 1e-9)
            self._screen.note(f"{self._label} {done:,} of {self._total:,} ({rate:,.0f} records/s)")


class Screen:
    """The demo's output."""

    def __init__(self, *, to_stderr: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=to_stderr, highlight=False)
        if not self._console.is_terminal:
            self._console.width = _LOG_WIDTH
        self._started = time.monotonic()

    def title(self, text: str) -> None:
        self._console.print(Text(text, style="bold"))

    def step(self, number: int, total: int, text: str) -> None:
        """Print the heading of a step."""
        line = Text(f"\n{number}/{total} ", style="bold cyan")
        line.append(text, style="bold")
        line.append(f"  ({time.monotonic() - self._started:.0f} s)", style="dim")
        self._console.print(line)

    def note(self, text: str) -> None:
        """Print an event."""
        self._console.print(Text(_INDENT + text))

    def verdict(self, passed: bool, text: str) -> None:
        """Print a check and its result."""
        mark, style = ("✓", "green") if passed else ("✗", "bold red")
        line = Text(_INDENT)
        line.append(mark, style=style)
        line.append(f" {text}", style="" if passed else "red")
        self._console.print(line)

    def warning(self, text: str) -> None:
        self._console.print(Text(text, style="bold red"))

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[ProgressLine]:
        """Show progress over `total` records while the block runs."""
        if not self._console.is_terminal:
            yield ProgressLine(self, label, total, None)
            return
        columns = (
            TextColumn(_INDENT + "{task.description}"),
            BarColumn(bar_width=36),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            _RateColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as bar:
            yield ProgressLine(self, label, total, bar)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] = ()
    ) -> None:
        """Print a table; the columns with these numbers are right-aligned."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=any(columns))
        for index, name in enumerate(columns):
            table.add_column(name, justify="right" if index in numeric else "left")
        for row in rows:
            table.add_row(*map(Text, row))
        self._console.print(table)
