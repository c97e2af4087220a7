"""Hands the blocking work of a request to the slow-work thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.slow_work import SlowWorkRefused


def submit(services: Services, request: ApiRequest, work: Callable[..., None], *args: Any) -> None:
    """Do the work later; if it fails, the client is told by closing its connection."""

    def failed(error: Exception) -> None:
        request.raw.fail(f"{request} failed: {error!r}")

    try:
        services.slow_work.submit(failed, work, *args)
    except SlowWorkRefused as error:
        request.raw.close_connection(str(error))
