"""Produce with batches that are encoded beforehand, over the native wire.

One broker with one replica and acks=1, beside the floor in alternating rounds: 1 MB batches, and 16 KB
batches from 4 connections. Then 3 brokers with 3 replicas and acks=all: 256 KB and 16 KB batches, 4 in
flight, to a partition of one leader as the goals have it, and to three leaders at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop

from barnabas.deploy.local import LocalCluster
from benchmarks import floor
from benchmarks.load import ACKS_ALL, Target, create_topic, encoded_batch, encoded_request, load
from benchmarks.support import (
    GB,
    MB,
    Figure,
    Options,
    broker_pids,
    cpu_seconds,
    run,
    running_cluster,
    tell,
    temporary_folder,
)

_WARM_UP_REQUESTS = 50


class Round(NamedTuple):
    """One round's outcome; CPU is that of all brokers."""

    mb_per_s: float
    requests_per_s: float
    cpu_s_per_gb: float
    cpu_us_per_request: float


class Work(NamedTuple):
    """The load of a round: bytes in batches of one size, over connections, with requests in flight."""

    batch_bytes: int
    total_bytes: int
    acks: int
    depth: int
    leaders: Sequence[int]
    """One connection each; brokers may be named more than once."""


async def _round(cluster: LocalCluster, work: Work) -> Round:
    topic = f"bench-{os.urandom(4).hex()}"
    replicas = cluster.broker_ids if work.acks == ACKS_ALL else [work.leaders[0]]
    await create_topic(cluster.bootstrap, topic, work.leaders, replicas)
    batch = encoded_batch(work.batch_bytes)
    targets = [
        Target(cluster.broker(leader).endpoint, [encoded_request(topic, partition, batch, work.acks)])
        for partition, leader in enumerate(work.leaders)
    ]
    await load(targets, _WARM_UP_REQUESTS, work.depth)
    each = max(_WARM_UP_REQUESTS, work.total_bytes // len(batch) // len(targets))
    count = each * len(targets)
    pids = broker_pids(cluster)
    before = cpu_seconds(*pids)
    seconds = await load(targets, each, work.depth)
    cpu = cpu_seconds(*pids) - before
    moved = count * len(batch)
    return Round(moved / seconds / MB, count / seconds, cpu / moved * GB, cpu / count * 1e6)


def measure_round(cluster: LocalCluster, work: Work) -> Round:
    """One round on a topic of its own."""
    return uvloop.run(_round(cluster, work))


def clusters(options: Options, brokers: int) -> Iterator[tuple[LocalCluster, Path]]:
    """A cluster for every round, and a folder beside it: one for all, or, recycled, one after another.

    Then each round has the pages that the round before gave back when its files were removed; a first round,
    which had none, has to be thrown away: that is the one more than the options ask for.
    """
    if options.recycled:
        for number in range(options.rounds + 1):
            tell(f"{brokers} broker(s), recycled, round {number} of {options.rounds}")
            with temporary_folder(options) as folder, running_cluster(options, brokers=brokers) as cluster:
                yield cluster, folder
        return
    with temporary_folder(options) as folder, running_cluster(options, brokers=brokers) as cluster:
        for number in range(options.rounds):
            tell(f"{brokers} broker(s), round {number + 1} of {options.rounds}")
            yield cluster, folder


def one_broker(options: Options) -> list[Figure]:
    """One replica, acks=1; the floor beside it."""
    total = options.amount(1 << 30, 1 << 28)
    large = Work(1_048_576 - 100, total, 1, 4, [1])
    small = Work(16_384, options.amount(1 << 29, 1 << 27), 1, 4, [1] * 4)
    floors: list[floor.Moved] = []
    larges: list[Round] = []
    smalls: list[Round] = []
    for cluster, folder in clusters(options, 1):
        # What the floor writes stays as long as the broker's files, lest its pages help the broker.
        floors.append(floor.move(folder, total))
        larges.append(measure_round(cluster, large))
        smalls.append(measure_round(cluster, small))
    # The one round too many, if there was one, came first.
    floors, larges, smalls = floors[-options.rounds :], larges[-options.rounds :], smalls[-options.rounds :]
    ratios = [one.mb_per_s / least.mb_per_s for one, least in zip(larges, floors, strict=True)]
    return [
        Figure.of("floor: socket into file, one thread", [one.mb_per_s for one in floors], "MB/s"),
        Figure.of("RF 1, acks=1, 1 MB batches", [one.mb_per_s for one in larges], "MB/s"),
        Figure.of("  the same, of the floor of its round", ratios, "", at_least=0.5),
        Figure.of("  CPU of the broker", [one.cpu_s_per_gb for one in larges], "CPU s/GB"),
        Figure.of(
            "RF 1, acks=1, 16 KB batches, 4 connections",
            [one.requests_per_s for one in smalls],
            "requests/s",
            at_least=15_000,
        ),
        Figure.of("  CPU of the broker", [one.cpu_us_per_request for one in smalls], "us/request"),
    ]


def three_brokers(options: Options) -> list[Figure]:
    """Three replicas, acks=all."""
    total = options.amount(1 << 29, 1 << 27)
    works = {
        "RF 3, acks=all, 256 KB batches, 4 in flight": Work(262_144, total, ACKS_ALL, 4, [1]),
        "RF 3, acks=all, 16 KB batches, 4 in flight": Work(16_384, total // 4, ACKS_ALL, 4, [1]),
        "RF 3, acks=all, 256 KB, 3 leaders x 4 in flight": Work(262_144, total, ACKS_ALL, 4, [1, 2, 3]),
        "RF 3, acks=all, 16 KB, 3 leaders x 4 in flight": Work(16_384, total // 4, ACKS_ALL, 4, [1, 2, 3]),
    }
    found: dict[str, list[Round]] = {name: [] for name in works}
    for cluster, _ in clusters(options, 3):
        for name, work in works.items():
            found[name].append(measure_round(cluster, work))
    memory = "recycled memory" if options.recycled else "memory as it comes"
    figures = []
    for name, work in works.items():
        rounds, is_goal = found[name][-options.rounds :], len(work.leaders) == 1
        if work.batch_bytes > 100_000:
            figures += [
                Figure.of(
                    name,
                    [one.mb_per_s for one in rounds],
                    "MB/s",
                    at_least=350 if is_goal else None,
                    note=memory,
                ),
                Figure.of(
                    "  CPU of all brokers",
                    [one.cpu_s_per_gb for one in rounds],
                    "CPU s/GB",
                    at_most=3.5 if is_goal else None,
                ),
            ]
        else:
            figures += [
                Figure.of(
                    name,
                    [one.requests_per_s for one in rounds],
                    "requests/s",
                    at_least=4_000 if is_goal else None,
                    note=memory,
                ),
                Figure.of("  CPU of all brokers", [one.cpu_us_per_request for one in rounds], "us/request"),
            ]
    return figures


def measure(options: Options) -> list[Figure]:
    return one_broker(options) + three_brokers(options)


if __name__ == "__main__":
    run(__doc__, measure)
