"""Records per second that the clients move through a running cluster: prints figures, asserts nothing.

Run: python benchmarks/client.py --bootstrap host:port[,host:port…] [--records N] [--json]

The topic is made for the run and deleted afterwards. Figures are medians of several rounds; the CPU column is
the share of one core that this process used, for the brokers want the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import uvloop

from barnabas.client import blocking
from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.producer.producer import Producer

VALUE_BYTES = 100


class Figure(NamedTuple):
    what: str
    records_per_s: float
    cpu_cores: float


async def measure(what: str, records: int, rounds: int, work: Callable[[], Awaitable[None]]) -> Figure:
    """The median over some rounds of work that moves this number of records."""
    rates, shares = [], []
    for _ in range(rounds):
        started, cpu = time.perf_counter(), time.process_time()
        await work()
        seconds = time.perf_counter() - started
        rates.append(records / seconds)
        shares.append((time.process_time() - cpu) / seconds)
    return Figure(what, statistics.median(rates), statistics.median(shares))


async def produce(bootstrap: str, topic: str, records: int, rounds: int, **settings: Any) -> Figure:
    value = bytes(VALUE_BYTES)
    async with Producer(bootstrap_servers=bootstrap, **settings) as producer:
        await producer.send_and_wait(topic, value)

        async def send_all() -> None:
            for _ in range(records):
                await producer.send(topic, value)
            await producer.flush()

        what = ", ".join(f"{name}={setting}" for name, setting in settings.items())
        return await measure(f"Producer.send {what}", records, rounds, send_all)


async def produce_keyed(bootstrap: str, topic: str, records: int, rounds: int) -> Figure:
    value = bytes(VALUE_BYTES)
    keys = [b"key-%d" % number for number in range(5_000)]
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, value)

        async def send_all() -> None:
            for number in range(records):
                await producer.send(topic, value, keys[number % 5_000])
            await producer.flush()

        return await measure("Producer.send with 5,000 keys", records, rounds, send_all)


def produce_blocking(bootstrap: str, topic: str, records: int) -> None:
    value = bytes(VALUE_BYTES)
    with blocking.Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(records):
            producer.send(topic, value)


async def consume(bootstrap: str, topic: str, partitions: int, records: int, rounds: int) -> list[Figure]:
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition) for partition in range(partitions)])

        async def poll_all() -> None:
            consumer.seek_to_beginning()
            count = 0
            while count < records:
                count += len(await consumer.poll())

        async def iterate_all() -> None:
            consumer.seek_to_beginning()
            count = 0
            async for _ in consumer:
                count += 1
                if count == records:
                    return

        return [
            await measure("Consumer.poll", records, rounds, poll_all),
            await measure("async for over Consumer", records, rounds, iterate_all),
        ]


async def run(bootstrap: str, records: int, rounds: int, partitions: int) -> list[Figure]:
    topic = f"benchmark-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        nodes = (await admin.describe_cluster()).nodes
        await admin.create_topics(NewTopic(topic, partitions, min(3, len(nodes))))
        try:
            figures = [
                await produce(bootstrap, topic, records, rounds, acks="all"),
                await produce(bootstrap, topic, records, rounds, acks="all", batch_size=131_072, linger_ms=5),
                await produce(bootstrap, topic, records, rounds, acks=1),
                await produce_keyed(bootstrap, topic, records, rounds),
                await measure(
                    "blocking Producer.send",
                    records,
                    rounds,
                    lambda: asyncio.to_thread(produce_blocking, bootstrap, topic, records),
                ),
            ]
            return figures + await consume(bootstrap, topic, partitions, records, rounds)
        finally:
            await admin.delete_topics(topic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port[,host:port…] of a running cluster")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    uvloop.install()
    figures = asyncio.run(run(arguments.bootstrap, arguments.records, arguments.rounds, arguments.partitions))
    if arguments.json:
        print(json.dumps([figure._asdict() for figure in figures]))
        return
    for figure in figures:
        print(f"{figure.what:55} {figure.records_per_s:>12,.0f} records/s {figure.cpu_cores:6.2f} cores")


if __name__ == "__main__":
    main()
