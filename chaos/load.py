"""Recorded load on a topic: a producer that numbers its records, consumers that note their reads, the judge.

All run on threads of their own until `stop`, through every error. `history` has the records, `problems` the
errors. `stop_and_judge` compares what was acknowledged with what the cluster has.
"""

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from barnabas.chaos.checker import RECORDS, Verdict, check
from barnabas.chaos.history import Acknowledged, History, Log, Read, Sent, number_in, value_of
from barnabas.client.blocking import Consumer, Producer
from barnabas.client.producer.batch import RecordMetadata
from barnabas.deploy.process import wait_until
from barnabas.logtools.entries import Damage, read_batches
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.records import decode_records

_TICK_S: Final = 0.02
_MOST_BEHIND_S: Final = 0.1
_SCAN_PAUSE_S: Final = 0.2


class LoadFailed(BarnabasError):
    """The load makes no progress, does not end, or its records cannot be read."""


class Watcher(Protocol):
    """Its methods are called on the threads of the load, at once; times are of the monotonic clock."""

    def acknowledged(self, partition: TopicPartition, sent_s: float, now_s: float) -> None: ...

    def read(self, records: int, now_s: float) -> None: ...


class Load:
    """A producer at a steady rate over all partitions of a topic, and readers of them; a context manager."""

    def __init__(
        self,
        clients: str | Mapping[str, Any],
        topic: str,
        partitions: int,
        *,
        records_per_s: int = 600,
        value_bytes: int = 100,
        keys: int = 0,
        readers: int = 1,
        rack: str | None = None,
        watcher: Watcher | None = None,
        **producer_settings: Any,
    ) -> None:
        """`clients`: the settings with which clients connect, or the bootstrap servers alone.

        With `keys`, the records have that many different keys, and some are tombstones.

        A further reader then reads all that is left, again and again. `rack` is that of the other readers.
        """
        self.history = History()
        self.problems: list[str] = []
        self.partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self.clients = _settings(clients)
        self._records_per_s = records_per_s
        self._value_bytes = value_bytes
        self._keys = keys
        self._rack = rack
        self._watcher = watcher
        self._settings = {"acks": "all", "linger_ms": 2, "delivery_timeout_ms": 60_000, **producer_settings}
        self._settings.setdefault("request_timeout_ms", 5_000)
        self._stopping = threading.Event()
        self._is_abandoned = False
        self._acknowledged: Counter[TopicPartition] = Counter()
        self._were_read: Counter[TopicPartition] = Counter()
        self._were_read_again: Counter[TopicPartition] = Counter()
        self._progress = {"acknowledged": self._acknowledged}
        if readers:
            self._progress["read"] = self._were_read
        if keys:
            self._progress["read again"] = self._were_read_again
        self._last_acknowledged: dict[TopicPartition, float] = {}
        self._longest_pause: dict[TopicPartition, float] = {}
        names = ["reader", *(f"reader {number}" for number in range(2, readers + 1))][:readers]
        works: list[tuple[str, Callable[[], None]]] = [("writer", self._write)]
        works += [(name, partial(self._read, name)) for name in names]
        works += [("second reader", self._read_again)] * (keys > 0)
        self._threads = [threading.Thread(target=work, name=name, daemon=True) for name, work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        try:
            self.wait_progress("at first")
        except BaseException:
            # Otherwise the load would run on during the next tests.
            self._is_abandoned = True
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a failure no test needs the outcomes of pending records.
        self._is_abandoned = error is not None
        self.stop()

    def stop(self, timeout_s: float = 70.0) -> History:
        """End all threads once all records have their outcome; returns the history."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout_s)
            if thread.is_alive():
                raise LoadFailed(f"the {thread.name} did not end within {timeout_s} s")
        return self.history

    def grow(self, partitions: int) -> None:
        """Write and read so many partitions from now on, if there were fewer."""
        topic, present = self.partitions[0].topic, len(self.partitions)
        self.partitions += [TopicPartition(topic, number) for number in range(present, partitions)]

    def wait_progress(
        self,
        when: str,
        *,
        records: int = 20,
        timeout_s: float = 30.0,
        partitions: Sequence[TopicPartition] | None = None,
    ) -> None:
        """Wait until these partitions (or all) each have that many more records acknowledged, and read."""
        watched = self.partitions if partitions is None else partitions
        counters = [(what, count, dict(count)) for what, count in self._progress.items()]

        def behind() -> list[str]:
            return [
                f"{partition} ({what} {count[partition]}, before {marks.get(partition, 0)})"
                for what, count, marks in counters
                for partition in watched
                if count[partition] < marks.get(partition, 0) + records
            ]

        if not wait_until(lambda: not behind(), timeout_s):
            raise LoadFailed(
                f"no progress {when} within {timeout_s:g} s on {', '.join(behind())}; "
                f"problems: {self.problems[-5:]}"
            )

    @property
    def longest_pause_s(self) -> float:
        """The longest time in which some partition had nothing acknowledged."""
        return max(self._longest_pause.values(), default=0.0)

    def _write(self) -> None:
        number, owed, before_s = 0, 0.0, time.monotonic()
        producer = Producer(**self.clients, **self._settings)
        try:
            while not self._stopping.wait(_TICK_S):
                now_s = time.monotonic()
                # After a longer block the load does not catch up: no burst follows a failover.
                owed += min(now_s - before_s, _MOST_BEHIND_S) * self._records_per_s
                before_s = now_s
                while owed >= 1 and not self._stopping.is_set():
                    owed -= 1
                    number += 1
                    record = self._next_record(number)
                    self.history.add(record)
                    self._send(producer, record)
        finally:
            producer.close(0 if self._is_abandoned else None)

    def _next_record(self, number: int) -> Sent:
        if not self._keys:
            return Sent(number, self.partitions[number % len(self.partitions)])
        # Some keys are written often; others keep their value over many cleanings.
        chance = random.Random(number)
        key = int(self._keys * chance.random() ** 3)
        partition = self.partitions[key % len(self.partitions)]
        return Sent(number, partition, key=b"key-%d" % key, is_tombstone=chance.random() < 0.2)

    def _send(self, producer: Producer, record: Sent) -> None:
        sent_s = time.monotonic()

        def delivered(metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
            if metadata is None:
                self.problems.append(f"record {record.number}: {error!r}")
                return
            now, partition = time.monotonic(), record.partition
            self.history.add(Acknowledged(partition, metadata.offset, record.number))
            pause = now - self._last_acknowledged.get(partition, now)
            self._longest_pause[partition] = max(pause, self._longest_pause.get(partition, 0.0))
            self._last_acknowledged[partition] = now
            self._acknowledged[partition] += 1
            if self._watcher is not None:
                self._watcher.acknowledged(partition, sent_s, now)

        try:
            producer.send(
                record.partition.topic,
                None if record.is_tombstone else value_of(record.number, self._value_bytes),
                record.key,
                partition=record.partition.partition,
                headers=[("number", value_of(record.number, 0))] if self._keys else None,
                on_delivery=delivered,
            )
        except BarnabasError as error:
            self.problems.append(f"record {record.number} was refused: {error!r}")

    def _read(self, name: str) -> None:
        with Consumer(**self.clients, auto_offset_reset="earliest", client_rack=self._rack) as consumer:
            assigned = 0
            while not self._stopping.is_set():
                if len(self.partitions) > assigned:
                    assigned = len(self.partitions)
                    consumer.assign(self.partitions[:assigned])
                try:
                    records = consumer.poll(timeout_ms=100)
                except BarnabasError as error:
                    self.problems.append(f"the {name}: {error!r}")
                    self._stopping.wait(_TICK_S)
                    continue
                for record in records:
                    partition = record.tp
                    number = number_in(record.value, record.headers)
                    self.history.add(Read(name, partition, record.offset, number))
                    self._were_read[partition] += 1
                if records and self._watcher is not None:
                    self._watcher.read(len(records), time.monotonic())

    def _read_again(self) -> None:
        while not self._stopping.wait(_SCAN_PAUSE_S):
            try:
                found = read_everything(
                    self.clients, self.partitions, timeout_s=math.inf, until=self._stopping.is_set
                )
            except BarnabasError as error:
                # Each pass connects again, and all brokers may be down.
                if not error.retriable:
                    self.problems.append(f"the second reader: {error!r}")
                continue
            for partition, records in found.items():
                self.history.add(*(Read("second reader", partition, *record) for record in records))
                self._were_read_again[partition] += len(records)


def _settings(clients: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"bootstrap_servers": clients} if isinstance(clients, str) else clients


class JudgedBroker(Protocol):
    id: BrokerId

    @property
    def log_dirs(self) -> Sequence[Path]: ...


class JudgedCluster(Protocol):
    """A cluster of processes or containers; its brokers' log dirs can be read once it has stopped."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def brokers(self) -> Sequence[JudgedBroker]: ...

    def stop(self) -> None: ...


def stop_and_judge(cluster: JudgedCluster, load: Load, *, timeout_s: float = 30.0) -> Verdict:
    """Read all records, stop the cluster, read the files of all replicas, and check the load's history.

    All replicas must be in sync before: the log of another would end sooner.
    """
    history = load.history
    final = read_everything(load.clients, load.partitions, timeout_s=timeout_s)
    history.add(*(Log("client", *log) for log in final.items()))
    cluster.stop()
    history.add(*replica_logs(cluster, load.partitions))
    return check(history, RECORDS)


def read_everything(
    clients: str | Mapping[str, Any],
    partitions: Sequence[TopicPartition],
    *,
    timeout_s: float = 30.0,
    until: Callable[[], bool] = lambda: False,
) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Read each partition from its start to its current end; returns offsets and numbers.

    Stops early, with the records read so far, once `until` returns True.
    """
    found: dict[TopicPartition, list[tuple[int, int]]] = {partition: [] for partition in partitions}
    deadline = time.monotonic() + timeout_s
    with Consumer(**_settings(clients), auto_offset_reset="earliest") as consumer:
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            if until():
                break
            if time.monotonic() > deadline:
                raise LoadFailed(f"not all records were read within {timeout_s} s: ends are {ends}")
            for record in consumer.poll(timeout_ms=200, max_records=5_000):
                place = found[record.tp]
                place.append((record.offset, number_in(record.value, record.headers)))
    return found


def replica_logs(cluster: JudgedCluster, partitions: Sequence[TopicPartition]) -> list[Log]:
    """The records in the files of every replica. The cluster must have stopped."""
    return [
        Log(f"broker {broker.id}", partition, _log_of(folder), broker=int(broker.id))
        for partition in partitions
        for broker in cluster.brokers
        for folder in [path / f"{partition.topic}-{partition.partition}" for path in broker.log_dirs]
        if folder.is_dir()
    ]


def _log_of(folder: Path) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for segment in sorted(folder.glob("*.log")):
        for batch in read_batches(segment):
            if isinstance(batch, Damage):
                raise LoadFailed(f"{segment} is damaged: {batch}")
            found += [
                (record.offset, number_in(record.value, record.headers))
                for record in decode_records(batch.data)
            ]
    return found
