"""The measurements of a consumer, beside those of all clients: per fetch and poll, never per record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.client.consumer.partition_state import PartitionState
from barnabas.client.metrics import CLIENT_METRICS, Metrics, Recent, since
from barnabas.protocol.ids import TopicPartition

CONSUMER_METRICS: Final = CLIENT_METRICS | {
    "records-consumed-total": "records handed out, those in hand included",
    "bytes-consumed-total": "bytes of the batches that were read, each time that they were fetched",
    "fetch-total": "fetches answered",
    "fetch-latency-avg": "ms from a fetch to its answer, the broker's wait for records included",
    "fetch-latency-max": "the longest such time, in ms",
    "fetch-size-avg": "bytes of an answer to a fetch",
    "fetch-size-max": "bytes of the largest answer",
    "fetch-throttle-time-avg": "ms of throttling by a quota, by the answers",
    "fetch-throttle-time-max": "the longest such time, in ms",
    "records-lag-max": "the largest distance of a position to the end that can be read",
    "records-lead-min": "the smallest distance of a position to its log's start; at 0 records may be deleted",
    "assigned-partitions": "partitions that are read",
    "last-poll-seconds-ago": "seconds since the last poll, or since an iteration took its last list",
    "time-between-poll-avg": "ms between two of these",
    "time-between-poll-max": "the longest such time, in ms",
    "commit-total": "answered requests to commit offsets",
    "commit-latency-avg": "ms from such a request to its answer",
    "commit-latency-max": "the longest such time, in ms",
    "rebalance-total": "rebalances of the group that this member completed",
    "failed-rebalance-total": "rebalances that it did not complete",
    "rebalance-latency-avg": "ms from the join to the new assignment, the listener included",
    "rebalance-latency-max": "the longest such time, in ms",
    "last-rebalance-seconds-ago": "seconds since the last completed rebalance",
    "heartbeat-total": "heartbeats answered",
    "heartbeat-response-time-avg": "ms from a heartbeat to its answer",
    "heartbeat-response-time-max": "the longest such time, in ms",
    "last-heartbeat-seconds-ago": "seconds since the last answer to a heartbeat",
}


@dataclass(slots=True, eq=False)
class ConsumerMetrics:
    """Changed on the consumer's event loop. Times without a value have not been yet."""

    records: int = 0
    """Records taken from batches, but for those that were given back before they were handed out."""
    handed_out: int = 0
    """The last count of a snapshot; a counter must not decrease."""
    bytes: int = 0
    fetches: int = 0
    commits: int = 0
    rebalances: int = 0
    failed_rebalances: int = 0
    heartbeats: int = 0
    polled_at: float | None = None
    rebalanced_at: float | None = None
    heard_at: float | None = None
    fetch_latency_ms: Recent = field(default_factory=Recent)
    fetch_size_bytes: Recent = field(default_factory=Recent)
    fetch_throttle_ms: Recent = field(default_factory=Recent)
    poll_gap_ms: Recent = field(default_factory=Recent)
    commit_latency_ms: Recent = field(default_factory=Recent)
    rebalance_latency_ms: Recent = field(default_factory=Recent)
    heartbeat_latency_ms: Recent = field(default_factory=Recent)

    def polled(self) -> None:
        present = time.monotonic()
        if self.polled_at is not None:
            self.poll_gap_ms.add((present - self.polled_at) * 1000)
        self.polled_at = present

    def fetched(self, sent_at: float, size_bytes: int, throttle_time_ms: int) -> None:
        self.fetches += 1
        self.fetch_latency_ms.add(since(sent_at) * 1000)
        self.fetch_size_bytes.add(size_bytes)
        self.fetch_throttle_ms.add(throttle_time_ms)

    def committed(self, sent_at: float) -> None:
        self.commits += 1
        self.commit_latency_ms.add(since(sent_at) * 1000)

    def rebalanced(self, began_at: float) -> None:
        self.rebalances += 1
        self.rebalanced_at = time.monotonic()
        self.rebalance_latency_ms.add((self.rebalanced_at - began_at) * 1000)

    def heartbeat_answered(self, sent_at: float) -> None:
        self.heartbeats += 1
        self.heard_at = time.monotonic()
        self.heartbeat_latency_ms.add((self.heard_at - sent_at) * 1000)

    def snapshot(self, waiting: int) -> Metrics:
        """``waiting`` records are taken and not handed out yet."""
        self.handed_out = max(self.handed_out, self.records - waiting)
        metrics: Metrics = {
            "records-consumed-total": self.handed_out,
            "bytes-consumed-total": self.bytes,
            "fetch-total": self.fetches,
            "commit-total": self.commits,
            "rebalance-total": self.rebalances,
            "failed-rebalance-total": self.failed_rebalances,
            "heartbeat-total": self.heartbeats,
        }
        for name, moment in (
            ("last-poll-seconds-ago", self.polled_at),
            ("last-rebalance-seconds-ago", self.rebalanced_at),
            ("last-heartbeat-seconds-ago", self.heard_at),
        ):
            if moment is not None:
                metrics[name] = since(moment)
        self.fetch_latency_ms.put(metrics, "fetch-latency")
        self.fetch_size_bytes.put(metrics, "fetch-size")
        self.fetch_throttle_ms.put(metrics, "fetch-throttle-time")
        self.poll_gap_ms.put(metrics, "time-between-poll")
        self.commit_latency_ms.put(metrics, "commit-latency")
        self.rebalance_latency_ms.put(metrics, "rebalance-latency")
        self.heartbeat_latency_ms.put(metrics, "heartbeat-response-time")
        return metrics


def distances(states: Iterable[PartitionState], held_back: Mapping[TopicPartition, int]) -> Metrics:
    """``records-lag-max`` and ``records-lead-min`` of the partitions that were fetched, as of the last fetch.

    ``held_back`` has the offset of the next record where it is before the position.
    """
    fetched = [
        (held_back.get(state.tp, state.position), state.end_offset, state.log_start_offset)
        for state in states
        if state.position is not None and state.end_offset >= 0 and state.log_start_offset >= 0
    ]
    if not fetched:
        return {}
    return {
        "records-lag-max": max(max(0, end_offset - position) for position, end_offset, _ in fetched),
        "records-lead-min": min(max(0, position - log_start) for position, _, log_start in fetched),
    }
