"""A load in a driver: records to every partition until it is stopped, and their outcomes."""

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from stdio import Command, by_name, settled


def load_value(partition: int, number: int) -> bytes:
    """The value of a load's record."""
    return f"{partition}:{number}".encode()


class Ledger:
    """The records of a load and their outcomes; each field is written by one thread."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged: dict[int, list[tuple[int, int]]] = {}
        """Partition → (number, offset) of every record that the client said is written."""
        self.errors: list[str] = []
        self.slowest_ms: dict[int, float] = {}
        """Partition → the longest time from send to acknowledgement since `mark`."""
        self.first_ms: dict[int, float] = {}
        """Partition → time from the mark to the first acknowledgement of a record sent after it."""
        self._marked_ns = time.monotonic_ns()

    def mark(self, at_ns: int | None = None) -> None:
        self.first_ms, self.slowest_ms = {}, {}
        self._marked_ns = at_ns or time.monotonic_ns()

    def acknowledge(self, partition: int, number: int, offset: int, sent_ns: int) -> None:
        now = time.monotonic_ns()
        self.acknowledged.setdefault(partition, []).append((number, offset))
        took_ms = (now - sent_ns) / 1e6
        if took_ms > self.slowest_ms.get(partition, 0.0):
            self.slowest_ms[partition] = took_ms
        if sent_ns > self._marked_ns and partition not in self.first_ms:
            self.first_ms[partition] = (now - self._marked_ns) / 1e6

    def fail(self, error: object) -> None:
        self.errors.append(str(error))

    def status(self) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "acknowledged": sum(map(len, list(self.acknowledged.values()))),
            "errors": self.errors[:20],
            "failed": len(self.errors),
            "slowest_ms": dict(self.slowest_ms),
            "first_ms": dict(self.first_ms),
        }

    def write(self, path: str) -> dict[str, Any]:
        """Write the acknowledged records to a file, ``{partition: [[number, offset], …]}``; the status."""
        with open(path, "w") as file:
            json.dump(self.acknowledged, file)
        return self.status()


class Load(ABC):
    """Sends by itself, and keeps a ledger."""

    def __init__(self) -> None:
        self.ledger = Ledger()

    @abstractmethod
    def start(self) -> Awaitable[None] | None:
        """Begin to send."""

    @abstractmethod
    def stop(self, timeout_s: float) -> Awaitable[None] | None:
        """Send no more, and wait until the ledger is complete."""


class ThreadedLoad(Load):
    """Calls `send` from a thread of its own, for every partition in turn, one round an interval."""

    def __init__(self, partitions: int, interval_ms: float) -> None:
        super().__init__()
        self.rounds = 0
        self._partitions, self._interval_s = partitions, interval_ms / 1000
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        self._thread.join()
        self.finish(timeout_s)

    @abstractmethod
    def send(self, partition: int, number: int) -> None:
        """Pass a record to the client; its outcome goes into the ledger."""

    @abstractmethod
    def finish(self, timeout_s: float) -> None:
        """Wait for the outcomes of all records; no record is sent after this call."""

    def wait(self, seconds: float) -> None:
        """Let the rest of an interval pass; some clients must be called meanwhile."""
        self._stopping.wait(seconds)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            for partition in range(self._partitions):
                self.send(partition, self.rounds)
            self.rounds += 1
            due = max(due + self._interval_s, time.monotonic())
            self.wait(max(0.0, due - time.monotonic()))


def load_commands(make: Callable[..., Load]) -> dict[str, Command]:
    """The commands around one load, which `make` makes from the arguments of ``load_start``."""
    current: list[Load] = []

    async def load_start(
        bootstrap: str, topic: str, partitions: int, interval_ms: float, idempotent: bool | None = None
    ) -> None:
        """``idempotent`` None leaves the client's own default."""
        current.append(make(bootstrap, topic, partitions, interval_ms, idempotent))
        await settled(current[-1].start())

    def load_mark(at_ns: int | None = None) -> None:
        current[-1].ledger.mark(at_ns)

    def load_status() -> dict[str, Any]:
        return current[-1].ledger.status()

    async def load_stop(path: str, timeout_s: float = 60) -> dict[str, Any]:
        load = current.pop()
        await settled(load.stop(timeout_s))
        return load.ledger.write(path)

    return by_name(load_start, load_mark, load_status, load_stop)
