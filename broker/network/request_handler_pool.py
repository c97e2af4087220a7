"""The workers of each lane, which run the handlers of requests, and how every handler is run.

A worker starts when a connection finds the others of its lane busy, and ends when it has been idle for long;
see `RequestQueue`. Requests of the network lane run on network threads, by `run` as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING

from barnabas.broker.network.request import Lane, Request
from barnabas.broker.network.request_metrics import BusyTime
from barnabas.broker.network.request_queue import RequestQueue
from barnabas.common.threads import make_thread, try_to_start
from barnabas.protocol.invariants import InvariantViolation

if TYPE_CHECKING:
    from barnabas.broker.network.connection import Connection

logger = logging.getLogger(__name__)


class RequestHandlerPool:
    """Runs the requests of connections, each in its lane.

    ``process`` answers a request, or has it answered later. ``lane_of`` chooses the lane of a request by
    its undecoded bytes, and ``in_turn`` whether it waits for the answers to earlier ones. ``after_run``
    is called by a thread that has run all runnable requests of a connection, so what several pipelined
    requests have in common can be done once; a network thread calls it only if it ``is_due``. ``on_fatal``
    is called by a thread that dies; the broker must then stop, because continuing could lose data. With
    ``measures_times`` requests get the times of their stages, for `RequestMetrics`.
    """

    def __init__(
        self,
        process: Callable[[Request], None],
        *,
        lane_of: Callable[[memoryview], Lane],
        in_turn: Callable[[memoryview], bool],
        after_run: Callable[[], None],
        is_due: Callable[[], bool] = lambda: True,
        on_fatal: Callable[[BaseException], None],
        max_requests: int,
        workers: Mapping[Lane, int],
        measures_times: bool = False,
    ) -> None:
        self.measures_times = measures_times
        self.charges_times = False
        """Whether the time of threads is charged to clients: `Request.busy_ns` needs it."""
        self.process = process
        """It may be replaced while requests run."""
        self.lane_of = lane_of
        self.in_turn = in_turn
        self.after_run = after_run
        self.is_due = is_due
        self.on_fatal = on_fatal
        self.worker_times = {lane: [BusyTime() for _ in range(count)] for lane, count in workers.items()}
        self.queues: dict[Lane, RequestQueue[Connection]] = {
            lane: RequestQueue(max_requests, count, partial(self._start_worker, lane))
            for lane, count in workers.items()
        }
        # The last worker of each number; it may have ended.
        self._workers: dict[tuple[Lane, int], threading.Thread] = {}

    def stop(self, timeout_s: float) -> bool:
        """End the workers when their queues are empty; returns whether they have ended in time."""
        for queue in self.queues.values():
            queue.close()
        deadline = time.monotonic() + timeout_s
        workers = list(self._workers.values())
        for worker in workers:
            if worker.is_alive():
                worker.join(max(0.0, deadline - time.monotonic()))
        return not any(worker.is_alive() for worker in workers)

    def run(self, request: Request) -> None:
        """Run the handler. An exception is logged and closes the request's connection.

        Raises only what must end the broker.
        """
        measures_times, charges_times = self.measures_times, self.charges_times
        try:
            if charges_times:
                request.part_ns = monotonic_ns()
            rest = request.rest
            if rest is None:
                if measures_times:
                    request.started_ns = monotonic_ns()
                self.process(request)
            else:
                request.rest = None
                rest()
            if measures_times and not request.answered:
                request.handled_ns = monotonic_ns()
            if charges_times:
                request.ran_ns = request.busy_ns(monotonic_ns())
                request.part_ns = 0
        except InvariantViolation:
            raise
        except Exception as error:
            peer = request.peer
            logger.exception(
                "a request of %s on %s, %d bytes, failed",
                peer.connection_id,
                peer.listener_name,
                request.size_bytes,
            )
            request.fail(f"its request failed: {error!r}")

    def _start_worker(self, lane: Lane, number: int) -> bool:
        name = f"{lane.value}-worker-{number}"
        worker = self._workers[lane, number] = make_thread(
            name, partial(self._work, lane, number), self.on_fatal
        )
        return try_to_start(worker)

    def _work(self, lane: Lane, number: int) -> None:
        """A worker: it takes the connection whose turn it is, runs one of its requests, and so on.

        Its run lasts while that connection has more requests ready; `after_run` is called at the end of each.
        """
        queue, busy = self.queues[lane], self.worker_times[lane][number]
        idle = threading.Lock()
        idle.acquire()
        while (connection := queue.take(number, idle)) is not None:
            busy.begin()
            while True:
                request = connection.take_request()
                if request is not None:
                    self.run(request)
                has_more = connection.request_done(request)
                # An idle worker keeps no frame alive.
                del request
                if not has_more:
                    self.after_run()
                    break
                previous, connection = connection, queue.swap(connection)
                if connection is not previous:
                    self.after_run()
                del previous
            busy.end()
            # An idle worker keeps no connection alive that is lost meanwhile.
            del connection
