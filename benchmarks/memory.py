"""Memory of the brokers after 2 GB were written with 3 replicas: RssAnon, what no file stands behind."""

from __future__ import annotations

import uvloop

from barnabas.deploy.local import LocalCluster
from benchmarks.load import ACKS_ALL, Target, create_topic, encoded_batch, encoded_request, load
from benchmarks.support import GB, Figure, Options, broker_pids, memory_mb, run, running_cluster

_BATCH_BYTES = 262_144
_DEPTH = 4


async def _write(cluster: LocalCluster, total_bytes: int) -> None:
    ids = cluster.broker_ids
    leaders = ids * 2
    await create_topic(cluster.bootstrap, "memory", leaders, ids)
    batch = encoded_batch(_BATCH_BYTES)
    targets = [
        Target(
            cluster.broker(leader).endpoint,
            [
                encoded_request("memory", partition, batch, ACKS_ALL)
                for partition, led_by in enumerate(leaders)
                if led_by == leader
            ],
        )
        for leader in ids
    ]
    await load(targets, total_bytes // len(batch) // len(targets), _DEPTH)


def measure(options: Options) -> list[Figure]:
    total = options.amount(2 * GB, GB // 4)
    with running_cluster(options) as cluster:
        before = [memory_mb(pid, "RssAnon") for pid in broker_pids(cluster)]
        uvloop.run(_write(cluster, total))
        after = [memory_mb(pid, "RssAnon") for pid in broker_pids(cluster)]
        resident = [memory_mb(pid) for pid in broker_pids(cluster)]
    return [
        Figure(name="RssAnon of a broker before", measured=max(before), unit="MB", rounds=before),
        Figure(
            name=f"RssAnon of a broker after {total / GB:g} GB, the largest",
            measured=max(after),
            unit="MB",
            at_most=120,
            rounds=after,
            note="one figure per broker",
        ),
        Figure(
            name="  VmRSS, the mapped log files counted in",
            measured=max(resident),
            unit="MB",
            rounds=resident,
            note="page cache, given back when the machine needs it",
        ),
    ]


if __name__ == "__main__":
    run(__doc__, measure)
