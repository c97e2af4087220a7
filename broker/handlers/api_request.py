"""A decoded request on its way through a handler, and its one answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, ParamSpec

from barnabas.broker.network.request import Request
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.errors import MessageTooComplex, Unencodable
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.schema import ApiKey, Buffer

P = ParamSpec("P")

logger = logging.getLogger(__name__)

MAX_CLIENT_ID_SHOWN: Final = 64


class ApiRequest:
    """One decoded request. `respond` may be called later and on any thread, but exactly once.

    ``api_version`` is its version of Kafka's wire protocol, None for the native one. ``raw`` ends it in other
    ways than by an encoded response.
    """

    __slots__ = ("api_key", "api_version", "body", "client_id", "correlation_id", "peer", "raw")

    def __init__(
        self,
        request: Request,
        api_key: ApiKey,
        correlation_id: int,
        client_id: str,
        body: Any,
        api_version: int | None = None,
    ) -> None:
        self.raw = request
        self.peer = request.peer
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body

    def __str__(self) -> str:
        name = self.client_id[:MAX_CLIENT_ID_SHOWN]
        return f"{self.api_key.name} from {name!r} at {self.peer.connection_id}"

    def respond(self, body: Any) -> None:
        """Answer with an instance of the API's response class, in the codec of the request.

        An answer that cannot be encoded, such as another member's name that is too long for this version,
        closes the connection: the thread that answers many requests must not fail at one of them.
        """
        buffers = self.encoded(body)
        if buffers is not None:
            self.raw.respond(buffers)

    def encoded(self, body: Any) -> list[Buffer] | None:
        """An answer's bytes; None if it cannot be encoded, and then the connection is closed."""
        version = self.api_version
        try:
            if version is None:
                return codec_msgpack.encode_response(self.correlation_id, body)
            return codec_kafka.encode_response(self.api_key, version, self.correlation_id, body)
        except (Unencodable, MessageTooComplex) as error:
            logger.error("the answer to %s cannot be sent: %s", self, error)
            self.raw.close_connection(f"its answer cannot be sent: {error}")
        except InvariantViolation:
            raise
        except Exception as error:  # noqa: BLE001 - any error closes the connection, loudly
            self._failed(error)
        return None

    def answering(self, answer: Callable[P, None]) -> Callable[P, None]:
        """Make an answer that fails close the connection, also if it runs later, among other answers.

        A handler that answers before it returns does not need this: `Lanes.run` does the same.
        """

        def contained(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                answer(*args, **kwargs)
            except InvariantViolation:
                raise
            except Exception as error:  # noqa: BLE001 - any error closes the connection, loudly
                self._failed(error)

        return contained

    def _failed(self, error: Exception) -> None:
        logger.critical("%s cannot be answered", self, exc_info=error)
        self.raw.fail(f"its answer failed: {error!r}")

    def respond_with(self, buffers: list[Buffer]) -> None:
        """Answer with the result of `encoded` for another request of the same Kafka protocol version."""
        self.raw.respond(codec_kafka.for_another_request(buffers, self.correlation_id))
