"""The workers that run the handlers: `num.io.threads` in the general lane, and a few in each other lane.

A worker takes the connection whose turn it is, runs one of its requests, and goes on with the next one. An
exception that escapes the handler is logged and costs its connection alone. An `InvariantViolation`, and
anything else that ends a worker, calls `on_fatal`: going on could lose data.
"""

from __future__ import annotations

import logging
import threading
import time

from barnabas.broker.network.request import Lane, NotShort, Request
from barnabas.broker.network.request_queue import RequestQueue, Runnable, Waiter
from barnabas.broker.network.request_runner import RequestRunner

logger = logging.getLogger(__name__)


class IoWorkers:
    """The workers of one lane; they end when its queue is closed and empty.

    A worker's run lasts while the connection it works for has more requests ready; `after_run` is called at
    the end of each, so that what several pipelined requests have in common can be done once for all of them.
    """

    def __init__(
        self,
        queue: RequestQueue,
        runner: RequestRunner,
        *,
        threads: int,
        lane: Lane = Lane.GENERAL,
    ) -> None:
        self._queue = queue
        self._runner = runner
        self._threads = [
            threading.Thread(target=self._run, name=f"{lane.value}-worker-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for all to end; whether they did."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        waiter = Waiter()
        queue, runner = self._queue, self._runner
        try:
            while (ready := queue.take(waiter)) is not None:
                while True:
                    request = ready.take_request()
                    was_run = request is None or self._was_run(ready, request)
                    # An idle worker keeps no frame alive.
                    del request
                    if not was_run or not ready.request_done():
                        runner.after_run()
                        break
                    before, ready = ready, queue.swap(ready)
                    if ready is not before:
                        runner.after_run()
        except BaseException as error:
            logger.critical("%s died", threading.current_thread().name, exc_info=True)
            self._runner.on_fatal(error)

    def _was_run(self, ready: Runnable, request: Request) -> bool:
        """Run it; if its handler asks for another lane, queue its connection there and return False."""
        try:
            self._runner.handle(request)
        except NotShort as elsewhere:
            ready.put_back(request, elsewhere.lane)
            return False
        return True
