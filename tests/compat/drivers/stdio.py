"""What the drivers in Python share: commands as lines of JSON on stdin, one line of JSON back for each.

A command is ``{"command": name, …arguments}``; its answer ``{"answer": …}``, or ``{"error": {"code", "name",
"text"}}``, or ``{"unsupported": why}`` where the client cannot do it at all. Bytes travel as base64. Error
codes are Kafka's own where a broker said them; negative ones are the client's. Whatever the client itself
prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


class Unsupported(Exception):
    """The client has no such function; the text says which."""


class ClientError(Exception):
    """What the client told the application went wrong."""

    def __init__(self, code: int, name: str, text: str) -> None:
        super().__init__(f"{name} ({code}): {text}")
        self.code, self.name, self.text = code, name, text

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "name": self.name, "text": self.text}


def to_bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def to_text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def failure(error: BaseException, describe: Callable[[BaseException], ClientError | None]) -> dict[str, Any]:
    """The answer for an exception."""
    if isinstance(error, Unsupported):
        return {"unsupported": str(error)}
    known = error if isinstance(error, ClientError) else describe(error)
    if known is None:
        known = ClientError(-1, type(error).__name__, str(error))
    return {"error": known.as_json()}


def serve(
    commands: Mapping[str, Callable[..., Any]], describe: Callable[[BaseException], ClientError | None]
) -> None:
    """Serve plain functions and coroutine functions until stdin ends; the loop runs between commands."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            arguments = json.loads(line)
            command = commands[arguments.pop("command")]
            try:
                answer = command(**arguments)
                if inspect.isawaitable(answer):
                    answer = await answer
                reply = {"answer": answer}
            except Exception as error:  # noqa: BLE001 - the test gets it
                reply = failure(error, describe)
            answers.write(json.dumps(reply) + "\n")

    asyncio.run(run())


class Ledger:
    """What a load sent and what became of it; safe under the interpreter lock, one call at a time a field."""

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


def load_value(partition: int, number: int) -> bytes:
    """The value of a load's record."""
    return f"{partition}:{number}".encode()
