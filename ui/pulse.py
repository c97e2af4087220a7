"""The pulse: small records at a steady pace, and the time in which none of them is acknowledged, in ms.

The page writes them on request, with acks=all, to a topic of its own. A gap lasts from one acknowledgement of
a partition to the next, if it is longer than 100 ms and a record has waited in it; the longest one around an
election is shown however short it is. The pulse ends on request, and when no page has listened for half a
minute. While it runs no gaps are inferred from high watermarks.

`AckGaps` is pure; the rest belongs to the event loop of the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.client.admin.admin import NewTopic
from barnabas.client.producer.batch import RecordMetadata
from barnabas.client.producer.producer import Producer
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode
from barnabas.ui.asking import tried
from barnabas.ui.context import Context, outcome, refused
from barnabas.ui.sampler import Sampler

log = logging.getLogger(__name__)

TOPIC: Final = "barnabas-pulse"
_PARTITIONS: Final = 3
_MOST_REPLICAS: Final = 3
_INTERVAL_S: Final = 0.04
"""Between two records of a partition."""
_AROUND_MS: Final = 1_000.0
"""The state shows an election up to half a second late, and it may have been before its cause was seen."""
LEAST_GAP_MS: Final = 100.0
_LEAST_WAIT_MS: Final = 40.0
"""A record must have waited for so long, else no record was missing an acknowledgement."""
_MOST_PENDING: Final = 1500
"""Records without an outcome; more are not sent, so an outage does not fill the memory."""
_UNHEARD_S: Final = 30.0
_START_S: Final = 15.0
_RETENTION_MS: Final = 3_600_000


class Gap(NamedTuple):
    """``end_ms`` is None while no acknowledgement has come."""

    partition: int
    start_ms: float
    end_ms: float | None


@dataclass(slots=True)
class _Partition:
    waiting: deque[float] = field(default_factory=deque)
    """When the records without an outcome were sent, the oldest first."""
    acknowledged_ms: float | None = None
    late_ms: float = 0.0
    """The delay of this program itself since the last acknowledgement."""
    recent: deque[tuple[float, float]] = field(default_factory=deque)
    """From each acknowledgement of the last seconds to the next one."""
    is_open: bool = False
    """Whether a gap is shown that has not ended."""


class AckGaps:
    """Gaps between the acknowledgements of each partition. Times are those of one clock, in ms.

    A program that is itself late notices acknowledgements late: its own delays make no gap.
    """

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}

    def sent(self, partition: int, at_ms: float) -> None:
        self._partitions.setdefault(partition, _Partition()).waiting.append(at_ms)

    def late(self, delay_ms: float) -> None:
        """Note a time in which this program did nothing."""
        for partition in self._partitions.values():
            partition.late_ms = max(partition.late_ms, delay_ms)

    def tick(self, now_ms: float) -> Iterator[Gap]:
        """The gaps that have become long enough to be shown."""
        for number, partition in self._partitions.items():
            if partition.is_open or partition.acknowledged_ms is None or not _is_gap(partition, now_ms):
                continue
            partition.is_open = True
            yield Gap(number, partition.acknowledged_ms, None)

    def ended(self, partition: int, at_ms: float, *, is_acknowledged: bool) -> Gap | None:
        """Note the outcome of the oldest record; returns the gap that an acknowledgement ends.

        A record that failed is no acknowledgement, so the gap goes on.
        """
        found = self._partitions[partition]
        is_gap = found.is_open or _is_gap(found, at_ms)
        if found.waiting:
            found.waiting.popleft()
        if not is_acknowledged:
            return None
        start_ms = found.acknowledged_ms
        found.acknowledged_ms, found.is_open, found.late_ms = at_ms, False, 0.0
        if start_ms is not None:
            found.recent.append((start_ms, at_ms))
        while found.recent and found.recent[0][1] < at_ms - _AROUND_MS:
            found.recent.popleft()
        return Gap(partition, start_ms, at_ms) if is_gap and start_ms is not None else None

    def around_election(self, partition: int) -> Gap | None:
        """The longest time between two acknowledgements of the last seconds; None if one lasts still."""
        found = self._partitions.get(partition)
        if found is None or found.is_open or not found.recent:
            return None
        return Gap(partition, *max(found.recent, key=lambda times: times[1] - times[0]))


def _is_gap(partition: _Partition, now_ms: float) -> bool:
    if partition.acknowledged_ms is None or not partition.waiting:
        return False
    since_ms = now_ms - partition.late_ms
    waited_ms = since_ms - partition.waiting[0]
    return since_ms - partition.acknowledged_ms > LEAST_GAP_MS and waited_ms > _LEAST_WAIT_MS


class Pulse:
    """At most one for a server."""

    def __init__(self, context: Context, sampler: Sampler) -> None:
        self._context = context
        self._sampler = sampler
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._gaps = AckGaps()
        self._pending = 0
        self._acknowledged = 0
        self._counted: tuple[float, int] | None = None
        self._leaders: dict[int, int] = {}
        """The leaders of the partitions that the last look saw."""
        sampler.extra = self._update

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def start(self) -> None:
        """Make the topic if it is missing, and begin to write. Raises BarnabasError."""
        # Two requests at once would begin two pulses, and only one of them could be stopped.
        async with self._starting:
            if not self.is_running:
                await self._start()

    async def _start(self) -> None:
        brokers = len((await self._context.admin.describe_cluster()).nodes)
        replicas = min(brokers, _MOST_REPLICAS)
        settings = {"min.insync.replicas": str(max(1, replicas - 1)), "retention.ms": str(_RETENTION_MS)}
        try:
            await self._context.admin.create_topics([NewTopic(TOPIC, _PARTITIONS, replicas, settings)])
        except ApiError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        count = len((await self._context.admin.describe_topics(TOPIC))[TOPIC].partitions)
        self._gaps, self._pending, self._counted = AckGaps(), 0, None
        self._sampler.infers_gaps = False
        self._task = asyncio.create_task(self._run(count), name="pulse")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _update(self) -> dict[str, Any]:
        """The part of the state: whether it runs, and acknowledged records a second."""
        now = time.monotonic()
        before, self._counted = self._counted, (now, self._acknowledged)
        update: dict[str, Any] = {"is_pulsing": self.is_running}
        self._show_elections()
        if self.is_running and before is not None and now > before[0]:
            rate = (self._acknowledged - before[1]) / (now - before[0])
            update["figures"] = {"acknowledged": ("records/s", round(rate, 1))}
        return update

    def _show_elections(self) -> None:
        partitions = {} if self._sampler.state is None else self._sampler.state["partitions"]
        for number in range(_PARTITIONS):
            seen = partitions.get(f"{TOPIC}-{number}")
            if seen is None or seen["leader"] is None:
                continue
            before = self._leaders.get(number)
            self._leaders[number] = seen["leader"]
            gap = self._gaps.around_election(number) if before not in (None, seen["leader"]) else None
            if gap is not None and self.is_running:
                self._show(gap)

    async def _run(self, partitions: int) -> None:
        settings: dict[str, Any] = {
            **self._context.settings,
            "bootstrap_servers": self._context.bootstrap,
            "acks": "all",
            "linger_ms": 0,
            # A client's own pause before a retry is no part of the outage.
            "retry_backoff_ms": 20,
            "request_timeout_ms": 5_000,
            "delivery_timeout_ms": 60_000,
        }
        try:
            async with Producer(**settings) as producer:
                await self._write(producer, partitions)
        except BarnabasError as error:
            self._sampler.mark("fault", f"the pulse has ended: {error}")
        finally:
            self._sampler.infers_gaps = True

    async def _write(self, producer: Producer, partitions: int) -> None:
        number, due, heard = 0, time.monotonic(), time.monotonic()
        while True:
            due += _INTERVAL_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            if (late_s := now - due) > _INTERVAL_S:
                # The records that were not sent meanwhile are left out.
                self._gaps.late(late_s * 1000)
                due = now
            heard = now if self._sampler.listeners else heard
            if now - heard > _UNHEARD_S:
                return
            for gap in self._gaps.tick(_now_ms()):
                self._show(gap)
            if self._pending >= _MOST_PENDING:
                continue
            number += 1
            for partition in range(partitions):
                await self._send(producer, partition, str(number).encode())

    async def _send(self, producer: Producer, partition: int, value: bytes) -> None:
        def ended(metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
            self._pending -= 1
            gap = self._gaps.ended(partition, _now_ms(), is_acknowledged=metadata is not None)
            if metadata is not None:
                self._acknowledged += 1
            if error is not None:
                log.warning("a record of the pulse failed: %s", error)
            if gap is not None:
                self._show(gap)

        self._gaps.sent(partition, _now_ms())
        self._pending += 1
        try:
            await producer.send(TOPIC, value, partition=partition, on_delivery=ended)
        except BarnabasError as error:
            ended(None, error)

    def _show(self, gap: Gap) -> None:
        name = f"{TOPIC}-{gap.partition}"
        if gap.end_ms is None:
            text = f"{name}: no acknowledgement"
        else:
            text = f"{name}: {gap.end_ms - gap.start_ms:.0f} ms without an acknowledgement"
        self._sampler.gap(f"pulse {name} {gap.start_ms:.0f}", gap.start_ms, gap.end_ms, text)


def _now_ms() -> float:
    return time.time() * 1000


async def _toggle(request: Request) -> Response:
    pulse: Pulse = request.app.state.pulse
    if pulse.is_running:
        await pulse.stop()
        return outcome(request, "./", "the pulse has stopped")
    problem = (await tried(pulse.start(), _START_S)).problem
    if not problem:
        return outcome(request, "./", f"the pulse writes 25 records a second to each partition of {TOPIC}")
    return refused(request, "./", f"the pulse could not start: {problem}")


ROUTES: Final = [Route("/pulse", _toggle, methods=["POST"])]
