"""The state of the chosen cluster for a command, and why a command that waits makes no progress."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from barnabas.cli.arguments import command_settings, dir_words, local_cluster
from barnabas.client.admin.admin import Admin
from barnabas.client.config import AdminConfig
from barnabas.client.errors import AuthenticationFailed, NoBrokerReachable
from barnabas.deploy.cluster_view import VIEW_SETTINGS, ClusterView, add_machine, fetch_view, unreachable_view
from barnabas.protocol.errors import BarnabasError

_SILENCE_S: Final = 2.0
"""How long a command makes no progress before the reason is looked up, which takes two seconds at most."""
_REPEAT_S: Final = 30.0
_LOOK_INTERVAL_S: Final = 0.25
_MOST_PROBLEMS: Final = 4


async def look(
    options: argparse.Namespace, bootstrap: str, topics: Sequence[str] | None = None
) -> ClusterView:
    """The view of the chosen cluster, with its processes if it runs on this machine.

    Raises NoBrokerReachable if no broker answers and no process is known, and ApiError for an unknown topic.
    """
    local = local_cluster(options, bootstrap)
    settings = command_settings(options, AdminConfig) | {"bootstrap_servers": bootstrap, **VIEW_SETTINGS}
    try:
        async with Admin(AdminConfig.of(settings)) as admin:
            view = await fetch_view(admin, topics)
    except (NoBrokerReachable, AuthenticationFailed) as error:
        if local is None:
            raise
        view = unreachable_view(error)
    if local is not None:
        await add_machine(view, local, dir_words(options))
    return view


# -- the reason why a command waits ------------------------------------------------------------------------


@asynccontextmanager
async def silence_explained(
    options: argparse.Namespace,
    bootstrap: str,
    done: str,
    progress: Callable[[], int | None],
    topics: Sequence[str],
) -> AsyncIterator[None]:
    """While the block makes no progress for some seconds, print the problems of the cluster to stderr.

    `progress`: a number that grows, or None while the block waits for nothing. `done` says what grows. The
    block may add `topics` while it runs.
    """
    watch = asyncio.create_task(_explain(options, bootstrap, done, progress, topics))
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def _explain(
    options: argparse.Namespace,
    bootstrap: str,
    done: str,
    progress: Callable[[], int | None],
    topics: Sequence[str],
) -> None:
    """Print the problems at each change, and repeatedly."""
    before, since, said, said_at = progress(), time.monotonic(), "", 0.0
    while True:
        await asyncio.sleep(_LOOK_INTERVAL_S)
        now, reached = time.monotonic(), progress()
        if reached is None or reached != before:
            before, since = reached, now
        if now - since < _SILENCE_S:
            continue
        try:
            problems = (await look(options, bootstrap, topics)).problems()
        except BarnabasError as error:
            problems = [str(error)]
        lines = problems[:_MOST_PROBLEMS] or ["the cluster shows no problem"]
        text = "".join(f"\n! {line}" for line in lines)
        if progress() == before and (text != said or now - said_at > _REPEAT_S):
            said, said_at = text, now
            seconds = f"{time.monotonic() - since:.0f} s"
            print(f"barnabas {options.command}: nothing was {done} for {seconds}{text}", file=sys.stderr)
