"""Delayed operations complete exactly once, by event or deadline, and leave nothing in memory."""

import threading
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from barnabas.broker.base.limited_log import INTERVAL_MS
from barnabas.broker.base.purgatory import DelayedCall, DelayedOperation, Purgatory, Reaper
from barnabas.protocol.invariants import InvariantViolation
from tests.support.building import Clock
from tests.support.errors import Fatal
from tests.support.waiting import DEADLINE_S


class Recorded(DelayedOperation):
    """Completes when `ready` is set; counts what happens to it."""

    def __init__(self, deadline_ms: float = 1_000) -> None:
        super().__init__(deadline_ms)
        self.ready = False
        self.completions = 0
        self.expirations = 0
        self.tries = 0
        self.done = threading.Event()
        self.while_trying: Callable[[], None] = lambda: None
        self.when_completed: Callable[[], object] = lambda: None

    def try_complete(self) -> bool:
        self.tries += 1
        holds = self.ready
        self.while_trying()
        return holds

    def on_expiration(self) -> None:
        assert self.completions == 0
        self.expirations += 1

    def on_complete(self) -> None:
        self.completions += 1
        self.when_completed()
        self.done.set()


def unexpected(error: BaseException) -> None:
    raise AssertionError(f"fatal: {error!r}")


def assert_none_expires(reaper: Reaper) -> None:
    assert reaper.expire_due(10**9) == 0


@pytest.fixture
def reaper() -> Reaper:
    """A reaper without its thread; the test sets the time."""
    return Reaper(on_fatal=unexpected, clock_ms=Clock())


@pytest.fixture
def purgatory(reaper: Reaper) -> Purgatory:
    return Purgatory("test", reaper)


def test_an_operation_that_can_complete_never_waits(purgatory: Purgatory) -> None:
    operation = Recorded()
    operation.ready = True
    purgatory.try_complete_else_watch(operation, ["a"])
    assert (operation.completions, operation.expirations) == (1, 0)
    assert (purgatory.waiting, purgatory._watchers) == (0, {})


def test_an_event_completes_an_operation_once(purgatory: Purgatory) -> None:
    operation = Recorded()
    purgatory.try_complete_else_watch(operation, ["a", "b", "a"])
    assert purgatory.waiting == 1
    assert purgatory.check_and_complete("a") == 0
    operation.ready = True
    assert purgatory.check_and_complete("other") == 0
    assert purgatory.check_and_complete("b") == 1
    assert purgatory.check_and_complete("a") == 0
    assert (operation.completions, operation.expirations) == (1, 0)
    assert (purgatory.waiting, purgatory._watchers) == (0, {})


def test_a_cancelled_operation_is_neither_completed_nor_expired(purgatory: Purgatory, reaper: Reaper) -> None:
    operation = Recorded()
    purgatory.try_complete_else_watch(operation, ["a"])
    assert operation.cancel()
    assert not operation.cancel()
    operation.ready = True
    assert (purgatory.check_and_complete("a"), reaper.expire_due(1_000)) == (0, 0)
    assert (operation.completions, operation.expirations) == (0, 0)
    assert (purgatory.waiting, purgatory._watchers) == (0, {})
    begun = Recorded()
    begun.cancel()
    purgatory.try_complete_else_watch(begun, ["a"])
    assert (begun.completions, purgatory.waiting) == (0, 0)


def test_the_deadline_completes_an_operation_once(purgatory: Purgatory, reaper: Reaper) -> None:
    operation = Recorded(deadline_ms=100)
    purgatory.try_complete_else_watch(operation, ["a"])
    assert reaper.expire_due(99) == 0
    assert reaper.expire_due(100) == 1
    operation.ready = True
    assert purgatory.check_and_complete("a") == 0
    assert not operation.force_complete()
    assert not operation.check()
    assert (operation.completions, operation.expirations) == (1, 1)
    assert (purgatory.waiting, purgatory._watchers, len(reaper._heap)) == (0, {}, 0)


def test_an_event_between_the_first_try_and_the_watching_is_not_lost(purgatory: Purgatory) -> None:
    operation = Recorded()

    def event_after_the_first_try() -> None:
        operation.ready = True

    operation.while_trying = event_after_the_first_try
    purgatory.try_complete_else_watch(operation, ["a"])
    assert operation.tries == 2
    assert operation.completions == 1


def test_an_event_during_a_try_on_another_thread_is_not_lost(purgatory: Purgatory) -> None:
    operation = Recorded()
    purgatory.try_complete_else_watch(operation, ["a"])
    began, go_on = threading.Event(), threading.Event()

    def wait_once() -> None:
        operation.while_trying = lambda: None
        began.set()
        assert go_on.wait(DEADLINE_S)

    operation.while_trying = wait_once
    first = threading.Thread(target=purgatory.check_and_complete, args=("a",))
    first.start()
    assert began.wait(DEADLINE_S)
    operation.ready = True
    # The other thread has read the condition and is still trying; this call must not wait for it.
    assert purgatory.check_and_complete("a") == 0
    go_on.set()
    first.join(DEADLINE_S)
    assert operation.completions == 1


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("how", ["expire", "force_complete", "cancel"])
def test_an_end_during_a_try_on_another_thread_follows_it_there(
    purgatory: Purgatory, caplog: pytest.LogCaptureFixture, how: str, fails: bool
) -> None:
    """A try may change the operation's state, which the completion reads; and it may take long."""
    operation = Recorded()
    purgatory.try_complete_else_watch(operation, ["a"])
    began, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def wait() -> None:
        began.set()
        assert go_on.wait(DEADLINE_S)
        order.append("tried")
        if fails:
            raise OSError("disk on fire")

    operation.while_trying = wait
    operation.when_completed = lambda: order.append(f"completed on {threading.current_thread().name}")
    trying = threading.Thread(target=purgatory.check_and_complete, args=("a",), name="trying")
    trying.start()
    assert began.wait(DEADLINE_S)
    ending = threading.Thread(target=getattr(operation, how))
    ending.start()
    ending.join(DEADLINE_S)
    assert not ending.is_alive(), "it waits for the try"
    assert order == []
    go_on.set()
    trying.join(DEADLINE_S)
    assert order == ["tried"] + ["completed on trying"] * (how != "cancel")
    assert operation.expirations == (how == "expire")
    assert (operation.tries, purgatory.waiting, purgatory._watchers) == (3, 0, {})


def test_an_event_that_a_try_has_found_beats_the_deadline(purgatory: Purgatory, reaper: Reaper) -> None:
    operation = Recorded(deadline_ms=100)
    purgatory.try_complete_else_watch(operation, ["a"])
    operation.ready = True
    operation.while_trying = lambda: assert_none_expires(reaper)
    assert purgatory.check_and_complete("a") == 1
    assert (operation.completions, operation.expirations, purgatory.waiting) == (1, 0, 0)


def test_an_operation_beyond_the_bound_expires_at_once(reaper: Reaper) -> None:
    purgatory = Purgatory("small", reaper, max_operations=2)
    waiting = [Recorded(), Recorded()]
    for operation in waiting:
        purgatory.try_complete_else_watch(operation, ["a"])
    refused = Recorded()
    purgatory.try_complete_else_watch(refused, ["a"])
    assert (refused.completions, refused.expirations) == (1, 1)
    assert waiting[0].force_complete()
    assert (waiting[0].completions, waiting[0].expirations, purgatory.waiting) == (1, 0, 1)
    purgatory.try_complete_else_watch(Recorded(), ["a"])
    assert purgatory.waiting == 2


def test_the_keys_of_all_operations_are_bounded(reaper: Reaper) -> None:
    purgatory = Purgatory("small", reaper, max_keys=3)
    large = Recorded()
    purgatory.try_complete_else_watch(large, ["a", "b"])
    refused = Recorded()
    purgatory.try_complete_else_watch(refused, ["a", "c"])
    assert (refused.completions, refused.expirations, purgatory.waiting) == (1, 1, 1)
    purgatory.try_complete_else_watch(Recorded(), ["a"])
    assert purgatory.waiting == 2
    assert large.force_complete()
    purgatory.try_complete_else_watch(Recorded(), ["b", "c"])
    assert purgatory.waiting == 2


def test_refusals_are_reported_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    purgatory = Purgatory("small", Reaper(on_fatal=unexpected, clock_ms=clock), max_operations=1)
    purgatory.try_complete_else_watch(Recorded(), ["a"])
    for _ in range(100):
        purgatory.try_complete_else_watch(Recorded(), ["a"])
    assert [record.getMessage() for record in caplog.records] == [
        "purgatory small refuses an operation: 1 wait already (0 more since the last report)"
    ]
    clock.now_ms = INTERVAL_MS
    purgatory.try_complete_else_watch(Recorded(), ["a"])
    assert caplog.records[-1].getMessage().endswith("(99 more since the last report)")
    assert len(caplog.records) == 2


def test_completed_operations_are_removed_everywhere(purgatory: Purgatory, reaper: Reaper) -> None:
    kept = [Recorded(deadline_ms=10**9) for _ in range(10)]
    for operation in kept:
        purgatory.try_complete_else_watch(operation, ["kept"])
    for number in range(5_000):
        operation = Recorded(deadline_ms=10**6 + number)
        purgatory.try_complete_else_watch(operation, ["a", number])
        operation.ready = True
        assert purgatory.check_and_complete("a") == 1
        assert len(reaper._heap) <= 64
    assert purgatory.waiting == 10
    assert len(purgatory._watchers) == 1
    assert reaper.expire_due(10**9) == 10
    assert len(reaper._heap) == 0


def test_the_rest_expires_in_time_after_many_completions(purgatory: Purgatory, reaper: Reaper) -> None:
    def dead() -> int:
        return sum(operation.is_completed for _, _, operation in reaper._heap)

    random = Random(1)
    operations = {deadline: Recorded(deadline) for deadline in random.sample(range(1_000), 300)}
    for operation in operations.values():
        purgatory.try_complete_else_watch(operation, ["a"])
    for deadline in random.sample(sorted(operations), 200):
        assert operations.pop(deadline).force_complete()
        assert reaper._dead == dead()
    assert len(reaper._heap) <= 200, "dead ones are swept out"
    for now_ms in range(1_000):
        assert reaper.expire_due(now_ms) == (now_ms in operations)
    assert (len(reaper._heap), reaper._dead) == (0, 0)


def test_a_call_is_made_at_its_time_and_a_completed_one_leaves_the_heap(reaper: Reaper) -> None:
    made: list[int] = []
    timers = [reaper.call_at(number, partial(made.append, number)) for number in range(1_000)]
    for timer in timers[:-1]:
        assert timer.force_complete()
    assert len(reaper._heap) <= 64
    assert reaper.expire_due(998) == 0
    assert reaper.expire_due(999) == 1
    assert (made, reaper._heap, reaper._dead) == ([999], [], 0)


def test_a_shut_down_expires_all_operations_and_refuses_more(purgatory: Purgatory) -> None:
    operation, late = Recorded(), Recorded()
    purgatory.try_complete_else_watch(operation, ["a"])
    purgatory.shut_down()
    assert (operation.completions, operation.expirations) == (1, 1)
    purgatory.try_complete_else_watch(late, ["a"])
    assert (late.completions, late.expirations, purgatory.waiting) == (1, 1, 0)


def test_an_operation_that_fails_affects_no_other(
    purgatory: Purgatory, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Recorded(), Recorded()
    for operation in (broken, sound):
        purgatory.try_complete_else_watch(operation, ["a"])

    def fail() -> None:
        raise OSError("disk on fire")

    broken.while_trying = fail
    sound.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert sound.completions == 1
    assert "disk on fire" in caplog.text


def test_an_expiration_that_fails_is_still_answered(
    purgatory: Purgatory, reaper: Reaper, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Recorded):
        def on_expiration(self) -> None:
            raise ZeroDivisionError("a bug")

    operation = Broken()
    purgatory.try_complete_else_watch(operation, ["a"])
    reaper.expire_due(1_000)
    assert operation.completions == 1
    assert "a bug" in caplog.text


@pytest.mark.parametrize("is_late", [False, True])
def test_a_delayed_call_is_made_when_it_is_due_or_late(
    purgatory: Purgatory, reaper: Reaper, is_late: bool
) -> None:
    is_due = threading.Event()
    made: list[str] = []
    call = DelayedCall(100, is_due.is_set, lambda: made.append("call"), lambda: made.append("late"))
    purgatory.try_complete_else_watch(call, ["a"])
    assert not made
    if is_late:
        assert reaper.expire_due(100) == 1
    is_due.set()
    assert purgatory.check_and_complete("a") == (not is_late)
    assert made == (["late", "call"] if is_late else ["call"])


def test_on_complete_may_check_the_same_key_again(purgatory: Purgatory) -> None:
    first, second = Recorded(), Recorded()
    for operation in (first, second):
        purgatory.try_complete_else_watch(operation, ["a"])

    class Chained(Recorded):
        def on_complete(self) -> None:
            super().on_complete()
            second.ready = True
            purgatory.check_and_complete("a")

    chained = Chained()
    purgatory.try_complete_else_watch(chained, ["a"])
    chained.ready = True
    purgatory.check_and_complete("a")
    assert (chained.completions, second.completions, first.completions) == (1, 1, 0)


def test_events_and_deadlines_that_race_complete_each_operation_exactly_once() -> None:
    clock = Clock()
    reaper = Reaper(on_fatal=unexpected, clock_ms=clock)
    purgatory = Purgatory("race", reaper)
    operations = [Recorded(deadline_ms=number // 10) for number in range(3_000)]
    added: list[Recorded] = []
    done = threading.Event()

    def add() -> None:
        for number, operation in enumerate(operations):
            operation.ready = number % 3 == 0
            purgatory.try_complete_else_watch(operation, [number % 7])
            operation.ready = True
            added.append(operation)
        done.set()

    def check() -> None:
        while not done.is_set():
            for key in range(7):
                purgatory.check_and_complete(key)

    def expire() -> None:
        while not done.is_set():
            clock.now_ms = len(added) // 10
            reaper.expire_due(clock.now_ms)

    threads = [threading.Thread(target=work) for work in (add, check, check, expire)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    reaper.expire_due(10**9)
    assert all(operation.completions == 1 for operation in operations)
    assert (purgatory.waiting, purgatory._watchers, len(reaper._heap)) == (0, {}, 0)


def test_the_reapers_thread_expires_by_the_clock_and_serves_several_purgatories() -> None:
    reaper = Reaper(on_fatal=unexpected)
    reaper.start()
    try:
        operations = []
        for name in ("produce", "fetch"):
            purgatory = Purgatory(name, reaper)
            # The later deadline first: the second one must wake the sleeping reaper.
            for delay_ms in (60_000, 20):
                operation = Recorded(reaper.clock_ms() + delay_ms)
                operations.append(operation)
                purgatory.try_complete_else_watch(operation, ["a"])
        assert operations[1].done.wait(DEADLINE_S)
        assert operations[3].done.wait(DEADLINE_S)
        assert operations[0].completions == operations[2].completions == 0
    finally:
        reaper.stop(DEADLINE_S)
    assert not reaper._reaper_thread.is_alive()


def test_the_reaper_sleeps_until_the_next_deadline_but_an_hour_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    reaper = Reaper(on_fatal=unexpected, clock_ms=clock)
    slept_s: list[float | None] = []

    def wait(timeout_s: float | None) -> None:
        slept_s.append(timeout_s)
        if timeout_s is None:
            reaper._stopping = True
        else:
            clock.now_ms += timeout_s * 1_000

    monkeypatch.setattr(reaper._condition, "wait", wait)
    operation = Recorded(deadline_ms=4_000_000)
    Purgatory("test", reaper).try_complete_else_watch(operation, ["a"])
    reaper._run()
    assert slept_s == [3_600, 400, None]
    assert operation.expirations == 1


def test_a_dying_reaper_is_fatal() -> None:
    fatal = Fatal()

    class Contradicting(Recorded):
        def on_complete(self) -> None:
            raise InvariantViolation("LEO below HW")

    reaper = Reaper(on_fatal=fatal)
    reaper.start()
    Purgatory("p", reaper).try_complete_else_watch(Contradicting(reaper.clock_ms()), ["a"])
    assert fatal.was_called.wait(DEADLINE_S)
    assert isinstance(fatal.errors[0], InvariantViolation)
    reaper.stop()
