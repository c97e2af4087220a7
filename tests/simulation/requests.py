"""A decoded request, answered by a callback, with the interface of `ApiRequest`."""

from collections.abc import Callable
from typing import Any, ParamSpec

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.network.request import Buffers, Lane, Peer
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.fetch import FetchResponse
from barnabas.protocol.messages.inter_broker import UpdateMetadataResponse
from tests.simulation.truth import Violation

P = ParamSpec("P")
LISTENER = "INTERNAL"
PEER = Peer("1", "h", LISTENER, 0)


class RawRequest:
    """A simulated broker has no lanes: the rest of a paused request runs when it is resumed."""

    lane = Lane.GENERAL
    deadlines = None
    received_ns = 0

    def __init__(self, peer: Peer, push: Callable[[Buffers], bool]) -> None:
        self.peer, self.push = peer, push
        self._rest: Callable[[], None] = lambda: None

    def close_connection(self, reason: str) -> None:
        """As a lost answer: the controller sends the request again when the world lets it time out."""
        if "fits no push" in reason:
            raise Violation(reason)

    def continue_in(self, lane: Lane, rest: Callable[[], None]) -> None:
        rest()

    def run_in_turn(self, rest: Callable[[], None]) -> None:
        rest()

    def park(self, cancel: Callable[[], object]) -> None:
        """No connection is lost while a request waits: its answer is."""

    def release_frame(self) -> None:
        """There is none."""

    drop_frame = release_frame

    def respond_nothing(self) -> None:
        """The sender waits for no answer."""

    def pause(self, rest: Callable[[], None]) -> None:
        self._rest = rest

    def resume(self) -> None:
        self._rest()


class SimRequest:
    answer_when: Any = ApiRequest.answer_when
    take_body: Any = ApiRequest.take_body
    client_id = "c"
    quotas = None

    def __init__(
        self,
        body: Any,
        respond: Callable[[Any], None],
        api_version: int | None = None,
        *,
        peer: Peer = PEER,
        push: Callable[[Buffers], bool] = lambda buffers: False,
    ) -> None:
        self.body = body
        self.api_key = body.api_key
        self.api_version = api_version
        self._respond = respond
        self.raw = RawRequest(peer, push)

    def is_since(self, version: int) -> bool:
        return self.api_version is None or self.api_version >= version

    def respond(self, response: Any) -> None:
        if ErrorCode.UNKNOWN_SERVER_ERROR in _error_codes(response):
            raise Violation(f"a bug: {type(response).__name__} is UNKNOWN_SERVER_ERROR")
        self._respond(response)

    def answering(self, answer: Callable[P, None]) -> Callable[P, None]:
        """In a simulation a bug ends the history."""
        return answer


def _error_codes(response: Any) -> list[int]:
    """The codes that a handler may answer in place of an exception."""
    if isinstance(response, UpdateMetadataResponse):
        return [response.error_code]
    if isinstance(response, FetchResponse):
        return [data.error_code for topic in response.responses for data in topic.partitions]
    return []
