"""Builds the metrics of a broker and serves them; further metrics are registered here.

A page has all metrics of the registry, in Prometheus' text format 0.0.4. A scrape rebuilds the page if it is
older than `FRESH_MS`, on one thread at a time; concurrent scrapes get its result. So the number of scrapes
does not affect the broker.

The collector runs on a thread that serves metrics. It reads only single references and copies that are atomic
in the interpreter. So it takes no group's lock, and no commit waits for a scrape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import Metric

from barnabas.broker.clocks import monotonic_ms
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.group import Group
from barnabas.broker.coordinators.group_coordinator import GroupCoordinator
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.metrics.endpoint import MetricsEndpoint
from barnabas.broker.metrics.group_lag import Ends, GroupSnapshot, group_metrics
from barnabas.broker.metrics.partition_ends import PartitionEnds
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.ids import TopicPartition

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


class GroupCollector:
    """Collects the metrics of groups, as `prometheus_client.registry.Collector` describes it."""

    def __init__(
        self,
        coordinated: Callable[[], Iterable[Group]],
        find_ends: Callable[[Collection[TopicPartition]], Ends],
        *,
        max_series: int,
    ) -> None:
        """``find_ends`` finds high watermarks and may block."""
        self._coordinated = coordinated
        self._find_ends = find_ends
        self._max_series = max_series

    def collect(self) -> list[Metric]:
        groups = [snapshot_of(group) for group in self._coordinated() if not group.is_dead]
        committed = {name for group in groups for name in group.committed}
        return group_metrics(groups, self._find_ends(committed), self._max_series)


def snapshot_of(group: Group) -> GroupSnapshot:
    """Read a group without its lock. A negative offset means that the client has no position."""
    committed = {
        name: value.committed_offset
        for name, (value, _) in group.offsets.copy().items()
        if value.committed_offset >= 0
    }
    return GroupSnapshot(group.group_id, group.state.value, group.member_count, committed)


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
    # Not the library's global registry, which adds metrics of the process.
    registry = CollectorRegistry()
    registry.register(
        GroupCollector(lambda: groups.all_groups()[0], ends.find, max_series=config.metrics_max_series)
    )
    Gauge(
        "barnabas_stray_logs", "Logs that belong to no known topic and are kept.", registry=registry
    ).set_function(lambda: len(replicas.logs.strays.all()))
    Gauge(
        "barnabas_failed_replicas",
        "Replicas that failed by an unforeseen error, or whose groups could not be loaded.",
        registry=registry,
    ).set_function(lambda: len(replicas.roles.failed.reasons()))
    endpoint = MetricsEndpoint(
        config.metrics_host,
        config.metrics_port,
        Page(registry).text,
        content_type=CONTENT_TYPE_PLAIN_0_0_4,
        on_fatal=on_fatal,
    )
    endpoint.start()
    return endpoint
