"""The waits between attempts: how long, and when a call gives up."""

from types import SimpleNamespace

import pytest

from barnabas.common import backoff
from barnabas.common.backoff import Backoff, Retries
from barnabas.protocol.errors import BarnabasError, ConnectionClosed, LocalError, RequestTimedOutLocally


def test_the_back_off_doubles_up_to_its_maximum_and_starts_again_after_a_success() -> None:
    pause = Backoff(50, 1000, lambda low, high: (low + high) / 2)
    assert pause.remaining(0.0) <= 0
    waits = []
    for _ in range(7):
        pause.failed(100.0)
        waits.append(round(pause.remaining(100.0) * 1000))
    assert waits == [50, 100, 200, 400, 800, 1000, 1000]
    for _ in range(10_000):
        pause.failed(100.0)
    assert pause.remaining(100.0) == pytest.approx(1.0)
    assert pause.remaining(101.0) == pytest.approx(0.0)
    pause.succeeded()
    pause.failed(200.0)
    assert pause.remaining(200.0) == pytest.approx(0.05)


def test_the_back_off_is_jittered_within_its_bounds() -> None:
    for pick, expected in ((min, 0.08), (max, 0.12)):
        pause = Backoff(100, 1000, pick)
        pause.failed(0.0)
        assert pause.remaining(0.0) == pytest.approx(expected)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of `Retries`, on a clock that only they move."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(backoff, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: 50.0 + sum(waits)))
    return waits


async def test_a_retriable_error_is_retried_until_the_deadline(slept: list[float]) -> None:
    retries = Retries(Backoff(125, 1000, lambda low, high: 1.0), limit_s=1.875)
    without_end = Retries(Backoff(125, 1000, lambda low, high: 1.0))
    for wait_s, left_ms in ((0.125, 1875), (0.25, 1750), (0.5, 1500)):
        assert retries.left_ms() == left_ms
        assert without_end.left_ms(at_most=30_000) == 30_000
        await retries.wait_after(ConnectionClosed("still down"))
        assert slept[-1] == wait_s
    # The next wait, of a second, would end at the very deadline.
    with pytest.raises(ConnectionClosed, match="still down"):
        await retries.wait_after(ConnectionClosed("still down"))
    for _ in range(10):
        await without_end.wait_after(RequestTimedOutLocally("no answer"))
    assert len(slept) == 13


async def test_a_last_attempt_without_an_answer_names_the_error_before(slept: list[float]) -> None:
    retries = Retries(Backoff(125, 1000, lambda low, high: 1.0), limit_s=0.2)
    await retries.wait_after(ConnectionClosed("still down"))
    with pytest.raises(
        RequestTimedOutLocally, match=r"1 ms; the attempt before: still down \(asked for 200 ms\)"
    ):
        await retries.wait_after(RequestTimedOutLocally("no answer within 1 ms"))


@pytest.mark.parametrize("error", [LocalError("permanent"), BarnabasError("permanent")])
async def test_a_permanent_error_is_raised_at_once(slept: list[float], error: BarnabasError) -> None:
    with pytest.raises(BarnabasError, match="permanent"):
        await Retries(Backoff(100, 1000)).wait_after(error)
    assert slept == []


async def test_the_timeout_of_an_attempt_is_positive_and_within_its_limit(slept: list[float]) -> None:
    assert Retries(Backoff(100, 1000), limit_s=0.0).left_ms() == 1
    assert Retries(Backoff(100, 1000), limit_s=10.0).left_ms(at_most=300) == 300
