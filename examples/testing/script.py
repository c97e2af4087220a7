"""A script with a cluster of its own: it kills the leader and says how long everything takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import barnabas


@contextmanager
def timed(step: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    print(f"{step}: {time.perf_counter() - start:.2f} s")


def main() -> None:
    with timed("from nothing to nothing"), barnabas.local_cluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        with cluster.producer() as producer:
            with timed("the first order"):
                producer.send_and_wait("orders", b"order 1")
            with cluster.killed(cluster.leader_of("orders")):
                with timed("the first order after the death of the leader"):
                    producer.send_and_wait("orders", b"order 2")


if __name__ == "__main__":
    main()
