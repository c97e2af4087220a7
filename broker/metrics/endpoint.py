"""The HTTP endpoint that Prometheus scrapes: GET /metrics, and nothing else.

One thread answers one connection after the other. A peer that takes longer than `READ_TIMEOUT_S` to send its
request, or than `SEND_TIMEOUT_S` to take the page, is closed; such peers delay scrapes, and nothing else. If
a page cannot be built, the error is logged and the answer is 500.

It has no authentication and no encryption. Bind it to an address that only people can reach who may know the
names of groups and topics.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from barnabas.broker.network.server import CannotBind
from barnabas.common.threads import make_thread
from barnabas.protocol.ids import Endpoint

logger = logging.getLogger(__name__)

PATH: Final = "/metrics"
READ_TIMEOUT_S: Final = 1.0
SEND_TIMEOUT_S: Final = 5.0
_MAX_HEAD_BYTES: Final = 16_384
_PAUSE_S: Final = 0.2


class MetricsEndpoint:
    """``page`` builds the answer, on the endpoint's thread; if that dies, ``on_fatal`` is called.

    The constructor binds the port; it raises CannotBind.
    """

    def __init__(
        self, host: str, port: int, page: Callable[[], bytes], *, on_fatal: Callable[[BaseException], None]
    ) -> None:
        try:
            flags = socket.AI_PASSIVE
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[0]
            both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            self._listener = socket.create_server(address, family=family, dualstack_ipv6=both)
        except OSError as error:
            raise CannotBind(
                f"metrics.host={host!r}, metrics.port={port}: cannot bind: {error.strerror or error}"
            ) from error
        self._page = page
        self._connection: socket.socket | None = None
        self._stopped = threading.Event()
        self._thread = make_thread("metrics", self._run, on_fatal)

    @property
    def endpoint(self) -> Endpoint:
        """The address; a port 0 has been replaced by the chosen port."""
        host, port, *_ = self._listener.getsockname()
        return Endpoint(str(host), int(port))

    def start(self) -> None:
        self._thread.start()
        logger.info("metrics are served at http://%s%s", self.endpoint, PATH)

    def stop(self) -> None:
        """Close the port and the scrape in progress."""
        self._stopped.set()
        for blocked in (self._listener, self._connection):
            if blocked is not None:
                _shut(blocked)
        if self._thread.is_alive():
            self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                connection, peer = self._listener.accept()
            except OSError as error:
                if not self._stopped.is_set():
                    # Such as too few descriptors: the connection stays queued and is accepted later.
                    logger.warning("cannot accept a scrape: %s", error)
                    time.sleep(_PAUSE_S)
                continue
            with connection:
                self._connection = connection
                if self._stopped.is_set():
                    return
                try:
                    self._answer(connection)
                except OSError as error:
                    logger.debug("a scrape from %s ended early: %s", peer[0], error)

    def _answer(self, connection: socket.socket) -> None:
        method, path = _read_request(connection)
        status, text = "200 OK", b""
        if method != "GET":
            status = "501 Not Implemented"
        elif path.partition("?")[0] != PATH:
            status = "404 Not Found"
        else:
            try:
                text = self._page()
            except Exception:
                logger.exception("the metrics could not be collected")
                status = "500 Internal Server Error"
        head = (
            f"HTTP/1.0 {status}\r\nServer: barnabas\r\nContent-Type: {CONTENT_TYPE_PLAIN_0_0_4}\r\n"
            f"Content-Length: {len(text)}\r\n\r\n"
        )
        # The time-out is of all bytes together.
        connection.settimeout(SEND_TIMEOUT_S)
        connection.sendall(head.encode() + text)


def _read_request(connection: socket.socket) -> tuple[str, str]:
    """The method and the path, "" if there are none. Raises OSError."""
    head, deadline = b"", time.monotonic() + READ_TIMEOUT_S
    while b"\r\n\r\n" not in head and len(head) < _MAX_HEAD_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request is not complete")
        connection.settimeout(left_s)
        received = connection.recv(_MAX_HEAD_BYTES)
        if not received:
            break
        head += received
    method, path, *_ = [*head.decode("latin-1").split(maxsplit=2), "", ""]
    return method, path


def _shut(blocked: socket.socket) -> None:
    """End the calls that wait for the socket."""
    try:
        blocked.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        logger.debug("closed already: %s", error)
