"""The brokers that a command connects to, and running its asyncio part.

``--bootstrap``, else ``BARNABAS_BOOTSTRAP``, else the running cluster of ``--dir`` (see `cluster_dir`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

from barnabas.cli.cluster_dir import add_dir_argument, chosen_dir
from barnabas.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from barnabas.deploy.state import read_record
from barnabas.protocol.ids import Endpoint, parse_endpoints
from barnabas.protocol.suggestions import did_you_mean

T = TypeVar("T")

BOOTSTRAP_VARIABLE: Final = "BARNABAS_BOOTSTRAP"


def add_bootstrap_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT,…",
        help=f"brokers to begin with (default: ${BOOTSTRAP_VARIABLE}, else the local cluster of --dir)",
    )
    add_dir_argument(parser)


def chosen_bootstrap(options: argparse.Namespace) -> str:
    """``host:port,…``; raises CommandError if no cluster is named."""
    given = options.bootstrap or os.environ.get(BOOTSTRAP_VARIABLE)
    if given:
        try:
            return ",".join(map(str, parse_endpoints(given)))
        except ValueError as error:
            raise CommandError(f"--bootstrap: {error}", USAGE) from None
    directory = chosen_dir(options)
    record = read_record(directory)
    if record is None or not record.is_running:
        raise CommandError(
            f"no cluster is running in {directory}; start one with `barnabas up`, or give --bootstrap",
            NOT_FOUND,
        )
    return ",".join(str(Endpoint(record.host, broker.port)) for broker in record.brokers)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run the asyncio part of a command on a uvloop loop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def unknown_topic(name: str, known: Iterable[str]) -> CommandError:
    """The error for a topic that does not exist, with similar names."""
    names = sorted(known)
    hint = did_you_mean(name, names, at_most=3)
    if names and not hint:
        hint = f"; there are {', '.join(names[:10])}{', …' if len(names) > 10 else ''}"
    elif not names:
        hint = "; there are no topics yet (see `barnabas topics create --help`)"
    return CommandError(f"there is no topic {name!r}{hint}", NOT_FOUND)
