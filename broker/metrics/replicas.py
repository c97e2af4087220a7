"""Collects the metrics of this broker's replicas and topics: roles, ISRs, the lag of followers, the traffic.

Takes no partition's lock: each value is one reference that is replaced as a whole. As in Kafka, the sample of
all topics has the same name as those of single ones and no label: a sum must select one of the two
(``{topic!=""}`` or ``{topic=""}``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from barnabas.broker.base.topic_metrics import Traffic
from barnabas.broker.metrics.families import PARTITION, bounded, counters, gauge, gauges
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager

_PARTITION: Final = {
    "underreplicated": "1 if a replica is not in sync, at the leader.",
    "underminisr": "1 if fewer replicas are in sync than acks=all demands, at the leader.",
    "atminisr": "1 if exactly as many replicas are in sync as acks=all demands, at the leader.",
    "insyncreplicascount": "The size of the ISR, at the leader.",
    "replicascount": "The number of replicas, without those being added, at the leader.",
}


def replica_metrics(manager: ReplicaManager, max_series: int) -> Iterator[Metric]:
    replicas = sorted(manager.partitions(), key=lambda replica: replica.partition)
    led = [(replica, _isr_figures(replica)) for replica in replicas if replica.is_leader]
    under, under_min, at_min = (sum(figures[place] for _, figures in led) for place in range(3))
    moving = sum(replica.is_reassigning for replica, _ in led)
    offline, changes = len(manager.logs.offline_partitions), manager.isr_changes
    prefix = "kafka_server_replicamanager_"
    yield from gauges(
        prefix,
        {
            "partitioncount": (len(replicas), "Replicas on this broker."),
            "leadercount": (len(led), "Partitions that this broker leads."),
            "underreplicatedpartitions": (under, "Led partitions with a replica that is not in sync."),
            "underminisrpartitioncount": (
                under_min,
                "Led partitions with fewer replicas in sync than acks=all demands.",
            ),
            "atminisrpartitioncount": (
                at_min,
                "Led partitions with exactly as many replicas in sync as acks=all demands.",
            ),
            "reassigningpartitions": (moving, "Led partitions that are being reassigned."),
            "offlinereplicacount": (offline, "Replicas without a readable log."),
        },
    )
    yield from counters(
        prefix,
        {
            "isrshrinks": (changes.shrinks, "ISRs of led partitions that lost members."),
            "isrexpands": (changes.expands, "ISRs of led partitions that gained members."),
            "failedisrupdates": (changes.failures, "Changes of an ISR that another write prevented."),
        },
    )
    yield gauge(
        "kafka_server_replicafetchermanager_maxlag",
        "The most records that a follower lacks below its leader's high watermark.",
        ["clientId"],
        [(["Replica"], manager.fetchers.max_lag)],
    )
    prefix = "kafka_cluster_partition_"
    yield from bounded(
        [GaugeMetricFamily(prefix + name, text, labels=PARTITION) for name, text in _PARTITION.items()],
        (([replica.partition.topic, str(replica.partition.partition)], figures) for replica, figures in led),
        left_out="barnabas_partition_series_left_out",
        max_series=max_series,
    )


def _isr_figures(replica: Partition) -> tuple[int, int, int, int, int]:
    """The values of `_PARTITION`, in its order."""
    in_sync = len(replica.isr.in_sync_replicas)
    # As in Kafka, a replica that a reassignment adds is not lacking while it copies the log.
    replicas = len(replica.replicas) - len(replica.adding)
    minimum = replica.effective_min_isr
    return int(in_sync < replicas), int(in_sync < minimum), int(in_sync == minimum), in_sync, replicas


_TOPICS: Final = "kafka_server_brokertopicmetrics_"
_COUNTS: Final = {
    "messagesin": ("messages_in", "Records that were appended by leaders."),
    "bytesin": ("bytes_in", "Bytes that were appended by leaders."),
    "bytesout": ("bytes_out", "Bytes that consumers fetched."),
    "bytesrejected": ("bytes_rejected", "Bytes that were refused because they are too large."),
    "totalproducerequests": ("produce_requests", "Produce requests, one for each partition."),
    "totalfetchrequests": ("fetch_requests", "Fetch requests, one for each partition."),
    "failedproducerequests": ("failed_produce_requests", "Those that failed by an error of the broker."),
    "failedfetchrequests": ("failed_fetch_requests", "Those that failed by an error of the broker."),
}
"""Kafka's name → attribute of `TopicTraffic` and description."""


def topic_metrics(traffic: Traffic, max_series: int) -> Iterator[Metric]:
    attributes = [attribute for attribute, _ in _COUNTS.values()]
    total = traffic.total()
    families = []
    for name, (attribute, text) in _COUNTS.items():
        family = CounterMetricFamily(_TOPICS + name, text, labels=["topic"])
        family.add_sample(f"{_TOPICS}{name}_total", {}, getattr(total, attribute))
        families.append(family)
    yield from bounded(
        families,
        (
            ([topic], [getattr(counts, attribute) for attribute in attributes])
            for topic, counts in sorted(traffic.topics().items())
        ),
        left_out="barnabas_topic_series_left_out",
        max_series=max_series,
    )
    yield from counters(
        _TOPICS,
        {
            "replicationbytesin": (traffic.replication_bytes_in, "Bytes that followers here fetched."),
            "replicationbytesout": (traffic.replication_bytes_out, "Bytes that followers elsewhere fetched."),
            "reassignmentbytesin": (traffic.reassignment_bytes_in, "Of these, for replicas being added."),
            "reassignmentbytesout": (traffic.reassignment_bytes_out, "Of these, for replicas being added."),
        },
    )
