"""Deadlines on an event loop: in time, with few timers, in slices, and nothing stays in memory."""

from collections.abc import Callable

import pytest

from barnabas.broker.base.limits import SLICE_OPERATIONS, SLICE_PARTITIONS
from barnabas.broker.base.purgatory import DelayedOperation, LoopDeadlines, Purgatory, Reaper
from tests.support.building import Clock, fatal


class Expiring(DelayedOperation):
    """Counts how often it expired; ``partitions`` is its size."""

    def __init__(self, deadline_ms: float, partitions: int = 1) -> None:
        super().__init__(deadline_ms)
        self.partitions = partitions
        self.expirations = self.completions = 0
        self.ready = False

    @property
    def size(self) -> int:
        return self.partitions

    def try_complete(self) -> bool:
        return self.ready

    def on_expiration(self) -> None:
        self.expirations += 1

    def on_complete(self) -> None:
        self.completions += 1


class Loop:
    """An event loop whose time the test moves, with deadlines and a purgatory."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.soon: list[Callable[[], None]] = []
        self.deadlines = LoopDeadlines(self._call_later, self.soon.append, self.clock)
        self.purgatory = Purgatory("test", Reaper(on_fatal=fatal, clock_ms=self.clock))

    def _call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        self.timers.append((self.clock.now_ms + delay_s * 1000, work))

    def wait(self, operation: DelayedOperation) -> None:
        self.purgatory.try_complete_else_watch(operation, ["key"], self.deadlines)

    def pass_time(self, ms: float) -> None:
        self.clock.now_ms += ms
        due = [timer for timer in self.timers if timer[0] <= self.clock.now_ms]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, work in due:
            work()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.mark.parametrize("wait_ms", [0, 0.5, 1, 63, 100, 499.9, 500, 30_000, 600_000])
def test_an_operation_expires_never_early_and_little_late(loop: Loop, wait_ms: float) -> None:
    for late_ms in (0, 0.3, 7):
        loop.clock.now_ms += late_ms
        operation = Expiring(loop.clock.now_ms + wait_ms)
        loop.wait(operation)
        ((at_ms, _),) = loop.timers
        assert 0 <= at_ms - operation.deadline_ms <= max(1, wait_ms / 32)
        loop.pass_time(at_ms - loop.clock.now_ms)
        assert (operation.expirations, operation.completions) == (1, 1)
    assert loop.purgatory.waiting == 0


def test_close_deadlines_share_a_timer(loop: Loop) -> None:
    operations = [Expiring(500 + number / 100) for number in range(400)]
    for operation in operations:
        loop.wait(operation)
    assert len(loop.timers) <= 2
    loop.pass_time(600)
    while loop.soon:
        loop.soon.pop()()
    assert all(operation.expirations == 1 for operation in operations)
    assert not loop.deadlines._groups


@pytest.mark.parametrize("partitions", [1, SLICE_PARTITIONS // 4])
def test_many_expire_in_slices(loop: Loop, partitions: int) -> None:
    operations = [Expiring(500, partitions) for _ in range(40)]
    for operation in operations:
        loop.wait(operation)
    loop.pass_time(600)
    most = min(SLICE_OPERATIONS, SLICE_PARTITIONS // partitions)
    expired = most
    while loop.soon:
        assert sum(operation.expirations for operation in operations) == expired
        (work,) = loop.soon
        loop.soon.clear()
        work()
        expired = min(40, expired + most)
    assert all(operation.expirations == 1 for operation in operations)


def test_a_completed_operation_is_kept_by_no_timer(loop: Loop) -> None:
    event, cancelled, late = (Expiring(500) for _ in range(3))
    for operation in (event, cancelled, late):
        loop.wait(operation)
    (group,) = loop.deadlines._groups.values()
    event.ready = True
    loop.purgatory.check_and_complete("key")
    cancelled.cancel()
    assert list(group) == [late]
    loop.pass_time(600)
    assert [operation.completions for operation in (event, cancelled, late)] == [1, 0, 1]
    assert [operation.expirations for operation in (event, cancelled, late)] == [0, 0, 1]


def test_an_operation_that_another_thread_completes_before_it_is_scheduled_stays_nowhere(loop: Loop) -> None:
    class Hurried(LoopDeadlines):
        def schedule(self, operation: DelayedOperation) -> None:
            operation.force_complete()
            super().schedule(operation)

    loop.deadlines = Hurried(loop._call_later, loop.soon.append, loop.clock)
    operation = Expiring(500)
    loop.wait(operation)
    assert list(loop.deadlines._groups.values()) == [{}]
    loop.pass_time(600)
    assert (operation.completions, operation.expirations) == (1, 0)


def test_an_operation_that_fails_affects_no_other(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Expiring):
        def on_complete(self) -> None:
            raise ValueError("no answer")

    operations = [Expiring(500), Failing(500), Expiring(500)]
    for operation in operations:
        loop.wait(operation)
    loop.pass_time(600)
    assert [operation.completions for operation in operations] == [1, 0, 1]
    assert "no answer" in caplog.text
