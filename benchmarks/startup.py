"""The start-up time of ZooKeeper and 3 brokers, and the cost of an idle broker.

Writable: a topic with 3 replicas was created and its first record acknowledged with acks=all. The clock runs
from the first line of the start. Idle is measured with that topic, after a pause, over some seconds.
"""

from __future__ import annotations

import time

import uvloop

from barnabas.deploy.local import LocalCluster
from benchmarks.load import create_topic
from benchmarks.support import (
    Figure,
    Options,
    broker_pids,
    cpu_seconds,
    memory_mb,
    new_cluster,
    run,
    tell,
    temporary_folder,
)

_STARTS_PER_ROUND = 2
_SETTLE_S = 5.0
_IDLE_S = 10.0


def _start(options: Options, then: list[list[float]] | None) -> tuple[float, float]:
    """Seconds until the cluster was up, and until the first acknowledged write."""
    with temporary_folder(options) as folder:
        started = time.perf_counter()
        with new_cluster(folder, options) as cluster:
            up = time.perf_counter() - started
            ids = cluster.broker_ids
            uvloop.run(create_topic(cluster.bootstrap, "first", [ids[0]], ids))
            written = time.perf_counter() - started
            if then is not None:
                then.append(_idle(cluster))
    return up, written


def _idle(cluster: LocalCluster) -> list[float]:
    """Memory in MB and percent of a core, of the broker that has most of each."""
    time.sleep(_SETTLE_S)
    pids = broker_pids(cluster)
    before = [cpu_seconds(pid) for pid in pids]
    time.sleep(_IDLE_S)
    used = [(cpu_seconds(pid) - earlier) / _IDLE_S * 100 for pid, earlier in zip(pids, before, strict=True)]
    return [max(memory_mb(pid) for pid in pids), max(used)]


def measure(options: Options) -> list[Figure]:
    starts: list[tuple[float, float]] = []
    idle: list[list[float]] = []
    count = 1 if options.quick else options.rounds * _STARTS_PER_ROUND
    for number in range(count):
        tell(f"start {number + 1} of {count}")
        starts.append(_start(options, idle if number < options.rounds else None))
    return [
        Figure.of("ZooKeeper and 3 brokers up", [up for up, _ in starts], "s"),
        Figure.of("  and the first write acknowledged", [written for _, written in starts], "s", at_most=2.5),
        Figure.of("idle broker: memory (VmRSS), the largest", [one[0] for one in idle], "MB", at_most=60),
        Figure.of("idle broker: CPU, the busiest", [one[1] for one in idle], "% of a core", at_most=1),
    ]


if __name__ == "__main__":
    run(__doc__, measure)
