"""One server of a local cluster, ZooKeeper or a broker: its folder, the ports it keeps, its process.

Any thread; calls block and are bounded.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from barnabas.deploy.ports import ReservedPort, is_free
from barnabas.deploy.process import DeployError, ManagedProcess, tail
from barnabas.deploy.state import LINKS, ZOOKEEPER
from barnabas.protocol.ids import Endpoint

_CONNECT_TIMEOUT_S: Final = 1.0


def title_of(name: str) -> str:
    """The server of that name, in a sentence."""
    return {ZOOKEEPER: "ZooKeeper", LINKS: "the process of the links"}.get(name, f"broker {name}")


def process_problem(name: str, state: str, dir_words: str) -> str | None:
    """The sentence for a server that is ``gone`` or ``paused``, with its remedy."""
    title = title_of(name)
    return {
        "gone": f"{title} is down: `barnabas restart {name}{dir_words}`",
        "paused": f"{title} is paused: `barnabas resume {name}{dir_words}`",
    }.get(state)


class LocalServer:
    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        host: str,
        ports: Sequence[int],
        reserved: Sequence[ReservedPort] = (),
        log_file: str,
        process: ManagedProcess | None = None,
        die_with_parent: bool = True,
    ) -> None:
        """`ports`: all on which it listens; `reserved`: those that it keeps; `process`: if it runs."""
        self.name = name
        self.directory = directory
        self.host = host
        self.log_file = directory / log_file
        """The output of the process."""
        self.process = process
        self.die_with_parent = die_with_parent
        self._output_start = 0
        self._reserved = list(reserved)
        self._ports = ports

    @property
    def state(self) -> str:
        """``running``, ``paused`` or ``gone``."""
        return "gone" if self.process is None else self.process.state

    @property
    def is_alive(self) -> bool:
        return self.state != "gone"

    @property
    def takes_connections(self) -> bool:
        """Whether something listens on its first port."""
        try:
            socket.create_connection((self.host, self._ports[0]), _CONNECT_TIMEOUT_S).close()
        except OSError:
            return False
        return True

    @property
    def running_process(self) -> ManagedProcess:
        """The process; raises DeployError if it does not run."""
        if self.process is None or not self.process.is_alive:
            raise DeployError(f"{self.name} is not running")
        return self.process

    def kill(self) -> None:
        """SIGKILL; on return it is gone. This and the next two raise DeployError if it does not run."""
        self.running_process.kill()

    def pause(self) -> None:
        """SIGSTOP: its sockets stay open, but it does not answer."""
        self.running_process.pause()

    def resume(self) -> None:
        self.running_process.resume()

    def release_ports(self) -> None:
        """Release the reservations, once this program will not start the server again."""
        while self._reserved:
            self._reserved.pop().close()

    def _check_can_start(self) -> None:
        """Raise DeployError if it runs already, or a port is in use."""
        if self.is_alive:
            raise DeployError(f"{self.name} is already running (pid {self.running_process.pid})")
        for port in self._ports:
            if not is_free(port, self.host):
                raise DeployError(
                    f"{self.name} cannot listen on {Endpoint(self.host, port)}: the port is in use"
                )
        self._output_start = self.log_file.stat().st_size if self.log_file.exists() else 0

    def _output(self, lines: int = 12) -> str:
        """The last lines of output since the start."""
        return tail(self.log_file, lines, start=self._output_start)
