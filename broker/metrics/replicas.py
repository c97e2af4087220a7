"""Collects the metrics of this broker's replicas: their roles, their ISRs and the lag of followers.

Takes no partition's lock: each value is one reference that is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from barnabas.broker.metrics.families import Room, counters, gauges
from barnabas.broker.replication.isr_changes import IsrChanges
from barnabas.broker.replication.partition import Partition

_MANAGER: Final = "kafka_server_replicamanager_"
_PARTITION: Final = {
    "underreplicated": "1 if a replica is not in sync, at the leader.",
    "underminisr": "1 if fewer replicas are in sync than acks=all demands, at the leader.",
    "atminisr": "1 if exactly as many replicas are in sync as acks=all demands, at the leader.",
    "insyncreplicascount": "The size of the ISR, at the leader.",
    "replicascount": "The number of replicas, without those being added, at the leader.",
}


class ReplicaCollector:
    """A collector of the library. ``offline_count`` counts replicas without a readable log."""

    def __init__(
        self,
        replicas: Callable[[], Iterable[Partition]],
        isr_changes: IsrChanges,
        *,
        offline_count: Callable[[], int],
        max_lag: Callable[[], int],
        max_series: int,
    ) -> None:
        self._replicas = replicas
        self._isr_changes = isr_changes
        self._offline_count = offline_count
        self._max_lag = max_lag
        self._max_series = max_series

    def collect(self) -> list[Metric]:
        replicas = sorted(self._replicas(), key=lambda replica: replica.partition)
        led = [(replica, *_isr_figures(replica)) for replica in replicas if replica.is_leader]
        totals = {
            "partitioncount": (len(replicas), "Replicas on this broker."),
            "leadercount": (len(led), "Partitions that this broker leads."),
            "underreplicatedpartitions": (
                sum(under for _, under, *_ in led),
                "Led partitions with a replica that is not in sync.",
            ),
            "underminisrpartitioncount": (
                sum(under_min for _, _, under_min, *_ in led),
                "Led partitions with fewer replicas in sync than acks=all demands.",
            ),
            "atminisrpartitioncount": (
                sum(at_min for _, _, _, at_min, *_ in led),
                "Led partitions with exactly as many replicas in sync as acks=all demands.",
            ),
            "reassigningpartitions": (
                sum(replica.is_reassigning for replica, *_ in led),
                "Led partitions that are being reassigned.",
            ),
            "offlinereplicacount": (self._offline_count(), "Replicas without a readable log."),
        }
        return [
            *gauges(_MANAGER, totals),
            *self._isr_counts(),
            self._followers(),
            *self._of_partitions(led),
        ]

    def _isr_counts(self) -> list[Metric]:
        changes = self._isr_changes
        return counters(
            _MANAGER,
            {
                "isrshrinks": (changes.shrinks, "ISRs of led partitions that lost members."),
                "isrexpands": (changes.expands, "ISRs of led partitions that gained members."),
                "failedisrupdates": (changes.failures, "Changes of an ISR that another write prevented."),
            },
        )

    def _followers(self) -> Metric:
        lag = GaugeMetricFamily(
            "kafka_server_replicafetchermanager_maxlag",
            "The most records that a follower lacks below its leader's high watermark.",
            labels=["clientId"],
        )
        lag.add_metric(["Replica"], self._max_lag())
        return lag

    def _of_partitions(self, led: list[tuple[Partition, int, int, int, int, int]]) -> list[Metric]:
        families = [
            GaugeMetricFamily(f"kafka_cluster_partition_{name}", text, labels=["topic", "partition"])
            for name, text in _PARTITION.items()
        ]
        room = Room(self._max_series)
        for replica, *values in led:
            if room.take(len(families)):
                labels = [replica.partition.topic, str(replica.partition.partition)]
                for family, value in zip(families, values, strict=True):
                    family.add_metric(labels, value)
        omitted = gauges(
            "barnabas_partition_series_left_out",
            {"": (room.omitted, "Series of led partitions that are omitted because of metrics.max.series.")},
        )
        return [*families, *omitted]


def _isr_figures(replica: Partition) -> tuple[int, int, int, int, int]:
    """The values of `_PARTITION`, in its order."""
    in_sync = len(replica.isr.in_sync_replicas)
    # As in Kafka, a replica that a reassignment adds is not lacking while it copies the log.
    replicas = len(replica.replicas) - len(replica.adding)
    minimum = replica.effective_min_isr
    return int(in_sync < replicas), int(in_sync < minimum), int(in_sync == minimum), in_sync, replicas
