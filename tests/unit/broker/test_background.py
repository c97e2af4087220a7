"""Background threads: periodic tasks, and slow work in order."""

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from barnabas.broker import background as background_module
from barnabas.broker.background import BackgroundWork, Scheduler
from barnabas.broker.base import slow_work
from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.base.slow_work import SlowWork
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.common.workers import WorkRefused
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from barnabas.protocol.invariants import InvariantViolation, invariant
from tests.support.batches import build_batch
from tests.support.defaults import log_config, make_config
from tests.support.errors import Fatal
from tests.support.logs import append_batches, get_or_create
from tests.support.slow_disk import SlowDisk
from tests.support.waiting import DEADLINE_S, wait_for


@pytest.fixture
def fatal() -> Fatal:
    return Fatal()


@pytest.fixture
def scheduler(fatal: Fatal) -> Iterator[Scheduler]:
    scheduler = Scheduler("scheduler", on_fatal=fatal)
    scheduler.start()
    yield scheduler
    scheduler.stop()


def counting(times: int) -> tuple[Callable[[], None], threading.Event]:
    """Work, and an event that is set when it has run this many times."""
    done, left = threading.Event(), [times]

    def work() -> None:
        left[0] -= 1
        if left[0] == 0:
            done.set()

    return work, done


def test_a_task_with_an_earlier_turn_does_not_wait_for_one_added_before(scheduler: Scheduler) -> None:
    _, never = counting(1)
    scheduler.every(3_600_000, "rare", never.set)
    work, done = counting(1)
    scheduler.every(1, "often", work)
    assert done.wait(DEADLINE_S)
    assert not never.is_set()


def test_a_task_that_fails_is_logged_and_runs_again(
    scheduler: Scheduler, fatal: Fatal, caplog: pytest.LogCaptureFixture
) -> None:
    work, done = counting(2)

    def failing() -> None:
        work()
        raise KeyError("unforeseen")

    scheduler.every(1, "retention", failing)
    assert done.wait(DEADLINE_S)
    assert fatal.errors == []
    assert "retention failed" in caplog.text


def test_a_task_runs_an_interval_after_its_last_end(fatal: Fatal, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, the next interval begins at its end."""
    submitted: list[tuple[Callable[[], None], float]] = []
    monkeypatch.setattr(
        background_module.Workers, "submit", lambda _, work, after_s: submitted.append((work, after_s))
    )
    intervals_ms = iter([10_000, 20_000])
    ran: list[int] = []
    Scheduler("scheduler", on_fatal=fatal).every(
        lambda: next(intervals_ms), "work", lambda: ran.append(len(submitted))
    )
    turn, first_s = submitted[0]
    turn()
    assert (ran, first_s, submitted[1:]) == ([1], 10.0, [(turn, 20.0)])


def test_a_broken_invariant_is_fatal(scheduler: Scheduler, fatal: Fatal) -> None:
    scheduler.every(1, "buggy", lambda: invariant(False, "the program contradicts itself"))
    assert fatal.was_called.wait(DEADLINE_S)
    assert isinstance(fatal.errors[0], InvariantViolation)


def test_a_stopped_scheduler_runs_no_task(scheduler: Scheduler) -> None:
    work, done = counting(1)
    scheduler.every(1, "work", work)
    assert done.wait(DEADLINE_S)
    scheduler.stop()
    assert not any(thread.name == "scheduler" and thread.is_alive() for thread in threading.enumerate())
    scheduler.stop()


def test_a_slow_task_delays_no_other_while_a_thread_is_free(fatal: Fatal) -> None:
    scheduler = Scheduler("scheduler", on_fatal=fatal, threads=2)
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
        assert overlaps == [False], "a task never runs twice at once"
    finally:
        released.set()
        scheduler.stop()
    assert fatal.errors == []


@pytest.fixture
def slow(fatal: Fatal) -> Iterator[SlowWork]:
    slow = SlowWork(on_fatal=fatal)
    slow.start()
    yield slow
    slow.stop()


def unexpected(error: Exception) -> None:
    raise AssertionError(f"failed: {error!r}")


def test_slow_work_runs_in_order_and_stop_waits_for_queued_work(slow: SlowWork) -> None:
    ran: list[int] = []
    for number in range(50):
        slow.submit(unexpected, ran.append, number)
    slow.stop()
    assert ran == list(range(50))


def test_a_failure_is_passed_on_and_the_next_work_runs(
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


def test_an_error_in_the_failure_callback_is_fatal(slow: SlowWork, fatal: Fatal) -> None:
    slow.submit(unexpected, lambda: 1 / 0)
    assert fatal.was_called.wait(DEADLINE_S)


def test_work_beyond_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch, fatal: Fatal) -> None:
    monkeypatch.setattr(slow_work, "_MAX_WAITING", 2)
    slow = SlowWork(on_fatal=fatal)
    ran: list[int] = []
    for number in range(2):
        slow.submit(unexpected, ran.append, number)
    with pytest.raises(WorkRefused, match="2 requests wait"):
        slow.submit(unexpected, ran.append, 9)
    slow.start()
    slow.stop()
    assert ran == [0, 1]


# The tasks of a broker


class Replicas:
    """The periodic work of a `ReplicaManager`."""

    def __init__(self) -> None:
        self.isr_checks = 0

    def shrink_isrs(self, *, may_shrink: bool) -> None:
        self.isr_checks += 1
        self.may_shrink = may_shrink

    def checkpoint_high_watermarks(self) -> None:
        return

    def retain(self) -> None:
        return


@pytest.fixture
def disk() -> Iterator[SlowDisk]:
    disk = SlowDisk()
    yield disk
    disk.released.set()


@pytest.fixture
def logs(tmp_path: Path, disk: SlowDisk) -> Iterator[LogManager]:
    logs = LogManager.open(
        [tmp_path],
        broker_id=BrokerId(1),
        cluster_id="cluster",
        config_of=lambda topic: log_config(flush_ms=0, file_delete_delay_ms=0),
        now_ms=0,
        files=disk,
    )
    yield logs
    disk.released.set()
    logs.close(0)


def make_background(
    logs: LogManager,
    config: BrokerConfig,
    replicas: Replicas | None = None,
    faults: list[BaseException] | None = None,
    are_loops_turning: Callable[[], bool] = lambda: True,
) -> BackgroundWork:
    return BackgroundWork(
        config,
        logs,
        cast(ReplicaManager, replicas or Replicas()),
        expire_offsets=lambda: None,
        expire_transactional_ids=lambda: None,
        producer_id_expiration_ms=lambda: 1 << 40,
        reload_certificates=lambda: None,
        are_loops_turning=are_loops_turning,
        on_fatal=(faults if faults is not None else []).append,
    )


planned: dict[str, "Planned"] = {}


class Planned:
    """A scheduler that notes what it would do."""

    def __init__(self, name: str, *, on_fatal: object, threads: int = 1) -> None:
        self.threads = threads
        self.intervals_ms: dict[str, object] = {}
        self.has_ended = False
        planned[name] = self

    def every(self, interval_ms: object, name: str, work: object) -> None:
        self.intervals_ms[name] = interval_ms

    def stop(self) -> None:
        self.has_ended = True


def test_a_task_that_is_never_due_needs_no_thread(logs: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "Scheduler", Planned)
    longest_ms = background_module._LONGEST_INTERVAL_MS
    config = make_config(
        background_threads=64,
        replica_lag_time_max_ms=30_000,
        log_retention_check_interval_ms=longest_ms,
        log_flush_offset_checkpoint_interval_ms=longest_ms + 1,
    )
    make_background(logs, config).stop()
    tasks = planned["scheduler"].intervals_ms
    assert (tasks["retention"], "recovery point checkpoint" in tasks) == (longest_ms, False)
    assert planned["scheduler"].threads == len(tasks)
    assert planned["isr-check"].intervals_ms == {"ISR check": 15_000}
    assert all(scheduler.has_ended for scheduler in planned.values())


@pytest.mark.parametrize("work", ["flush", "recovery points", "removal"])
def test_a_slow_disk_does_not_delay_the_isr_check(logs: LogManager, disk: SlowDisk, work: str) -> None:
    key = TopicPartition("topic", 0)
    log = get_or_create(logs, key, TopicId(uuid.UUID(int=7)), 0)
    append_batches(log, build_batch([(None, b"v")]))
    if work == "recovery points":
        log.roll(0)
    elif work == "removal":
        logs.delete(key, 0)
    disk.is_slow = True
    replicas = Replicas()
    faults: list[BaseException] = []
    config = make_config(
        background_threads=1,
        replica_lag_time_max_ms=2,
        replica_fetch_wait_max_ms=1,
        log_flush_scheduler_interval_ms=1 if work == "flush" else 3_600_000,
        log_flush_offset_checkpoint_interval_ms=1 if work == "recovery points" else 3_600_000,
    )
    background = make_background(logs, config, replicas, faults)
    background.start()
    try:
        assert disk.began.wait(DEADLINE_S)
        seen = replicas.isr_checks
        wait_for(lambda: replicas.isr_checks >= seen + 3, "three ISR checks during a slow disk operation")
        assert not disk.released.is_set()
    finally:
        disk.released.set()
        background.stop()
    assert faults == []


@pytest.mark.parametrize("is_set_later", [False, True])
def test_a_topics_flush_ms_is_honoured_without_a_scheduler_interval(
    logs: LogManager, is_set_later: bool
) -> None:
    """Kafka checks it only each log.flush.scheduler.interval.ms, which is never by default."""
    log = get_or_create(logs, TopicPartition("topic", 0), TopicId(uuid.UUID(int=7)), wall_clock_ms())
    idle = get_or_create(logs, TopicPartition("other", 0), TopicId(uuid.UUID(int=8)), wall_clock_ms())
    idle.config = log_config()
    log.config = log_config(flush_ms=(1 << 62) if is_set_later else 20)
    for each in (log, idle):
        append_batches(each, build_batch([(None, b"v")]))
    background = make_background(logs, make_config())
    background.start()
    try:
        log.config = log_config(flush_ms=20)
        wait_for(lambda: log.recovery_point == 1, "a flush after flush.ms")
        append_batches(log, build_batch([(None, b"v")]))
        wait_for(lambda: log.recovery_point == 2, "another flush")
    finally:
        background.stop()
    assert idle.recovery_point == 0


@pytest.mark.parametrize("is_turning", [False, True])
def test_no_isr_shrinks_while_a_network_thread_is_stuck(
    is_turning: bool, logs: LogManager, caplog: pytest.LogCaptureFixture
) -> None:
    replicas = Replicas()
    config = make_config(replica_lag_time_max_ms=2, replica_fetch_wait_max_ms=1)
    background = make_background(logs, config, replicas, are_loops_turning=lambda: is_turning)
    background.start()
    wait_for(lambda: replicas.isr_checks)
    background.stop()
    assert replicas.may_shrink is is_turning
    assert ("fetches may lie unread" in caplog.text) is not is_turning
