"""What it costs a broker to look into the records of produced batches, and what it does to others.

One broker, one replica, acks=1: batches of 256 KB before compression, with values of 100 B, 1 KB and 10 KB of
JSON-like text, in each of three compressions; CPU seconds of the broker for each GB of values. Keys have
different lengths, so records have; uncompressed, records of one length are measured too. Then three
brokers with three replicas and acks=all: 1,000 requests/s, alone and beside a producer of batches of small
records whose partition has the same leader.

By itself: `python -m benchmarks.record_walk`. To compare two versions, run the module in a clone of each.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time

import uvloop

from barnabas.deploy.local import LocalCluster
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from benchmarks.latency import latencies_ms
from benchmarks.load import ACKS_ALL, Target, create_topic, encoded_batch, encoded_request, load
from benchmarks.support import (
    GB,
    MB,
    Figure,
    Options,
    broker_pids,
    cpu_seconds,
    percentile,
    run,
    running_cluster,
    tell,
)

_VALUES = (100, 1_000, 10_000)
_COMPRESSIONS = (Compression.NONE, Compression.LZ4, Compression.ZSTD)
_CASES = [
    *((value_bytes, compression, False) for value_bytes in _VALUES for compression in _COMPRESSIONS),
    *((value_bytes, Compression.NONE, True) for value_bytes in _VALUES),
]
"""The size of values, the compression, and whether all records have one length."""
_PLAIN_BYTES = 256 * 1024
_DEPTH = 4
_WARM_UP = 50
_SMALL_BATCH_BYTES = 300
_BESIDE_PER_SECOND = 20


def text_batch(value_bytes: int, compression: Compression, *, alike: bool = False) -> tuple[bytes, int]:
    """A batch of text like JSON, and the bytes of its values."""
    chosen = random.Random(value_bytes)
    words = [b'"%s":%d,' % (os.urandom(3).hex().encode(), number) for number in range(300)]
    builder = RecordBatchBuilder(max_bytes=_PLAIN_BYTES, compression=compression)
    total = 0
    while True:
        value = b"".join(chosen.choices(words, k=value_bytes // 8))[:value_bytes]
        key = b"key-%d" % chosen.randrange(100 if alike else 0, 1_000)
        if builder.append(key, value, None, time.time_ns() // 1_000_000) is None:
            return bytes(builder.build()), total
        total += len(value)


async def _cpu_s_per_gb(
    cluster: LocalCluster, value_bytes: int, compression: Compression, alike: bool, total: int
) -> float:
    topic = f"bench-{os.urandom(4).hex()}"
    await create_topic(cluster.bootstrap, topic, [1], [1])
    batch, in_batch = text_batch(value_bytes, compression, alike=alike)
    targets = [Target(cluster.broker(1).endpoint, [encoded_request(topic, 0, batch, 1)])]
    await load(targets, _WARM_UP, _DEPTH)
    count = max(_WARM_UP, total // in_batch)
    pids = broker_pids(cluster)
    before = cpu_seconds(*pids)
    await load(targets, count, _DEPTH)
    return (cpu_seconds(*pids) - before) / (count * in_batch) * GB


def _costs(options: Options) -> list[Figure]:
    found: dict[tuple[int, Compression, bool], list[float]] = {}
    total = options.amount(400 * MB, 60 * MB)
    for number in range(options.rounds):
        tell(f"1 broker, round {number + 1} of {options.rounds}")
        with running_cluster(options, brokers=1) as cluster:
            for case in _CASES:
                cost = uvloop.run(_cpu_s_per_gb(cluster, *case, total))
                found.setdefault(case, []).append(cost)
    return [
        Figure.of(
            f"values of {value_bytes} B, {compression.name.lower()}{', of one length' if alike else ''}",
            costs,
            "CPU s/GB",
        )
        for (value_bytes, compression, alike), costs in found.items()
    ]


def _latency_beside(cluster: LocalCluster, compression: Compression | None, seconds: int) -> list[float]:
    """Latencies of small requests with acks=all, beside batches of small records to the same leader."""
    topic = f"bench-{os.urandom(4).hex()}"
    uvloop.run(create_topic(cluster.bootstrap, topic, [1, 1], cluster.broker_ids))
    request = encoded_request(topic, 0, encoded_batch(_SMALL_BATCH_BYTES, 100), ACKS_ALL)
    endpoint = cluster.broker(1).endpoint
    beside = None
    if compression is not None:
        batch, _ = text_batch(100, compression)
        other = Target(endpoint, [encoded_request(topic, 1, batch, 1)])

        async def produce() -> None:
            for _ in range(_BESIDE_PER_SECOND * seconds):
                started = time.monotonic()
                await load([other], 1, 1)
                await asyncio.sleep(max(0.0, 1 / _BESIDE_PER_SECOND - (time.monotonic() - started)))

        beside = threading.Thread(target=lambda: uvloop.run(produce()))
        beside.start()
    found = latencies_ms((endpoint.host, endpoint.port), request, 1_000 * seconds)
    if beside is not None:
        beside.join()
    return found


def _latencies(options: Options) -> list[Figure]:
    seconds = options.amount(10, 4)
    found: dict[str, list[float]] = {}
    for number in range(options.rounds):
        tell(f"3 brokers, round {number + 1} of {options.rounds}")
        with running_cluster(options, brokers=3) as cluster:
            _latency_beside(cluster, None, 1)
            for name, compression in (("alone", None), ("none", Compression.NONE), ("lz4", Compression.LZ4)):
                p99 = percentile(_latency_beside(cluster, compression, seconds), 99)
                found.setdefault(name, []).append(p99)
    return [
        Figure.of(
            f"p99 of acks=all {'alone' if name == 'alone' else f'beside records of 100 B, {name}'}",
            times,
            "ms",
        )
        for name, times in found.items()
    ]


def measure(options: Options) -> list[Figure]:
    return [*_costs(options), *_latencies(options)]


if __name__ == "__main__":
    run(__doc__, measure)
