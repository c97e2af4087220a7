"""A ZooKeeper in memory: the tree, its sessions and its watches, without a network and without time.

Every change has its own zxid; the operations of a transaction share one, and so do the nodes that are removed
with a session. Each watch triggers once, in the order of the changes, before the connection gets the answer
to a later request. `tests.support.zookeeper_client` is the client's side;
`tests/cluster/test_simulated_zookeeper.py` compares both with a real server.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol.states import EventType, ZnodeStat

ANY_VERSION = -1


@dataclass(slots=True)
class Node:
    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    owner: int = 0
    version: int = 0
    cversion: int = 0
    children: dict[str, None] = field(default_factory=dict)
    sequence: int = 0

    def stat(self) -> ZnodeStat:
        return ZnodeStat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            self.cversion,
            0,
            self.owner,
            len(self.data),
            len(self.children),
            self.pzxid,
        )


class Change(NamedTuple):
    """A change that may trigger watches; `is_of_children` marks a change of the children of `path`."""

    path: str
    kind: str
    is_of_children: bool = False


class Kind(Enum):
    CREATE = "create"
    DELETE = "delete"
    SET = "set"
    CHECK = "check"


class Operation(NamedTuple):
    """One write, alone or as part of a transaction."""

    kind: Kind
    path: str
    data: bytes = b""
    version: int = ANY_VERSION
    is_ephemeral: bool = False
    is_sequence: bool = False


class SimZooKeeper:
    """`now_ms` is the server's clock; the `hear` of each connection gets the changes."""

    def __init__(self, now_ms: Callable[[], float] = lambda: 0.0) -> None:
        self._now_ms = now_ms
        self.zxid = 0
        self.writes = 0
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0, 0, 0, 0)}
        self.sessions: dict[int, dict[str, None]] = {}
        """The ephemeral nodes of each live session."""
        self.listeners: dict[object, Callable[[Change], None]] = {}
        self._last_session = 0
        # When each disconnected session lost its connection.
        self._silent_since: dict[int, float] = {}

    # Sessions

    def open_session(self) -> int:
        self._last_session += 1
        self.sessions[self._last_session] = {}
        return self._last_session

    def connected(self, session: int, connection: object, hear: Callable[[Change], None]) -> None:
        self.listeners[connection] = hear
        self._silent_since.pop(session, None)

    def disconnected(self, session: int, connection: object) -> None:
        if self.listeners.pop(connection, None) is not None:
            self._silent_since[session] = self._now_ms()

    def expire_silent(self, timeout_ms: float) -> None:
        """End the sessions that have been disconnected for this long."""
        if self._silent_since:
            due = self._now_ms() - timeout_ms
            for session in [silent for silent, since in self._silent_since.items() if since <= due]:
                self.expire(session)

    def expire(self, session: int) -> None:
        """End a session and remove its ephemeral nodes."""
        self._silent_since.pop(session, None)
        owned = self.sessions.pop(session, None)
        if not owned:
            return
        self.zxid += 1
        changes: list[Change] = []
        for path in list(owned):
            self._remove(path, changes)
        self._notify(changes)

    # Reading

    def node(self, path: str) -> Node:
        node = self.nodes.get(path)
        if node is None:
            raise NoNodeError
        return node

    def data(self, path: str) -> bytes | None:
        """Read without a session, for the checks of a simulation."""
        node = self.nodes.get(path)
        return None if node is None else node.data

    def children(self, path: str) -> list[str]:
        node = self.nodes.get(path)
        return [] if node is None else list(node.children)

    # Writing

    def write(self, session: int, operation: Operation) -> Any:
        """One write alone. Raises the library's errors."""
        (result,) = self.transact(session, [operation])
        if isinstance(result, KazooException):
            raise result
        return result

    def transact(self, session: int, operations: list[Operation]) -> list[Any]:
        """Apply all operations or none; returns the results as the library does."""
        if session not in self.sessions:
            raise SessionExpiredError
        undo: list[Callable[[], None]] = []
        changes: list[Change] = []
        results: list[Any] = []
        self.zxid += 1
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply(session, operation, changes, undo))
            except KazooException as error:
                for take_back in reversed(undo):
                    take_back()
                self.zxid -= 1
                left = len(operations) - index - 1
                return [
                    *(RolledBackError() for _ in results),
                    error,
                    *(RuntimeInconsistency() for _ in range(left)),
                ]
        self.writes += 1
        self._notify(changes)
        return results

    def _apply(
        self, session: int, operation: Operation, changes: list[Change], undo: list[Callable[[], None]]
    ) -> Any:
        path = operation.path
        if operation.kind is Kind.CREATE:
            path = self._create(session, operation, changes)
            undo.append(lambda: self._uncreate(path))
            return path
        node = self.node(path)
        if operation.version not in (ANY_VERSION, node.version):
            raise BadVersionError
        if operation.kind is Kind.CHECK:
            return True
        if operation.kind is Kind.DELETE:
            if node.children:
                raise NotEmptyError
            self._remove(path, changes)
            undo.append(lambda: self._restore(path, node))
            return True
        before = (node.data, node.version, node.mzxid, node.mtime)

        def take_back() -> None:
            node.data, node.version, node.mzxid, node.mtime = before

        undo.append(take_back)
        node.data, node.version, node.mzxid = operation.data, node.version + 1, self.zxid
        node.mtime = int(self._now_ms())
        changes.append(Change(path, EventType.CHANGED))
        return node.stat()

    def _create(self, session: int, operation: Operation, changes: list[Change]) -> str:
        path = operation.path
        parent_path = parent_of(path)
        parent = self.node(parent_path)
        if parent.owner:
            raise NoChildrenForEphemeralsError
        if operation.is_sequence:
            path = f"{path}{parent.sequence:010d}"
        if path in self.nodes:
            raise NodeExistsError
        now_ms = int(self._now_ms())
        owner = session if operation.is_ephemeral else 0
        self.nodes[path] = Node(operation.data, self.zxid, self.zxid, self.zxid, now_ms, now_ms, owner)
        parent.children[path.rpartition("/")[2]] = None
        parent.cversion += 1
        parent.sequence += 1
        parent.pzxid = self.zxid
        if owner:
            self.sessions[session][path] = None
        changes += (Change(path, EventType.CREATED), Change(parent_path, EventType.CHILD, True))
        return path

    def _uncreate(self, path: str) -> None:
        node, parent = self.nodes.pop(path), self.nodes[parent_of(path)]
        del parent.children[path.rpartition("/")[2]]
        parent.cversion -= 1
        parent.sequence -= 1
        if node.owner:
            del self.sessions[node.owner][path]

    def _remove(self, path: str, changes: list[Change]) -> None:
        node, parent_path = self.nodes.pop(path), parent_of(path)
        parent = self.nodes[parent_path]
        del parent.children[path.rpartition("/")[2]]
        parent.cversion += 1
        parent.pzxid = self.zxid
        if node.owner in self.sessions:
            self.sessions[node.owner].pop(path, None)
        changes += (Change(path, EventType.DELETED), Change(parent_path, EventType.CHILD, True))

    def _restore(self, path: str, node: Node) -> None:
        self.nodes[path] = node
        parent = self.nodes[parent_of(path)]
        parent.children[path.rpartition("/")[2]] = None
        parent.cversion -= 1
        if node.owner:
            self.sessions[node.owner][path] = None

    def _notify(self, changes: list[Change]) -> None:
        for change in changes:
            for hear in list(self.listeners.values()):
                hear(change)

    # By hand, as with a command line

    def delete_all(self, path: str) -> None:
        """Delete a node and all nodes below it."""
        session = self.open_session()
        for below in list(self._below(path))[::-1]:
            self.write(session, Operation(Kind.DELETE, below))
        self.expire(session)

    def set_by_hand(self, path: str, data: bytes) -> None:
        session = self.open_session()
        self.write(session, Operation(Kind.SET, path, data))
        self.expire(session)

    def _below(self, path: str) -> Iterator[str]:
        if path in self.nodes:
            yield path
            for child in list(self.nodes[path].children):
                yield from self._below(f"{path}/{child}")


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"
