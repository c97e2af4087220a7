"""The pulse: which time without acknowledgements is a gap, in ms, and its writer by a clock of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.ui.pulse import AckGaps, Gap, Pulse

INTERVAL_MS = 25.0


def _acknowledged(gaps: AckGaps, *rounds: tuple[float, float]) -> list[Gap | None]:
    """Records of partition 0, sent and acknowledged at these times, one after the other."""
    found = []
    for sent, acknowledged in rounds:
        gaps.sent(0, sent)
        found.append(gaps.ended(0, acknowledged, is_acknowledged=True))
    return found


def test_a_steady_pace_has_no_gaps_however_rare_the_records_are() -> None:
    gaps = AckGaps(INTERVAL_MS)
    assert _acknowledged(gaps, (0, 3), (60, 63), (1_000, 1_030)) == [None, None, None]
    assert list(gaps.tick(5_000)) == []


def test_a_gap_is_shown_while_it_lasts_and_ends_with_the_next_acknowledgement() -> None:
    gaps = AckGaps(INTERVAL_MS)
    _acknowledged(gaps, (0, 3))
    for at_ms in (60, 120):
        gaps.sent(0, at_ms)
    assert list(gaps.tick(103)) == []
    assert list(gaps.tick(104)) == [Gap(0, 3, None)]
    assert list(gaps.tick(150)) == [], "it is shown already"
    assert gaps.ended(0, 253, is_acknowledged=True) == Gap(0, 3, 253)
    assert gaps.ended(0, 254, is_acknowledged=True) is None


def test_a_gap_that_ends_between_two_looks_is_shown_at_its_end() -> None:
    gaps = AckGaps(INTERVAL_MS)
    assert _acknowledged(gaps, (0, 3), (60, 119)) == [None, Gap(0, 3, 119)]


def test_a_failed_record_ends_no_gap() -> None:
    gaps = AckGaps(INTERVAL_MS)
    _acknowledged(gaps, (0, 3))
    gaps.sent(0, 60)
    gaps.sent(0, 120)
    assert gaps.ended(0, 5_000, is_acknowledged=False) is None
    assert gaps.ended(0, 5_100, is_acknowledged=True) == Gap(0, 3, 5_100)


def test_the_delay_of_the_program_itself_is_no_gap() -> None:
    gaps = AckGaps(INTERVAL_MS)
    _acknowledged(gaps, (0, 3))
    gaps.sent(0, 60)
    gaps.late(200)
    assert list(gaps.tick(290)) == []
    assert gaps.ended(0, 290, is_acknowledged=True) is None
    gaps.sent(0, 300)
    assert gaps.ended(0, 400, is_acknowledged=True) == Gap(0, 290, 400), "it counts once"
    gaps.sent(0, 410)
    for delay_ms in (60, 50):
        gaps.late(delay_ms)
    assert gaps.ended(0, 600, is_acknowledged=True) is None, "delays add up"
    gaps.sent(0, 610)
    gaps.late(50)
    assert gaps.ended(0, 800, is_acknowledged=True) == Gap(0, 600, 750), "its length is without the delay"


def test_partitions_have_gaps_of_their_own() -> None:
    gaps = AckGaps(INTERVAL_MS)
    for partition in (0, 1):
        gaps.sent(partition, 0)
        gaps.ended(partition, 3, is_acknowledged=True)
        gaps.sent(partition, 60)
    gaps.ended(1, 63, is_acknowledged=True)
    assert list(gaps.tick(500)) == [Gap(0, 3, None)]


def test_around_an_election_the_longest_time_of_the_last_seconds_is_shown_however_short() -> None:
    gaps = AckGaps(INTERVAL_MS)
    assert gaps.around_election(0) is None
    _acknowledged(gaps, (0, 3), (900, 903), (960, 963), (1_000, 1_083), (1_090, 1_093))
    assert gaps.around_election(0) == Gap(0, 3, 903)
    _acknowledged(gaps, (1_950, 1_953), (1_990, 1_993))
    assert gaps.around_election(0) == Gap(0, 1_093, 1_953), "the first one has ended too long ago"


def test_a_gap_that_lasts_is_not_hidden_by_a_shorter_one_around_the_election() -> None:
    gaps = AckGaps(INTERVAL_MS)
    _acknowledged(gaps, (0, 3), (60, 63))
    gaps.sent(0, 100)
    assert list(gaps.tick(500)) == [Gap(0, 63, None)]
    assert gaps.around_election(0) is None


def test_a_gap_is_longer_than_four_usual_intervals() -> None:
    gaps = AckGaps(INTERVAL_MS)
    _acknowledged(gaps, *((at_ms, at_ms + 3) for at_ms in range(0, 1_040, 40)))
    assert _acknowledged(gaps, (1_040, 1_163)) == [None], "160 ms: noise of a writer whose pace is 40 ms"
    assert _acknowledged(gaps, (1_170, 1_324)) == [Gap(0, 1_163, 1_324)]


class _Over(Exception):
    pass


class World:
    """A clock, a page, and a cluster that acknowledges each record 5 ms after it was sent."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.listeners = 1
        self.state = None
        self.gaps: dict[str, str] = {}
        self.history = self
        self.blocked: asyncio.Event | None = None
        self.stalls_s: dict[int, float] = {}
        """By number of the wait, for how much longer the event loop does not run."""
        self.is_timer_first = False
        """Whether the timer runs before the acknowledgements of a stall are noticed."""
        self.waits = 0
        self.end_s = 0.0
        self._due: list[tuple[float, Callable[..., None]]] = []
        context: Any = SimpleNamespace()
        sampler: Any = self
        self.pulse = Pulse(context, sampler, clock=lambda: self.now_s, sleep=self.sleep)

    def gap(self, id: str, start_ms: float, end_ms: float | None, text: str) -> None:
        self.gaps[id] = text

    async def send(
        self, topic: str, value: bytes, *, partition: int, on_delivery: Callable[..., None]
    ) -> None:
        if partition == 0 and self.blocked is not None:
            await self.blocked.wait()
        self._due.append((self.now_s + 0.005, on_delivery))

    async def sleep(self, wait_s: float) -> None:
        if self.now_s >= self.end_s:
            raise _Over
        self.waits += 1
        until_s = self.now_s + wait_s
        stall_s = self.stalls_s.get(self.waits, 0.0)
        self.now_s += stall_s
        is_noticed = not (stall_s and self.is_timer_first)
        while is_noticed and self._due and self._due[0][0] <= until_s + stall_s:
            at_s, on_delivery = self._due.pop(0)
            self.now_s = max(self.now_s, at_s)
            on_delivery(object(), None)
        self.now_s = until_s + stall_s
        for _ in range(3):
            await asyncio.sleep(0)

    async def write_for(self, seconds: float) -> None:
        """Write to two partitions for so long."""
        producer: Any = self
        self.end_s = self.now_s + seconds
        with suppress(_Over):
            async with asyncio.timeout(20):
                await self.pulse.write(producer, 2)


async def test_a_record_that_the_producer_does_not_take_is_a_gap_of_its_partition() -> None:
    world = World()
    await world.write_for(1)
    world.blocked = asyncio.Event()
    await world.write_for(1)
    assert list(world.gaps.values()) == ["barnabas-pulse-0: no acknowledgement"]
    world.blocked.set()


@pytest.mark.parametrize("is_timer_first", [False, True])
@pytest.mark.parametrize("stall_s", [0.3, 5.0])
async def test_a_stall_of_the_event_loop_is_no_gap(stall_s: float, is_timer_first: bool) -> None:
    world = World()
    world.is_timer_first = is_timer_first
    world.stalls_s = {10: stall_s, 12: 0.05, 14: 0.05}
    await world.write_for(stall_s + 2)
    assert world.waits > 14
    assert world.gaps == {}


async def test_the_pulse_ends_when_no_page_has_listened_for_half_a_minute() -> None:
    world = World()
    world.listeners = 0
    await world.write_for(60)
    assert 129 < world.now_s < 131
