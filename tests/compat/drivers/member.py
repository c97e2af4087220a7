"""A member of a group in a driver: a thread that polls, and what it notes of partitions, records and errors.

All calls of the client's consumer are made by that thread, as clients want it; commands wait for it.
"""

from __future__ import annotations

import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

COMMAND_TIMEOUT_S = 60.0
SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS, METADATA_MAX_AGE_MS = 6_000, 500, 1_000
Place = tuple[str, int, int]
"""Topic, partition and offset."""


class Notes:
    """What a member saw."""

    def __init__(self) -> None:
        self.assigned: list[tuple[str, int]] = []
        self.taken: list[tuple[str, int]] = []
        """Every partition that was revoked, in the order in which that was told."""
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
    """One consumer of a group, polled until it is told to stop."""

    def __init__(self) -> None:
        self.notes = Notes()
        self._orders: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @abstractmethod
    def poll(self) -> Iterable[Place]:
        """What was read in at most some tenths of a second; sets the notes' `assigned`."""

    @abstractmethod
    def commit(self, how: str) -> None:
        """Commit all that was read: ``sync``, or ``async`` and wait for what the client reports."""

    @abstractmethod
    def close(self) -> None:
        """Leave."""

    def order(self, work: Callable[[], Any]) -> Any:
        """Let the member's thread do this; its result."""
        future: Future[Any] = Future()
        self._orders.put((work, future))
        return future.result(COMMAND_TIMEOUT_S)

    def stop(self) -> dict[str, Any]:
        self._stopping.set()
        self._thread.join(COMMAND_TIMEOUT_S)
        return self.notes.status()

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


def commands_of(make: Callable[..., Member]) -> dict[str, Callable[..., Any]]:
    """The commands around one member, which `make` makes from what ``member_start`` is told."""
    current: list[Member] = []

    def member_start(**wish: Any) -> None:
        current.append(make(**wish))
        current[-1].start()

    def member_status() -> dict[str, Any]:
        return current[-1].notes.status()

    def member_commit(how: str) -> None:
        member = current[-1]
        member.order(lambda: member.commit(how))

    def member_stop() -> dict[str, Any]:
        return current.pop().stop()

    return {
        command.__name__: command
        for command in (member_start, member_status, member_commit, member_pid, member_stop)
    }


def member_pid() -> int:
    """The process to kill for the member to be dead."""
    return os.getpid()
