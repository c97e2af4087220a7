"""The protocol of the drivers: commands as lines of JSON on stdin, one line of JSON back for each.

A command is ``{"command": name, …arguments}``; its answer ``{"answer": …}``, or ``{"error": {"code", "name",
"text"}}``, or ``{"unsupported": why}`` if the client cannot do it at all. Bytes travel as base64. Error
codes are Kafka's own if a broker answered with them; negative ones are the client's. The client's own output
goes to stderr.
"""

import asyncio
import base64
import inspect
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


class Unsupported(Exception):
    """The client has no such function; the text says which."""


class ClientError(Exception):
    """An error that the client reported to the application."""

    def __init__(self, code: int, name: str, text: str) -> None:
        super().__init__(f"{name} ({code}): {text}")
        self.code, self.name, self.text = code, name, text

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "name": self.name, "text": self.text}


Describe = Callable[[BaseException], ClientError | None]
"""Turns a client's exception into an error; None for an exception that is not of the client's own kind."""
Command = Callable[..., Any]


def to_bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def to_text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


@dataclass(frozen=True)
class ProduceCommand:
    bootstrap: str
    records: list[dict[str, Any]]
    acks: str = "all"
    compression: str = "none"
    idempotent: bool = False
    max_request_bytes: int | None = None
    timeout_s: float = 45


@dataclass(frozen=True)
class FetchCommand:
    bootstrap: str
    topic: str
    partition: int
    offset: int
    count: int
    timeout_s: float = 45
    max_bytes: int | None = None
    isolation: str | None = None
    """``read_committed`` or ``read_uncommitted``; None for the client's default."""


@dataclass(frozen=True)
class CreateTopicCommand:
    bootstrap: str
    topic: str
    partitions: int = 1
    replicas: int = 1
    configs: dict[str, str] | None = None
    assignment: list[list[int]] | None = None
    """The replicas of each partition, instead of numbers."""
    validate_only: bool = False


COMMANDS: Mapping[str, Callable[..., Any] | None] = {
    "hello": None,
    "produce": ProduceCommand,
    "fetch": FetchCommand,
    "offsets": None,
    "create_topic": CreateTopicCommand,
    "delete_topic": None,
    "list_topics": None,
    "describe_topic": None,
    "describe_cluster": None,
    "describe_configs": None,
    "alter_configs": None,
    "create_partitions": None,
    "delete_records": None,
    "list_groups": None,
    "describe_group": None,
    "delete_group": None,
    "group_offsets": None,
    "set_group_offsets": None,
    "delete_group_offsets": None,
}
"""The commands that a driver may define as functions; with the class of the argument if it is one object."""


def partitions_as_json(partitions: Iterable[tuple[int, int, list[int], list[int]]]) -> list[dict[str, Any]]:
    """The answer of ``describe_topic``, from index, leader, replicas and ISR of each partition."""
    names = ("partition", "leader", "replicas", "isr")
    return [dict(zip(names, partition, strict=True)) for partition in sorted(partitions)]


def cluster_as_json(controller: int, brokers: Iterable[tuple[int, str, int]]) -> dict[str, Any]:
    """The answer of ``describe_cluster``, from id, host and port of each broker."""
    return {"controller": controller, "brokers": sorted(map(list, brokers))}


def error_as_json(error: BaseException, describe: Describe) -> dict[str, Any]:
    known = error if isinstance(error, ClientError) else describe(error)
    return (known or ClientError(-1, type(error).__name__, str(error))).as_json()


async def settled(outcome: Any | Awaitable[Any]) -> Any:
    """The outcome itself, awaited when the client gave one to await."""
    return await outcome if inspect.isawaitable(outcome) else outcome


@asynccontextmanager
async def _opened(manager: Any) -> AsyncIterator[Any]:
    if hasattr(manager, "__aenter__"):
        async with manager as found:
            yield found
    else:
        with manager as found:
            yield found


def by_name(*commands: Command) -> dict[str, Command]:
    return {command.__name__: command for command in commands}


def commands_of(driver: Mapping[str, Any]) -> dict[str, Command]:
    """The commands that a driver's module defines; the others answer that the client cannot do them.

    A function with an argument ``admin`` gets what the driver's ``admin_of`` opens for the bootstrap servers.
    """

    def command_of(name: str, kind: Callable[..., Any] | None) -> Command:
        function = driver.get(name)

        async def run(**arguments: Any) -> Any:
            if function is None:
                raise Unsupported(f"{driver['hello']()['client']} has no {name}")
            given = [] if kind is None else [kind(**arguments)]
            if "admin" not in inspect.signature(function).parameters:
                return await settled(function(*given, **({} if given else arguments)))
            async with _opened(driver["admin_of"](arguments.pop("bootstrap"))) as admin:
                return await settled(function(admin, *given, **({} if given else arguments)))

        return run

    return {name: command_of(name, kind) for name, kind in COMMANDS.items()}


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
