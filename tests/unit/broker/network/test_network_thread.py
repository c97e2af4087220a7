"""Races of a network thread that tests of the server cannot time."""

import socket

from barnabas.broker.network.lanes import Lanes
from barnabas.broker.network.network_thread import Connection, NetworkThread
from barnabas.broker.network.pipeline import ConnectionLimits
from barnabas.broker.network.request import Lane, Peer
from barnabas.protocol.frames import BufferPool
from tests.support.waiting import DEADLINE_S


class StopsOnArrival(NetworkThread):
    """Stops at the moment at which a connection has come."""

    def opened(self, connection: Connection) -> None:
        super().opened(connection)
        self.stop(60_000)
        connection.close("gone before its adoption has ended")


def test_a_thread_that_stops_while_it_adopts_a_connection_ends() -> None:
    died: list[BaseException] = []
    lanes: Lanes[Connection] = Lanes(
        lambda request: request.respond_nothing(),
        lane_of=lambda view: Lane.GENERAL,
        after_run=lambda: None,
        on_fatal=died.append,
        max_requests=10,
    )
    thread = StopsOnArrival("network-0", lanes, max_idle_ms=60_000)
    thread.start()
    ours, theirs = socket.socketpair()
    lost: list[str] = []
    connection = Connection(
        Peer("peer#1", "peer", "PLAINTEXT", 0),
        thread,
        pool=BufferPool(),
        max_frame_bytes=1000,
        limits=ConnectionLimits(),
        on_lost=lambda: lost.append("peer#1"),
    )
    with theirs:
        ours.setblocking(False)
        thread.adopt(ours, connection)
        assert thread.join(DEADLINE_S)
    assert lost == ["peer#1"]
    assert not died
