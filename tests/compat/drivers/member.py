"""A member of a group in a driver: its settings, its notes, and the commands around it."""

import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from stdio import Command, Unsupported, by_name, settled

COMMAND_TIMEOUT_S = 60.0
HEARTBEAT_INTERVAL_MS, METADATA_MAX_AGE_MS, COMMIT_INTERVAL_MS = 500, 300, 500
Place = tuple[str, int, int]
"""Topic, partition and offset."""


@dataclass(frozen=True)
class MemberSettings:
    """The arguments of ``member_start``."""

    bootstrap: str
    group: str
    topics: list[str] | None = None
    pattern: str | None = None
    """Instead of topics: a regular expression for their names."""
    strategy: str = "range"
    instance: str | None = None
    auto_commit: bool = False
    session_ms: int = 6_000

    @property
    def session_timeout_ms(self) -> int:
        """A static member that is away must not be evicted."""
        return self.session_ms if self.instance is None else 60_000

    @property
    def regex(self) -> str | None:
        """The pattern as clients want it."""
        return f"^{self.pattern}" if self.pattern else None

    @property
    def librdkafka(self) -> dict[str, Any]:
        """The settings of a client over librdkafka."""
        return {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": str(self.auto_commit).lower(),
            "auto.commit.interval.ms": COMMIT_INTERVAL_MS,
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
            "partition.assignment.strategy": self.strategy,
            **({} if self.instance is None else {"group.instance.id": self.instance}),
        }


class Notes:
    """The assignments, revocations, records and errors of a member."""

    def __init__(self) -> None:
        self.assigned: list[tuple[str, int]] = []
        self.taken: list[tuple[str, int]] = []
        """Every partition that was revoked, in order."""
        self.read: list[Place] = []
        self.errors: list[str] = []

    def status(self) -> dict[str, Any]:
        return {
            "assigned": sorted(self.assigned),
            "taken": list(self.taken),
            "read": list(self.read),
            "errors": list(self.errors),
        }


class Member(ABC):
    """One consumer of a group, which reads and takes notes until it is stopped."""

    def __init__(self) -> None:
        self.notes = Notes()

    @abstractmethod
    def start(self) -> None:
        """Begin to read."""

    @abstractmethod
    def commit(self, how: str) -> Awaitable[None] | None:
        """Commit all records read: ``sync``, or ``async`` and wait for the client's report."""

    @abstractmethod
    def stop(self) -> Awaitable[dict[str, Any]] | dict[str, Any]:
        """Leave; the notes."""

    def group_metadata(self) -> object:
        """The member's generation, as the client's producer takes it with offsets (KIP-447)."""
        raise Unsupported("the client's producer takes no generation of a member")

    @property
    def pid(self) -> int:
        """The process to kill for the member to be dead."""
        return os.getpid()


class PolledMember(Member):
    """A member of a client that must be called from one thread, which polls and carries out commits."""

    def __init__(self) -> None:
        super().__init__()
        self._orders: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def poll(self) -> Iterable[Place]:
        """Read for at most some tenths of a second; sets the notes' `assigned`."""

    @abstractmethod
    def commit_now(self, how: str) -> None:
        """`commit`, on the member's thread."""

    @abstractmethod
    def close(self) -> None:
        """Leave."""

    def start(self) -> None:
        self._thread.start()

    def group_metadata_now(self) -> object:
        """`group_metadata`, on the member's thread."""
        return super().group_metadata()

    def commit(self, how: str) -> None:
        self._order(lambda: self.commit_now(how))

    def group_metadata(self) -> object:
        return self._order(self.group_metadata_now)

    def stop(self) -> dict[str, Any]:
        self._stopping.set()
        self._thread.join(COMMAND_TIMEOUT_S)
        return self.notes.status()

    def _order(self, work: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        self._orders.put((work, future))
        return future.result(COMMAND_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._obey()
                self.notes.read += self.poll()
            self.close()
        except Exception as error:  # noqa: BLE001 - the test gets it
            self.notes.errors.append(repr(error))

    def _obey(self) -> None:
        while not self._orders.empty():
            work, future = self._orders.get()
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - the test gets it
                future.set_exception(error)


KEPT: list[object] = []
"""The group metadata that ``member_keep`` kept."""


def member_commands(make: Callable[[MemberSettings], Member]) -> dict[str, Command]:
    """The commands around one member, which `make` makes from the settings of ``member_start``."""
    current: list[Member] = []

    async def member_start(**settings: Any) -> None:
        """A coroutine, so that a member may be a task of the driver's loop."""
        current.append(make(MemberSettings(**settings)))
        current[-1].start()

    def member_status() -> dict[str, Any]:
        return current[-1].notes.status()

    async def member_commit(how: str) -> None:
        await settled(current[-1].commit(how))

    def member_keep() -> None:
        KEPT.append(current[-1].group_metadata())

    def member_pid() -> int:
        return current[-1].pid

    async def member_stop() -> dict[str, Any]:
        return dict(await settled(current.pop().stop()))

    return by_name(member_start, member_status, member_commit, member_keep, member_pid, member_stop)
