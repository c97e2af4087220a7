"""Builds the metrics of a broker and serves them; further metrics are registered here."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from barnabas.broker.config import BrokerConfig
from barnabas.broker.coordinators.group_coordinator import GroupCoordinator
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.metrics.endpoint import MetricsEndpoint
from barnabas.broker.metrics.group_collector import GroupCollector
from barnabas.broker.metrics.page import CONTENT_TYPE, Page
from barnabas.broker.metrics.partition_ends import PartitionEnds
from barnabas.broker.replication.replica_manager import ReplicaManager


def serve_metrics(
    config: BrokerConfig,
    replicas: ReplicaManager,
    metadata: MetadataCache,
    groups: GroupCoordinator,
    *,
    on_fatal: Callable[[BaseException], None],
) -> MetricsEndpoint:
    """Serve from now on; raises CannotBind."""
    ends = PartitionEnds(replicas, metadata, listener=config.inter_broker_listener_name)
    # One of our own: the library's global one would add what it finds by itself.
    registry = CollectorRegistry()
    registry.register(
        GroupCollector(lambda: groups.all_groups()[0], ends.find, max_series=config.metrics_max_series)
    )
    Gauge(
        "barnabas_stray_logs", "Logs that belong to no known topic and are kept.", registry=registry
    ).set_function(lambda: len(replicas.logs.strays.all()))
    Gauge(
        "barnabas_failed_replicas",
        "Replicas that failed by an unforeseen error, or whose groups did.",
        registry=registry,
    ).set_function(lambda: len(replicas.failed.reasons()))
    endpoint = MetricsEndpoint(
        config.metrics_host,
        config.metrics_port,
        Page(registry).text,
        content_type=CONTENT_TYPE,
        on_fatal=on_fatal,
    )
    endpoint.start()
    return endpoint
