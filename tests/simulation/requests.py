"""A decoded request, answered by a callback, with the interface of `ApiRequest`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LISTENER = "INTERNAL"


class SimRequest:
    listener_name = LISTENER
    api_version = None

    def __init__(self, body: Any, respond: Callable[[Any], None]) -> None:
        self.body = body
        self.respond = respond

    def release_frame(self) -> None:
        return
