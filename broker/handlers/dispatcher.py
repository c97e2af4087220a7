"""From a frame to its handler. Runs on the IO workers.

What cannot be read closes the connection with a logged reason and hurts nothing else. An exception that
escapes a handler is a bug of ours: the worker pool logs it and closes that one connection.
"""

from __future__ import annotations

import logging
from typing import Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.registry import HANDLERS
from barnabas.broker.handlers.services import Services
from barnabas.broker.network.request import Request
from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.schema import ApiKey

logger = logging.getLogger(__name__)


# Where the API key stands in a native head: behind the array marker and the five bytes of the head's length.
_API_KEY_AT: Final = 6
_SHORT: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA})


def is_short(request: Request) -> bool:
    """Whether a request, not decoded yet, will not wait for anything but the page cache.

    Keys up to 127 are a byte of their own in msgpack, so one look is enough.
    """
    view = request.frame.view
    return len(view) > _API_KEY_AT and view[_API_KEY_AT] in _SHORT and codec_msgpack.is_native(view)


class Dispatcher:
    """Decodes a request and runs its handler."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._inter_broker_listener = services.config.inter_broker_listener_name

    def __call__(self, request: Request) -> None:
        view = request.frame.view
        if not codec_msgpack.is_native(view):
            begins = f"begins with byte {view[0]:#04x}" if len(view) else "is empty"
            request.close_connection(f"not a native request: it {begins}")
            return
        try:
            head = codec_msgpack.decode_request(view)
        except MalformedFrame as error:
            request.close_connection(f"malformed request: {error}")
            return
        api_key = ApiKey(head.api_key)
        handler = HANDLERS[api_key]
        if handler.inter_broker_only and request.listener_name != self._inter_broker_listener:
            request.close_connection(f"{api_key.name} is refused on listener {request.listener_name}")
            return
        handler.handle(
            self._services, ApiRequest(request, api_key, head.correlation_id, head.client_id, head.body)
        )
