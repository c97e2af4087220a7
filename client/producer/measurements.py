"""The measurements of a producer, beside those of all clients: per batch and request, never per record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from barnabas.client.metrics import CLIENT_METRICS, Metrics, Recent

PRODUCER_METRICS: Final = CLIENT_METRICS | {
    "record-send-total": "records sent, each attempt counted",
    "record-retry-total": "records sent again",
    "record-error-total": "records that failed",
    "byte-total": "bytes of record batches sent, each attempt counted",
    "batch-size-avg": "bytes of a batch, as sent",
    "batch-size-max": "bytes of the largest batch",
    "batch-split-total": "batches halved because the broker found them too large",
    "records-per-request-avg": "records in a request",
    "records-per-request-max": "records in the largest request",
    "record-queue-time-avg": "ms from the first record of a batch to its first attempt",
    "record-queue-time-max": "the longest such time, in ms",
    "request-latency-avg": "ms from a produce request to its answer, connecting included",
    "request-latency-max": "the longest such time, in ms",
    "produce-throttle-time-avg": "ms of throttling by a quota, by the answers",
    "produce-throttle-time-max": "the longest such time, in ms",
    "buffer-available-bytes": "bytes of `buffer_memory` that are free",
    "buffer-total-bytes": "`buffer_memory`",
    "buffer-exhausted-total": "sends that failed because no memory became free",
    "bufferpool-wait-time-ns-total": "ns for which sends waited for memory",
    "waiting-threads": "sends that wait for memory now",
}


@dataclass(slots=True, eq=False)
class ProducerMetrics:
    """Changed on the event loop, the counters of failed records under the accumulator's lock."""

    sent_records: int = 0
    retried_records: int = 0
    failed_records: int = 0
    sent_bytes: int = 0
    batch_splits: int = 0
    exhausted: int = 0
    buffer_wait_s: float = 0.0
    batch_size_bytes: Recent = field(default_factory=Recent)
    records_per_request: Recent = field(default_factory=Recent)
    queue_time_ms: Recent = field(default_factory=Recent)
    latency_ms: Recent = field(default_factory=Recent)
    throttle_time_ms: Recent = field(default_factory=Recent)

    def leaves(self, batches: Iterable[tuple[int, int, bool]]) -> None:
        """A request leaves with these batches: the bytes and records of each, and whether it is a retry."""
        total = 0
        for size_bytes, records, is_retry in batches:
            total += records
            self.sent_bytes += size_bytes
            self.batch_size_bytes.add(size_bytes)
            if is_retry:
                self.retried_records += records
        self.sent_records += total
        self.records_per_request.add(total)

    def answered(self, latency_s: float, throttle_time_ms: int) -> None:
        self.latency_ms.add(latency_s * 1000)
        self.throttle_time_ms.add(throttle_time_ms)

    def snapshot(self) -> Metrics:
        metrics: Metrics = {
            "record-send-total": self.sent_records,
            "record-retry-total": self.retried_records,
            "record-error-total": self.failed_records,
            "byte-total": self.sent_bytes,
            "batch-split-total": self.batch_splits,
            "buffer-exhausted-total": self.exhausted,
            "bufferpool-wait-time-ns-total": int(self.buffer_wait_s * 1e9),
        }
        self.batch_size_bytes.put(metrics, "batch-size")
        self.records_per_request.put(metrics, "records-per-request")
        self.queue_time_ms.put(metrics, "record-queue-time")
        self.latency_ms.put(metrics, "request-latency")
        self.throttle_time_ms.put(metrics, "produce-throttle-time")
        return metrics
