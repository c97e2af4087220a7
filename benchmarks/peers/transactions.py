"""Transactions through confluent-kafka, for every system that speaks the Kafka protocol.

As in `load`: each function opens its clients, does its work, closes them and returns figures; an error or a
missing record raises PeerError. Settings are librdkafka's defaults.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.peers import load
from benchmarks.peers.processes import PeerError

_TIMEOUT_S: Final = 60.0
_AT_ONCE: Final = 500


@dataclass(frozen=True)
class Committed:
    """A run of transactions: how long it took, and how long each commit took."""

    seconds: float
    commit_ms: list[float]


def _producer(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer({**load.connection(bootstrap), "transactional.id": transactional_id})
    producer.init_transactions(_TIMEOUT_S)
    return producer


def commit_many(
    bootstrap: str, topic: str, partitions: int, records: int, count: int, value_bytes: int
) -> Committed:
    """Commit transactions one after another, each with so many records over the partitions in turn.

    A commit's time is that of ``commit_transaction``: it also adds the partitions that librdkafka has not
    added yet, waits for its linger time of 5 ms, and delivers the records. All records are read back.
    """
    producer = _producer(bootstrap, f"compare-{os.urandom(4).hex()}")
    value = os.urandom(value_bytes)
    commit_ms: list[float] = []
    partition = 0
    try:
        started = time.perf_counter()
        for _ in range(count):
            producer.begin_transaction()
            for _ in range(records):
                producer.produce(topic, value, partition=partition)
                partition = (partition + 1) % partitions
            asked = time.perf_counter()
            producer.commit_transaction(_TIMEOUT_S)
            commit_ms.append((time.perf_counter() - asked) * 1_000)
        seconds = time.perf_counter() - started
    except KafkaException as error:
        raise PeerError(f"{topic}: a transaction failed: {error}") from error
    _check_count(bootstrap, topic, partitions, count * records)
    return Committed(seconds, commit_ms)


def copy(bootstrap: str, source: str, target: str, partitions: int, count: int, records: int) -> float:
    """Consume, transform, produce: copy all records in transactions with their offsets; seconds.

    Each transaction has up to ``records`` records. The copy is read back with read_committed.
    """
    group = f"compare-{os.urandom(4).hex()}"
    producer = _producer(bootstrap, group)
    consumer = Consumer(
        {
            **load.connection(bootstrap),
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.assign([TopicPartition(source, index, 0) for index in range(partitions)])
        # A new cluster makes the offsets topic at this request. Asked by a transaction, librdkafka gives up
        # looking for the coordinator after three answers, and the call never returns.
        consumer.committed([TopicPartition(source, 0)], _TIMEOUT_S)
        metadata = consumer.consumer_group_metadata()
        left, started, silent_since = count, time.perf_counter(), time.perf_counter()
        while left:
            found = consumer.consume(min(records, left), 0.1)
            now = time.perf_counter()
            if not found:
                if now - silent_since > _TIMEOUT_S:
                    raise PeerError(f"{source}: {left} of {count} records did not come")
                continue
            silent_since = now
            producer.begin_transaction()
            for message in found:
                if message.error() is not None:
                    raise PeerError(f"{source}: consuming failed: {message.error()}")
                producer.produce(target, message.value(), partition=message.partition())
            producer.send_offsets_to_transaction(
                consumer.position([TopicPartition(source, index) for index in range(partitions)]),
                metadata,
                _TIMEOUT_S,
            )
            producer.commit_transaction(_TIMEOUT_S)
            left -= len(found)
        seconds = time.perf_counter() - started
    except KafkaException as error:
        raise PeerError(f"{target}: a transaction failed: {error}") from error
    finally:
        consumer.close()
    _check_count(bootstrap, target, partitions, count)
    return seconds


def _check_count(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    """Raise PeerError unless exactly so many records are committed."""
    consumer = Consumer(
        {
            **load.connection(bootstrap),
            "group.id": "compare",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        found, open_partitions, deadline = 0, set(range(partitions)), time.monotonic() + _TIMEOUT_S
        # A partition may end before the last marker: a commit returns before its markers are written.
        while (open_partitions or found < count) and time.monotonic() < deadline:
            for message in consumer.consume(_AT_ONCE, 1.0):
                if message.error() is None:
                    found += 1
                else:
                    open_partitions.discard(message.partition())
        if open_partitions or found != count:
            raise PeerError(f"{topic}: {found} records are committed, expected {count}")
    finally:
        consumer.close()
