"""The demo's output on a terminal or in a log file: steps, progress and verdicts.

In a terminal progress is a moving bar; elsewhere it is an occasional line. With ``--json`` everything goes to
stderr, so that stdout has only the report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from barnabas.cli.output import progress_bar

_LOG_WIDTH: Final = 120
_LINES_PER_STEP: Final = 5
_INDENT: Final = "   "


Update = Callable[[int], None]
"""Takes the number of records done so far; cheap enough to be called every few hundred records."""


class Screen:
    def __init__(self, *, to_stderr: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=to_stderr, highlight=False)
        if not self._console.is_terminal:
            self._console.width = _LOG_WIDTH
        self._started = time.monotonic()

    def title(self, text: str) -> None:
        self._console.print(Text(text, style="bold"))

    def step(self, number: int, total: int, text: str) -> None:
        line = Text(f"\n{number}/{total} ", style="bold cyan")
        line.append(text, style="bold")
        line.append(f"  ({time.monotonic() - self._started:.0f} s)", style="dim")
        self._console.print(line)

    def note(self, text: str) -> None:
        self._console.print(Text(_INDENT + text))

    def verdict(self, passed: bool, text: str) -> None:
        mark, style = ("✓", "green") if passed else ("✗", "bold red")
        line = Text(_INDENT)
        line.append(mark, style=style)
        line.append(f" {text}", style="" if passed else "red")
        self._console.print(line)

    def warning(self, text: str) -> None:
        self._console.print(Text(text, style="bold red"))

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Update]:
        """Show progress over `total` records while the block runs."""
        if not self._console.is_terminal:
            yield self._make_line_printer(label, total)
            return
        with progress_bar(_INDENT + label, total, self._console) as update:
            yield update

    def _make_line_printer(self, label: str, total: int) -> Update:
        started = time.monotonic()
        step = max(1, total // _LINES_PER_STEP)
        next_line = step

        def update(done: int) -> None:
            nonlocal next_line
            if done >= next_line:
                next_line += step
                rate = done / max(time.monotonic() - started, 1e-9)
                self.note(f"{label} {done:,} of {total:,} ({rate:,.0f} records/s)")

        return update

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
