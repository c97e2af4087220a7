"""The HTTP endpoint that Prometheus scrapes: GET /metrics, and nothing else.

One thread accepts. Each scrape has a thread of its own, at most `MAX_SCRAPES` at a time; further scrapes are
refused. A scrape that takes longer than `SCRAPE_TIMEOUT_S` is closed, whether it sends or reads slowly. The
threads that serve clients are not involved. If a page cannot be built, the error is logged and the answer is
500. If the accepting thread dies, `on_fatal` is called.

It has no authentication and no encryption. Bind it to an address that only people can reach who may know the
names of groups and topics.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from barnabas.broker.network.server import CannotBind
from barnabas.common.threads import make_thread
from barnabas.protocol.ids import Endpoint

logger = logging.getLogger(__name__)

PATH: Final = "/metrics"
MAX_SCRAPES: Final = 4
SCRAPE_TIMEOUT_S: Final = 10.0
_LOOK_INTERVAL_S: Final = 0.2
_BUSY: Final = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n"


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, then the connection closes."""

    server: _Server

    def version_string(self) -> str:
        return "barnabas"

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"expected {PATH}")
            return
        try:
            text = self.server.page()
        except Exception:
            logger.exception("the metrics could not be collected")
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the broker's log says why")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", self.server.content_type)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s: " + format, self.address_string(), *args)


class _Server(ThreadingHTTPServer):
    """The library's server, with limits on concurrent scrapes and on the time of each."""

    daemon_threads = True

    def __init__(
        self,
        family: socket.AddressFamily,
        address: Any,
        page: Callable[[], bytes],
        content_type: str,
        max_scrapes: int,
        timeout_s: float,
    ) -> None:
        self.address_family = family
        self.page = page
        self.content_type = content_type
        self._timeout_s = timeout_s
        self._slots = threading.BoundedSemaphore(max_scrapes)
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        """The scrapes in progress; removing one releases its slot."""
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not the HTTP server's method, which resolves the host's name and may take seconds.
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError as error:
            # Such as too few descriptors: the connection stays queued and would be retried without a pause.
            logger.warning("cannot accept a scrape: %s", error)
            time.sleep(_LOOK_INTERVAL_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            logger.info("a scrape from %s is refused: too many are being served", client_address[0])
            _send_at_once(request, _BUSY)
            self.shutdown_request(request)
            return
        request.settimeout(self._timeout_s)
        with self._lock:
            self._deadlines[request] = time.monotonic() + self._timeout_s
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:
            # No thread could be started.
            logger.warning("a scrape from %s is refused: %s", client_address[0], error)
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self._end(request)
        super().shutdown_request(request)

    def _end(self, request: socket.socket) -> None:
        with self._lock:
            was_in_progress = self._deadlines.pop(request, None) is not None
        if was_in_progress:
            self._slots.release()

    def service_actions(self) -> None:
        """Called periodically by the accepting thread: close the scrapes that take too long."""
        self.close_late(time.monotonic())

    def close_late(self, now: float) -> None:
        """Close the connections of scrapes whose deadline has passed, which ends their threads."""
        with self._lock:
            for request, deadline in self._deadlines.items():
                if deadline <= now:
                    _shut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            logger.debug("a scrape from %s ended early: %s", client_address[0], error)
        else:
            logger.error("a scrape from %s failed", client_address[0], exc_info=error)


class MetricsEndpoint:
    """``page`` builds the answer; it is called on the threads of scrapes.

    The constructor binds the port; it raises CannotBind.
    """

    def __init__(
        self,
        host: str,
        port: int,
        page: Callable[[], bytes],
        *,
        content_type: str,
        on_fatal: Callable[[BaseException], None],
        max_scrapes: int = MAX_SCRAPES,
        scrape_timeout_s: float = SCRAPE_TIMEOUT_S,
    ) -> None:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = addresses[0]
            self._server = _Server(family, address, page, content_type, max_scrapes, scrape_timeout_s)
        except OSError as error:
            raise CannotBind(
                f"metrics.host={host!r}, metrics.port={port}: cannot bind: {error.strerror or error}"
            ) from error
        self._thread = make_thread("metrics", self._run, on_fatal)

    @property
    def endpoint(self) -> Endpoint:
        """The address; a port 0 has been replaced by the chosen port."""
        host, port, *_ = self._server.server_address
        return Endpoint(str(host), int(port))

    def start(self) -> None:
        self._thread.start()
        logger.info("metrics are served at http://%s%s", self.endpoint, PATH)

    def stop(self) -> None:
        """Close the port and the scrapes in progress."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.close_late(float("inf"))
        self._server.server_close()

    def _run(self) -> None:
        self._server.serve_forever(_LOOK_INTERVAL_S)


def _send_at_once(request: socket.socket, text: bytes) -> None:
    """Send as much as possible without blocking."""
    try:
        request.setblocking(False)
        request.send(text)
    except OSError as error:
        logger.debug("not sent: %s", error)


def _shut(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        logger.debug("closed already: %s", error)
