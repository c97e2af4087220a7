"""Every benchmark of the project's goals, one after another, and one table of goal and measured.

Each is also a benchmark of its own: ``python -m benchmarks.NAME --help``. A benchmark that fails is named
under the table, and the exit code is then 1; a missed goal is only marked, for figures depend on the machine.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import time
import traceback

from barnabas.protocol.errors import BarnabasError
from benchmarks.support import Figure, Options, clean_up_on_signals, options_of, parser_for, report, tell

# Memory before anything else: what comes first finds the machine's memory as it was left by others.
_ALL = (
    "floor",
    "startup",
    "produce",
    "records",
    "latency",
    "memory",
    "failover",
    "controller_failover",
    "reassignment",
    "groups",
    "transactions",
    "cleaner_latency",
    "recovery",
    "growth",
    "compaction",
    "spark",
)


def _measure(name: str, options: Options) -> list[Figure]:
    module = importlib.import_module(f"benchmarks.{name}")
    figures: list[Figure] = module.measure(options)
    return figures


def main() -> int:
    parser = parser_for(__doc__ or "")
    parser.add_argument(
        "--only", nargs="+", choices=_ALL, default=_ALL, metavar="NAME", help="of " + ", ".join(_ALL)
    )
    arguments = parser.parse_args()
    options = options_of(arguments)
    clean_up_on_signals()
    figures: list[Figure] = []
    failed: list[str] = []
    for name in arguments.only:
        tell(f"-- {name}")
        started = time.monotonic()
        try:
            figures += _measure(name, options)
            if name == "produce" and not options.recycled:
                figures += _recycled(options)
        except (BarnabasError, OSError, RuntimeError, TimeoutError) as error:
            traceback.print_exc()
            failed.append(f"{name}: {error}")
        tell(f"   {time.monotonic() - started:.0f} s")
    report(figures, options, as_json=arguments.json)
    for text in failed:
        tell(f"FAILED {text}")
    return 1 if failed else 0


def _recycled(options: Options) -> list[Figure]:
    """Produce again, on memory that the machine has handed out before."""
    from benchmarks import produce

    found = produce.measure(dataclasses.replace(options, recycled=True))
    return [dataclasses.replace(one, name=f"{one.name} (recycled)") for one in found]


if __name__ == "__main__":
    sys.exit(main())
