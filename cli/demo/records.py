"""The demo's traffic: writes all departures while a broker dies and returns, then reads them back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from barnabas.cli.demo.failover import Failover
from barnabas.cli.demo.flights import Departure
from barnabas.cli.demo.ledger import Audit, Ledger
from barnabas.cli.demo.screen import ProgressLine
from barnabas.cli.exit_codes import CommandError
from barnabas.client import Consumer, Producer, RecordMetadata
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import TopicPartition

KILL_AT: Final = 0.5
RESTART_AT: Final = 0.75

_BATCH_BYTES: Final = 64 * 1024
_YIELD_EVERY: Final = 250
_POLL_RECORDS: Final = 5_000
_STALL_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Records and bytes, and the time that they took."""

    records: int
    size_bytes: int
    seconds: float

    def __str__(self) -> str:
        rate = self.records / self.seconds
        return (
            f"{self.records:,} records, {self.size_bytes / 1e6:.0f} MB in {self.seconds:.1f} s "
            f"({rate:,.0f} records/s)"
        )


async def produce_all(
    bootstrap: str,
    topic: str,
    departures: Iterable[Departure],
    total: int,
    ledger: Ledger,
    failover: Failover,
    progress: ProgressLine,
) -> Traffic:
    """Send every departure with acks=all; the failover begins half way. Errors are entered into the ledger.

    Raises DeployError if the broker does not come back.
    """

    def delivered(number: int, metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
        if metadata is None:
            ledger.fail(number, error or CommandError("no metadata"))
        else:
            ledger.acknowledge(number, metadata.partition, metadata.offset)
            failover.note_acknowledged(metadata.partition)

    started = time.monotonic()
    events = {int(total * KILL_AT): failover.kill, int(total * RESTART_AT): failover.restart}
    async with Producer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=5, batch_size=_BATCH_BYTES
    ) as producer:
        for key, value in departures:
            number = ledger.sent(key, value)
            if number in events:
                events[number]()
            await producer.send(topic, value, key, on_delivery=partial(delivered, number))
            if not number % _YIELD_EVERY:
                progress.update(ledger.acknowledged)
                await asyncio.sleep(0)
        await producer.flush()
        progress.update(ledger.acknowledged)
        seconds = time.monotonic() - started
        await failover.finish()
    return Traffic(ledger.acknowledged, ledger.sent_bytes, seconds)


async def consume_all(
    bootstrap: str, topic: str, partitions: Iterable[int], audit: Audit, progress: ProgressLine
) -> Traffic:
    """Pass every record below the present high watermarks to the audit.

    Raises CommandError if no more records arrive before the end.
    """
    assigned = [TopicPartition(topic, partition) for partition in partitions]
    size_bytes = 0
    started = time.monotonic()
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign(assigned)
        left = {tp: int(offset) for tp, offset in (await consumer.end_offsets(assigned)).items() if offset}
        consumer.seek_to_beginning()
        last_seen = time.monotonic()
        while left:
            for record in await consumer.poll(max_records=_POLL_RECORDS):
                audit.take(record.partition, record.offset, record.key, record.value)
                size_bytes += len(record.key or b"") + len(record.value or b"")
                last_seen = time.monotonic()
                tp = TopicPartition(topic, record.partition)
                if record.offset + 1 >= left.get(tp, 0):
                    left.pop(tp, None)
            progress.update(audit.consumed)
            if time.monotonic() - last_seen > _STALL_S:
                stalled = ", ".join(f"{tp} (up to {offset})" for tp, offset in left.items())
                raise CommandError(f"no records came for {_STALL_S:.0f} s from {stalled}")
    return Traffic(audit.consumed, size_bytes, time.monotonic() - started)
