"""Measures the creation of 1,000 partitions with three replicas, here and with Apache Kafka.

Ten topics in one CreateTopics request of confluent-kafka. Two times run from its start: until the metadata of
every broker shows each partition with a leader and three members in its ISR, and until each partition has
acknowledged a record with acks=all, before which a leader on paper is of no use. Both systems run in turn, in
the same folder; a fresh cluster each round. Then 2,000 partitions on one broker of Barnabas.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.peers.comparison import Comparison, Goal, table
from benchmarks.peers.processes import PeerError, cpu_seconds
from benchmarks.peers.systems import STARTERS, System, chosen
from benchmarks.support import (
    Options,
    machine,
    tell,
    temporary_folder,
)

_TOPICS: Final = 10
_BROKERS: Final = 3
_TIMEOUT_S: Final = 180.0
_LOOK_S: Final = 0.05
_QUIET: Final = {"log_level": 0, "client.id": "creation"}


def create(bootstrap: str, topics: Sequence[str], partitions: int, replicas: int) -> None:
    """Create topics of so many partitions each in one request. Raises PeerError."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **_QUIET})
    asked = admin.create_topics(
        [NewTopic(topic, num_partitions=partitions, replication_factor=replicas) for topic in topics],
        operation_timeout=_TIMEOUT_S,
        request_timeout=_TIMEOUT_S,
    )
    for topic, future in asked.items():
        try:
            future.result(_TIMEOUT_S)
        except KafkaException as error:
            raise PeerError(f"{bootstrap}: topic {topic} cannot be created: {error}") from error


def wait_for_leaders(bootstrap: str, topics: Sequence[str], partitions: int, replicas: int) -> None:
    """Wait until every broker shows each partition with a leader and its whole ISR. Raises PeerError."""
    deadline = time.monotonic() + _TIMEOUT_S
    for address in bootstrap.split(","):
        admin = AdminClient({"bootstrap.servers": address, **_QUIET})
        while True:
            found = admin.list_topics(timeout=30).topics
            led = sum(
                one.leader >= 0 and len(one.isrs) == replicas
                for topic in topics
                if topic in found
                for one in found[topic].partitions.values()
            )
            if led == partitions * len(topics):
                break
            if time.monotonic() > deadline:
                raise PeerError(f"{address} shows {led} of {partitions * len(topics)} partitions led")
            time.sleep(_LOOK_S)


def write_to_all(bootstrap: str, topics: Sequence[str], partitions: int) -> None:
    """Wait until each partition has acknowledged one record by all replicas. Raises PeerError."""
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    settings = {"acks": "all", "linger.ms": 0, "delivery.timeout.ms": int(_TIMEOUT_S * 1000)}
    producer = Producer({"bootstrap.servers": bootstrap, **_QUIET, **settings})
    for topic in topics:
        for partition in range(partitions):
            producer.produce(topic, b"value", partition=partition, on_delivery=delivered)
    left = producer.flush(_TIMEOUT_S)
    if left or errors:
        raise PeerError(f"{left} records are not acknowledged, errors {errors[:3]}")


def creation(system: System, partitions: int, replicas: int) -> dict[str, float]:
    """Seconds until all partitions are led and until all are writable, and the brokers' CPU seconds."""
    topics = [f"created-{number}" for number in range(_TOPICS)]
    each = partitions // _TOPICS
    pids = list(system.pids().values())
    before = cpu_seconds(pids)
    began = time.perf_counter()
    create(system.bootstrap, topics, each, replicas)
    answered = time.perf_counter() - began
    wait_for_leaders(system.bootstrap, topics, each, replicas)
    led = time.perf_counter() - began
    write_to_all(system.bootstrap, topics, each)
    writable = time.perf_counter() - began
    cpu = cpu_seconds(pids) - before
    tell(f"{system.name}: answered {answered:.2f} s, led {led:.2f}, writable {writable:.2f}, CPU {cpu:.1f}")
    return {"led": led, "writable": writable, "CPU of the brokers": cpu}


def main() -> None:
    options, names = chosen(__doc__ or "")
    _measure(options, names)


def _measure(options: Options, names: Sequence[str]) -> None:
    partitions = options.amount(1_000, 100)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(options.rounds):
        tell(f"round {number + 1} of {options.rounds}")
        for name in names if number % 2 == 0 else reversed(names):
            with temporary_folder(options) as folder, STARTERS[name](folder, _BROKERS, {}) as started:
                for figure, value in creation(started.system, partitions, _BROKERS).items():
                    found[figure][name].append(value)
    alone: list[float] = []
    if "barnabas" in names:
        for _ in range(options.rounds):
            with temporary_folder(options) as folder, STARTERS["barnabas"](folder, 1, {}) as started:
                alone.append(creation(started.system, 2 * partitions, 1)["writable"])
    goals = {"writable": Goal(at_most=0.3)}
    rows = [
        Comparison(
            name=f"{partitions:,} partitions, 3 replicas: {figure}",
            unit="s",
            a=values["barnabas"],
            b=values["kafka"],
            goal=goals.get(figure),
        )
        for figure, values in found.items()
    ]
    rows.append(Comparison(name=f"{2 * partitions:,} partitions, one broker: writable", unit="s", a=alone))
    print(machine(options))
    print(table(rows, "Barnabas", "Apache Kafka"))


if __name__ == "__main__":
    main()
