"""Latency of acks=all while the cleaner runs at full speed, beside the same without it.

On three brokers, 1,000 requests/s go to a topic with three replicas, as in `latency`. The leader of that
topic also has a compacted one, filled beforehand, whose cleaning starts with the second half of a round:
records with values of 1 KB, then of 100 B, of which a tenth stays. The cleaner is then busy on the broker
that answers; the others do not clean, because on a small machine three brokers that compute would only show
that it has too few cores.
"""

from __future__ import annotations

import os
import time

import uvloop

from barnabas.client import ConfigResource
from barnabas.client.admin.admin import NewTopic
from barnabas.client.blocking import Admin
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.messages.replicas import CleanerDescription
from benchmarks.latency import latencies_ms
from benchmarks.load import ACKS_ALL, Target, create_topic, encoded_batch, encoded_request, load
from benchmarks.support import MB, Figure, Options, percentile, run, running_cluster, tell
from tests.support.batches import build_batch

_PER_SECOND = 1_000
_BATCH_BYTES = 300
_VALUE_BYTES = 100
_COMPACTED_BATCH_BYTES = 60_000
_REPEATS = 10
_DEPTH = 8
_WARM_UP = 500
_LONGEST_CLEANING_S = 120.0
_LOOK_S = 0.1


def _cleaner(cluster: LocalCluster, broker_id: int) -> CleanerDescription:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        (found,) = [one for one in admin.describe_replicas([]) if one.node.node_id == broker_id]
        return found.cleaner


def _set_threads(cluster: LocalCluster, broker_id: int, threads: int) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        resource = ConfigResource.broker(broker_id)
        admin.alter_configs({resource: {"log.cleaner.threads": str(threads)}})


def _fill(cluster: LocalCluster, broker_id: int, size_bytes: int, value_bytes: int) -> None:
    """Make a compacted topic on one broker, with so many bytes of values."""
    topic = f"compacted-{os.urandom(4).hex()}"
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": str(16 * MB),
        "min.cleanable.dirty.ratio": "0.01",
    }
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics(NewTopic(topic, replica_assignment={0: [broker_id]}, configs=settings))
    count = size_bytes // _COMPACTED_BATCH_BYTES // _REPEATS
    requests = [_keyed_request(topic, number, value_bytes) for number in range(max(1, count))]
    target = Target(cluster.broker(broker_id).endpoint, requests)
    uvloop.run(load([target], len(requests) * _REPEATS, _DEPTH))


def _keyed_request(topic: str, number: int, value_bytes: int) -> bytes:
    per_batch = _COMPACTED_BATCH_BYTES // value_bytes
    first = number * per_batch
    records = [(b"key-%010d" % (first + index), os.urandom(value_bytes)) for index in range(per_batch)]
    batch = build_batch(records, timestamp_ms=time.time_ns() // 1_000_000)
    return encoded_request(topic, 0, bytes(batch), ACKS_ALL)


def _busy_round(
    cluster: LocalCluster, broker_id: int, address: tuple[str, int], request: bytes, count: int
) -> tuple[list[float], float]:
    """The latencies while the cleaner cleans, and its MB/s."""
    before = _cleaner(cluster, broker_id)
    _set_threads(cluster, broker_id, 1)
    found = latencies_ms(address, request, count)
    deadline = time.monotonic() + _LONGEST_CLEANING_S
    while (after := _cleaner(cluster, broker_id)).cleanings == before.cleanings:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not cleaned after {_LONGEST_CLEANING_S:.0f} s: {after}")
        time.sleep(_LOOK_S)
    _set_threads(cluster, broker_id, 0)
    clean_s = after.max_clean_time_ms / 1_000
    return found[: int(clean_s * _PER_SECOND)], (after.bytes_read - before.bytes_read) / MB / clean_s


def _rounds(cluster: LocalCluster, options: Options, value_bytes: int, fill_mb: int) -> list[Figure]:
    count = (options.amount(10, 4) + 1) * _PER_SECOND
    idle: list[float] = []
    busy: list[float] = []
    speeds: list[float] = []
    leader, *others = cluster.broker_ids
    endpoint = cluster.broker(leader).endpoint
    address = (endpoint.host, endpoint.port)
    for number in range(options.rounds):
        tell(f"latency beside the cleaner, {value_bytes} B, round {number + 1} of {options.rounds}")
        topic = f"bench-{os.urandom(4).hex()}"
        uvloop.run(create_topic(cluster.bootstrap, topic, [leader], [leader, *others]))
        request = encoded_request(topic, 0, encoded_batch(_BATCH_BYTES, _VALUE_BYTES), ACKS_ALL)
        _fill(cluster, leader, fill_mb * MB, value_bytes)
        idle.append(percentile(latencies_ms(address, request, count)[_WARM_UP:], 99))
        found, speed = _busy_round(cluster, leader, address, request, count)
        busy.append(percentile(found[_WARM_UP:], 99))
        speeds.append(speed)
    ratios = [with_it / without for with_it, without in zip(busy, idle, strict=True)]
    name = f"beside the compaction of {value_bytes} B"
    return [
        Figure.of(f"{name}: p99 of acks=all before", idle, "ms"),
        Figure.of(f"{name}: p99 meanwhile", busy, "ms"),
        Figure.of(f"{name}: p99 meanwhile, times that before", ratios, "times", at_most=2),
        Figure.of(f"{name}: its speed", speeds, "MB/s"),
    ]


def measure(options: Options) -> list[Figure]:
    with running_cluster(options, log_cleaner_threads="0", log_cleaner_backoff_ms="100") as cluster:
        return [
            *_rounds(cluster, options, 1_000, options.amount(600, 240)),
            *_rounds(cluster, options, 100, options.amount(300, 120)),
        ]


if __name__ == "__main__":
    run(__doc__, measure)
