"""Passes bytes on between a client and a server, for tests that read along or choose the server."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


def relay(client: socket.socket, server: socket.socket, note: Callable[[bytes], None] | None = None) -> None:
    """Pass bytes on until both directions have ended; ``note`` is called with the client's bytes.

    The server may answer after the client has ended. When the server ends, also by a reset, the relay does
    not wait for a client that goes on.
    """
    back = threading.Thread(target=_pass_on, args=(server, client, socket.SHUT_RDWR), daemon=True)
    back.start()
    _pass_on(client, server, socket.SHUT_WR, note)
    back.join()


def _pass_on(
    source: socket.socket, target: socket.socket, end: int, note: Callable[[bytes], None] | None = None
) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            if note is not None:
                note(data)
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(end)
