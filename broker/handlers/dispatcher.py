"""Decodes a frame and runs its handler: short requests on the network threads, others on the IO workers.

Both codecs share one port and the same handlers: a Kafka request begins with a zero byte, because no API key
is above 255, a native one with a msgpack array marker. An unreadable frame closes its connection with a
logged reason; others continue. An exception that escapes a handler is a bug: the thread that runs the
request logs it and closes that one connection.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.handlers import api_versions
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.registry import HANDLERS
from barnabas.broker.handlers.services import Services
from barnabas.broker.network.request import Lane, Request
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.codec_kafka import UnsupportedVersion
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.schema import APIS, ApiKey

# Where the API key stands: in a native head behind the array marker and the five bytes of the head's length,
# in a Kafka one in the second of the first two bytes.
_NATIVE_KEY_AT: Final = 6
_KAFKA_KEY_AT: Final = 1
_SHORT: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA})
_CONTROL: Final = frozenset(
    {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN}
)
_SHORT_UP_TO_BYTES: Final = 32 * 1024
"""But for what is produced: more bytes are more records there, and more partitions elsewhere."""


def is_short(request: Request) -> bool:
    """Whether a request, not decoded yet, will not wait for anything but the page cache.

    Keys up to 127 are a byte of their own in both codecs, so one look is enough.
    """
    view = request.frame.view
    size = len(view)
    if size <= _NATIVE_KEY_AT:
        return False
    is_kafka = view[0] == 0
    key = view[_KAFKA_KEY_AT if is_kafka else _NATIVE_KEY_AT]
    if key not in _SHORT or (size > _SHORT_UP_TO_BYTES and key != ApiKey.PRODUCE):
        return False
    return is_kafka or codec_msgpack.is_native(view)


def lane_of(request: Request) -> Lane:
    """The lane of a request that is not decoded yet; its handler may choose another."""
    view = request.frame.view
    if len(view) <= _NATIVE_KEY_AT:
        return Lane.GENERAL
    key = view[_KAFKA_KEY_AT if view[0] == 0 else _NATIVE_KEY_AT]
    return Lane.CONTROL if key in _CONTROL else Lane.GENERAL


class Dispatcher:
    """Decodes a request and runs its handler."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._inter_broker_listener = services.config.inter_broker_listener_name

    def __call__(self, request: Request) -> None:
        try:
            asked = _decoded(request)
        except MalformedFrame as error:
            request.close_connection(f"malformed request: {error}")
            return
        except UnsupportedVersion as error:
            _refuse_version(request, error)
            return
        handler = HANDLERS.get(asked.api_key)
        if handler is None:
            request.close_connection(f"{asked.api_key.name} is not served")
        elif handler.inter_broker_only and request.listener_name != self._inter_broker_listener:
            request.close_connection(f"{asked.api_key.name} is refused on listener {request.listener_name}")
        else:
            handler.handle(self._services, asked)


def _decoded(request: Request) -> ApiRequest:
    """Raises MalformedFrame or UnsupportedVersion."""
    view = request.frame.view
    if codec_msgpack.is_native(view):
        native = codec_msgpack.decode_request(view)
        return ApiRequest(
            request, ApiKey(native.api_key), native.correlation_id, native.client_id, native.body
        )
    if not codec_kafka.is_kafka(view):
        begins = f"begins with byte {view[0]:#04x}" if len(view) else "is empty"
        raise MalformedFrame(f"neither Kafka's protocol nor the native one: it {begins}")
    head = codec_kafka.decode_request(view)
    return ApiRequest(
        request, head.api_key, head.correlation_id, head.client_id or "", head.body, head.api_version
    )


def _refuse_version(request: Request, error: UnsupportedVersion) -> None:
    """Only ApiVersions can be refused in a form that a client of any version reads; all else is closed."""
    if error.api_key != ApiKey.API_VERSIONS:
        request.close_connection(f"unsupported request: {error}")
        return
    answer = api_versions.unsupported(*APIS[ApiKey.API_VERSIONS].versions)
    request.respond(codec_kafka.encode_response(ApiKey.API_VERSIONS, 0, error.correlation_id, answer))
