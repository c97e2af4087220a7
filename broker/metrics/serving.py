"""Builds the metrics of a broker and serves them; further collectors are registered here.

A page has all metrics of the registry, in Prometheus' text format 0.0.4. A scrape rebuilds the page if it is
older than `FRESH_MS`, on one thread at a time; concurrent scrapes get its result. So the number of scrapes
does not affect the broker.

The collectors run on a thread that serves metrics. They read only single references and copies that are
atomic in the interpreter. So they lock no group and no partition, and no request waits for a scrape; the
quota of a client is locked for a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic_ns
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from barnabas.broker.base.clocks import monotonic_ms, wall_clock_ms
from barnabas.broker.base.purgatory import Purgatory
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.compaction.cleaner import LogCleaner
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.groups.coordinator import GroupCoordinator
from barnabas.broker.coordinators.transactions.coordinator import TransactionCoordinator
from barnabas.broker.metrics.cluster import ControllerView, SessionCollector, controller_metrics
from barnabas.broker.metrics.endpoint import MetricsEndpoint
from barnabas.broker.metrics.families import gauges
from barnabas.broker.metrics.groups import all_group_metrics
from barnabas.broker.metrics.logs import cleaner_metrics, log_metrics
from barnabas.broker.metrics.replicas import replica_metrics, topic_metrics
from barnabas.broker.metrics.requests import (
    NetworkCollector,
    authentication_metrics,
    purgatory_metrics,
    quota_metrics,
    request_metrics,
)
from barnabas.broker.metrics.transactions import coordinator_metrics, log_transaction_metrics
from barnabas.broker.network.server import SocketServer
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.security.authentication_outcomes import AuthenticationOutcomes
from barnabas.broker.security.client_quotas import ClientQuotas
from barnabas.common.time_histogram import TimeHistogram

FRESH_MS: Final = 1_000


class Page:
    """The page of a scrape. Any thread."""

    def __init__(self, registry: CollectorRegistry, now_ms: Callable[[], float] = monotonic_ms) -> None:
        self._registry = registry
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._text: bytes | None = None
        self._made_ms = 0.0

    def text(self) -> bytes:
        """Blocks while the collectors do, and raises their errors."""
        with self._lock:
            text = self._text
            if text is None or self._now_ms() - self._made_ms >= FRESH_MS:
                # Before the collection: no value on the page is older.
                made_ms = self._now_ms()
                text = generate_latest(self._registry)
                self._text, self._made_ms = text, made_ms
            return text


class BrokerState(IntEnum):
    """Kafka's numbers."""

    STARTING = 1
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MeasuredBroker:
    """The parts of a broker that have metrics. `collect` makes it a collector of the library.

    ``listen_to_session`` has a function called with the name of each event of the ZooKeeper session.
    """

    config: BrokerConfig
    server: SocketServer
    replicas: ReplicaManager
    metadata: MetadataCache
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    controller: ControllerView
    cleaner: LogCleaner | None
    quotas: ClientQuotas
    authentication_outcomes: AuthenticationOutcomes
    topic_purgatory: Purgatory
    is_connected_to_zookeeper: Callable[[], bool]
    zookeeper_request_times: TimeHistogram
    listen_to_session: Callable[[Callable[[str], None]], None]
    state: Callable[[], BrokerState]

    def collect(self) -> Iterator[Metric]:
        replicas, max_series = self.replicas, self.config.metrics_max_series
        yield from controller_metrics(self.controller, self.metadata.current)
        yield from replica_metrics(replicas, max_series)
        yield from topic_metrics(replicas.traffic, max_series)
        yield from log_metrics(replicas.logs, max_series)
        yield from purgatory_metrics(
            {
                "Produce": [replicas.produce_purgatory],
                "Fetch": [replicas.follower_purgatory, replicas.consumer_purgatory],
                "DeleteRecords": [replicas.deletions.purgatory],
                "topic": [self.topic_purgatory],
            }
        )
        if self.cleaner is not None:
            yield from cleaner_metrics(self.cleaner.figures(), self.config.log_dirs)
        groups = self.groups.all_machines()[0]
        yield from all_group_metrics(groups, replicas, self.metadata.current, max_series)
        now_ms = wall_clock_ms()
        yield from coordinator_metrics(self.transactions, now_ms)
        max_timeout_ms = self.config.transaction_max_timeout_ms
        yield from log_transaction_metrics(
            replicas.partitions(), now_ms, max_timeout_ms=max_timeout_ms, max_series=max_series
        )
        yield from request_metrics(thread.metrics for thread in self.server.network_threads)
        yield from authentication_metrics(self.authentication_outcomes)
        yield from quota_metrics(self.quotas.uses(monotonic_ms()), max_series)
        text = "1 starting, 3 running, 6 stopping."
        yield from gauges("kafka_server_kafkaserver_", {"brokerstate": (self.state(), text)})
        text = "Replicas that failed by an unforeseen error, or whose groups could not be loaded."
        failed = len(replicas.roles.failed.reasons())
        yield from gauges("barnabas_", {"failed_replicas": (failed, text)})


def serve_metrics(broker: MeasuredBroker, *, on_fatal: Callable[[BaseException], None]) -> MetricsEndpoint:
    """Serve from now on; raises CannotBind."""
    # Not the library's global registry, which other code could add to.
    registry = CollectorRegistry()
    sessions = SessionCollector(broker.is_connected_to_zookeeper, broker.zookeeper_request_times)
    broker.listen_to_session(sessions.note)
    collectors: Iterable[Collector] = (
        broker,
        NetworkCollector(broker.server, monotonic_ns=monotonic_ns),
        sessions,
    )
    for collector in collectors:
        registry.register(collector)
    ProcessCollector(registry=registry)
    config = broker.config
    endpoint = MetricsEndpoint(
        config.metrics_host, config.metrics_port, Page(registry).text, on_fatal=on_fatal
    )
    endpoint.start()
    return endpoint
