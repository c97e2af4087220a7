"""A decoded request, answered by a callback, with the interface of `ApiRequest`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.fetch import FetchResponse
from barnabas.protocol.messages.inter_broker import UpdateMetadataResponse
from tests.simulation.truth import Violation

P = ParamSpec("P")
LISTENER = "INTERNAL"


class SimRequest:
    listener_name = LISTENER
    api_version = None

    def __init__(self, body: Any, respond: Callable[[Any], None]) -> None:
        self.body = body
        self._respond = respond

    def respond(self, response: Any) -> None:
        if ErrorCode.UNKNOWN_SERVER_ERROR in _error_codes(response):
            raise Violation(f"a bug: {type(response).__name__} is UNKNOWN_SERVER_ERROR")
        self._respond(response)

    def answering(self, answer: Callable[P, None]) -> Callable[P, None]:
        """In a simulation a bug ends the history."""
        return answer

    def release_frame(self) -> None:
        return


def _error_codes(response: Any) -> list[int]:
    """The codes that a handler may answer in place of an exception."""
    if isinstance(response, UpdateMetadataResponse):
        return [response.error_code]
    if isinstance(response, FetchResponse):
        return [data.error_code for topic in response.responses for data in topic.partitions]
    return []
