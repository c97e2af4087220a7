"""`barnabas perf produce|consume`: the records a second that a cluster writes or reads for this client.

On one machine, client and cluster share the cores, so the figures are of both together. Latency is the time
from `send` to the acknowledgement, over a sample of the records.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import time
from contextlib import suppress
from typing import Any, Final

from barnabas.cli.action import Action, actions, answer, arg
from barnabas.cli.arguments import (
    SHORT_MAX,
    chosen_bootstrap,
    client_settings,
    cluster_options,
    cluster_words,
    describe_topic,
    make_admin,
    number,
    run_async,
    settings_option,
)
from barnabas.cli.exit_codes import CommandError
from barnabas.cli.output import errors_alone, progress
from barnabas.client.admin.admin import NewTopic
from barnabas.client.config import ConsumerConfig, ProducerConfig
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.producer.batch import RecordMetadata
from barnabas.client.producer.producer import Producer
from barnabas.common.settings import LONG_MAX
from barnabas.common.texts import count
from barnabas.protocol.errors import BarnabasError, TopicAlreadyExistsError
from barnabas.protocol.ids import TopicPartition

_SAMPLE_EVERY: Final = 97
_CHECK_EVERY: Final = 1024
_POLL_RECORDS: Final = 10_000


class _Latencies:
    """Times from send to acknowledgement of every n-th record, in seconds; filled by callbacks."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.error: BarnabasError | None = None

    def callback(self) -> Any:
        sent = time.perf_counter()

        def delivered(metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
            if error is None:
                self.seconds.append(time.perf_counter() - sent)
            elif self.error is None:
                self.error = error

        return delivered

    def percentile_ms(self, percent: float) -> float | None:
        if not self.seconds:
            return None
        ordered = sorted(self.seconds)
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1000, 2)


async def _ensure_topic(options: argparse.Namespace, bootstrap: str) -> None:
    async with make_admin(bootstrap, client_settings(options, ProducerConfig)) as admin:
        topic = NewTopic(
            options.topic, num_partitions=options.partitions, replication_factor=options.replication_factor
        )
        with suppress(TopicAlreadyExistsError):
            await admin.create_topics(topic)


async def _produce(options: argparse.Namespace, bootstrap: str) -> dict[str, Any]:
    await _ensure_topic(options, bootstrap)
    settings = {"acks": options.acks, "linger_ms": 5, "batch_size": 131_072}
    if options.rate is not None:
        settings["linger_ms"] = 0
    settings |= client_settings(options, ProducerConfig)
    # Not compressible, so that a codec cannot take a short cut.
    value = os.urandom(options.size)
    # The first failure ends the command, which reports it; not each batch that is under way.
    with errors_alone("barnabas.client.producer.sender"):
        async with Producer(bootstrap_servers=bootstrap, **settings) as producer:
            return await _write(options, producer, value)


async def _write(options: argparse.Namespace, producer: Producer, value: bytes) -> dict[str, Any]:
    topic, total, rate = options.topic, options.records, options.rate
    latencies = _Latencies()
    sample_every = 1 if rate is not None else _SAMPLE_EVERY
    await producer.partitions_for(topic)
    with progress(total, "written") as show_progress:
        started = time.perf_counter()
        send = producer.send
        for number in range(total):
            if number % sample_every == 0:
                if rate is not None and (ahead_s := started + number / rate - time.perf_counter()) > 0:
                    await asyncio.sleep(ahead_s)
                await send(topic, value, on_delivery=latencies.callback())
            else:
                await send(topic, value)
            if number % _CHECK_EVERY == 0:
                show_progress(number)
                if latencies.error is not None:
                    raise latencies.error
        await producer.flush()
        seconds = time.perf_counter() - started
    if latencies.error is not None:
        raise latencies.error
    figures = _figures(total, total * options.size, seconds)
    return figures | {f"latency_p{p:g}_ms": latencies.percentile_ms(p) for p in (50, 99, 99.9)}


async def _consume(options: argparse.Namespace, bootstrap: str) -> dict[str, Any]:
    settings = {
        "auto_offset_reset": "earliest",
        "allow_auto_create_topics": False,
        **client_settings(options, ConsumerConfig),
    }
    topic = await describe_topic(bootstrap, options.topic, settings)
    partitions = [TopicPartition(options.topic, partition.partition) for partition in topic.partitions]
    async with Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        first = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        available = sum(ends[partition] - first[partition] for partition in partitions)
        total = min(options.records, available)
        if not total:
            write = f"`barnabas perf produce {shlex.quote(options.topic)}{cluster_words(options)}`"
            raise CommandError(f"topic {options.topic} holds no records ({write} writes some)")
        count = size = 0
        with progress(total, "read") as show_progress:
            started = time.perf_counter()
            consumer.assign(partitions)
            positions = first
            # Offsets have gaps, as at the end of a transaction: a poll that moves over one returns nothing.
            while count < total and any(positions[tp] < ends[tp] for tp in partitions):
                records = await consumer.poll(5_000, min(_POLL_RECORDS, total - count))
                before, positions = positions, {tp: await consumer.position(tp) for tp in partitions}
                if positions == before:
                    raise CommandError(f"no records came for 5 s after {count:,} of {total:,}")
                count += len(records)
                size += sum(len(record.value or b"") for record in records)
                show_progress(count)
            seconds = time.perf_counter() - started
    return _figures(count, size, seconds)


def _figures(records: int, size: int, seconds: float) -> dict[str, Any]:
    return {
        "records": records,
        "value_bytes": size,
        "seconds": round(seconds, 3),
        "records_per_s": round(records / seconds),
        "mb_per_s": round(size / seconds / 1e6, 2),
    }


def _run(options: argparse.Namespace) -> None:
    work = _produce if options.action == "produce" else _consume
    figures = run_async(work(options, chosen_bootstrap(options)))
    lines = [
        f"{count(figures['records'], 'record')}, {figures['value_bytes'] / 1e6:,.1f} MB of values in "
        f"{figures['seconds']:.2f} s: {figures['records_per_s']:,} records/s, {figures['mb_per_s']:,.1f} MB/s"
    ]
    if figures.get("latency_p50_ms") is not None:
        lines.append(
            f"latency p50 {figures['latency_p50_ms']} ms, p99 {figures['latency_p99_ms']} ms, "
            f"p99.9 {figures['latency_p99.9_ms']} ms"
        )
    if options.action == "produce":
        delete = f"`barnabas topics delete {shlex.quote(options.topic)}{cluster_words(options)}`"
        lines.append(
            f"the records are in topic {options.topic}, also for `perf consume`; {delete} removes them"
        )
    answer(options, figures, *lines)


_COMMON = (
    # Without a default of its own, which would replace the value of the option.
    arg("topic", help="default: perf", nargs="?", default=argparse.SUPPRESS),
    arg("--topic", help="the same as an option", default="perf"),
    arg("--records", "N", "default: 1,000,000", type=number(1, LONG_MAX), default=1_000_000),
    *cluster_options("print one JSON object"),
)

add_arguments = actions(
    Action(
        "produce",
        "write records as fast as possible, or at a rate",
        _run,
        (
            arg("--size", "BYTES", "size of a value (default: 100)", type=number(1), default=100),
            arg("--rate", "N", "at most N records/s (default: no limit)", type=number(1)),
            arg("--acks", choices=("0", "1", "all"), default="all"),
            arg("--partitions", "N", "default: 6; used if the topic is created", type=number(1), default=6),
            arg(
                "--replication-factor",
                "N",
                "of the topic if it is created (default: the brokers')",
                type=number(1, SHORT_MAX),
                default=-1,
            ),
            settings_option("producer", acks="--acks"),
            *_COMMON,
        ),
    ),
    Action(
        "consume",
        "read records from the beginning as fast as possible",
        _run,
        (settings_option("consumer"), *_COMMON),
    ),
)
