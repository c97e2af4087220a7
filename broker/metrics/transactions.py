"""Collects the metrics of transactions: of the coordinator, of markers, and of the replicas' logs.

Names of Kafka's own metrics are those that Prometheus' JMX exporter gives them. Runs on a thread that serves
metrics. Like the collector of groups it takes no transactional id's lock; it locks only logs with an open
transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from prometheus_client.core import GaugeMetricFamily, Metric

from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.coordinators.transactions.transaction import Transaction
from barnabas.broker.metrics.families import gauges
from barnabas.broker.replication.partition import Partition

LATE_AFTER_MS: Final = 5 * 60 * 1000
"""Beyond transaction.max.timeout.ms, as in Kafka: by then the coordinator should have ended it."""


class Markers(Protocol):
    """`MarkerQueue`, as far as its metrics need it."""

    @property
    def queued(self) -> int: ...

    @property
    def delayed(self) -> int: ...


class TransactionCollector:
    """As `prometheus_client.registry.Collector` describes it."""

    def __init__(
        self,
        coordinated: Callable[[], Iterable[Transaction]],
        markers: Markers,
        longest_load_ms: Callable[[], float],
        replicas: Callable[[], Iterable[Partition]],
        *,
        max_timeout_ms: int,
        max_series: int,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._coordinated = coordinated
        self._markers = markers
        self._longest_load_ms = longest_load_ms
        self._replicas = replicas
        self._late_after_ms = max_timeout_ms + LATE_AFTER_MS
        self._max_series = max_series
        self._wall_clock_ms = wall_clock_ms

    def collect(self) -> list[Metric]:
        now_ms = self._wall_clock_ms()
        return [*self._of_coordinator(now_ms), *self._of_logs(now_ms)]

    def _of_coordinator(self, now_ms: int) -> list[Metric]:
        transactions = list(self._coordinated())
        stored = [transaction.stored for transaction in transactions]
        counts = Counter(one.state for one in stored)
        by_state = GaugeMetricFamily(
            "barnabas_transactional_ids", "Transactional ids that this broker coordinates.", labels=["state"]
        )
        for state in TransactionState:
            by_state.add_metric([state.value], counts[state])
        oldest = GaugeMetricFamily(
            "barnabas_transactions_oldest_ms", "The age of the oldest open transaction.", labels=["kind"]
        )
        for kind, is_prepared in (("ongoing", False), ("prepared", True)):
            begun_ms = [
                one.start_timestamp_ms
                for one in stored
                if one.state is TransactionState.ONGOING and one.is_prepared is is_prepared
            ]
            oldest.add_metric([kind], max(0, now_ms - min(begun_ms, default=now_ms)))
        markers = self._markers
        channel = "kafka_coordinator_transaction_transactionmarkerchannelmanager"
        figures: dict[str, tuple[float, str]] = {
            f"{channel}_unknowndestinationqueuesize": (
                markers.delayed,
                "Groups of markers that wait for a leader, or for the end of a pause after an error.",
            ),
            f"{channel}_logappendretryqueuesize": (
                sum(transaction.is_retrying_append for transaction in transactions),
                "Transactional ids whose record is appended again after an error.",
            ),
            "barnabas_transaction_markers_queued": (
                markers.queued,
                "Partitions whose markers wait for requests in flight.",
            ),
            "kafka_server_transaction_coordinator_metrics_partition_load_time_max": (
                self._longest_load_ms(),
                "The longest loading of a partition of the transaction topic since the start, in ms.",
            ),
        }
        return [by_state, oldest, *gauges("", figures)]

    def _of_logs(self, now_ms: int) -> list[Metric]:
        lag = GaugeMetricFamily(
            "kafka_cluster_partition_laststableoffsetlag",
            "Records above the last stable offset and below the high watermark, at the leader.",
            labels=["topic", "partition"],
        )
        late = shown = 0
        for partition in self._replicas():
            log = partition.log
            if not log.producers.transactions.has_ongoing:
                continue
            with log.lock:
                late += log.producers.has_late_transaction(now_ms - self._late_after_ms)
            behind = partition.high_watermark - partition.last_stable_offset
            if partition.is_leader and behind > 0 and shown < self._max_series:
                shown += 1
                name = partition.partition
                lag.add_metric([name.topic, str(name.partition)], behind)
        return [
            lag,
            *gauges(
                "",
                {
                    "kafka_server_replicamanager_partitionswithlatetransactionscount": (
                        late,
                        "Partitions with a transaction that its coordinator should have ended.",
                    )
                },
            ),
        ]
