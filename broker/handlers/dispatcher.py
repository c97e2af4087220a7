"""Decodes a request and runs its handler.

Both codecs share one port and the same handlers: a Kafka request begins with a zero byte, because no API key
is above 255, a native one with a msgpack array marker. An unreadable frame closes its connection with a
logged reason; other connections continue.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.base.limits import MAX_ON_NETWORK_THREAD
from barnabas.broker.handlers import api_versions, authentication
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorization import ASKED_BY_HANDLERS, authorize
from barnabas.broker.handlers.registry import HANDLERS, Handler
from barnabas.broker.handlers.services import Services
from barnabas.broker.network.request import Lane, Request
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.codec_kafka import UnsupportedVersion
from barnabas.protocol.errors import BeyondBound, MalformedFrame
from barnabas.protocol.schema import MAX_HEAD_BYTES, MAX_INNER_ELEMENTS, ApiKey

# Where the API key is: in a native head after the array marker and the five bytes of the head's length, in a
# Kafka head in the second of the first two bytes.
_NATIVE_KEY_AT: Final = 6
_KAFKA_KEY_AT: Final = 1
_UINT8_MARK: Final = 0xCC
"""In the native codec, the key is in the byte after it, because it is above 127."""
_BRIEF_ELEMENTS: Final = 2 * MAX_ON_NETWORK_THREAD
"""Topics, and partitions and their arrays, of a Kafka request that a network thread decodes. Handlers count
more exactly."""
_BRIEF_HEAD_BYTES: Final = 16 * 1024
"""Of a native request that a network thread decodes, without its records: 5,000 partitions at most."""
_UNKNOWN: Final = Handler(lambda services, request: None)
_BY_KEY_BYTE: Final = [HANDLERS[ApiKey(key)] if key in HANDLERS else _UNKNOWN for key in range(256)]


def lane_of(view: memoryview) -> Lane:
    """The lane in which a request that is not decoded yet begins to run."""
    handler = _handler_of(view)
    return handler.lane if len(view) <= handler.max_bytes else Lane.GENERAL


def in_turn(view: memoryview) -> bool:
    """Whether a request that is not decoded yet waits until earlier ones of its connection are answered."""
    return _handler_of(view).in_turn


def _handler_of(view: memoryview) -> Handler:
    """In unreadable requests any byte will do."""
    if len(view) <= _NATIVE_KEY_AT + 1:
        return _UNKNOWN
    if view[0] == 0:
        return _BY_KEY_BYTE[view[_KAFKA_KEY_AT]]
    key = view[_NATIVE_KEY_AT]
    return _BY_KEY_BYTE[view[_NATIVE_KEY_AT + 1] if key == _UINT8_MARK else key]


class Dispatcher:
    """Decodes a request and runs its handler."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._inter_broker_listener = services.config.inter_broker_listener_name

    def __call__(self, request: Request) -> None:
        is_admitted = request.received_ns < request.peer.session.expires_at_ns
        if not is_admitted and not authentication.admit(self._services, request):
            return
        try:
            decoded = decoded_request(request, is_admitted)
        except MalformedFrame as error:
            if isinstance(error, BeyondBound) and request.lane is Lane.NETWORK and is_admitted:
                request.continue_in(Lane.GENERAL, lambda: self(request))
            else:
                request.close_connection(f"malformed request: {error}")
            return
        except UnsupportedVersion as error:
            _refuse_version(request, error)
            return
        request.kind = (decoded.api_key, decoded.api_version, False)
        handler = HANDLERS[decoded.api_key]
        if handler.inter_broker_only:
            services, session = self._services, request.peer.session
            name, where = decoded.api_key.name, request.peer.listener_name
            if where != self._inter_broker_listener and not services.brokers.is_super_user(session):
                request.close_connection(
                    f"{name} is refused on listener {where} to {session.principal}, no super user"
                )
                return
            if services.authorizer is None and not services.brokers.is_broker(session):
                principal = session.principal
                request.close_connection(f"{decoded.api_key.name} is refused to {principal}, no broker")
                return
        quotas = self._services.quotas
        if (
            quotas.is_active
            and is_admitted
            and not (handler.is_exempt or handler.inter_broker_only)
            # The default of users must not slow down the requests of brokers.
            and not (
                decoded.api_version is None and self._services.brokers.is_registered(request.peer.session)
            )
        ):
            decoded.quotas = quotas
        if (
            self._services.authorizer is None
            or decoded.api_key in ASKED_BY_HANDLERS
            or authorize(self._services, decoded)
        ):
            handler.handle(self._services, decoded)


def decoded_request(request: Request, is_admitted: bool) -> ApiRequest:
    """Raises MalformedFrame or UnsupportedVersion; on a network thread BeyondBound for many elements.

    The frame of a peer that is not authenticated is short, and may have a token of that length.
    """
    view, is_brief = request.frame.view, request.lane is Lane.NETWORK
    if len(view) and view[0] == 0:
        most = _BRIEF_ELEMENTS if is_brief else MAX_INNER_ELEMENTS
        head = codec_kafka.decode_request(view, most)
    elif codec_msgpack.is_native(view):
        most_bytes = _BRIEF_HEAD_BYTES if is_brief and is_admitted else MAX_HEAD_BYTES
        head = codec_msgpack.decode_request(view, most_bytes)
    else:
        begins = f"begins with byte {view[0]:#04x}" if len(view) else "is empty"
        raise MalformedFrame(f"neither Kafka's protocol nor the native one: it {begins}")
    return ApiRequest(
        request, head.api_key, head.correlation_id, head.client_id or "", head.body, head.api_version
    )


def _refuse_version(request: Request, error: UnsupportedVersion) -> None:
    """Refuse ApiVersions in version 0, which any client reads; for other APIs close the connection."""
    if error.api_key != ApiKey.API_VERSIONS:
        request.close_connection(f"unsupported request: {error}")
        return
    answer = api_versions.unsupported()
    request.respond(codec_kafka.encode_response(ApiKey.API_VERSIONS, 0, error.correlation_id, answer))
