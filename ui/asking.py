"""Requests of a page to the cluster: each has a deadline, and its failure is a sentence in the page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from barnabas.protocol.errors import BarnabasError

T = TypeVar("T")
State = dict[str, Any]

LIMIT_S: Final = 5.0
TIMEOUT_MS: Final = 4_000
"""For each request of several, so that the broker's own error comes before the deadline of all."""
_REST: Final = 20.0
"""A part rests so many times as long as its last look took: many groups cost a twentieth of the time."""
_LONGEST_REST_S: Final = 10.0


class Tried(NamedTuple):
    """The value, or None with the problem as a sentence."""

    value: Any
    problem: str


async def tried(work: Coroutine[Any, Any, T], limit_s: float = LIMIT_S) -> Tried:
    """Refusals, missing coordinators and brokers that do not answer become sentences.

    Input that the client itself refuses is a ValueError with a sentence too.
    """
    try:
        async with asyncio.timeout(limit_s):
            return Tried(await work, "")
    except TimeoutError:
        return Tried(None, f"the cluster did not answer within {limit_s:g} s")
    except (BarnabasError, ValueError) as error:
        return Tried(None, str(error))


def paced(
    look: Callable[[State], Coroutine[Any, Any, State]], note: str
) -> Callable[[State], Awaitable[State]]:
    """A look at a part of the cluster for the stream, which rests for longer after it has taken longer.

    A failure becomes the entry `note` of the state, and what was known before stays.
    """
    due = 0.0

    async def ask(state: State) -> State:
        nonlocal due
        started = time.monotonic()
        if started < due:
            return {}
        update, problem = await tried(look(state))
        now = time.monotonic()
        due = now + min(_LONGEST_REST_S, _REST * (now - started))
        return {note: problem} if problem else update

    return ask
