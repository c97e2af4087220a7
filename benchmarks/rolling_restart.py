"""A rolling restart of three brokers under load: failed records, and the longest gap of a partition.

60 partitions, 3 replicas, min.insync.replicas 2, and one producer (acks=all) that sends each of them a record
every 20 ms: ours, then confluent-kafka. Each broker in turn gets SIGTERM, leaves in order, and starts again;
the next one follows when all replicas are in sync. A gap lasts from one acknowledgement of a partition to the
next one, and so includes the 20 ms between two records.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvloop
from confluent_kafka import Producer as KafkaProducer

from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.producer.batch import DeliveryCallback, RecordMetadata
from barnabas.client.producer.producer import Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import BarnabasError
from benchmarks.support import Figure, Options, run, running_cluster, tell

_TOPIC: Final = "rolled"
_PARTITIONS: Final = 60
_INTERVAL_S: Final = 0.02
_SETTLE_S: Final = 2.0
_TIMEOUT_S: Final = 60.0


class _Acknowledgements:
    """The longest gap of each partition, and the errors. The clients call it on one thread each."""

    def __init__(self) -> None:
        self._last_s: dict[int, float] = {}
        self._gaps_s: dict[int, float] = dict.fromkeys(range(_PARTITIONS), 0.0)
        self.errors: list[object] = []

    def note(self, partition: int, error: object | None) -> None:
        if error is not None:
            self.errors.append(error)
            return
        now_s = time.perf_counter()
        gap_s = now_s - self._last_s.get(partition, now_s)
        self._last_s[partition] = now_s
        self._gaps_s[partition] = max(self._gaps_s[partition], gap_s)

    def take_gaps_ms(self) -> list[float]:
        """The longest gap of each partition since the last call; one that lasts still counts as it is."""
        now_s = time.perf_counter()
        gaps = [max(gap, now_s - self._last_s[one]) * 1000 for one, gap in self._gaps_s.items()]
        self._gaps_s = dict.fromkeys(range(_PARTITIONS), 0.0)
        return gaps


async def _send_ours(bootstrap: str, noted: _Acknowledgements, is_over: threading.Event) -> None:
    def noting(partition: int) -> DeliveryCallback:
        def delivered(_: RecordMetadata | None, error: BarnabasError | None) -> None:
            noted.note(partition, error)

        return delivered

    callbacks = [noting(partition) for partition in range(_PARTITIONS)]
    async with Producer(bootstrap_servers=bootstrap, acks="all") as producer:
        while not is_over.is_set():
            began = time.perf_counter()
            for partition, callback in enumerate(callbacks):
                await producer.send(_TOPIC, b"value", partition=partition, on_delivery=callback)
            await asyncio.sleep(max(0.0, began + _INTERVAL_S - time.perf_counter()))


def _ours(bootstrap: str, noted: _Acknowledgements, is_over: threading.Event) -> None:
    uvloop.run(_send_ours(bootstrap, noted, is_over))


def _confluent(bootstrap: str, noted: _Acknowledgements, is_over: threading.Event) -> None:
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    producer = KafkaProducer(settings)

    def delivered(error: object | None, message: Any) -> None:
        noted.note(message.partition(), error)

    while not is_over.is_set():
        began = time.perf_counter()
        for partition in range(_PARTITIONS):
            producer.produce(_TOPIC, b"value", partition=partition, on_delivery=delivered)
        while (left := began + _INTERVAL_S - time.perf_counter()) > 0:
            producer.poll(left)
    producer.flush(_TIMEOUT_S)


_CLIENTS: Final[dict[str, Callable[[str, _Acknowledgements, threading.Event], None]]] = {
    "our client": _ours,
    "confluent-kafka": _confluent,
}


@contextmanager
def _load(name: str, bootstrap: str) -> Iterator[_Acknowledgements]:
    noted, is_over = _Acknowledgements(), threading.Event()
    thread = threading.Thread(target=_CLIENTS[name], args=(bootstrap, noted, is_over), name="load")
    thread.start()
    try:
        time.sleep(_SETTLE_S)
        noted.take_gaps_ms()
        yield noted
    finally:
        is_over.set()
        thread.join(_TIMEOUT_S)


async def _wait_whole(bootstrap: str, replicas: int) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin, asyncio.timeout(_TIMEOUT_S):
        while True:
            found = (await admin.describe_topics(_TOPIC))[_TOPIC].partitions
            if len(found) == _PARTITIONS and all(len(one.isr) == replicas for one in found):
                return
            await asyncio.sleep(_INTERVAL_S)


async def _create(bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(NewTopic(_TOPIC, num_partitions=_PARTITIONS, replication_factor=3))


def _roll(cluster: LocalCluster, noted: _Acknowledgements, name: str) -> list[float]:
    """Restart each broker in turn; the longest gap of every partition at each restart, in ms."""
    gaps: list[float] = []
    for broker in cluster.brokers:
        if not cluster.stop_broker(broker.id, _TIMEOUT_S):
            raise TimeoutError(f"broker {broker.id} did not stop within {_TIMEOUT_S:.0f} s")
        cluster.start_broker(broker.id, _TIMEOUT_S)
        uvloop.run(_wait_whole(cluster.bootstrap, len(cluster.brokers)))
        time.sleep(_SETTLE_S)
        found = noted.take_gaps_ms()
        tell(
            f"{name}, broker {broker.id}: longest gap {max(found):.0f} ms, "
            f"median {statistics.median(found):.0f},"
            f" {len(noted.errors)} records failed"
        )
        gaps += found
    return gaps


def measure(options: Options) -> list[Figure]:
    longest: dict[str, list[float]] = {name: [] for name in _CLIENTS}
    failed = 0
    with running_cluster(options, min_insync_replicas="2") as cluster:
        uvloop.run(_create(cluster.bootstrap))
        uvloop.run(_wait_whole(cluster.bootstrap, len(cluster.brokers)))
        for _ in range(options.rounds):
            for name in _CLIENTS:
                with _load(name, cluster.bootstrap) as noted:
                    longest[name].append(max(_roll(cluster, noted, name)))
                failed += len(noted.errors)
    figures = [
        Figure.of(f"longest gap of a partition, {name}", found, "ms", at_most=300)
        for name, found in longest.items()
    ]
    return [*figures, Figure.of("failed records", [failed], "", at_most=0)]


if __name__ == "__main__":
    run(__doc__, measure)
