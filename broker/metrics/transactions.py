"""Collects the metrics of transactions: of the coordinator, of markers, and of the replicas' logs.

Like the metrics of groups they take no transactional id's lock; they lock only logs with an open transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric

from barnabas.broker.coordinators.transactions.coordinator import TransactionCoordinator
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.metrics.families import PARTITION, gauge, gauges
from barnabas.broker.replication.partition import Partition

LATE_AFTER_MS: Final = 5 * 60 * 1000
"""Beyond transaction.max.timeout.ms, as in Kafka: by then the coordinator should have ended it."""


def coordinator_metrics(coordinator: TransactionCoordinator, now_ms: int) -> Iterator[Metric]:
    transactions, markers = list(coordinator.all_machines()[0]), coordinator.markers
    stored = [transaction.stored for transaction in transactions]
    counts = Counter(one.state for one in stored)
    yield gauge(
        "barnabas_transactional_ids",
        "Transactional ids that this broker coordinates.",
        ["state"],
        (([state.value], counts[state]) for state in TransactionState),
    )
    begun_ms: dict[str, list[int]] = {"ongoing": [now_ms], "prepared": [now_ms]}
    for one in stored:
        if one.state is TransactionState.ONGOING:
            begun_ms["prepared" if one.is_prepared else "ongoing"].append(one.start_timestamp_ms)
    yield gauge(
        "barnabas_transactions_oldest_ms",
        "The age of the oldest open transaction.",
        ["kind"],
        (([kind], now_ms - min(starts_ms)) for kind, starts_ms in begun_ms.items()),
    )
    channel = "kafka_coordinator_transaction_transactionmarkerchannelmanager"
    yield from gauges(
        "",
        {
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
                coordinator.longest_load_ms,
                "The longest loading of a partition of the transaction topic since the start, in ms.",
            ),
        },
    )


def log_transaction_metrics(
    replicas: Iterable[Partition], now_ms: int, *, max_timeout_ms: int, max_series: int
) -> Iterator[Metric]:
    late, late_before_ms = 0, now_ms - max_timeout_ms - LATE_AFTER_MS
    lags: list[tuple[list[str], float]] = []
    for partition in replicas:
        log = partition.log
        if not log.producers.transactions.has_ongoing:
            continue
        with log.lock:
            late += log.producers.has_late_transaction(late_before_ms)
        lag = partition.high_watermark - partition.last_stable_offset
        if partition.is_leader and lag > 0 and len(lags) < max_series:
            topic, index = partition.partition
            lags.append(([topic, str(index)], lag))
    yield gauge(
        "kafka_cluster_partition_laststableoffsetlag",
        "Records above the last stable offset and below the high watermark, at the leader.",
        PARTITION,
        lags,
    )
    text = "Partitions with a transaction that its coordinator should have ended."
    name = "kafka_server_replicamanager_partitionswithlatetransactionscount"
    yield from gauges(name, {"": (late, text)})
