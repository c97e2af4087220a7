"""Recreates the nodes that every cluster has, such as ``/admin/delete_topics``, if somebody deleted them.

A missing node reads as empty and is recreated with an error in the log. Its children are lost, but the next
request under it must succeed, and brokers must continue. Blocks; raises as the session does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from barnabas.zookeeper.session import Start, ZooKeeperSession, ZooKeeperUnavailable

log = logging.getLogger("barnabas.controller")

_ROUNDS: Final = 5


def children(session: ZooKeeperSession, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
    """The names under a node that every cluster has."""
    for _ in range(_ROUNDS):
        found = session.attempt(lambda zk: zk.get_children_async(path, watch))
        if not isinstance(found.error, NoNodeError):
            return list(found.get())
        make_again(session, [path])
    raise ZooKeeperUnavailable(f"{path} is deleted again and again")


def make_again(session: ZooKeeperSession, paths: Iterable[str]) -> None:
    """Create the missing ones of these nodes; existing nodes stay as they are."""
    wanted = list(paths)
    there = session.run_all([_exists(path) for path in wanted])
    missing = [path for path, found in zip(wanted, there, strict=True) if found.get() is None]
    for path in missing:
        log.error("%s was missing in ZooKeeper: counted as empty and recreated", path)
    for made in session.run_all([_ensure(path) for path in missing]):
        made.get()


def _exists(path: str) -> Start:
    return lambda zk: zk.exists_async(path)


def _ensure(path: str) -> Start:
    return lambda zk: zk.ensure_path_async(path)
