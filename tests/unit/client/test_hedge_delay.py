"""Asking brokers until one answers: the delay before the second, and the fate of the others."""

import asyncio
import gc
from collections import deque
from typing import Any

import pytest

from barnabas.client.cluster import MAX_HEDGE_S, HedgeDelay, first_answer
from barnabas.protocol.errors import BarnabasError, ConnectionClosed
from tests.support.waiting import until


def test_a_slow_cluster_is_not_asked_twice_for_being_slow() -> None:
    delay = HedgeDelay(0.3)
    delay.answered(0.8)
    for _ in range(3):
        # Every answer comes before the delay is over.
        assert delay.seconds > 0.8
        delay.answered(0.8)


def test_one_slow_answer_is_forgotten_in_time() -> None:
    delay = HedgeDelay(0.3)
    delay.answered(0.002)
    assert delay.seconds == 0.3
    delay.answered(60.0)
    assert delay.seconds == MAX_HEDGE_S
    for _ in range(100):
        delay.answered(0.001)
    assert delay.seconds == pytest.approx(0.3)


class Race:
    """Candidates whose outcomes the test decides; a candidate without an outcome hangs."""

    def __init__(self, *names: str) -> None:
        self.upcoming = deque(names)
        self.outcomes: dict[str, asyncio.Future[int]] = {}
        self.asked: list[str] = []
        self.failures: list[tuple[str, BarnabasError]] = []

    async def ask(self, name: str) -> int:
        self.asked.append(name)
        return await self.outcomes.setdefault(name, asyncio.get_running_loop().create_future())

    async def run(self, hedge_s: float = 0.0) -> tuple[str, int] | None:
        return await first_answer(
            self.upcoming,
            self.ask,
            lambda name, error: self.failures.append((name, error)),
            HedgeDelay(hedge_s),
        )


async def test_an_answer_counts_although_others_failed_in_the_same_moment() -> None:
    race = Race(*"abcdefghi")
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    running = asyncio.create_task(race.run())
    await until(lambda: len(race.outcomes) == 9)
    for name in "acdefghi":
        race.outcomes[name].set_exception(ConnectionClosed(name))
    race.outcomes["b"].set_result(7)
    assert await running == ("b", 7)
    assert race.failures == []
    gc.collect()
    assert unheard == []


async def test_after_a_failure_the_next_candidate_is_asked_at_once() -> None:
    race = Race("a")
    failure = ConnectionClosed("a")

    async def ask(name: str) -> int:
        race.asked.append(name)
        if name == "a":
            raise failure
        return 1

    def failed(name: str, error: BarnabasError) -> None:
        race.failures.append((name, error))
        race.upcoming.append("again")

    assert await first_answer(race.upcoming, ask, failed, HedgeDelay(3_600.0)) == ("again", 1)
    assert race.failures == [("a", failure)]


async def test_a_hung_candidate_is_overtaken_and_cancelled() -> None:
    race = Race("a", "b")
    running = asyncio.create_task(race.run())
    await until(lambda: len(race.outcomes) == 2)
    race.outcomes["b"].set_result(2)
    assert await running == ("b", 2)
    await asyncio.sleep(0)
    assert race.outcomes["a"].cancelled()


async def test_no_answer_gives_none_and_a_defect_is_raised() -> None:
    race = Race()
    assert await race.run() is None

    async def ask(name: str) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await first_answer(deque(["a"]), ask, lambda name, error: None, HedgeDelay(0.3))
