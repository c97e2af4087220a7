"""A client of the simulated ZooKeeper with the methods of this project's `Client` that it calls.

A request is carried out when it is made. Two calls replace the library's threads: `run_callback` calls a
triggered watch, and `poll` notices a change of the connection. A connection breaks at the request that
`break_after` names, before or after that is carried out, and all requests pipelined after it fail; the
connection returns when the session next waits for it, or later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent

from tests.support.zookeeper import ANY_VERSION, Change, Kind, Operation, SimZooKeeper, parent_of

Watch = Callable[[WatchedEvent], None]


class Door(Enum):
    """A broker's connection to ZooKeeper. MUTE: a write is carried out; answer and connection are lost."""

    OPEN = "open"
    LOST = "lost"
    MUTE = "mute"


class Result:
    """The result of one request, known at once."""

    __slots__ = ("_error", "_value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value, self._error = value, error

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class SimKazooClient:
    """`door` returns how the server can be reached now."""

    def __init__(self, server: SimZooKeeper, door: Callable[[], Door], **_: Any) -> None:
        self._server = server
        self._door = door
        self._session = 0
        self._is_connected = False
        self._listeners: list[Callable[[str], Any]] = []
        self._data_watches: dict[str, dict[Watch, None]] = {}
        self._child_watches: dict[str, dict[Watch, None]] = {}
        self._callbacks: deque[tuple[Watch, WatchedEvent]] = deque()
        self._break_after: int | None = None
        self._interrupt_after: int | None = None
        self._interrupt: Callable[[], None] = lambda: None
        self._is_last_done = False
        self._waits_away = 0
        self._is_mute = False

    # The connection

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return (self._session, b"") if self._is_connected else None

    @property
    def session(self) -> int:
        """The session's id, also while it is disconnected."""
        return self._session

    def add_listener(self, listener: Callable[[str], Any]) -> None:
        self._listeners.append(listener)

    def start(self, timeout: float = 15) -> None:
        if self._door() is Door.LOST:
            raise KazooTimeoutError("Connection time-out")
        self._session = self._server.open_session()
        self._connect()

    def stop(self) -> None:
        """Close the session."""
        self.vanish()
        self._server.expire(self._session)

    def close(self) -> None:
        return

    def vanish(self) -> None:
        """The process ends; its session remains."""
        self._is_connected = False
        self._server.disconnected(self._session, self)
        self._callbacks.clear()

    def break_after(self, requests: int, *, is_last_done: bool, waits_away: int = 0) -> None:
        """Lose the connection at the request after this many, carried out or not, for some waits."""
        self._break_after, self._is_last_done, self._waits_away = requests, is_last_done, waits_away

    def interrupt_after(self, requests: int, interrupt: Callable[[], None]) -> None:
        """Call `interrupt` before the request after this many is carried out."""
        self._interrupt_after, self._interrupt = requests, interrupt

    def heal(self) -> None:
        """Cancel the planned break and interrupt; a broken connection stays away for its waits."""
        self._break_after = self._interrupt_after = None

    def poll(self) -> None:
        """Notice the loss of the connection or the session, and connect again if possible."""
        door = self._door()
        is_lost = door is Door.LOST or (self._is_mute and door is Door.MUTE)
        if self._is_connected and (is_lost or self._session not in self._server.sessions):
            self._suspend()
        if self._is_connected or is_lost:
            return
        if self._waits_away > 0:
            self._waits_away -= 1
            return
        if self._session not in self._server.sessions:
            self._say(KazooState.LOST)
            self._drop_watches()
            self._session = self._server.open_session()
        self._connect()

    def _connect(self) -> None:
        self._is_connected = True
        self._server.connected(self._session, self, self._hear)
        self._say(KazooState.CONNECTED)

    def _suspend(self) -> None:
        self._is_connected = False
        self._server.disconnected(self._session, self)
        self._say(KazooState.SUSPENDED)
        self._drop_watches()

    def _say(self, state: str) -> None:
        for listener in list(self._listeners):
            listener(state)

    # Watches

    @property
    def has_callbacks(self) -> bool:
        return bool(self._callbacks)

    def run_callback(self) -> bool:
        """Call the oldest triggered watch; False without one."""
        if not self._callbacks:
            return False
        watch, event = self._callbacks.popleft()
        watch(event)
        return True

    def _drop_watches(self) -> None:
        """Trigger and drop all watches, as the library does when the connection is lost."""
        event = WatchedEvent(EventType.NONE, KeeperState.CONNECTING, None)
        for watches in (self._child_watches, self._data_watches):
            for by_path in watches.values():
                self._callbacks.extend((watch, event) for watch in by_path)
            watches.clear()

    def _hear(self, change: Change) -> None:
        event = WatchedEvent(change.kind, KeeperState.CONNECTED, change.path)
        triggered: list[dict[Watch, None] | None] = []
        if change.is_of_children:
            triggered.append(self._child_watches.pop(change.path, None))
        else:
            triggered.append(self._data_watches.pop(change.path, None))
            if change.kind == EventType.DELETED:
                triggered.append(self._child_watches.pop(change.path, None))
        for watches in triggered:
            if watches:
                self._callbacks.extend((watch, event) for watch in watches)

    # Requests

    def create_async(
        self,
        path: str,
        value: bytes = b"",
        acl: Any = None,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
    ) -> Result:
        if makepath:
            made = self.ensure_path_async(parent_of(path))
            if made._error is not None:
                return made
        operation = Operation(Kind.CREATE, path, value, is_ephemeral=ephemeral, is_sequence=sequence)
        return self._write(operation)

    def set_async(self, path: str, value: bytes, version: int = ANY_VERSION) -> Result:
        return self._write(Operation(Kind.SET, path, value, version))

    def delete_async(self, path: str, version: int = ANY_VERSION) -> Result:
        return self._write(Operation(Kind.DELETE, path, version=version))

    def transaction(self) -> Transaction:
        return Transaction(self)

    def ensure_path_async(self, path: str, acl: Any = None) -> Result:
        def make() -> str:
            made = ""
            for name in path.strip("/").split("/"):
                made = f"{made}/{name}"
                if made not in self._server.nodes:
                    self._server.write(self._session, Operation(Kind.CREATE, made))
            return path

        return self._request(make, is_write=True)

    def get_async(self, path: str, watch: Watch | None = None) -> Result:
        def read() -> Any:
            node = self._server.node(path)
            self._watch(self._data_watches, path, watch)
            return node.data, node.stat()

        return self._request(read)

    def sync_async(self, path: str) -> Result:
        """Its one server is never behind."""
        return self._request(lambda: path)

    def get_many_async(self, paths: Sequence[str]) -> Result:
        def read(path: str) -> Any:
            try:
                node = self._server.node(path)
            except KazooException as error:
                return error
            return node.data, node.stat()

        return self._request(lambda: list(map(read, paths)))

    def exists_async(self, path: str, watch: Watch | None = None) -> Result:
        def look() -> Any:
            node = self._server.nodes.get(path)
            self._watch(self._data_watches, path, watch)
            return None if node is None else node.stat()

        return self._request(look)

    def get_children_async(self, path: str, watch: Watch | None = None) -> Result:
        def read() -> Any:
            children = list(self._server.node(path).children)
            self._watch(self._child_watches, path, watch)
            return children

        return self._request(read)

    @staticmethod
    def _watch(watches: dict[str, dict[Watch, None]], path: str, watch: Watch | None) -> None:
        if watch is not None:
            watches.setdefault(path, {})[watch] = None

    def _write(self, operation: Operation) -> Result:
        return self._request(lambda: self._server.write(self._session, operation), is_write=True)

    def _request(self, carry_out: Callable[[], Any], *, is_write: bool = False) -> Result:
        if not self._is_connected:
            return Result(error=ConnectionLoss())
        if self._interrupt_after is not None:
            self._interrupt_after -= 1
            if self._interrupt_after < 0:
                self._interrupt_after = None
                self._interrupt()
        door = self._door()
        if door is Door.LOST or self._session not in self._server.sessions:
            self._suspend()
            return Result(error=ConnectionLoss())
        is_broken = door is Door.MUTE and is_write
        is_done = True
        self._is_mute = is_broken
        if self._break_after is not None:
            self._break_after -= 1
            if self._break_after < 0:
                self._break_after, is_broken, is_done = None, True, self._is_last_done
        result = Result(error=ConnectionLoss())
        if is_done:
            try:
                result = Result(carry_out())
            except KazooException as error:
                result = Result(error=error)
        if is_broken:
            self._suspend()
            return Result(error=ConnectionLoss())
        return result


class Transaction:
    """Gathers operations, like the library's transaction."""

    def __init__(self, client: SimKazooClient) -> None:
        self._client = client
        self.operations: list[Operation] = []

    def create(
        self, path: str, value: bytes = b"", acl: Any = None, ephemeral: bool = False, sequence: bool = False
    ) -> None:
        operation = Operation(Kind.CREATE, path, value, is_ephemeral=ephemeral, is_sequence=sequence)
        self.operations.append(operation)

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self.operations.append(Operation(Kind.DELETE, path, version=version))

    def set_data(self, path: str, value: bytes, version: int = ANY_VERSION) -> None:
        self.operations.append(Operation(Kind.SET, path, value, version))

    def check(self, path: str, version: int) -> None:
        self.operations.append(Operation(Kind.CHECK, path, version=version))

    def commit_async(self) -> Result:
        client = self._client

        def carry_out() -> Any:
            return client._server.transact(client._session, self.operations)

        return client._request(carry_out, is_write=True)
