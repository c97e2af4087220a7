"""One load for every system that speaks the Kafka protocol: confluent-kafka, as its users have it.

All settings are librdkafka's defaults but those named here, which are the same for every cluster: a large
prefetch makes the broker the limit rather than the client's own pauses. Each function opens a client, does
its work, closes it, and returns its figures; an error, a missing acknowledgement or a missing record raises
PeerError. All waits are bounded. One thread at a time.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from benchmarks.peers.processes import PeerError

_TIMEOUT_S: Final = 120.0
_QUIET: Final[Mapping[str, Any]] = {"log_level": 0, "client.id": "compare"}
_SECURITY: Final[dict[str, Mapping[str, str]]] = {}
_PRODUCE_AT_ONCE: Final = 1000
_CONSUME_AT_ONCE: Final = 10_000
_PAUSE_S: Final = 0.5
_KEYED_BATCH_BYTES: Final = 16_384
_PREFETCH: Final[Mapping[str, Any]] = {
    # By default librdkafka pauses for a second whenever 100,000 records or 64 MB are in its queue.
    "queued.min.messages": 2_000_000,
    "queued.max.messages.kbytes": 1_048_576,
    "fetch.queue.backoff.ms": 0,
}


def log_in(bootstrap: str, settings: Mapping[str, str]) -> None:
    """Give all later clients of this cluster these settings of security."""
    _SECURITY[bootstrap] = settings


def connection(bootstrap: str) -> dict[str, Any]:
    """The settings that every client of a cluster has."""
    return {"bootstrap.servers": bootstrap, **_QUIET, **_SECURITY.get(bootstrap, {})}


def create_topic(bootstrap: str, topic: str, partitions: int, replicas: int, **settings: str) -> None:
    """Create a topic and wait until each partition has a leader and all replicas in sync.

    `settings` with ``_`` for the dots of Kafka's names. Raises PeerError.
    """
    admin = AdminClient(connection(bootstrap))
    named = {name.replace("_", "."): value for name, value in settings.items()}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=named)
    try:
        admin.create_topics([new], operation_timeout=_TIMEOUT_S)[topic].result(_TIMEOUT_S)
    except KafkaException as error:
        raise PeerError(f"{bootstrap}: topic {topic} cannot be created: {error}") from error
    leaders_in_sync(bootstrap, topic, partitions, replicas)


def leaders_in_sync(bootstrap: str, topic: str, partitions: int, replicas: int) -> dict[int, int]:
    """Wait until every partition has a leader and `replicas` in sync; returns the leaders by partition."""
    admin = AdminClient(connection(bootstrap))
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        if len(found) == partitions and all(
            one.leader >= 0 and len(one.isrs) >= replicas for one in found.values()
        ):
            return {number: one.leader for number, one in found.items()}
        time.sleep(0.05)
    raise PeerError(
        f"{topic}: not all of {partitions} partitions had {replicas} replicas in sync in {_TIMEOUT_S:g} s"
    )


def alter_topic(bootstrap: str, topic: str, **settings: str) -> None:
    """Set settings of a topic, with ``_`` for the dots of Kafka's names. Raises PeerError."""
    admin = AdminClient(connection(bootstrap))
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    try:
        admin.incremental_alter_configs([resource])[resource].result(_TIMEOUT_S)
    except KafkaException as error:
        raise PeerError(f"{bootstrap}: topic {topic} cannot be altered: {error}") from error


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic; its files follow in the cluster's own time."""
    admin = AdminClient(connection(bootstrap))
    try:
        admin.delete_topics([topic], operation_timeout=_TIMEOUT_S)[topic].result(_TIMEOUT_S)
    except KafkaException as error:
        raise PeerError(f"{bootstrap}: topic {topic} cannot be deleted: {error}") from error


class _Failures:
    """Counts delivery reports of failure; the client calls it for those alone."""

    def __init__(self) -> None:
        self.count = 0
        self.first: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.count += 1
            self.first = self.first or error


def produce(bootstrap: str, topic: str, partitions: int, value_bytes: int, count: int, acks: int) -> float:
    """Produce `count` records without keys; seconds from the first until the last is acknowledged."""
    failures = _Failures()
    producer = Producer({**connection(bootstrap), "acks": acks, "delivery.report.only.error": True})
    value = os.urandom(value_bytes)
    # Connect and fetch the metadata before the clock starts.
    for partition in range(partitions):
        producer.produce(topic, value, partition=partition, on_delivery=failures)
    _flush(producer, topic)
    started = time.perf_counter()
    send = functools.partial(producer.produce, topic, value, on_delivery=failures)
    left = count - partitions
    while left:
        sent = 0
        try:
            for _ in range(min(_PRODUCE_AT_ONCE, left)):
                send()
                sent += 1
            producer.poll(0)
        except BufferError:
            producer.poll(0.01)
        left -= sent
    _flush(producer, topic)
    seconds = time.perf_counter() - started
    if failures.count:
        raise PeerError(f"{topic}: {failures.count} of {count} records failed, first: {failures.first}")
    return seconds


def produce_keyed(bootstrap: str, topic: str, records: Iterable[tuple[bytes, bytes]]) -> None:
    """Produce these keys and values to partition 0, in their order, in batches of 16 KB."""
    failures = _Failures()
    producer = Producer(
        {
            **connection(bootstrap),
            "acks": 1,
            "batch.size": _KEYED_BATCH_BYTES,
            "delivery.report.only.error": True,
        }
    )
    send = functools.partial(producer.produce, topic, partition=0, on_delivery=failures)
    for key, value in records:
        while True:
            try:
                send(value=value, key=key)
                break
            except BufferError:
                producer.poll(0.01)
    _flush(producer, topic)
    if failures.count:
        raise PeerError(f"{topic}: {failures.count} records failed, first: {failures.first}")


def _flush(producer: Producer, topic: str) -> None:
    left = producer.flush(_TIMEOUT_S)
    if left:
        raise PeerError(f"{topic}: {left} records were not acknowledged within {_TIMEOUT_S:g} s")


class Consumed(NamedTuple):
    seconds: float
    """Until the last record has come."""
    pauses: int
    """How often no record came for half a second."""


def consume(
    bootstrap: str, topic: str, partitions: int, value_bytes: int, count: int, *, with_prefetch: bool = True
) -> Consumed:
    """Read all records from the start by `assign`, with a large prefetch or with librdkafka's defaults."""
    consumer = Consumer(
        {
            **connection(bootstrap),
            "group.id": "compare",
            "enable.auto.commit": False,
            **(_PREFETCH if with_prefetch else {}),
        }
    )
    try:
        consumer.list_topics(topic, timeout=10)
        pauses, started = 0, time.perf_counter()
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        left, silent_since = count, started
        while left:
            found = consumer.consume(min(_CONSUME_AT_ONCE, left), 1.0)
            for message in found:
                error = message.error()
                if error is not None:
                    raise PeerError(f"{topic}: consuming failed: {error}")
            now = time.perf_counter()
            if found:
                pauses += now - silent_since > _PAUSE_S
                left, silent_since = left - len(found), now
                check_value(topic, found[-1], value_bytes)
            elif now - silent_since > _TIMEOUT_S:
                raise PeerError(f"{topic}: {left} of {count} records did not come within {_TIMEOUT_S:g} s")
        return Consumed(time.perf_counter() - started, pauses)
    finally:
        consumer.close()


def count_records(bootstrap: str, topic: str) -> int:
    """Read partition 0 from its start to its end; returns the number of records."""
    consumer = Consumer(
        {
            **connection(bootstrap),
            "group.id": "compare",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        count, deadline = 0, time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            for message in consumer.consume(_CONSUME_AT_ONCE, 1.0):
                error = message.error()
                if error is None:
                    count += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    return count
                else:
                    raise PeerError(f"{topic}: consuming failed: {error}")
        raise PeerError(f"{topic}: {count} records came within {_TIMEOUT_S:g} s, and no end")
    finally:
        consumer.close()


def check_value(topic: str, message: Message, value_bytes: int) -> None:
    """Raise PeerError when a record is not of the size that was written."""
    value = message.value()
    if value is None or len(value) != value_bytes:
        size = "none" if value is None else f"{len(value)} bytes"
        raise PeerError(
            f"{topic} at {message.offset()}: a value of {value_bytes} bytes was written, {size} read"
        )


def latencies_ms(bootstrap: str, topic: str, acks: int, per_second: int, seconds: float) -> list[float]:
    """Latency of every record sent one by one at a fixed rate without linger, to partition 0.

    Open loop: a record's clock starts when it should have been sent, so that a pause counts for all that had
    to wait for it. A thread of its own takes the acknowledgements as they come.
    """
    found: list[float] = []
    failures = _Failures()

    def delivered(due: float, error: KafkaError | None, message: Message) -> None:
        failures(error, message)
        found.append((time.perf_counter() - due) * 1000)

    producer = Producer({**connection(bootstrap), "acks": acks, "linger.ms": 0})
    value = os.urandom(100)
    producer.produce(topic, value, partition=0)
    _flush(producer, topic)
    with polling(producer):
        started = time.perf_counter() + 0.01
        for number in range(int(per_second * seconds)):
            due = started + number / per_second
            ahead = due - time.perf_counter()
            if ahead > 0:
                time.sleep(ahead)
            producer.produce(topic, value, partition=0, on_delivery=functools.partial(delivered, due))
        _flush(producer, topic)
    if failures.count:
        raise PeerError(f"{topic}: {failures.count} records failed, first: {failures.first}")
    return found


class polling:
    """A thread that serves a producer's callbacks for as long as the block runs."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compare-poll", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_TIMEOUT_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(0.1)


class Failover:
    """Writes to every partition all the time, and measures how long those of a killed leader are not written.

    A partition's time runs from the kill until the first acknowledgement of a record that was handed to the
    client after the kill.
    """

    _INTERVAL_S = 0.02
    """Every partition is sent one record in this time: the resolution of the figure."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._producer = Producer(connection(bootstrap))
        self._topic = topic
        self._partitions = partitions
        self._lock = threading.Lock()
        self._killed_at = float("inf")
        self._seconds: dict[int, float] = {}
        self.failures = _Failures()

    def kill(self, moved: set[int], kill: Callable[[], None], timeout_s: float) -> dict[int, float]:
        """Kill the leader of the partitions `moved` under load; seconds until each was written again.

        Raises PeerError naming the partitions that were not in time.
        """
        ended = threading.Event()
        load = threading.Thread(target=self._run, args=(ended,), name="compare-load", daemon=True)
        with polling(self._producer):
            load.start()
            try:
                time.sleep(1.0)
                with self._lock:
                    self._seconds.clear()
                    self._killed_at = time.perf_counter()
                kill()
                deadline = time.monotonic() + timeout_s
                while not moved <= self._seconds.keys():
                    if time.monotonic() > deadline:
                        late = sorted(moved - self._seconds.keys())
                        raise PeerError(
                            f"partitions {late} were not written within {timeout_s:g} s of the kill"
                        )
                    time.sleep(0.01)
            finally:
                ended.set()
                load.join(_TIMEOUT_S)
                with self._lock:
                    self._killed_at = float("inf")
        _flush(self._producer, self._topic)
        return {partition: self._seconds[partition] for partition in moved}

    def _run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            began = time.perf_counter()
            for partition in range(self._partitions):
                delivered = functools.partial(self._delivered, partition, time.perf_counter())
                try:
                    self._producer.produce(self._topic, b"value", partition=partition, on_delivery=delivered)
                except BufferError:
                    # The client's queue is full of records for the dead leader; the next round tries again.
                    break
            ended.wait(max(0.0, began + self._INTERVAL_S - time.perf_counter()))

    def _delivered(self, partition: int, sent_at: float, error: KafkaError | None, message: Message) -> None:
        self.failures(error, message)
        with self._lock:
            if error is None and sent_at > self._killed_at:
                self._seconds.setdefault(partition, time.perf_counter() - self._killed_at)
