"""`Producer.send` and `Consumer`, record by record: values of 100 bytes, 3 brokers, 3 replicas, acks=all.

The client and all brokers share this machine's cores: the figures are those of the whole. More ways to use
the clients are compared by `benchmarks.client`, on a cluster that runs already.
"""

from __future__ import annotations

import os

import uvloop

from barnabas.deploy.local import LocalCluster
from benchmarks import client
from benchmarks.load import create_topic
from benchmarks.support import Figure, Options, run, running_cluster

_PARTITIONS = 6
_LINGER_MS = 5
_BATCH_BYTES = 131_072


async def _measure(cluster: LocalCluster, records: int, rounds: int) -> list[Figure]:
    topic = f"bench-{os.urandom(4).hex()}"
    leaders = [cluster.broker_ids[number % 3] for number in range(_PARTITIONS)]
    await create_topic(cluster.bootstrap, topic, leaders, cluster.broker_ids)
    batched = {"acks": "all", "batch_size": _BATCH_BYTES, "linger_ms": _LINGER_MS}
    produced = await client.produce(cluster.bootstrap, topic, records, rounds, **batched)
    polled, iterated = await client.consume(cluster.bootstrap, topic, _PARTITIONS, records, rounds)
    return [
        _figure("Producer.send, 100 bytes, RF 3, acks=all", produced, at_least=250_000),
        _figure("Consumer.poll of the same", polled, at_least=500_000),
        _figure("async for over the Consumer", iterated),
    ]


def _figure(name: str, found: client.Figure, *, at_least: float | None = None) -> Figure:
    return Figure(
        name=name,
        measured=found.records_per_s,
        unit="records/s",
        at_least=at_least,
        note=f"{found.cpu_cores:.2f} of a core in the client",
    )


def measure(options: Options) -> list[Figure]:
    records = options.amount(1_000_000, 300_000)
    with running_cluster(options) as cluster:
        return uvloop.run(_measure(cluster, records, options.rounds))


if __name__ == "__main__":
    run(__doc__, measure)
