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
from collections.abc import Awaitable, Callable, Mapping
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


Describe = Callable[[BaseException], ClientError | None]
"""What a client's exception says, or None for one that is not of the client's own kind."""
Command = Callable[..., Any]


def to_bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def to_text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def record_as_json(record: Any) -> dict[str, Any]:
    """A record that was read, of those clients in Python that name its parts as Kafka does."""
    return {
        "offset": record.offset,
        "key": to_text(record.key),
        "value": to_text(record.value),
        "headers": [[name, to_text(value)] for name, value in record.headers],
        "timestamp": record.timestamp,
        "timestamp_type": "log_append" if record.timestamp_type == 1 else "create",
    }


def describing(kind: type[BaseException]) -> Describe:
    """For the clients whose errors are all of one kind, with Kafka's code as their ``errno``."""

    def describe(error: BaseException) -> ClientError | None:
        if isinstance(error, kind):
            return ClientError(getattr(error, "errno", None) or -1, type(error).__name__, str(error))
        return None

    return describe


def error_as_json(error: BaseException, describe: Describe) -> dict[str, Any]:
    known = error if isinstance(error, ClientError) else describe(error)
    return (known or ClientError(-1, type(error).__name__, str(error))).as_json()


async def settled(outcome: Any | Awaitable[Any]) -> Any:
    """The outcome itself, awaited when the client gave one to await."""
    return await outcome if inspect.isawaitable(outcome) else outcome


def by_name(*commands: Command) -> dict[str, Command]:
    return {command.__name__: command for command in commands}


def serve(commands: Mapping[str, Command], describe: Describe) -> None:
    """Serve plain functions and coroutine functions until stdin ends; the loop runs between commands."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            arguments = json.loads(line)
            command = commands[arguments.pop("command")]
            try:
                reply = {"answer": await settled(command(**arguments))}
            except Unsupported as error:
                reply = {"unsupported": str(error)}
            except Exception as error:  # noqa: BLE001 - the test gets it
                reply = {"error": error_as_json(error, describe)}
            answers.write(json.dumps(reply) + "\n")

    asyncio.run(run())
