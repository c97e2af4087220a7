"""Makes the pictures of the README from a real run: `make pictures`.

Runs the `barnabas` command in colour, and exports its output as SVG: `status` of a cluster before and after
the death of a broker, and the part of the demo in which a broker is killed and its partitions fail over.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent / "pictures"
WIDTH = 104
FAILOVER_STEPS = ("3/6", "4/6")
"""The first step of the demo that the picture shows, and the first that it does not."""


def run(*arguments: str, text: str | None = None, check: bool = True) -> str:
    """The output of `barnabas`, with colours. Raises CalledProcessError, unless it may fail."""
    done = subprocess.run(
        [sys.executable, "-m", "barnabas.cli.main", *arguments],
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)},
        input=None if text is None else text.encode(),
        capture_output=True,
        check=check,
    )
    return done.stdout.decode()


def last_states(output: str) -> list[str]:
    """The lines as they stay on a terminal: without the earlier states of progress bars."""
    without_cursor = re.sub(r"\x1b\[\?25[lh]", "", output)
    return [re.split(r"\r(?:\x1b\[2K)?", line)[-1].rstrip() for line in without_cursor.split("\n")]


def save(name: str, title: str, lines: list[str]) -> None:
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115 - lives as long as the process
    for line in lines:
        console.print(Text.from_ansi(line))
    console.save_svg(str(HERE / f"{name}.svg"), title=title, unique_id=name)
    print(f"{name}.svg: {len(lines)} lines")


def status() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = ("--dir", str(Path(folder) / "cluster"))
        run("up", "--detach", *place)
        try:
            run("topics", "create", "orders", *place)
            run("produce", "orders", *place, text="".join(f"{number}\n" for number in range(100_000)))
            output = f"$ barnabas status\n{run('status', *place)}\n$ barnabas kill 1\n"
            output += run("kill", "1", *place)
            # With a problem the exit code is 1.
            output += f"\n$ barnabas status\n{run('status', *place, check=False)}"
        finally:
            run("down", *place)
    save("status", "barnabas status, and a broker that dies", last_states(output.strip("\n")))


def failover() -> None:
    lines = last_states(run("demo"))
    first, end = (next(i for i, line in enumerate(lines) if step in line) for step in FAILOVER_STEPS)
    save("failover", "make demo", lines[first:end])


if __name__ == "__main__":
    status()
    failover()
