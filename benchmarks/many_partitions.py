"""Measures a clean stop of a broker with 2,000 dirty partitions, and its start after that or a kill -9.

Dirty: each partition has records that were never forced to disk. The stop lasts from SIGTERM to the end of
the process, a start from the launch until the broker answers as a member of a cluster with a controller. Also
shown: the time until all partitions have a leader again, and the broker's CPU time of each step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import uvloop

from barnabas.client.admin.admin import Admin
from barnabas.deploy.local import LocalCluster
from barnabas.protocol import codec_msgpack
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from benchmarks.load import Target, create_topic, encoded_batch, load
from benchmarks.support import (
    Figure,
    Options,
    broker_pids,
    cpu_of_ended_processes,
    cpu_seconds,
    run,
    running_cluster,
    tell,
)

_PARTITIONS_PER_TOPIC: Final = 200
_BATCH_BYTES: Final = 4_000
_TIMEOUT_S: Final = 120.0


def _write_to_all(cluster: LocalCluster, topics: Sequence[str]) -> None:
    """One batch into each partition."""
    batch = encoded_batch(_BATCH_BYTES)
    data = [PartitionProduceData(index=index, records=batch) for index in range(_PARTITIONS_PER_TOPIC)]
    requests = []
    for topic in topics:
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
        requests.append(b"".join(codec_msgpack.encode_request(0, "benchmark", request)))
    (broker,) = cluster.brokers
    uvloop.run(load([Target(broker.endpoint, requests)], len(requests), 1))


def _stop(cluster: LocalCluster) -> tuple[float, float]:
    """Seconds, and CPU seconds, from SIGTERM to the end of the process."""
    (pid,) = broker_pids(cluster)
    before, of_children = cpu_seconds(pid), cpu_of_ended_processes()
    started = time.perf_counter()
    if not cluster.stop_broker(1, _TIMEOUT_S):
        raise TimeoutError(f"the broker did not stop within {_TIMEOUT_S:.0f} s")
    took = time.perf_counter() - started
    return took, cpu_of_ended_processes() - of_children - before


def _start(cluster: LocalCluster, topics: Sequence[str]) -> tuple[float, float, float]:
    """Seconds and CPU seconds until the broker is a member, and seconds until all is led."""
    started = time.perf_counter()
    cluster.start_broker(1, _TIMEOUT_S)
    up = time.perf_counter() - started
    (pid,) = broker_pids(cluster)
    cpu = cpu_seconds(pid)
    uvloop.run(_wait_led(cluster.bootstrap, topics))
    return up, cpu, time.perf_counter() - started


async def _wait_led(bootstrap: str, topics: Sequence[str]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    async with Admin(bootstrap_servers=bootstrap) as admin:
        while True:
            found = await admin.describe_topics()
            led = [topic for topic in topics if topic in found]
            if led == list(topics) and all(p.leader == 1 for topic in led for p in found[topic].partitions):
                return
            if time.monotonic() > deadline:
                raise TimeoutError("not all partitions are led again")
            await asyncio.sleep(0.05)


def _kill(cluster: LocalCluster) -> None:
    cluster.kill(1)


def measure(options: Options) -> list[Figure]:
    partitions = options.amount(2_000, 200)
    scale = partitions / 2_000
    topics = [f"many-{number}" for number in range(partitions // _PARTITIONS_PER_TOPIC)]
    stops: list[tuple[float, float]] = []
    starts: dict[str, list[tuple[float, float, float]]] = {"a clean stop": [], "kill -9": []}
    with running_cluster(options, brokers=1) as cluster:
        for topic in topics:
            uvloop.run(create_topic(cluster.bootstrap, topic, [1] * _PARTITIONS_PER_TOPIC, [1]))
        for number in range(options.rounds):
            tell(f"round {number + 1} of {options.rounds}")
            _write_to_all(cluster, topics)
            stops.append(_stop(cluster))
            starts["a clean stop"].append(_start(cluster, topics))
            _write_to_all(cluster, topics)
            _kill(cluster)
            starts["kill -9"].append(_start(cluster, topics))
    figures = [
        Figure.of(f"clean stop of {partitions} partitions", [s for s, _ in stops], "s", at_most=4 * scale),
        Figure.of("  CPU", [cpu for _, cpu in stops], "s"),
    ]
    for after, goal_s in (("a clean stop", 3.0), ("kill -9", 5.0)):
        found = starts[after]
        figures += [
            Figure.of(
                f"start after {after}", [one[0] for one in found], "s", at_most=max(1.0, goal_s * scale)
            ),
            Figure.of("  CPU", [one[1] for one in found], "s"),
            Figure.of("  until all partitions are led", [one[2] for one in found], "s"),
        ]
    return figures


if __name__ == "__main__":
    run(__doc__, measure)
