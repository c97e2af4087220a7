"""A broker's own address in a cluster with links (`links.py`), and a firewall between it and some ports.

The proxies tell the brokers apart by the addresses from which they connect, ``127.0.1.<broker id>``. A
rejection must come from the attempt to connect, not from the proxy, whose port serves all sources. Sockets
and uvloop offer no hook for either, so both ways to connect are replaced, in the process of the broker alone.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Final

_BROKERS: Final = "127.0.1."


def address_of(broker_id: int | str) -> str:
    """The address from which a broker connects."""
    return f"{_BROKERS}{broker_id}"


def broker_at(address: str) -> str | None:
    """The broker that connects from an address; None for a client."""
    return address.removeprefix(_BROKERS) if address.startswith(_BROKERS) else None


def wall_file(folder: Path, broker_id: int | str) -> Path:
    """The ports that a broker cannot reach: in each line a port and the error of an attempt to connect."""
    return folder / f"wall-{broker_id}"


def build_wall(broker_id: int, folder: Path) -> None:
    """Let all connections of this process come from the broker's address, and stop at its wall.

    The file is read at each attempt; without it no port is walled off.
    """
    import uvloop

    address, wall = address_of(broker_id), wall_file(folder, broker_id)
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
        if self.family == socket.AF_INET:
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
