"""The two protocols of a channel: the native codec, or Kafka's protocol in negotiated versions.

A dialect belongs to one connection. The native one is the same everywhere. Kafka's uses the highest common
version of each API, from the versions of the peer (`opening.negotiate`). Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import NO_TOPIC_ID, Endpoint
from barnabas.protocol.messages.fetch import FetchRequest
from barnabas.protocol.schema import Buffer, RequestOf

Versions = dict[int, tuple[int, int]]
"""First and last version of every API that a peer supports, by API key."""

_LAST_FETCH_BY_NAME: Final = 12


class Wire(Enum):
    """The protocol of a channel, by the values of the setting."""

    NATIVE = "native"
    KAFKA = "kafka"


class Features(NamedTuple):
    """The features that a cluster has finalized (KIP-584); of two answers, that of the later epoch counts."""

    epoch: int
    levels: dict[str, int]


NO_FEATURES: Final = Features(-1, {})


class Dialect:
    """Encodes requests to frames and decodes frames to responses: in the native codec, without versions."""

    features = NO_FEATURES
    peer_is_ours = True
    """Whether the peer speaks the native protocol."""

    def version_of(self, message: RequestOf[Any], at_most: int | None = None) -> int:
        """The version to send a request in. Raises UNSUPPORTED_VERSION if the peer shares no version."""
        return 0

    def encode(
        self, version: int, correlation_id: int, client_id: str, message: RequestOf[Any]
    ) -> list[Buffer]:
        """A whole frame."""
        return codec_msgpack.encode_request(correlation_id, client_id, message)

    def open(self, view: memoryview) -> tuple[int, Any]:
        """The correlation id of a response, and the argument for `read`. Raises MalformedFrame."""
        opened = codec_msgpack.open_response(view)
        return opened.correlation_id, opened

    def read(self, opened: Any, request_type: type[RequestOf[Any]], version: int) -> Any:
        """The body of a response. Raises MalformedFrame."""
        return opened.body(request_type.response_type)


class KafkaDialect(Dialect):
    """Kafka's protocol, in the highest common versions of ours and the peer's ``versions``."""

    def __init__(
        self,
        endpoint: Endpoint,
        versions: Versions,
        features: Features = NO_FEATURES,
        *,
        peer_is_ours: bool = False,
    ) -> None:
        self.features = features
        self.peer_is_ours = peer_is_ours
        self._endpoint = endpoint
        self._versions = versions

    def version_of(self, message: RequestOf[Any], at_most: int | None = None) -> int:
        ours = codec_kafka.supported_versions(message.api_key)
        theirs = self._versions.get(message.api_key)
        if theirs is None:
            raise self._unsupported(message, "which does not have it at all")
        last = ours[1] if at_most is None else min(ours[1], at_most)
        if type(message) is FetchRequest and last > _LAST_FETCH_BY_NAME and _names_topics(message):
            last = _LAST_FETCH_BY_NAME
        version = min(last, theirs[1])
        if version < max(ours[0], theirs[0]):
            raise self._unsupported(message, f"which has versions {theirs[0]} to {theirs[1]}")
        return version

    def _unsupported(self, message: RequestOf[Any], what: str) -> Exception:
        first, last = codec_kafka.supported_versions(message.api_key)
        have = f"we have versions {first} to {last}" if first <= last else "it is not of Kafka's protocol"
        text = f"{message.api_key.name} cannot be sent to {self._endpoint}, {what}; {have}"
        return api_error(ErrorCode.UNSUPPORTED_VERSION, text)

    def encode(
        self, version: int, correlation_id: int, client_id: str, message: RequestOf[Any]
    ) -> list[Buffer]:
        return codec_kafka.encode_request(version, correlation_id, client_id, message)

    def open(self, view: memoryview) -> tuple[int, memoryview]:
        return codec_kafka.correlation_id_of(view), view

    def read(self, opened: memoryview, request_type: type[RequestOf[Any]], version: int) -> Any:
        return codec_kafka.decode_response(request_type, version, opened)[1]


def _names_topics(message: FetchRequest) -> bool:
    """Whether a fetch has a topic without an id: later versions have no room for names."""
    return any(topic.topic_id == NO_TOPIC_ID for topic in message.topics)


NATIVE: Final = Dialect()
