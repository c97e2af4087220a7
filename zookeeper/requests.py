"""Requests that several modules make, and reads of many nodes in one round trip.

Every cluster has parent nodes such as ``/admin/delete_topics``. If somebody deleted one, it reads as empty
and is created again, with an error in the log. Its children are lost, but the brokers continue.

The functions with a session block and raise as the session does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kazoo.exceptions import (
    KazooException,
    NoAuthError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    UnimplementedError,
)

from barnabas.protocol.ids import TopicPartition
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.errors import ZooKeeperUnavailable
from barnabas.zookeeper.session import DENIED, Start, ZooKeeperSession
from barnabas.zookeeper.znodes import LeadershipState

log = logging.getLogger("barnabas.zookeeper")

Watch = Callable[[Any], None]

T = TypeVar("T")

CAS_ROUNDS: Final = 100
_ANY_VERSION: Final = -1
_AT_ONCE: Final = 100
"""So many states in one request have at most 100 kB."""


def get(path: str, watch: Watch | None = None) -> Start:
    return lambda zk: zk.get_async(path, watch)


def sync(path: str) -> Start:
    """Later reads of the session see every change that was committed before."""
    return lambda zk: zk.sync_async(path)


def get_many(paths: Sequence[str]) -> Start:
    return lambda zk: zk.get_many_async(paths)


def exists(path: str, watch: Watch | None = None) -> Start:
    return lambda zk: zk.exists_async(path, watch)


def get_children(path: str, watch: Watch | None = None) -> Start:
    return lambda zk: zk.get_children_async(path, watch)


def delete(path: str) -> Start:
    return lambda zk: zk.delete_async(path)


def ensure(path: str) -> Start:
    return lambda zk: zk.ensure_path_async(path)


class Transaction:
    """Operations that ZooKeeper carries out in order, or none of them; a `Start`. ``parts`` come first."""

    def __init__(self, *parts: Transaction) -> None:
        self._operations: list[Callable[[Any], object]] = [
            each for part in parts for each in part._operations
        ]

    def __len__(self) -> int:
        return len(self._operations)

    def __call__(self, zk: Any) -> Any:
        transaction = zk.transaction()
        for add in self._operations:
            add(transaction)
        return transaction.commit_async()

    def check(self, path: str, version: int = _ANY_VERSION) -> Transaction:
        """That the node exists, at this version."""
        return self._with(lambda transaction: transaction.check(path, version))

    def create(self, path: str, data: bytes, **flags: bool) -> Transaction:
        return self._with(lambda transaction: transaction.create(path, data, **flags))

    def set(self, path: str, data: bytes, version: int = _ANY_VERSION) -> Transaction:
        return self._with(lambda transaction: transaction.set_data(path, data, version))

    def delete(self, path: str, version: int = _ANY_VERSION) -> Transaction:
        return self._with(lambda transaction: transaction.delete(path, version))

    def _with(self, operation: Callable[[Any], object]) -> Transaction:
        self._operations.append(operation)
        return self


def first_error(results: Sequence[Any]) -> KazooException | None:
    """The refusal that rolled a transaction back, or None if it was carried out.

    Raises ZooKeeperUnavailable if the session's principal may not do it.
    """
    for result in results:
        if isinstance(result, NoAuthError):
            raise ZooKeeperUnavailable(DENIED)
        if isinstance(result, KazooException) and not isinstance(
            result, RolledBackError | RuntimeInconsistency
        ):
            return result
    return None


def retry_cas(attempt: Callable[[], T | None], what: str) -> T:
    """The result of a compare-and-set, which ``attempt`` reads, decides and writes.

    It returns None if others wrote in between, and is called again. Raises ZooKeeperUnavailable with ``what``
    if they were faster a hundred times.
    """
    for _ in range(CAS_ROUNDS):
        result = attempt()
        if result is not None:
            return result
    raise ZooKeeperUnavailable(what)


def read(
    session: ZooKeeperSession, paths: Sequence[str], watches: Mapping[str, Watch] | None = None
) -> dict[str, tuple[bytes, Any]]:
    """Data and stat by path. Missing nodes are omitted, and not watched."""
    by_path = watches or {}
    outcomes = session.run_all([get(path, by_path.get(path)) for path in paths])
    return {
        path: outcome.get()
        for path, outcome in zip(paths, outcomes, strict=True)
        if not isinstance(outcome.error, NoNodeError)
    }


def read_unwatched(session: ZooKeeperSession, paths: Sequence[str]) -> dict[str, tuple[bytes, Any]]:
    """As `read`, with a request for many nodes where the server has one (ZooKeeper 3.6 and later)."""
    chunks = [paths[first : first + _AT_ONCE] for first in range(0, len(paths), _AT_ONCE)]
    found: dict[str, tuple[bytes, Any]] = {}
    for chunk, outcome in zip(chunks, session.run_all(list(map(get_many, chunks))), strict=True):
        if isinstance(outcome.error, UnimplementedError):
            return read(session, paths)
        for path, node in zip(chunk, outcome.get(), strict=True):
            if isinstance(node, NoNodeError):
                continue
            if isinstance(node, KazooException):
                raise node
            found[path] = node
    return found


def read_leadership(
    session: ZooKeeperSession, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, LeadershipState]:
    """The states of the partitions that have a readable state znode."""
    by_path = {paths.leadership(tp): tp for tp in partitions}
    return {
        by_path[path]: state
        for path, (data, stat) in read_unwatched(session, list(by_path)).items()
        if (state := znodes.readable_leadership(path, data, stat.version)) is not None
    }


def list_children(session: ZooKeeperSession, path: str, watch: Watch | None = None) -> list[str]:
    """The names under a parent node that every cluster has."""

    def attempt() -> list[str] | None:
        outcome = session.attempt(get_children(path, watch))
        if not isinstance(outcome.error, NoNodeError):
            return list(outcome.get())
        recreate(session, [path])
        return None

    return retry_cas(attempt, f"{path} is deleted again and again")


def recreate(session: ZooKeeperSession, paths: Iterable[str]) -> None:
    all_paths = list(paths)
    stats = [outcome.get() for outcome in session.run_all([exists(path) for path in all_paths])]
    missing = [path for path, stat in zip(all_paths, stats, strict=True) if stat is None]
    for path in missing:
        log.error("%s was missing in ZooKeeper: counted as empty and recreated", path)
    for outcome in session.run_all([ensure(path) for path in missing]):
        outcome.get()
