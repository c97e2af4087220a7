"""Free TCP ports for processes that are about to start.

Guarantees. A port was free when it was reserved, and no other program that uses this module reserves it until
`close` or the end of this process. A picked port also lies outside the range of outgoing connections, so that
no connection takes it while a broker is down. Another program may still take it: a start checks that.

Any thread.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from barnabas.deploy.process import DeployError

_LOWEST_PORT = 12000
_ATTEMPTS = 200
_BLOCK: Final = 100
_BLOCKS: Final = 100


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class ReservedPort:
    """A port held by a lock on a small file, until `close` or the end of the process."""

    def __init__(self, port: int, descriptor: int) -> None:
        self.port = port
        self._descriptor = descriptor

    @classmethod
    def pick(cls, host: str = "127.0.0.1") -> ReservedPort:
        """Reserve a free port; raises DeployError after a bounded number of tries."""
        low, high = _port_range()
        for _ in range(_ATTEMPTS):
            port = cls.take(random.randint(low, high), host)
            if port is not None:
                return port
        raise DeployError(f"no free port found on {host} between {low} and {high} in {_ATTEMPTS} tries")

    @classmethod
    def take(cls, port: int, host: str = "127.0.0.1") -> ReservedPort | None:
        """Reserve this port; None if it is reserved or in use."""
        folder = Path(tempfile.gettempdir()) / f"barnabas-ports-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if not is_free(port, host):
            os.close(descriptor)
            return None
        return cls(port, descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def reserve_all(ports: Sequence[int], host: str = "127.0.0.1") -> list[ReservedPort]:
    """All of these ports; raises DeployError, and reserves none, if one of them is not free.

    Some of them would not do: another cluster, some of whose brokers are down, may need the rest.
    """
    reserved: list[ReservedPort] = []
    for number in ports:
        port = ReservedPort.take(number, host)
        if port is None:
            for held in reserved:
                held.close()
            raise DeployError(f"port {number} is in use or reserved by another cluster")
        reserved.append(port)
    return reserved


def reserve_block(ports: Sequence[int], host: str = "127.0.0.1") -> tuple[list[ReservedPort], str | None]:
    """These ports, else the same ones a multiple of 100 higher, else any free ones.

    Also returns why it was not these. Raises DeployError if no port is free.
    """
    reason = None
    for above in range(0, _BLOCKS * _BLOCK, _BLOCK):
        block = [port + above for port in ports]
        if max(block) > _port_range()[1]:
            break
        try:
            return reserve_all(block, host), reason
        except DeployError as error:
            reason = reason or str(error)
    return [ReservedPort.pick(host) for _ in ports], reason


def _port_range() -> tuple[int, int]:
    """The ports below the range of outgoing connections; a wide default if the system does not say."""
    try:
        lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest_ephemeral = 32768
    # If outgoing connections may use nearly every port, there is no better range.
    high = lowest_ephemeral - 1 if lowest_ephemeral > _LOWEST_PORT + 2000 else 65535
    return _LOWEST_PORT, high
