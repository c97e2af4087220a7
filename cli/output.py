"""The output of commands: JSON on one line, tables and progress by rich.

Rich is imported late: that takes longer than most commands.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_TABLE_WIDTH: Final = 200


@contextmanager
def errors_alone(logger_name: str) -> Iterator[None]:
    """Keep warnings of a logger out of the output; the command reports what they say itself."""
    logger = logging.getLogger(logger_name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def escape_unencodable(*streams: TextIO | None) -> None:
    """Let text that a stream cannot encode be written with escapes, rather than fail."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def is_utf_8(text: str) -> bool:
    """False for a text of the system, such as an argument or a file's name, that was decoded with escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def print_json(value: Any) -> None:
    """Print one value on one line: every line of output is JSON. Escapes replace what the encoding lacks."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, separators=(", ", ": "))
    print(text)


def make_console() -> Console:
    """A console on stdout. Into a pipe or file, its lines are wide enough for every table."""
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(width=_TABLE_WIDTH, highlight=False)


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    has_edge: bool = True,
    unbroken: Collection[str] = (),
) -> Table:
    """A table with numbers to the right; cells of the `unbroken` columns are never broken into lines.

    With an edge it has an empty line before and after it.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    cells = [tuple(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=has_edge)
    for index, name in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[index], int) for row in cells)
        table.add_column(
            name, justify="right" if numeric else "left", overflow="fold", no_wrap=name in unbroken
        )
    for row in cells:
        table.add_row(
            *(cell if isinstance(cell, Text) else Text("-" if cell is None else str(cell)) for cell in row)
        )
    return table


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    make_console().print(make_table(columns, rows))


@contextmanager
def progress(total: int, label: str = "", console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """A moving bar while the block runs; the result takes the number done so far.

    It is of records if it has a label, else of bytes. Without a console it is on stderr, if that is a
    terminal, and disappears at the end.
    """
    if console is None and not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.text import Text

    class RateColumn(bars.ProgressColumn):
        def render(self, task: bars.Task) -> Text:
            elapsed = task.finished_time if task.finished else task.elapsed
            rate = task.completed / elapsed if elapsed else 0.0
            return Text(f"{rate:>9,.0f} records/s", style="cyan")

    columns: tuple[bars.ProgressColumn, ...] = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=36),
        bars.TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        RateColumn(),
        bars.TimeElapsedColumn(),
    )
    if not label:
        of_bytes = (bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn())
        columns = (bars.BarColumn(), *of_bytes)
    with bars.Progress(*columns, console=console or Console(stderr=True), transient=console is None) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
