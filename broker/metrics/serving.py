"""Builds the metrics of a broker and serves them; further collectors are registered here.

A page has all metrics of the registry, in Prometheus' text format 0.0.4. A scrape rebuilds the page if it is
older than `FRESH_MS`, on one thread at a time; concurrent scrapes get its result. So the number of scrapes
does not affect the broker.

The collectors run on a thread that serves metrics. They read only single references and copies that are
atomic in the interpreter. So they lock no group and no partition, and no request waits for a scrape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic_ns
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.registry import Collector

from barnabas.broker.base.clocks import monotonic_ms, wall_clock_ms
from barnabas.broker.base.purgatory import Purgatory
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.compaction.cleaner import LogCleaner
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.groups.coordinator import GroupCoordinator
from barnabas.broker.coordinators.transactions.coordinator import TransactionCoordinator
from barnabas.broker.log.file_system import FLUSH_TIMES
from barnabas.broker.metrics.cluster import ControllerCollector, ControllerView, SessionCollector
from barnabas.broker.metrics.endpoint import MetricsEndpoint
from barnabas.broker.metrics.groups import GroupCollector
from barnabas.broker.metrics.logs import CleanerCollector, LogCollector
from barnabas.broker.metrics.network import NetworkCollector, PurgatoryCollector
from barnabas.broker.metrics.partition_ends import PartitionEnds
from barnabas.broker.metrics.replicas import ReplicaCollector
from barnabas.broker.metrics.requests import RequestCollector, TopicCollector
from barnabas.broker.metrics.transactions import TransactionCollector
from barnabas.broker.network.server import SocketServer
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.common.recent_times import RecentTimes

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


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredBroker:
    """The parts of a broker that have metrics.

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
    topic_purgatory: Purgatory
    is_connected_to_zookeeper: Callable[[], bool]
    zookeeper_request_times: RecentTimes
    listen_to_session: Callable[[Callable[[str], None]], None]
    state: Callable[[], BrokerState]


def serve_metrics(broker: MeasuredBroker, *, on_fatal: Callable[[BaseException], None]) -> MetricsEndpoint:
    """Serve from now on; raises CannotBind."""
    config = broker.config
    endpoint = MetricsEndpoint(
        config.metrics_host,
        config.metrics_port,
        Page(_registry(broker)).text,
        on_fatal=on_fatal,
    )
    endpoint.start()
    return endpoint


def _registry(broker: MeasuredBroker) -> CollectorRegistry:
    # Not the library's global registry, which other code could add to.
    registry = CollectorRegistry()
    sessions = SessionCollector(broker.is_connected_to_zookeeper, broker.zookeeper_request_times)
    broker.listen_to_session(sessions.note)
    for collector in (
        ControllerCollector(broker.controller, lambda: broker.metadata.current),
        *_of_records(broker),
        *_of_coordinators(broker),
        RequestCollector(
            lambda: [thread.times for thread in broker.server.network_threads], monotonic_ns=monotonic_ns
        ),
        NetworkCollector(broker.server, monotonic_ns=monotonic_ns),
        sessions,
    ):
        registry.register(collector)
    ProcessCollector(registry=registry)
    Gauge(
        "kafka_server_kafkaserver_brokerstate", "1 starting, 3 running, 6 stopping.", registry=registry
    ).set_function(lambda: float(broker.state()))
    Gauge(
        "barnabas_failed_replicas",
        "Replicas that failed by an unforeseen error, or whose groups could not be loaded.",
        registry=registry,
    ).set_function(lambda: len(broker.replicas.roles.failed.reasons()))
    return registry


def _of_records(broker: MeasuredBroker) -> Iterator[Collector]:
    """The collectors of replicas and logs, and of the requests that read and write them."""
    replicas, max_series = broker.replicas, broker.config.metrics_max_series
    logs = replicas.logs
    yield ReplicaCollector(
        replicas.partitions,
        replicas.isr_changes,
        offline_count=lambda: len(logs.offline_partitions),
        max_lag=lambda: replicas.max_follower_lag,
        max_series=max_series,
    )
    yield TopicCollector(replicas.traffic, max_series=max_series)
    yield LogCollector(
        logs.all_logs,
        lambda: logs.dirs,
        stray_count=lambda: len(logs.strays.all()),
        flush_times=FLUSH_TIMES,
        max_series=max_series,
    )
    yield PurgatoryCollector(
        {
            "Produce": [replicas.produce_purgatory],
            "Fetch": [replicas.follower_purgatory, replicas.consumer_purgatory],
            "DeleteRecords": [replicas.deletions.purgatory],
            "topic": [broker.topic_purgatory],
        }
    )
    if broker.cleaner is not None:
        yield CleanerCollector(broker.cleaner.figures, broker.config.log_dirs)


def _of_coordinators(broker: MeasuredBroker) -> Iterator[Collector]:
    config, groups, transactions = broker.config, broker.groups, broker.transactions
    ends = PartitionEnds(broker.replicas, broker.metadata, listener=config.inter_broker_listener_name)
    yield GroupCollector(lambda: groups.all_machines()[0], ends.find, max_series=config.metrics_max_series)
    yield TransactionCollector(
        lambda: transactions.all_machines()[0],
        transactions.markers,
        lambda: transactions.shards.longest_load_ms,
        broker.replicas.partitions,
        max_timeout_ms=config.transaction_max_timeout_ms,
        max_series=config.metrics_max_series,
        wall_clock_ms=wall_clock_ms,
    )
