"""The cost of a small produce request: 1 KB, three replicas, acks=all, min.insync.replicas=2, one partition.

Requests encoded beforehand over the native wire, one in flight on each of 8 connections, and on one. CPU for
each request, of the leader and of a follower (the mean of both), in user mode and in the kernel, from /proc:
it depends less on what else the machine does than requests per second.

By itself: `python -m benchmarks.small_produce`. To compare two versions, run it in turn with `PYTHONPATH` set
to each one's `src`.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import uvloop

from barnabas.deploy.local import LocalCluster
from benchmarks.load import ACKS_ALL, Target, create_topic, encoded_batch, encoded_request, load
from benchmarks.support import CpuTimes, Figure, Options, broker_pids, cpu_times, run, running_cluster, tell

_BATCH_BYTES = 1_150
"""Room for one record and no second one."""
_WARM_UP_REQUESTS = 3_000
_LEADER = 1
_USER_US_GOAL = 110
"""Of the leader, with 8 connections."""


class Round(NamedTuple):
    requests_per_s: float
    leader: CpuTimes
    follower: CpuTimes


async def _round(cluster: LocalCluster, connections: int, requests: int) -> Round:
    topic = f"bench-{os.urandom(4).hex()}"
    await create_topic(cluster.bootstrap, topic, [_LEADER], cluster.broker_ids)
    request = encoded_request(topic, 0, encoded_batch(_BATCH_BYTES), ACKS_ALL)
    targets = [Target(cluster.broker(_LEADER).endpoint, [request])] * connections
    await load(targets, _WARM_UP_REQUESTS // connections, 1)
    leader = [cluster.broker(_LEADER).running_process.pid]
    followers = [pid for pid in broker_pids(cluster) if pid not in leader]
    before = cpu_times(*leader), cpu_times(*followers)
    seconds = await load(targets, requests // connections, 1)
    count = requests // connections * connections
    return Round(
        count / seconds,
        cpu_times(*leader).since(before[0]).divided(count),
        cpu_times(*followers).since(before[1]).divided(count * len(followers)),
    )


def _figures(connections: int, rounds: list[Round]) -> list[Figure]:
    many = connections > 1

    def cpu_us(of: str, mode: str) -> list[float]:
        return [getattr(getattr(one, of), mode) * 1e6 for one in rounds]

    return [
        Figure.of(
            f"1 KB, RF 3, acks=all, {connections} connection{'s' if many else ''}",
            [one.requests_per_s for one in rounds],
            "requests/s",
        ),
        Figure.of(
            "  leader, user",
            cpu_us("leader", "user_s"),
            "us/request",
            at_most=_USER_US_GOAL if many else None,
        ),
        Figure.of("  leader, kernel", cpu_us("leader", "kernel_s"), "us/request"),
        Figure.of("  a follower, user", cpu_us("follower", "user_s"), "us/request"),
        Figure.of("  a follower, kernel", cpu_us("follower", "kernel_s"), "us/request"),
    ]


def measure(options: Options) -> list[Figure]:
    works = {8: options.amount(40_000, 16_000), 1: options.amount(10_000, 4_000)}
    found: dict[int, list[Round]] = {connections: [] for connections in works}
    with running_cluster(options, min_insync_replicas="2") as cluster:
        for number in range(options.rounds):
            tell(f"round {number + 1} of {options.rounds}")
            for connections, requests in works.items():
                found[connections].append(uvloop.run(_round(cluster, connections, requests)))
    return [figure for connections, rounds in found.items() for figure in _figures(connections, rounds)]


if __name__ == "__main__":
    run(__doc__, measure)
