"""A shard hosts machines: their events, timers and appends, until it is closed."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from barnabas.broker.base.purgatory import DelayedCall, Reaper
from barnabas.broker.coordinators.coordinator_log import CoordinatorLog
from barnabas.broker.coordinators.machine_shard import (
    FENCED_RETRY_MS,
    Leadership,
    MachineShard,
    ShardState,
)
from barnabas.broker.coordinators.state_machine import Append, Effects, Moment, Outbox
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import LeaderEpoch, TopicPartition

RECORD = ("record",)


class FakeOutbox(Outbox):
    def __init__(self, events: list[Any]) -> None:
        self.events = events
        self.appends: list[Append] = []

    def take(self) -> Effects:
        appends, self.appends = self.appends, []
        return Effects(appends=appends)

    def settle(self, number: int, error: ErrorCode, base_offset: int, now: Moment) -> None:
        self.events.append((number, error))


class FakeMachine:
    def __init__(self) -> None:
        self.next_deadline_ms = math.inf
        self.events: list[Any] = []
        self.is_done = False
        self.outbox = FakeOutbox(self.events)

    def resume(self, now: Moment) -> None:
        self.events.append("started")

    def tick(self, now: Moment) -> None:
        self.next_deadline_ms = math.inf
        self.events.append("tick")

    def unload(self, now: Moment) -> None:
        self.events.append("unload")


class FakeLog:
    def __init__(self) -> None:
        self.is_full = False
        self.queued: list[Callable[[ErrorCode, int], None]] = []
        self.removals: list[Callable[[ErrorCode, int], None]] = []
        self.flushed: list[str] = []

    def enqueue(self, records: Sequence[Any], settled: Callable[[ErrorCode, int], None], _: object) -> bool:
        if not self.is_full:
            self.queued.append(settled)
        return not self.is_full

    def enqueue_removal(self, records: Sequence[Any], removed: Callable[[ErrorCode, int], None]) -> None:
        self.removals.append(removed)

    def flush(self) -> None:
        self.flushed.append("here")

    def flush_aside(self) -> None:
        self.flushed.append("aside")


class FakeReaper:
    def __init__(self) -> None:
        self.timers: list[DelayedCall] = []
        self.completed_count = 0

    def call_at(self, deadline_ms: float, call: Callable[[], None]) -> DelayedCall:
        def completed() -> None:
            self.completed_count += 1

        self.timers.append(DelayedCall(deadline_ms, lambda: False, completed, call))
        return self.timers[-1]

    @property
    def deadlines(self) -> list[float]:
        return [timer.deadline_ms for timer in self.timers if not timer.is_completed]


class FakeShard(MachineShard[FakeMachine]):
    KIND = "machine"
    MAX_MACHINES = 2

    def _make(self, key: str, now: Moment) -> FakeMachine:
        return FakeMachine()

    def _is_done(self, machine: FakeMachine) -> bool:
        return machine.is_done

    def _postponed(self, machine: FakeMachine, now: Moment) -> None:
        machine.events.append("postponed")


class Rig:
    def __init__(self, machines: Mapping[str, FakeMachine] | None = None) -> None:
        self.now_ms = 1_000.0
        self.is_fenced = False
        self.log = FakeLog()
        self.reaper = FakeReaper()
        self.shard = FakeShard(
            Leadership(
                TopicPartition("t", 0),
                None,
                LeaderEpoch(3),
                cast("CoordinatorLog", self.log),
                cast("Reaper", self.reaper),
                lambda: Moment(self.now_ms, 0),
                lambda: self.is_fenced,
            )
        )
        assert self.shard.serve(machines or {})

    def apply(self, key: str = "a", *appends: Append, deadline_ms: float = math.inf, **options: Any) -> bool:
        def event(machine: FakeMachine, now: Moment) -> None:
            machine.next_deadline_ms = deadline_ms
            machine.outbox.appends += appends

        return self.shard.apply(key, event, **options)

    def machine(self, key: str = "a") -> FakeMachine:
        return self.shard._hosted[key].machine

    def expire(self) -> None:
        """The first timer that is not cancelled expires."""
        timer = next(timer for timer in self.reaper.timers if not timer.is_completed)
        self.now_ms = max(self.now_ms, timer.deadline_ms)
        assert timer.force_complete()
        timer.on_expiration()


def error_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.code


# ---- from loading to the end


def test_a_closed_shard_refuses_requests_and_unloads_its_machines() -> None:
    rig = Rig({"a": FakeMachine()})
    machine = rig.machine()
    rig.shard.fence()
    assert error_of(lambda: rig.apply("a")) is ErrorCode.NOT_COORDINATOR
    assert error_of(lambda: rig.apply("new")) is ErrorCode.NOT_COORDINATOR
    rig.shard.close()
    assert (rig.shard.state, machine.events, rig.shard.machines()) == (
        ShardState.CLOSED,
        ["started", "unload"],
        [],
    )
    assert not rig.shard.serve({})


def test_close_fences_too() -> None:
    rig = Rig()
    rig.shard.close()
    assert rig.shard.state is ShardState.CLOSED


def test_a_loaded_machine_gets_its_first_event_once_before_all_others() -> None:
    rig = Rig({"a": FakeMachine(), "b": FakeMachine()})
    rig.machine("b").is_done = True
    rig.machine("a").outbox.appends = [Append(1, RECORD)]
    rig.apply("a")
    rig.shard.start_loaded()
    assert rig.machine("a").events == ["started"]
    assert len(rig.log.queued) == 1
    assert rig.shard.read("b", lambda machine, now: 1) is None


# ---- events


def test_an_event_of_a_missing_machine_creates_it_if_wanted() -> None:
    rig = Rig()
    assert not rig.apply("a", create=False)
    assert rig.shard.read("a", lambda machine, now: 1) is None
    assert rig.shard.machines() == []
    assert rig.apply("a")
    assert rig.apply("a", create=False)
    assert rig.apply("b")
    assert error_of(lambda: rig.apply("c")) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_appends_are_settled_also_if_the_log_refuses_them() -> None:
    rig = Rig()
    rig.apply("a", Append(None, RECORD, is_removal=True), Append(4, RECORD))
    rig.log.queued.pop()(ErrorCode.NONE, 7)
    rig.log.is_full = True
    rig.apply("a", Append(5, RECORD))
    assert rig.machine().events == [(4, ErrorCode.NONE), (5, ErrorCode.NOT_ENOUGH_REPLICAS)]


def test_the_outcome_of_an_append_may_set_a_deadline_and_end_a_machine() -> None:
    rig = Rig()
    rig.apply("a", Append(1, RECORD), Append(2, RECORD))
    machine = rig.machine()
    machine.next_deadline_ms = 1_500.0
    rig.log.queued[0](ErrorCode.NONE, 7)
    assert rig.reaper.deadlines == [1_500.0]
    machine.is_done = True
    rig.log.queued[1](ErrorCode.NONE, 8)
    assert rig.shard.machines() == []
    assert rig.reaper.deadlines == []


def test_the_outcome_of_a_removal_is_reported_to_a_machine_that_waits_for_it() -> None:
    rig = Rig()
    rig.apply("a", Append(None, RECORD, is_removal=True), Append(3, RECORD, is_removal=True))
    for removed in rig.log.removals:
        removed(ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert (rig.log.queued, rig.machine().events) == ([], [(3, ErrorCode.NOT_ENOUGH_REPLICAS)])


def test_an_event_finds_the_successor_of_a_machine_that_is_gone() -> None:
    rig = Rig()
    rig.apply("a", Append(1, RECORD), deadline_ms=5_000.0)
    hosted, former = rig.shard._hosted["a"], rig.machine()
    former.is_done = True
    rig.apply("a")
    assert (hosted.is_gone, hosted.timer, rig.reaper.deadlines) == (True, None, [])
    former.next_deadline_ms = 6_000.0
    rig.log.queued[0](ErrorCode.NONE, 7)
    assert (former.events, rig.reaper.deadlines) == ([(1, ErrorCode.NONE)], [])
    # A caller that found the former one before looks again.
    assert not rig.shard._apply(hosted, lambda machine, now: machine.tick(now))
    rig.apply("a")
    assert rig.machine() is not former


# ---- time


def test_the_timer_expires_no_later_than_the_deadline() -> None:
    rig = Rig()
    for deadline_ms, expected in ((3_000.0, [3_000.0]), (3_000.0, [3_000.0]), (2_000.0, [2_000.0])):
        rig.apply(deadline_ms=deadline_ms)
        assert rig.reaper.deadlines == expected
    assert (len(rig.reaper.timers), rig.reaper.completed_count) == (2, 1)
    rig.apply(deadline_ms=4_000.0)
    assert rig.reaper.deadlines == [2_000.0]
    rig.expire()
    assert rig.machine().events == ["tick"]
    rig.apply(deadline_ms=4_000.0)
    assert rig.reaper.deadlines == [4_000.0]


def test_a_deadline_of_a_fenced_broker_is_checked_again_later() -> None:
    rig = Rig()
    rig.apply(deadline_ms=2_000.0)
    rig.is_fenced = True
    rig.expire()
    assert rig.machine().events == ["postponed"]
    assert rig.reaper.deadlines == [2_000.0 + FENCED_RETRY_MS]
    rig.is_fenced = False
    rig.expire()
    assert rig.machine().events == ["postponed", "tick"]


def test_a_timer_that_expires_beside_its_successor_leaves_it() -> None:
    rig = Rig()
    rig.apply(deadline_ms=3_000.0)
    former = rig.reaper.timers[0]
    rig.apply(deadline_ms=2_000.0)
    rig.is_fenced = True
    former.on_expiration()
    assert rig.reaper.deadlines == [2_000.0]


def test_the_thread_of_all_deadlines_writes_no_record() -> None:
    """Nor do those that settle appends: a slow disk would hold up all that wait for these threads."""
    append = Append(1, ())
    rig = Rig()
    rig.apply("a", append, deadline_ms=2_000.0)
    rig.machine().outbox.appends = [append]
    rig.expire()
    rig.machine().outbox.appends = [append]
    rig.log.queued[0](ErrorCode.NONE, 0)
    assert rig.log.flushed == ["here", "aside", "aside"]
    assert len(rig.log.queued) == 3

    loaded = FakeMachine()
    rig = Rig({"a": loaded})
    loaded.outbox.appends = [append]
    rig.shard._timer_expired(rig.shard._hosted["a"])
    assert (loaded.events, rig.log.flushed) == (["started", "tick"], ["aside"]), "its first event too"
