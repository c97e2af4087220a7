"""A blocking connection to a broker's port that sends and receives frames."""

import socket
import struct
from typing import Self

DEADLINE_S = 20.0


class RawSocket:
    """A context manager; a call beyond the deadline fails the test."""

    def __init__(self, host: str, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(DEADLINE_S)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            self.socket.connect((host, port))
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_frame(self) -> bytes:
        """The payload of the next frame; raises ConnectionError when the broker has closed."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_closed_by_broker(self) -> bool:
        """Wait for the end of the stream, whether clean or by reset."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise ConnectionError("closed by the broker")
            parts += part
        return bytes(parts)
