"""The nodes that every cluster has, such as ``/admin/delete_topics``, should somebody have deleted them.

A missing one reads as empty and is made again, loudly: what stood under it is gone, but the next request
under it must not fail, and no broker may go down for it. Blocks; raises as the session does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from barnabas.controller.zookeeper import Start, ZooKeeperSession, ZooKeeperUnavailable

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
    """Make those of the nodes that are missing; nodes that are there stay as they are."""
    wanted = list(paths)
    there = session.run_all([_exists(path) for path in wanted])
    missing = [path for path, found in zip(wanted, there, strict=True) if found.get() is None]
    for path in missing:
        log.error("%s was missing in ZooKeeper: taken for empty, and made again", path)
    for made in session.run_all([_ensure(path) for path in missing]):
        made.get()


def _exists(path: str) -> Start:
    return lambda zk: zk.exists_async(path)


def _ensure(path: str) -> Start:
    return lambda zk: zk.ensure_path_async(path)
