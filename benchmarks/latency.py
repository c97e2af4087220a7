"""Latency at a fixed rate: 1,000 records/s, each in a request of its own, 3 replicas, acks=all.

Open loop: a thread sends at fixed times whether or not answers have come, and the clock of a request starts
when it should have been sent, so that a pause counts for everyone who had to wait for it. The answers are
taken by a second thread. Both use plain sockets: nothing of a client is in the figure.
"""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time

import uvloop

from barnabas.deploy.local import LocalCluster
from barnabas.protocol.frames import BufferPool, FrameReceiver
from benchmarks.load import ACKS_ALL, check_answer, create_topic, encoded_batch, encoded_request
from benchmarks.support import Figure, Options, percentile, run, running_cluster, tell

_PER_SECOND = 1_000
_WARM_UP_S = 1.0
_VALUE_BYTES = 100
_BATCH_BYTES = 300
"""Room for one record and no second one."""
_TIMEOUT_S = 30.0


def _send(connection: socket.socket, request: bytes, started: float, count: int, per_second: int) -> None:
    for number in range(count):
        ahead = started + number / per_second - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        connection.sendall(request)


def latencies_ms(
    address: tuple[str, int], request: bytes, count: int, per_second: int = _PER_SECOND
) -> list[float]:
    """The latency of every request, in the order sent. Raises the broker's error or TimeoutError."""
    receiver = FrameReceiver(BufferPool())
    found: list[float] = []
    with socket.create_connection(address, timeout=_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        started = time.perf_counter() + 0.01
        sender = threading.Thread(target=_send, args=(connection, request, started, count, per_second))
        sender.start()
        try:
            while len(found) < count:
                received = connection.recv_into(receiver.get_buffer())
                if not received:
                    raise ConnectionError(f"the broker closed the connection after {len(found)} answers")
                now = time.perf_counter()
                for frame in receiver.buffer_updated(received):
                    check_answer(frame.view)
                    found.append((now - started - len(found) / per_second) * 1000)
        except BaseException:
            connection.shutdown(socket.SHUT_RDWR)
            raise
        finally:
            sender.join()
    return found


def _round(cluster: LocalCluster, seconds: int) -> list[float]:
    topic = f"bench-{os.urandom(4).hex()}"
    leader, *others = cluster.broker_ids
    uvloop.run(create_topic(cluster.bootstrap, topic, [leader], [leader, *others]))
    request = encoded_request(topic, 0, encoded_batch(_BATCH_BYTES, _VALUE_BYTES), ACKS_ALL)
    endpoint = cluster.broker(leader).endpoint
    warm_up = int(_WARM_UP_S * _PER_SECOND)
    return latencies_ms((endpoint.host, endpoint.port), request, warm_up + seconds * _PER_SECOND)[warm_up:]


def measure(options: Options) -> list[Figure]:
    rounds = []
    with running_cluster(options) as cluster:
        for number in range(options.rounds):
            tell(f"latency, round {number + 1} of {options.rounds}")
            rounds.append(_round(cluster, options.amount(20, 4)))
    name = "latency, RF 3, acks=all, 1,000 requests/s"
    return [
        Figure.of(f"{name}: p50", [statistics.median(one) for one in rounds], "ms", at_most=1.5),
        Figure.of(f"{name}: p99", [percentile(one, 99) for one in rounds], "ms", at_most=8),
        Figure.of(f"{name}: worst", [max(one) for one in rounds], "ms"),
    ]


if __name__ == "__main__":
    run(__doc__, measure)
