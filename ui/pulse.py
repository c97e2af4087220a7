"""The pulse: small records at a steady pace, and the time in which none of them is acknowledged, in ms.

The page writes them on request, with acks=all, to a topic of its own. A gap lasts from one acknowledgement of
a partition to the next, if it is longer than 100 ms and than four usual intervals, and a record has waited in
it; the longest one around an election is shown however short it is. The delay of the page's own event loop is
no part of a gap. The pulse ends on request, and when no page has listened for half a minute. While it runs no
gaps are inferred from high watermarks.

`AckGaps` is pure; the rest belongs to the event loop of the server.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
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
_GAP_INTERVALS: Final = 4
"""A shorter time, in usual intervals, is noise: acknowledgements come less steadily than records are sent."""
_INTERVALS: Final = 100
_LEAST_INTERVALS: Final = 20
"""Before these are known, the usual interval is that between two records."""
_LEAST_WAIT_MS: Final = 40.0
"""A record must have waited for so long, else no record was missing an acknowledgement."""
_MOST_PENDING: Final = 1500
"""Records without an outcome; more are not sent, so an outage does not fill the memory."""
_UNHEARD_S: Final = 30.0
_START_S: Final = 15.0
_RETENTION_MS: Final = 3_600_000


class Gap(NamedTuple):
    """``end_ms`` is None while no acknowledgement has come; the delay of this program is taken off it."""

    partition: int
    start_ms: float
    end_ms: float | None


@dataclass(slots=True)
class _Partition:
    waiting: deque[float] = field(default_factory=deque)
    """When the records without an outcome were sent, the oldest first."""
    acknowledged_ms: float | None = None
    late_ms: float = 0.0
    """For how long this program itself did not run since the last acknowledgement."""
    intervals_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_INTERVALS))
    """Between the newest acknowledgements."""
    recent: deque[tuple[float, float]] = field(default_factory=deque)
    """From each acknowledgement of the last seconds to the next one."""
    is_open: bool = False
    """Whether a gap is shown that has not ended."""


class AckGaps:
    """Gaps between the acknowledgements of each partition. Times are those of one clock, in ms.

    A program that is itself late notices acknowledgements late: its own delays make no gap. `interval_ms` is
    the time between two records of a partition.
    """

    def __init__(self, interval_ms: float) -> None:
        self._interval_ms = interval_ms
        self._partitions: dict[int, _Partition] = {}

    def sent(self, partition: int, at_ms: float) -> None:
        self._partitions.setdefault(partition, _Partition()).waiting.append(at_ms)

    def late(self, delay_ms: float) -> None:
        """Note a time in which this program did nothing."""
        for partition in self._partitions.values():
            partition.late_ms += delay_ms

    def tick(self, now_ms: float) -> Iterator[Gap]:
        """The gaps that have become long enough to be shown."""
        for number, partition in self._partitions.items():
            start_ms = partition.acknowledged_ms
            if partition.is_open or start_ms is None or not self._is_gap(partition, now_ms):
                continue
            partition.is_open = True
            yield Gap(number, start_ms, None)

    def ended(self, partition: int, at_ms: float, *, is_acknowledged: bool) -> Gap | None:
        """Note the outcome of the oldest record; returns the gap that an acknowledgement ends.

        A record that failed is no acknowledgement, so the gap goes on.
        """
        found = self._partitions[partition]
        is_gap = found.is_open or self._is_gap(found, at_ms)
        if found.waiting:
            found.waiting.popleft()
        if not is_acknowledged:
            return None
        start_ms, end_ms = found.acknowledged_ms, at_ms - found.late_ms
        found.acknowledged_ms, found.is_open, found.late_ms = at_ms, False, 0.0
        if start_ms is not None:
            # It may already have been late when it noticed the acknowledgement before.
            end_ms = max(start_ms, end_ms)
            found.intervals_ms.append(end_ms - start_ms)
            found.recent.append((start_ms, end_ms))
        while found.recent and found.recent[0][1] < at_ms - _AROUND_MS:
            found.recent.popleft()
        return Gap(partition, start_ms, end_ms) if is_gap and start_ms is not None else None

    def around_election(self, partition: int) -> Gap | None:
        """The longest time between two acknowledgements of the last seconds; None if one lasts still."""
        found = self._partitions.get(partition)
        if found is None or found.is_open or not found.recent:
            return None
        return Gap(partition, *max(found.recent, key=lambda times: times[1] - times[0]))

    def _is_gap(self, partition: _Partition, now_ms: float) -> bool:
        if partition.acknowledged_ms is None or not partition.waiting:
            return False
        ran_until_ms = now_ms - partition.late_ms
        silent_ms = ran_until_ms - partition.acknowledged_ms
        if silent_ms <= LEAST_GAP_MS or ran_until_ms - partition.waiting[0] <= _LEAST_WAIT_MS:
            return False
        known = partition.intervals_ms
        usual_ms = median(known) if len(known) >= _LEAST_INTERVALS else self._interval_ms
        return silent_ms > _GAP_INTERVALS * usual_ms


class Pulse:
    """At most one for a server. `clock` tells monotonic seconds."""

    def __init__(
        self,
        context: Context,
        sampler: Sampler,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._context = context
        self._sampler = sampler
        self._clock = clock
        self._sleep = sleep
        self._due = 0.0
        """When this program should run again."""
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._gaps = AckGaps(_INTERVAL_S * 1000)
        self._sending: dict[int, asyncio.Task[None]] = {}
        """By partition, the newest record that the producer was given."""
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
        self._gaps, self._pending, self._counted = AckGaps(_INTERVAL_S * 1000), 0, None
        self._sampler.infers_gaps = False
        self._task = asyncio.create_task(self._run(count), name="pulse")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _update(self) -> dict[str, Any]:
        """The part of the state: whether it runs, and acknowledged records a second."""
        now = self._clock()
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
                await self.write(producer, partitions)
        except BarnabasError as error:
            self._sampler.history.mark("fault", f"the pulse has ended: {error}")
        finally:
            self._sampler.infers_gaps = True

    async def write(self, producer: Producer, partitions: int) -> None:
        """Write until no page has listened for long. A `send` that blocks delays its partition alone."""
        self._due = heard = self._clock()
        try:
            for number in itertools.count(1):
                self._due += _INTERVAL_S
                await self._sleep(max(0.0, self._due - self._clock()))
                self._note_lateness()
                heard = self._clock() if self._sampler.listeners else heard
                if self._clock() - heard > _UNHEARD_S:
                    return
                for gap in self._gaps.tick(self._now_ms()):
                    self._show(gap)
                for partition in range(partitions):
                    sending = self._sending.get(partition)
                    if self._pending < _MOST_PENDING and (sending is None or sending.done()):
                        sent = self._send(producer, partition, str(number).encode())
                        self._sending[partition] = asyncio.create_task(sent)
        finally:
            for sending in self._sending.values():
                sending.cancel()
            await asyncio.gather(*self._sending.values(), return_exceptions=True)
            self._sending.clear()

    def _note_lateness(self) -> None:
        """An acknowledgement may be noticed before the timer that was due earlier, so both call this."""
        now = self._clock()
        if now > self._due:
            self._gaps.late((now - self._due) * 1000)
            self._due = now

    async def _send(self, producer: Producer, partition: int, value: bytes) -> None:
        def ended(metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
            self._pending -= 1
            self._note_lateness()
            gap = self._gaps.ended(partition, self._now_ms(), is_acknowledged=metadata is not None)
            if metadata is not None:
                self._acknowledged += 1
            if error is not None:
                log.warning("a record of the pulse failed: %s", error)
            if gap is not None:
                self._show(gap)

        self._gaps.sent(partition, self._now_ms())
        self._pending += 1
        try:
            await producer.send(TOPIC, value, partition=partition, on_delivery=ended)
        except BarnabasError as error:
            ended(None, error)

    def _now_ms(self) -> float:
        return self._clock() * 1000

    def _show(self, gap: Gap) -> None:
        name = f"{TOPIC}-{gap.partition}"
        epoch_ms = time.time() * 1000 - self._now_ms()
        if gap.end_ms is None:
            end_ms, text = None, f"{name}: no acknowledgement"
        else:
            end_ms = epoch_ms + gap.end_ms
            text = f"{name}: {gap.end_ms - gap.start_ms:.0f} ms without an acknowledgement"
        self._sampler.history.gap(f"pulse {name} {gap.start_ms:.0f}", epoch_ms + gap.start_ms, end_ms, text)


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
