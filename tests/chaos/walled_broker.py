"""Runs ``barnabas`` in a process that a firewall or a router keeps from some ports: attempts to connect fail.

    python walled_broker.py WALL ARGUMENT…

WALL is a file with a port and an error number in each line, read at each attempt. Without the file, no port
is walled off. The errors are those of the operating system, raised where it would raise them.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvloop

from barnabas.cli.main import main


def build(wall: Path) -> None:
    """Put the wall before each way to connect: sockets that block, and both of uvloop's."""
    connect, loop = socket.socket.connect, uvloop.Loop
    create_connection, sock_connect = loop.create_connection, loop.sock_connect

    def check(port: object) -> None:
        try:
            lines = wall.read_text().splitlines()
        except FileNotFoundError:
            return
        for walled, error in (map(int, line.split()) for line in lines):
            if walled == port:
                raise OSError(error, os.strerror(error))

    def checked_connect(self: socket.socket, address: Any) -> None:
        check(address[1])
        connect(self, address)

    async def checked_create(
        self: uvloop.Loop, make: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        check(port)
        return await create_connection(self, make, host, port, **more)

    async def checked_sock_connect(self: uvloop.Loop, sock: socket.socket, address: Any) -> Any:
        check(address[1])
        return await sock_connect(self, sock, address)

    for owner, name, checked in (
        (socket.socket, "connect", checked_connect),
        (loop, "create_connection", checked_create),
        (loop, "sock_connect", checked_sock_connect),
    ):
        setattr(owner, name, checked)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
