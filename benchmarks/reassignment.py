"""Measures the rate of a reassignment to another broker, and how closely it keeps to a throttle.

Two brokers, one partition of one replica that moves from the first to the second by `barnabas reassign
execute --wait`. The limit is measured in the same run: bytes from one process through a loopback socket into
a file of another (`benchmarks.floor`). The rate is that of the bytes on the target's disk, from the first
that are seen there to the last, so that the start of the command is not in it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import uvloop

from barnabas.client.admin.admin import Admin
from barnabas.deploy.local import LocalCluster
from benchmarks import floor
from benchmarks.load import Target, create_topic, encoded_batch, encoded_request, load
from benchmarks.support import MB, Figure, Options, run, running_cluster, tell, temporary_folder

_TOPIC: Final = "moved"
_BATCH_BYTES: Final = 900_000
_DEPTH: Final = 4
_LOOK_S: Final = 0.02
_TIMEOUT_S: Final = 180.0
_THROTTLES_MB: Final = (10, 20, 40)
_THROTTLED_S: Final = 10


def _fill(cluster: LocalCluster, topic: str, size_bytes: int) -> int:
    """Create a topic with one partition on the first broker, and write so many bytes; returns the size."""
    uvloop.run(create_topic(cluster.bootstrap, topic, [1], [1]))
    request = encoded_request(topic, 0, encoded_batch(_BATCH_BYTES), -1)
    count = size_bytes // _BATCH_BYTES
    uvloop.run(load([Target(cluster.brokers[0].endpoint, [request])], count, _DEPTH))
    return count * _BATCH_BYTES


async def _size(admin: Admin, topic: str) -> int:
    """The bytes of the partition on the second broker."""
    dirs = (one for broker in await admin.describe_log_dirs([2]) for one in broker.log_dirs)
    return sum(
        replica.size_bytes for one in dirs for replica in one.replicas if replica.partition.topic == topic
    )


async def _rate(bootstrap: str, topic: str, mover: subprocess.Popen[bytes]) -> float:
    """MB per second while the bytes arrive, until the command that moves them has ended."""
    async with Admin(bootstrap_servers=bootstrap) as admin, asyncio.timeout(_TIMEOUT_S):
        first = last = (0.0, 0)
        while mover.poll() is None:
            size, now_s = await _size(admin, topic), time.perf_counter()
            if size and not first[1]:
                first = (now_s, size)
            if size > last[1]:
                last = (now_s, size)
            await asyncio.sleep(_LOOK_S)
    if mover.returncode:
        raise RuntimeError(f"the reassignment failed with status {mover.returncode}")
    return (last[1] - first[1]) / (last[0] - first[0]) / MB


def _move(cluster: LocalCluster, folder: Path, topic: str, size_bytes: int, throttle_mb: int = 0) -> float:
    size = _fill(cluster, topic, size_bytes)
    plan = folder / f"{topic}.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [2]}]})
    )
    command = [sys.executable, "-m", "barnabas.cli.main", "reassign", "execute", str(plan), "--wait"]
    command += ["--bootstrap", cluster.bootstrap]
    if throttle_mb:
        command += ["--throttle", str(throttle_mb * MB)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as mover:
        rate = uvloop.run(_rate(cluster.bootstrap, topic, mover))
    limit = f" of {throttle_mb}" if throttle_mb else ""
    tell(f"{size / MB:.0f} MB moved at {rate:.1f}{limit} MB/s")
    return rate


def measure(options: Options) -> list[Figure]:
    size_bytes = options.amount(1_000, 100) * MB
    shares: list[float] = []
    rates: list[float] = []
    throttled: dict[int, list[float]] = {limit: [] for limit in _THROTTLES_MB}
    with temporary_folder(options) as folder, running_cluster(options, brokers=2) as cluster:
        for number in range(options.rounds):
            raw = floor.move(folder, size_bytes).mb_per_s
            rates.append(_move(cluster, folder, f"{_TOPIC}-{number}", size_bytes))
            shares.append(rates[-1] / raw)
            tell(f"a raw socket into a file: {raw:.0f} MB/s")
            for limit, found in throttled.items():
                size = limit * options.amount(_THROTTLED_S, 4) * MB
                rate = _move(cluster, folder, f"{_TOPIC}-{number}-{limit}", size, limit)
                found.append(rate / limit)
    return [
        Figure.of("reassignment", rates, "MB/s"),
        Figure.of("share of a raw socket into a file", shares, "", at_least=0.5),
        *(
            Figure.of(f"share of a throttle of {limit} MB/s", found, "", at_least=0.9, note="at most 1.1")
            for limit, found in throttled.items()
        ),
    ]


if __name__ == "__main__":
    run(__doc__, measure)
