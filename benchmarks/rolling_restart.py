"""Measures a rolling restart of three brokers under load: failed records, the longest gap of a partition.

12 partitions, 3 replicas, min.insync.replicas 2, and one producer (acks=all) that sends each of them a record
every 20 ms: confluent-kafka with its defaults to both systems in turn, and our own client to Barnabas. Each
broker in turn gets SIGTERM, leaves in order, and starts again; the next one follows when all replicas are in
sync. A gap lasts from one acknowledgement of a partition to the next one, and so includes the 20 ms between
two records. librdkafka sends a request for each partition, 600 a second; two cores also carry that while a
broker starts on them.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import uvloop
from confluent_kafka import Producer as KafkaProducer

from barnabas.client.producer.batch import DeliveryCallback, RecordMetadata
from barnabas.client.producer.producer import Producer
from barnabas.protocol.errors import BarnabasError
from benchmarks.peers.comparison import Comparison, table
from benchmarks.peers.load import create_topic, leaders_in_sync
from benchmarks.peers.systems import STARTERS, Restartable, chosen
from benchmarks.support import (
    Options,
    machine,
    tell,
    temporary_folder,
)

_TOPIC: Final = "rolled"
_PARTITIONS: Final = 12
_REPLICAS: Final = 3
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


def _roll(system: Restartable, noted: _Acknowledgements, client: str) -> float:
    """Restart each broker in turn; the longest gap of any partition, in ms."""
    longest = 0.0
    for broker in sorted(system.pids()):
        system.stop(broker)
        system.restart(broker)
        leaders_in_sync(system.bootstrap, _TOPIC, _PARTITIONS, _REPLICAS)
        time.sleep(_SETTLE_S)
        gaps = noted.take_gaps_ms()
        tell(
            f"{system.name}, {client}, broker {broker}: longest gap {max(gaps):.0f} ms, "
            f"median {statistics.median(gaps):.0f}, {len(noted.errors)} records failed"
        )
        longest = max(longest, *gaps)
    return longest


def _measure(options: Options, names: Sequence[str]) -> None:
    gaps: dict[tuple[str, str], list[float]] = {(name, client): [] for name in names for client in _CLIENTS}
    failed: dict[tuple[str, str], list[float]] = {key: [] for key in gaps}
    for name in names:
        with temporary_folder(options) as folder, STARTERS[name](folder, _REPLICAS, {}) as started:
            system = started.system
            create_topic(system.bootstrap, _TOPIC, _PARTITIONS, _REPLICAS, min_insync_replicas="2")
            for client in _CLIENTS if name == "barnabas" else ("confluent-kafka",):
                for _ in range(options.rounds):
                    with _load(client, system.bootstrap) as noted:
                        gaps[name, client].append(_roll(system, noted, client))
                    failed[name, client].append(len(noted.errors))
    rows = [
        Comparison(
            name=f"{what}, {client}",
            unit=unit,
            a=figures.get(("barnabas", client), []),
            b=figures.get(("kafka", client), []),
        )
        for what, unit, figures in (
            ("longest gap of a partition", "ms", gaps),
            ("failed records", "", failed),
        )
        for client in _CLIENTS
    ]
    print(machine(options))
    print(table(rows, "Barnabas", "Apache Kafka"))


def main() -> None:
    options, names = chosen(__doc__ or "")
    _measure(options, names)


if __name__ == "__main__":
    main()
