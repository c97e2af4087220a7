"""Runs ``barnabas`` in a process with an address of its own, which a firewall keeps from some ports.

    python walled_broker.py ADDRESS WALL ARGUMENT…

All its connections come from ADDRESS. WALL is a file with a port and an error number in each line, read at
each attempt to connect; without the file, no port is walled off. The errors are those of the operating
system, raised where it would raise them.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvloop

from barnabas.cli.main import main


def build(address: str, wall: Path) -> None:
    """Change both ways to connect: those of sockets and of uvloop."""
    connect, create_connection = socket.socket.connect, uvloop.Loop.create_connection

    def check(port: object) -> None:
        try:
            lines = wall.read_text().splitlines()
        except FileNotFoundError:
            return
        for walled, error in (map(int, line.split()) for line in lines):
            if walled == port:
                raise OSError(error, os.strerror(error))

    def checked_connect(self: socket.socket, target: Any) -> None:
        check(target[1])
        self.bind((address, 0))
        connect(self, target)

    async def checked_create(self: uvloop.Loop, make: Any, host: str, port: int, **more: Any) -> Any:
        check(port)
        return await create_connection(self, make, host, port, local_addr=(address, 0), **more)

    for owner, name, checked in (
        (socket.socket, "connect", checked_connect),
        (uvloop.Loop, "create_connection", checked_create),
    ):
        setattr(owner, name, checked)


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
