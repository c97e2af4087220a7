"""Collects how busy the threads of requests are, and how many requests wait in queues and purgatories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from barnabas.broker.base.purgatory import Purgatory
from barnabas.broker.metrics.families import gauges
from barnabas.broker.network.busy_time import BusyTime
from barnabas.broker.network.server import SocketServer

_HANDLERS: Final = "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_count"


class IdleShare:
    """The share of time without requests on some threads, since the call before."""

    def __init__(self, now_ns: int) -> None:
        self._at_ns, self._busy_ns = now_ns, 0

    def since_last(self, threads: Sequence[BusyTime], now_ns: int) -> float:
        busy_ns = sum(thread.total_ns(now_ns) for thread in threads)
        passed_ns, worked_ns = (now_ns - self._at_ns) * len(threads), busy_ns - self._busy_ns
        self._at_ns, self._busy_ns = now_ns, busy_ns
        return 1.0 if passed_ns <= 0 else min(1.0, max(0.0, 1 - worked_ns / passed_ns))


class NetworkCollector:
    """A collector of the library."""

    def __init__(self, server: SocketServer, *, monotonic_ns: Callable[[], int]) -> None:
        self._server = server
        self._monotonic_ns = monotonic_ns
        self._began_ns = monotonic_ns()
        self._network_idle = IdleShare(self._began_ns)
        self._handlers_idle_ns = 0

    def collect(self) -> list[Metric]:
        server, now_ns = self._server, self._monotonic_ns()
        threads = server.network_threads
        idle = self._network_idle.since_last([thread.busy for thread in threads], now_ns)
        return [
            *gauges(
                "kafka_network_",
                {
                    "requestchannel_requestqueuesize": (
                        sum(queue.queued for queue in server.queues.values()),
                        "Requests that wait for a worker.",
                    ),
                    "requestchannel_responsequeuesize": (
                        sum(thread.to_flush for thread in threads),
                        "Connections with answers that wait for their network thread.",
                    ),
                    "socketserver_networkprocessoravgidlepercent": (
                        idle,
                        "The idle share of the network threads' time since the page before, 0 to 1.",
                    ),
                },
            ),
            *gauges("barnabas_", {"connections": (server.quota.total, "Open connections.")}),
            *self._handlers(now_ns),
        ]

    def _handlers(self, now_ns: int) -> list[Metric]:
        workers = self._server.worker_times
        if workers:
            busy_ns = sum(worker.total_ns(now_ns) for worker in workers)
            idle_ns = now_ns - self._began_ns - busy_ns // len(workers)
            # A counter never falls, even if a run was seen twice while it ended.
            self._handlers_idle_ns = max(self._handlers_idle_ns, idle_ns)
        text = "Idle nanoseconds of the general workers, divided by their number."
        metric = Metric(_HANDLERS, text, "unknown")
        metric.add_sample(_HANDLERS, {}, self._handlers_idle_ns)
        return [metric]


class PurgatoryCollector:
    """A collector of the library. The purgatories by Kafka's name for them."""

    def __init__(self, purgatories: Mapping[str, Sequence[Purgatory]]) -> None:
        self._purgatories = purgatories

    def collect(self) -> list[Metric]:
        labels = ["delayedOperation"]
        prefix = "kafka_server_delayedoperationpurgatory_"
        size = GaugeMetricFamily(f"{prefix}purgatorysize", "Requests that wait for an event.", labels=labels)
        delayed = GaugeMetricFamily(
            f"{prefix}numdelayedoperations",
            "The same; in Kafka without those that have ended.",
            labels=labels,
        )
        for name, purgatories in self._purgatories.items():
            waiting = sum(purgatory.waiting for purgatory in purgatories)
            size.add_metric([name], waiting)
            delayed.add_metric([name], waiting)
        return [size, delayed]
