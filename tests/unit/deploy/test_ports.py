"""Reserved ports: free, distinct, kept, released."""

import socket
import subprocess
import sys
from pathlib import Path

from barnabas.deploy.ports import ReservedPort, is_free
from tests.support.waiting import DEADLINE_S


def test_ports_reserved_at_the_same_time_differ() -> None:
    reserved = [ReservedPort.pick() for _ in range(50)]
    try:
        assert len({port.port for port in reserved}) == 50
    finally:
        for port in reserved:
            port.close()


def test_picked_ports_are_below_those_of_outgoing_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    reserved = ReservedPort.pick()
    reserved.close()
    assert reserved.port < lowest


def test_a_reserved_port_is_refused_to_another_program_until_released() -> None:
    reserved = ReservedPort.pick()
    code = (
        f"from barnabas.deploy.ports import ReservedPort; print(ReservedPort.take({reserved.port}) is None)"
    )

    def refused() -> str:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE_S
        ).stdout.strip()

    assert refused() == "True"
    reserved.close()
    assert refused() == "False"


def test_a_port_in_use_is_not_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
        assert ReservedPort.take(port) is None
    assert is_free(port)
