"""Sends changes to the controller, following it when it moves.

An answer may be lost after the change was made. The request is then retried, and the second answer does not
show whether the first attempt succeeded: `Answered.is_doubtful`. Belongs to the event loop of the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from barnabas.client.cluster import Cluster
from barnabas.protocol.errors import (
    BarnabasError,
    ConnectionClosed,
    ConnectionRefused,
    ErrorCode,
    RequestTimedOutLocally,
    api_error,
)
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")


class Answered(NamedTuple, Generic[R]):
    """An answer, and whether an earlier attempt may have carried out the request, or part of it."""

    response: R
    is_doubtful: bool


def broker_timeout_ms(timeout_ms: int, request_timeout_ms: int) -> int:
    """The time limit for a broker, so that it answers before the client gives up."""
    return min(timeout_ms, request_timeout_ms) * 9 // 10


async def ask_controller(
    cluster: Cluster, request: RequestOf[R], codes: Callable[[R], list[int]], timeout_ms: int
) -> Answered[R]:
    """Ask brokers until the controller answers. Raises the last error after the timeout."""
    deadline = time.monotonic() + timeout_ms / 1000
    is_doubtful = False
    while True:
        left_ms = int((deadline - time.monotonic()) * 1000)
        try:
            response = await cluster.request(
                cluster.cache.controller_id,
                request,
                timeout_ms=max(1, min(left_ms, cluster.config.request_timeout_ms)),
            )
            found = codes(response)
            if ErrorCode.NOT_CONTROLLER not in found:
                return Answered(response, is_doubtful)
            # It may have been the controller for the first of several topics.
            is_doubtful = is_doubtful or ErrorCode.NONE in found
            error: BarnabasError = api_error(ErrorCode.NOT_CONTROLLER)
        except BarnabasError as failure:
            if not failure.retriable:
                raise
            is_doubtful = is_doubtful or _may_be_done(failure)
            error = failure
        if time.monotonic() >= deadline:
            raise error
        await cluster.refresh_before(deadline)


def _may_be_done(error: BarnabasError) -> bool:
    return isinstance(error, RequestTimedOutLocally) or (
        isinstance(error, ConnectionClosed) and not isinstance(error, ConnectionRefused)
    )
