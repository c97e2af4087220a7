"""A broker as the controller sees it: it answers on a real socket, records the requests, and can die."""

import socket
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Any

from barnabas.deploy.ports import ReservedPort
from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from tests.support.waiting import DEADLINE_S

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ControlledBroker:
    """Listens on a port that stays reserved while it is dead.

    `answer` may be replaced; it gives a response, or None to stay silent.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.broker_epoch: int | None = None
        self.answer: Callable[[Any], Any] = self.accept
        self.connections_made = 0
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._accepting: threading.Thread
        reserved = ReservedPort.pick()
        weakref.finalize(self, reserved.close)
        self.endpoint = Endpoint("127.0.0.1", reserved.port)
        self._listener = self._listen()

    def accept(self, request: Any) -> Any:
        """The answer of a healthy broker of this epoch."""
        response = request.response_type
        if isinstance(request, ApiVersionsRequest):
            return response(error_code=0, api_keys=[])
        # A higher epoch is of a registration that the broker does not know yet.
        if self.broker_epoch is not None and request.broker_epoch < self.broker_epoch:
            return response(error_code=int(ErrorCode.STALE_BROKER_EPOCH))
        return response(error_code=0)

    def of(self, kind: type) -> list[Any]:
        return [request for request in list(self.requests) if isinstance(request, kind)]

    def drop_connections(self) -> None:
        """Reset all connections; the port still listens."""
        while self._connections:
            connection = self._connections.pop()
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                connection.shutdown(socket.SHUT_RD)
            except OSError:
                pass  # the other side was faster
            connection.close()

    def die(self) -> None:
        """As by SIGKILL: the port refuses, connections are reset. A second call does nothing."""
        if self._listener.fileno() == -1:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        # It may have accepted a connection that is not in the list yet.
        self._accepting.join(DEADLINE_S)
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def revive(self) -> None:
        """Listen on the same port again."""
        self._threads = []
        self._listener = self._listen()

    def _listen(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(self.endpoint)
        listener.listen()
        self._accepting = self._spawn(self._accept_all, listener)
        return listener

    def _spawn(self, target: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept_all(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._spawn(self._serve, connection)
            # Last: a test that waits for this may drop all connections at once.
            self.connections_made += 1

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as stream:
                while len(length := stream.read(4)) == 4:
                    size = int.from_bytes(length, "big")
                    payload = stream.read(size)
                    if len(payload) < size:
                        return
                    head = codec_msgpack.decode_request(memoryview(payload))
                    # Before the request is recorded: a test that sees it may change the next answers.
                    answer = self.answer
                    self.requests.append(head.body)
                    response = answer(head.body)
                    if response is not None:
                        connection.sendall(
                            b"".join(codec_msgpack.encode_response(head.correlation_id, response))
                        )
        except OSError:
            return
