"""What a network thread does of its own accord, where the server's tests cannot time it."""

from __future__ import annotations

import socket

from barnabas.broker.network.connection import Connection, ConnectionLimits
from barnabas.broker.network.network_thread import NetworkThread
from barnabas.broker.network.request import Lane
from barnabas.broker.network.request_queue import RequestQueue
from barnabas.broker.network.request_runner import RequestRunner
from barnabas.protocol.frames import BufferPool
from tests.support.waiting import DEADLINE_S


class StopsOnArrival(NetworkThread):
    """Is told to stop in the very moment in which a connection has come."""

    def opened(self, connection: Connection) -> None:
        super().opened(connection)
        self.stop(60_000)
        connection.close("gone before its adoption has ended")


def test_a_thread_ends_though_it_is_stopped_while_it_takes_a_connection_over() -> None:
    died: list[BaseException] = []
    thread = StopsOnArrival("network-0", max_idle_ms=60_000, on_fatal=died.append)
    thread.start()
    ours, theirs = socket.socketpair()
    lost: list[str] = []
    connection = Connection(
        "peer#1",
        "peer",
        "PLAINTEXT",
        owner=thread,
        queues={lane: RequestQueue(10) for lane in Lane},
        runner=RequestRunner(lambda request: request.respond_nothing(), on_fatal=died.append),
        pool=BufferPool(),
        limits=ConnectionLimits(),
        on_lost=lambda: lost.append("peer#1"),
    )
    with theirs:
        ours.setblocking(False)
        thread.adopt(ours, connection)
        assert thread.join(DEADLINE_S)
    assert lost == ["peer#1"]
    assert not died
