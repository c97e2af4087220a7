"""Counts the answered requests and errors of each API, their bytes and the times of their stages, and the
time that threads spend with requests.

Each network thread has its own `RequestMetrics` and is the only one to add to it, when it has sent answers;
so nothing is locked, and no count is lost. Any thread may read. A time up to the lowest bound of a histogram
is not stored, because most stages are that short: `ApiMetrics.add` counts it, and it adds nothing to the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import Final

from barnabas.broker.network.request import Request, RequestKind
from barnabas.common.time_histogram import BOUNDS_NS, TimeHistogram

STAGES: Final = ("request_queue", "local", "remote", "response_queue", "response_send", "total")
"""In the queue; in the handler; waiting, as for followers; until the network thread takes the answer; until
the socket has taken it; all of these."""
_SHORT_NS: Final = BOUNDS_NS[0]


class ApiMetrics:
    """The requests of one kind."""

    __slots__ = ("count", "errors", "size_bytes", "stages")

    def __init__(self) -> None:
        self.count = 0
        self.errors: dict[int, int] = {}
        """Error code → how often answers had it, NONE included."""
        self.size_bytes = 0
        self.stages = tuple(TimeHistogram() for _ in STAGES)
        """In the order of `STAGES`."""

    def note_times(self, request: Request, taken_ns: int, sent_ns: int) -> None:
        received_ns, started_ns, answered_ns = request.received_ns, request.started_ns, request.answered_ns
        handled_ns = request.handled_ns
        if not 0 < handled_ns < answered_ns:
            handled_ns = answered_ns
        queue, local, remote, response_queue, response_send, total = self.stages
        total.observe_ns(sent_ns - received_ns)
        local_ns = handled_ns - started_ns
        if local_ns > _SHORT_NS:
            local.observe_ns(local_ns)
        if sent_ns - received_ns - local_ns <= _SHORT_NS:
            return
        if started_ns - received_ns > _SHORT_NS:
            queue.observe_ns(started_ns - received_ns)
        if answered_ns - handled_ns > _SHORT_NS:
            remote.observe_ns(answered_ns - handled_ns)
        if taken_ns - answered_ns > _SHORT_NS:
            response_queue.observe_ns(taken_ns - answered_ns)
        if sent_ns - taken_ns > _SHORT_NS:
            response_send.observe_ns(sent_ns - taken_ns)

    def add(self, other: ApiMetrics) -> None:
        """Add the requests of a network thread, with their short times."""
        for mine, its in zip(self.stages, other.stages, strict=True):
            mine.add(its)
        for code, number in other.errors.copy().items():
            self.errors[code] = self.errors.get(code, 0) + number
        self.size_bytes += other.size_bytes
        # Read after the times, which the thread adds later: no difference is negative.
        self.count += other.count
        for mine in self.stages:
            mine.counts[0] += self.count - mine.count


class RequestMetrics:
    """The requests that one network thread has answered. ``kind`` of a request is what it counts as."""

    def __init__(self) -> None:
        self._kinds: dict[RequestKind, ApiMetrics] = {}

    def note(self, requests: Sequence[Request], taken_ns: int, sent_ns: int) -> None:
        """These requests are answered: their answers were taken at the first time and sent at the second."""
        kinds = self._kinds
        for request in requests:
            kind = request.kind
            if kind is None:
                continue
            metrics = kinds.get(kind)
            if metrics is None:
                metrics = kinds[kind] = ApiMetrics()
            metrics.count += 1
            metrics.size_bytes += request.size_bytes
            if request.errors is not None:
                errors = metrics.errors
                for code, number in request.errors.items():
                    errors[code] = errors.get(code, 0) + number
            if sent_ns - request.received_ns > _SHORT_NS:
                metrics.note_times(request, taken_ns, sent_ns)

    def kinds(self) -> dict[RequestKind, ApiMetrics]:
        return self._kinds.copy()


class BusyTime:
    """The time that one thread has spent with requests. Only that thread calls `begin` and `end`.

    Any thread may read `total_ns`, which may count a run twice at the moment of its end.
    """

    __slots__ = ("_began_ns", "_ended_runs_ns")

    def __init__(self) -> None:
        self._began_ns = 0
        self._ended_runs_ns = 0

    def begin(self) -> None:
        self._began_ns = monotonic_ns()

    def end(self) -> None:
        self._ended_runs_ns += monotonic_ns() - self._began_ns
        self._began_ns = 0

    def total_ns(self, now_ns: int) -> int:
        """The time until now, with that of a run in progress."""
        began_ns = self._began_ns
        return self._ended_runs_ns + (max(0, now_ns - began_ns) if began_ns else 0)
