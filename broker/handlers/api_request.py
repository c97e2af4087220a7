"""A decoded request on its way through a handler, and its one answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, ParamSpec

from barnabas.broker.network.request import Lane, Request
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.errors import MessageTooComplex, Unencodable
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.schema import ApiKey, Buffer

P = ParamSpec("P")

logger = logging.getLogger(__name__)

MAX_CLIENT_ID_SHOWN: Final = 64


class ApiRequest:
    """One decoded request. `respond` may be called later and on any thread, but exactly once.

    ``api_version`` is the version of Kafka's wire protocol in which it came, None for the native one.
    """

    __slots__ = ("_request", "api_key", "api_version", "body", "client_id", "correlation_id")

    def __init__(
        self,
        request: Request,
        api_key: ApiKey,
        correlation_id: int,
        client_id: str,
        body: Any,
        api_version: int | None = None,
    ) -> None:
        self._request = request
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body

    def __str__(self) -> str:
        name = self.client_id[:MAX_CLIENT_ID_SHOWN]
        return f"{self.api_key.name} from {name!r} at {self._request.connection_id}"

    @property
    def listener_name(self) -> str:
        """The listener that the request came in by."""
        return self._request.listener_name

    @property
    def connection_age_ms(self) -> int:
        """For how long the connection was open when the request came."""
        return self._request.connection_age_ms

    @property
    def must_be_short(self) -> bool:
        """Whether it runs on a network thread; a handler may then raise `NotShort`, if it did nothing yet."""
        return self._request.must_be_short

    @property
    def may_look_into_records(self) -> bool:
        """Whether it runs on the records lane, where a long check does not delay other lanes; if not, raise
        `NotShort`."""
        return self._request.lane is Lane.RECORDS

    @property
    def peer_host(self) -> str:
        return self._request.peer_host

    @property
    def connection_id(self) -> str:
        return self._request.connection_id

    def respond(self, body: Any) -> None:
        """Answer with an instance of the API's response class, in the codec of the request.

        An answer that cannot be encoded, such as another member's name that is too long for this version,
        closes the connection: the thread that answers many requests must not fail at one of them.
        """
        buffers = self.encoded(body)
        if buffers is not None:
            self._request.respond(buffers)

    def encoded(self, body: Any) -> list[Buffer] | None:
        """An answer's bytes; None if it cannot be encoded, and then the connection is closed."""
        version = self.api_version
        try:
            if version is None:
                return codec_msgpack.encode_response(self.correlation_id, body)
            return codec_kafka.encode_response(self.api_key, version, self.correlation_id, body)
        except (Unencodable, MessageTooComplex) as error:
            logger.error("the answer to %s cannot be sent: %s", self, error)
            self._request.close_connection(f"its answer cannot be sent: {error}")
        except InvariantViolation:
            raise
        except Exception as error:  # noqa: BLE001 - any error closes the connection, loudly
            self._failed(error)
        return None

    def answering(self, answer: Callable[P, None]) -> Callable[P, None]:
        """An answer that may run later, among those to other requests: if it fails, the connection is closed.

        A handler that answers before it returns does not need this: then `RequestRunner` closes it.
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
        self.fail(f"its answer failed: {error!r}")

    def fail(self, reason: str) -> None:
        """End the request after an unforeseen error; see `Request.fail`."""
        self._request.fail(reason)

    def respond_with(self, buffers: list[Buffer]) -> None:
        """Answer with the result of `encoded` for another request of the same Kafka protocol version."""
        self._request.respond(codec_kafka.for_another_request(buffers, self.correlation_id))

    def respond_nothing(self) -> None:
        """End the request without an answer (acks=0)."""
        self._request.respond_nothing()

    def close_connection(self, reason: str) -> None:
        """Answer by closing the connection."""
        self._request.close_connection(reason)

    def release_frame(self) -> None:
        """Give the request's bytes back; its record views are invalid from now on."""
        self._request.release_frame()
