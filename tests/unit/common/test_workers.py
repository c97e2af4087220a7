"""Pools of threads that exist only while there is work, and tasks."""

import threading
from collections.abc import Callable, Iterator

import pytest

from barnabas.common import threads, workers
from barnabas.common.workers import Task, Workers, WorkRefused
from tests.support.errors import Fatal
from tests.support.waiting import DEADLINE_S, wait_for


@pytest.fixture
def fatal() -> Iterator[Fatal]:
    fatal = Fatal()
    yield fatal
    assert fatal.errors == []


def living(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


class Blocking:
    """Work that ends when it is released."""

    def __init__(self) -> None:
        self.began, self.released = threading.Semaphore(0), threading.Event()

    def __call__(self) -> None:
        self.began.release()
        assert self.released.wait(DEADLINE_S)


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    blocking = Blocking()
    yield blocking
    blocking.released.set()


def test_threads_start_with_work_up_to_the_number_and_end_when_they_are_idle(
    fatal: Fatal, blocking: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "IDLE_S", 0.001)
    pool = Workers("pool", threads=2, on_fatal=fatal)
    pool.start()
    assert living("pool") == 0
    for _ in range(3):
        pool.submit(blocking)
    assert blocking.began.acquire(timeout=DEADLINE_S)
    assert blocking.began.acquire(timeout=DEADLINE_S)
    assert living("pool") == 2
    assert not blocking.began.acquire(blocking=False)
    blocking.released.set()
    assert blocking.began.acquire(timeout=DEADLINE_S)
    wait_for(lambda: living("pool") == 0, "the end of the idle threads")
    done = threading.Event()
    pool.submit(done.set)
    assert done.wait(DEADLINE_S)
    assert pool.stop()


def test_work_runs_in_the_order_in_which_it_is_due(fatal: Fatal) -> None:
    ran: list[str] = []
    pool = Workers("pool", on_fatal=fatal)
    pool.submit(lambda: ran.append("later"), after_s=0.02)
    pool.submit(lambda: ran.append("first"))
    pool.submit(lambda: ran.append("second"))
    pool.start()
    wait_for(lambda: len(ran) == 3, "all work")
    assert ran == ["first", "second", "later"]
    pool.stop()


def test_work_that_is_due_later_is_not_late_while_a_thread_is_blocked(
    fatal: Fatal, blocking: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that takes work leaves another to wait for the next, also once all were idle for long."""
    monkeypatch.setattr(workers, "IDLE_S", 0.001)
    done = threading.Event()
    pool = Workers("pool", threads=2, on_fatal=fatal)
    pool.start()
    pool.submit(done.set, after_s=0.05)
    pool.submit(blocking)
    assert blocking.began.acquire(timeout=DEADLINE_S)
    assert done.wait(DEADLINE_S)
    blocking.released.set()
    pool.stop()


def test_a_thread_that_ends_leaves_the_next_work_to_another_in_time(
    fatal: Fatal, blocking: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work wakes the thread that has been idle for longest, which ends; the other must not sleep on."""
    monkeypatch.setattr(workers, "IDLE_S", 0.001)
    pool = Workers("pool", threads=2, on_fatal=fatal)
    pool.start()
    pool.submit(lambda: None, after_s=3_600)
    pool.submit(blocking)
    assert blocking.began.acquire(timeout=DEADLINE_S)
    wait_for(lambda: pool._idle == 1, "a thread that waits for the later work")
    threading.Event().wait(0.01)
    monkeypatch.setattr(workers, "IDLE_S", 3_600)
    blocking.released.set()
    wait_for(lambda: pool._idle == 2, "both threads to be idle")
    done = threading.Event()
    pool.submit(done.set, after_s=0.05)
    assert done.wait(DEADLINE_S)
    assert pool.stop()


def test_earlier_work_wakes_a_thread_that_waits_for_later_work(fatal: Fatal) -> None:
    done = threading.Event()
    pool = Workers("pool", on_fatal=fatal)
    pool.start()
    pool.submit(lambda: None, after_s=3_600)
    pool.submit(done.set)
    assert done.wait(DEADLINE_S)
    assert pool.stop()


def test_withdrawn_work_never_runs(fatal: Fatal) -> None:
    ran: list[str] = []
    pool = Workers("pool", on_fatal=fatal)

    def withdrawn() -> None:
        ran.append("withdrawn")

    pool.submit(withdrawn)
    pool.submit(lambda: ran.append("kept"))
    pool.withdraw(withdrawn)
    pool.start()
    pool.stop(finishes=True)
    assert ran == ["kept"]


@pytest.mark.parametrize(("finishes", "ran"), [(True, ["next"]), (False, [])])
def test_stop_ends_after_the_present_or_after_all_work_that_is_due(
    fatal: Fatal, blocking: Blocking, finishes: bool, ran: list[str]
) -> None:
    done: list[str] = []
    pool = Workers("pool", on_fatal=fatal)
    pool.start()
    pool.submit(blocking)
    pool.submit(lambda: done.append("next"))
    pool.submit(lambda: done.append("much later"), after_s=3_600)
    assert blocking.began.acquire(timeout=DEADLINE_S)
    assert not pool.stop(0.0, finishes=finishes)
    blocking.released.set()
    assert pool.stop(DEADLINE_S, finishes=finishes)
    assert done == ran
    with pytest.raises(WorkRefused, match="pool has stopped"):
        pool.submit(blocking)


def test_work_beyond_the_bound_is_refused(fatal: Fatal) -> None:
    pool = Workers("pool", max_waiting=1, on_fatal=fatal)
    pool.submit(lambda: None)
    with pytest.raises(WorkRefused, match="1 requests wait for pool"):
        pool.submit(lambda: None)


def test_an_exception_is_fatal() -> None:
    fatal = Fatal()
    pool = Workers("pool", on_fatal=fatal)
    pool.start()
    pool.submit(lambda: 1 / 0)
    assert fatal.was_called.wait(DEADLINE_S)


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_pool_with_work_does_not_start_without_a_thread(
    fatal: Fatal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would try again: the tasks of a scheduler submit themselves."""
    pool = Workers("pool", on_fatal=fatal)
    pool.submit(lambda: None)
    monkeypatch.setattr(threads.threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="no thread of pool can be started"):
        pool.start()


def test_a_thread_that_cannot_be_started_is_tried_again_with_the_next_work(
    fatal: Fatal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    pool = Workers("pool", on_fatal=fatal)
    pool.start()
    with monkeypatch.context() as patched:
        patched.setattr(threads.threading.Thread, "start", refuse)
        pool.submit(lambda: ran.append(1))
    assert "pool is not started now: can't start new thread" in caplog.text
    pool.submit(lambda: ran.append(2))
    wait_for(lambda: ran == [1, 2], "the work")
    pool.stop()


class Turns:
    """The work of a task: each turn returns the next answer."""

    def __init__(self, *answers: float | None) -> None:
        self.answers = list(answers)
        self.turns = 0

    def __call__(self) -> float | None:
        self.turns += 1
        return self.answers.pop(0) if self.answers else None


@pytest.fixture
def make_task(fatal: Fatal) -> Iterator[Callable[[Callable[[], float | None]], Task]]:
    made: list[Task] = []

    def make(run: Callable[[], float | None]) -> Task:
        made.append(Task("task", run, on_fatal=fatal))
        return made[-1]

    yield make
    for task in made:
        assert task.stop(DEADLINE_S)


def test_a_task_runs_when_it_is_woken_and_only_then(make_task: Callable[[Turns], Task]) -> None:
    run = Turns()
    task = make_task(run)
    task.start()
    for turns in (1, 2):
        task.wake()
        wait_for(lambda turns=turns: run.turns == turns, "the turn")
    task.stop(DEADLINE_S)
    task.wake()
    assert run.turns == 2


def test_a_task_that_was_woken_before_its_start_runs_at_the_start(make_task: Callable[[Turns], Task]) -> None:
    run = Turns()
    task = make_task(run)
    task.wake()
    assert task.is_due
    task.start()
    wait_for(lambda: run.turns == 1, "the turn")


def test_a_task_whose_thread_could_not_be_started_runs_when_it_is_woken_again(
    make_task: Callable[[Turns], Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Turns()
    task = make_task(run)
    task.start()
    with monkeypatch.context() as patched:
        patched.setattr(threads.threading.Thread, "start", refuse)
        task.wake()
    task.wake()
    wait_for(lambda: run.turns == 1, "the turn")


def test_a_task_runs_again_after_the_time_that_it_names(make_task: Callable[[Turns], Task]) -> None:
    run = Turns(0.001, 0.0, None)
    task = make_task(run)
    task.start()
    task.wake()
    wait_for(lambda: run.turns == 3, "both retries")


def test_a_task_that_is_woken_while_it_waits_runs_at_once(make_task: Callable[[Turns], Task]) -> None:
    run = Turns(3_600.0, 3_600.0)
    task = make_task(run)
    task.start()
    task.wake()
    wait_for(lambda: run.turns == 1 and not task.is_due, "the first turn")
    task.wake()
    wait_for(lambda: run.turns == 2, "the second turn")


def test_the_latest_answer_of_a_task_says_when_it_runs_again(make_task: Callable[[Turns], Task]) -> None:
    run = Turns(3_600.0, 0.001, None)
    task = make_task(run)
    task.start()
    for turns in (1, 3):
        task.wake()
        wait_for(lambda turns=turns: run.turns == turns, "the turns")


def test_a_task_that_has_succeeded_meanwhile_waits_for_nothing(
    make_task: Callable[[Turns], Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "IDLE_S", 0.001)
    run = Turns(3_600.0, None)
    task = make_task(run)
    task.start()
    for turns in (1, 2):
        task.wake()
        wait_for(lambda turns=turns: run.turns == turns, "the turn")
    wait_for(lambda: living("task") == 0, "the end of the thread")


def test_a_task_without_a_thread_is_served_once_another_pool_has_worked(
    make_task: Callable[[Turns], Task], fatal: Fatal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be woken only once."""
    run = Turns()
    task = make_task(run)
    task.start()
    with monkeypatch.context() as patched:
        patched.setattr(threads.threading.Thread, "start", refuse)
        task.wake()
    pool = Workers("pool", on_fatal=fatal)
    pool.start()
    pool.submit(lambda: None)
    wait_for(lambda: run.turns == 1, "the turn")
    pool.stop()


def test_a_pool_that_stopped_without_a_thread_is_not_served(
    fatal: Fatal, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, pool = (Workers(name, on_fatal=fatal) for name in ("stopped", "pool"))
    for one in (stopped, pool):
        one.start()
    with monkeypatch.context() as patched:
        patched.setattr(threads.threading.Thread, "start", refuse)
        stopped.submit(lambda: pytest.fail("it runs"))
    stopped.stop(finishes=True)
    pool.submit(lambda: None)
    wait_for(lambda: not workers._UNSERVED, "the other pool's look")
    assert living("stopped") == 0
    pool.stop()


def test_a_task_that_is_woken_while_it_runs_runs_once_more(
    make_task: Callable[[Callable[[], float | None]], Task], blocking: Blocking
) -> None:
    task = make_task(blocking)
    task.start()
    task.wake()
    assert blocking.began.acquire(timeout=DEADLINE_S)
    task.wake()
    task.wake()
    blocking.released.set()
    assert blocking.began.acquire(timeout=DEADLINE_S)
    wait_for(lambda: not task.is_due, "the second turn to begin")
    assert task.stop(DEADLINE_S)
    assert not blocking.began.acquire(blocking=False)
