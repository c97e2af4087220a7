"""Requests of a page to the cluster: each has a deadline, and its failure is a sentence in the page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from barnabas.protocol.errors import (
    ApiError,
    AuthenticationFailed,
    BarnabasError,
    ErrorCode,
    RequestTimedOutLocally,
)
from barnabas.ui.context import outcome, refused, wants_json

T = TypeVar("T")
State = dict[str, Any]

LIMIT_S: Final = 5.0
TIMEOUT_MS: Final = 4_000
"""For each request of several, so that the broker's own error comes before the deadline of all."""
_REST: Final = 20.0
"""A part rests so many times as long as its last look took: many groups cost a twentieth of the time."""
_LONGEST_REST_S: Final = 10.0


_STATUSES: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: 404,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 403,
    ErrorCode.INVALID_CONFIG: 400,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.INVALID_TOPIC_EXCEPTION: 400,
    ErrorCode.INVALID_TIMESTAMP: 400,
    ErrorCode.INVALID_RECORD: 400,
    ErrorCode.POLICY_VIOLATION: 400,
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.NON_EMPTY_GROUP: 409,
    ErrorCode.INVALID_TXN_STATE: 409,
    ErrorCode.CONCURRENT_TRANSACTIONS: 409,
    ErrorCode.UNSUPPORTED_VERSION: 501,
    ErrorCode.REQUEST_TIMED_OUT: 504,
}
"""Of HTTP; an error that is not listed is the cluster's, which is a server that this one asks: 502."""


class Missing(ValueError):
    """The cluster does not have what the request names."""


class Conflict(ValueError):
    """The change does not fit the present state of the cluster."""


def status_of(error: Exception) -> int:
    match error:
        case Missing():
            return 404
        case Conflict():
            return 409
        case TimeoutError() | RequestTimedOutLocally():
            return 504
        case ValueError():
            return 400
        case AuthenticationFailed():
            return 403
        case ApiError():
            return _STATUSES.get(error.code, 502)
    return 502


def error_text(error: Exception) -> str:
    return "The cluster did not answer in time." if isinstance(error, TimeoutError) else str(error)


async def answer_change(
    request: Request,
    change: Coroutine[Any, Any, str],
    location: str,
    page: Callable[[str, int], Awaitable[Response]] | None = None,
) -> Response:
    """Make a change, whose result is a sentence, and answer with it, or with the reason of its refusal.

    `page`: the form that comes back with the reason and the status, where there is one.
    """
    try:
        async with asyncio.timeout(LIMIT_S):
            return outcome(request, location, await change)
    except TimeoutError as error:
        text = f"The cluster did not answer within {LIMIT_S:g} s: look whether the change was made."
        status = status_of(error)
    except (BarnabasError, ValueError) as error:
        text, status = f"Nothing was changed: {error}", status_of(error)
    if page is None or wants_json(request):
        return refused(request, location, text, status)
    return await page(text, status)


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
