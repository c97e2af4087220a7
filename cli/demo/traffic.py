"""The demo's traffic: writes all departures while a broker dies and returns, then reads them back.

The producer measures how long writes fail: for every partition that the killed broker led, it takes the
longest time between two acknowledgements after the kill; the failover time is the longest of them. An
acknowledgement that was in flight when the broker died hardly shortens it.

On the demo's event loop; only the signals are sent from another thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from barnabas.cli.demo.flights import Departure
from barnabas.cli.demo.ledger import Audit, Ledger
from barnabas.cli.demo.screen import Update
from barnabas.cli.exit_codes import CommandError
from barnabas.client import Admin, Consumer, Producer, RecordMetadata
from barnabas.client.metadata import TopicInfo
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import TopicPartition

KILL_AT: Final = 0.5
RESTART_AT: Final = 0.75

_BATCH_BYTES: Final = 64 * 1024
_YIELD_EVERY: Final = 250
_POLL_RECORDS: Final = 5_000
_STALL_S: Final = 30.0
_LONGEST_START_S: Final = 30.0
_LONGEST_FAILOVER_S: Final = 20.0


class Silences:
    """The longest time without an acknowledgement for each partition, since a time. Seconds in, ms out."""

    def __init__(self, since_s: float, partitions: Iterable[int]) -> None:
        self._last = dict.fromkeys(partitions, since_s)
        self._longest = dict.fromkeys(self._last, 0.0)
        self._any_last = since_s
        self._any_longest = 0.0
        self._heard: set[int] = set()

    def note(self, partition: int, now_s: float) -> None:
        self._any_longest = max(self._any_longest, now_s - self._any_last)
        self._any_last = now_s
        last = self._last.get(partition)
        if last is not None:
            self._longest[partition] = max(self._longest[partition], now_s - last)
            self._last[partition] = now_s
            self._heard.add(partition)

    def by_partition_ms(self) -> dict[int, float]:
        """The times of the watched partitions that had an acknowledgement again."""
        return {partition: self._longest[partition] * 1000 for partition in sorted(self._heard)}

    def unheard(self) -> list[int]:
        """The partitions without a further acknowledgement."""
        return sorted(set(self._last) - self._heard)

    @property
    def any_ms(self) -> float:
        """The longest time without an acknowledgement from any partition."""
        return self._any_longest * 1000


def busiest_leader(topic: TopicInfo) -> tuple[int, list[int]]:
    """The broker that leads most partitions (the lowest id among equals), and these partitions."""
    led: dict[int, list[int]] = {}
    for partition in topic.partitions:
        led.setdefault(int(partition.leader), []).append(partition.partition)
    victim = min(led, key=lambda broker: (-len(led[broker]), broker))
    return victim, led[victim]


class Failover:
    """One broker's death and return while records are being sent."""

    def __init__(
        self,
        cluster: RunningCluster,
        topic: TopicInfo,
        *,
        say: Callable[[str], None],
        look: Callable[[], Awaitable[TopicInfo]],
    ) -> None:
        """`say` prints events; `look` returns the topic's state and is called while the broker is dead."""
        self.victim, self.partitions = busiest_leader(topic)
        self.silences: Silences | None = None
        self.topic_without_victim: TopicInfo | None = None
        self._cluster = cluster
        self._say = say
        self._look = look
        self._is_watching = False
        self._moved = asyncio.Event()
        self._killing: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None

    def kill(self) -> None:
        """Send SIGKILL, from a thread of its own, while the records continue; once."""
        self._killing = self._killing or asyncio.create_task(self._kill())

    def restart(self) -> None:
        """Restart the broker, in the background, when all its partitions are written again; once."""
        self._restarting = self._restarting or asyncio.create_task(self._restart())

    def note_acknowledged(self, partition: int) -> None:
        if self._is_watching and self.silences is not None:
            self.silences.note(partition, time.monotonic())
            if not self.silences.unheard():
                self._moved.set()

    async def finish(self) -> None:
        """End the measurement and wait for the restart.

        Raises DeployError if the broker did not come back.
        """
        self._is_watching = False
        for task in (self._killing, self._restarting):
            if task is not None:
                await task

    async def _kill(self) -> None:
        self.silences = Silences(time.monotonic(), self.partitions)
        self._is_watching = True
        await asyncio.to_thread(self._cluster.kill, self.victim)
        self._say(f"broker {self.victim} is dead (SIGKILL); it led partitions {_listed(self.partitions)}")

    async def _restart(self) -> None:
        try:
            await asyncio.wait_for(self._moved.wait(), _LONGEST_FAILOVER_S)
        except TimeoutError:
            self._say(f"some of its partitions were not written for {_LONGEST_FAILOVER_S:.0f} s")
        self.topic_without_victim = await self._look()
        started = time.monotonic()
        await asyncio.to_thread(self._cluster.start_broker, self.victim, _LONGEST_START_S)
        self._say(f"broker {self.victim} runs again after {time.monotonic() - started:.1f} s")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


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
    show_progress: Update,
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
                show_progress(ledger.acknowledged)
                await asyncio.sleep(0)
        await producer.flush()
        show_progress(ledger.acknowledged)
        seconds = time.monotonic() - started
        await failover.finish()
    return Traffic(ledger.acknowledged, ledger.sent_bytes, seconds)


async def consume_all(
    bootstrap: str, topic: str, partitions: Iterable[int], audit: Audit, show_progress: Update
) -> Traffic:
    """Pass every committed record below the present high watermarks to the audit.

    It waits for the markers of transactions whose commit was answered already. Raises CommandError if no more
    records arrive before the end.
    """
    assigned = [TopicPartition(topic, partition) for partition in partitions]
    size_bytes = 0
    started = time.monotonic()
    async with (
        Admin(bootstrap_servers=bootstrap) as admin,
        Consumer(
            bootstrap_servers=bootstrap, auto_offset_reset="none", isolation_level="read_committed"
        ) as consumer,
    ):
        consumer.assign(assigned)
        listed = await admin.list_offsets(dict.fromkeys(assigned, "latest"))
        ends = {tp: int(found.offset) for tp, found in listed.items() if found.offset}
        consumer.seek_to_beginning()
        last_seen = time.monotonic()
        while ends:
            for record in await consumer.poll(max_records=_POLL_RECORDS):
                audit.take(record.partition, record.offset, record.key, record.value)
                size_bytes += len(record.key or b"") + len(record.value or b"")
                last_seen = time.monotonic()
            # The end may be that of a marker, which is no record.
            ends = {tp: end for tp, end in ends.items() if await consumer.position(tp) < end}
            show_progress(audit.consumed)
            if time.monotonic() - last_seen > _STALL_S:
                stalled = ", ".join(f"{tp} (up to {offset})" for tp, offset in ends.items())
                raise CommandError(f"no records came for {_STALL_S:.0f} s from {stalled}")
    return Traffic(audit.consumed, size_bytes, time.monotonic() - started)
