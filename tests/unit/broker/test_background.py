"""The background threads: the scheduler's turns, and slow work in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from barnabas.broker import slow_work
from barnabas.broker.scheduler import Scheduler
from barnabas.broker.slow_work import SlowWork, SlowWorkRefused
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.invariants import InvariantViolation, invariant
from tests.support.waiting import DEADLINE_S


class Fatal:
    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.told = threading.Event()

    def __call__(self, error: BaseException) -> None:
        self.errors.append(error)
        self.told.set()


@pytest.fixture
def fatal() -> Fatal:
    return Fatal()


@pytest.fixture
def scheduler(fatal: Fatal) -> Iterator[Scheduler]:
    scheduler = Scheduler(on_fatal=fatal)
    scheduler.start()
    yield scheduler
    scheduler.stop()


def counting(times: int) -> tuple[Callable[[], None], threading.Event]:
    """Work that says when it has run that often."""
    done, left = threading.Event(), [times]

    def work() -> None:
        left[0] -= 1
        if left[0] == 0:
            done.set()

    return work, done


def test_a_task_runs_again_and_again(scheduler: Scheduler) -> None:
    work, done = counting(3)
    scheduler.every(1, "work", work)
    assert done.wait(DEADLINE_S)


def test_a_later_task_with_an_earlier_turn_is_not_kept_waiting(scheduler: Scheduler) -> None:
    _, never = counting(1)
    scheduler.every(3_600_000, "rare", never.set)
    work, done = counting(1)
    scheduler.every(1, "often", work)
    assert done.wait(DEADLINE_S)
    assert not never.is_set()


@pytest.mark.parametrize(
    "error",
    [
        OSError(5, "Input/output error"),
        api_error(ErrorCode.KAFKA_STORAGE_ERROR),
        KeyError("nobody foresaw it"),
    ],
)
def test_a_task_that_fails_is_reported_and_has_its_next_turn(
    scheduler: Scheduler, fatal: Fatal, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    work, done = counting(2)

    def failing() -> None:
        work()
        raise error

    scheduler.every(1, "retention", failing)
    assert done.wait(DEADLINE_S)
    assert fatal.errors == []
    assert "retention failed" in caplog.text


def test_a_broken_invariant_is_fatal(scheduler: Scheduler, fatal: Fatal) -> None:
    scheduler.every(1, "buggy", lambda: invariant(False, "the program contradicts itself"))
    assert fatal.told.wait(DEADLINE_S)
    assert isinstance(fatal.errors[0], InvariantViolation)


def test_a_stopped_scheduler_runs_nothing_more(scheduler: Scheduler) -> None:
    work, done = counting(1)
    scheduler.every(1, "work", work)
    assert done.wait(DEADLINE_S)
    scheduler.stop()
    assert not any(thread.name == "scheduler" and thread.is_alive() for thread in threading.enumerate())
    scheduler.stop()


def test_a_slow_task_delays_no_other_while_a_thread_is_free(fatal: Fatal) -> None:
    scheduler = Scheduler(on_fatal=fatal, threads=2)
    is_slow, released = threading.Event(), threading.Event()
    overlaps: list[bool] = []

    def slow() -> None:
        overlaps.append(is_slow.is_set())
        is_slow.set()
        released.wait(DEADLINE_S)

    scheduler.every(1, "slow", slow)
    scheduler.start()
    try:
        assert is_slow.wait(DEADLINE_S)
        work, done = counting(3)
        scheduler.every(1, "quick", work)
        assert done.wait(DEADLINE_S)
        assert overlaps == [False], "a task never runs beside itself"
    finally:
        released.set()
        scheduler.stop()
    assert fatal.errors == []


def test_with_fewer_threads_than_tasks_each_has_its_turn(fatal: Fatal) -> None:
    scheduler = Scheduler(on_fatal=fatal, threads=2)
    counted = [counting(3) for _ in range(5)]
    for number, (work, _) in enumerate(counted):
        scheduler.every(number, f"work {number}", work)
    scheduler.start()
    try:
        assert all(done.wait(DEADLINE_S) for _, done in counted)
    finally:
        scheduler.stop()


# Slow work


@pytest.fixture
def slow(fatal: Fatal) -> Iterator[SlowWork]:
    slow = SlowWork(on_fatal=fatal)
    slow.start()
    yield slow
    slow.stop()


def unexpected(error: Exception) -> None:
    raise AssertionError(f"failed: {error!r}")


def test_slow_work_runs_in_order_and_what_is_queued_still_runs_at_the_end(slow: SlowWork) -> None:
    ran: list[int] = []
    for number in range(50):
        slow.submit(unexpected, ran.append, number)
    slow.stop()
    assert ran == list(range(50))


def test_a_failure_is_told_and_the_next_work_runs(
    slow: SlowWork, fatal: Fatal, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Exception] = []
    done = threading.Event()

    def fail() -> None:
        raise OSError("disk on fire")

    slow.submit(failures.append, fail)
    slow.submit(unexpected, done.set)
    assert done.wait(DEADLINE_S)
    assert [str(error) for error in failures] == ["disk on fire"]
    assert fatal.errors == []
    assert "fail failed" in caplog.text


def test_a_failure_that_nobody_can_be_told_of_is_fatal(slow: SlowWork, fatal: Fatal) -> None:
    slow.submit(unexpected, lambda: 1 / 0)
    assert fatal.told.wait(DEADLINE_S)


def test_one_too_many_is_refused(monkeypatch: pytest.MonkeyPatch, fatal: Fatal) -> None:
    monkeypatch.setattr(slow_work, "_MAX_WAITING", 2)
    slow = SlowWork(on_fatal=fatal)
    ran: list[int] = []
    for number in range(2):
        slow.submit(unexpected, ran.append, number)
    with pytest.raises(SlowWorkRefused, match="2 requests wait"):
        slow.submit(unexpected, ran.append, 9)
    slow.start()
    slow.stop()
    assert ran == [0, 1]
