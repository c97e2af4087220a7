"""Background threads: bugs are fatal, and a stop ends all tasks of an event loop."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from barnabas.common.threads import LoopThread, make_thread
from tests.support.waiting import DEADLINE_S, wait_for


class Rig:
    def __init__(self) -> None:
        self.died: list[BaseException] = []
        self.stopped_on: list[str] = []
        self.thread = LoopThread("loop", on_fatal=self.died.append, on_stop=self._note)

    def _note(self) -> None:
        self.stopped_on.append(threading.current_thread().name)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    made.thread.start()
    yield made
    made.thread.stop()


async def fail() -> None:
    raise ZeroDivisionError("a bug")


def test_calls_run_in_order_on_the_loop(rig: Rig) -> None:
    seen: list[tuple[int, str]] = []
    for number in range(3):
        assert rig.thread.call(lambda number: seen.append((number, threading.current_thread().name)), number)
    wait_for(lambda: len(seen) == 3, "the calls")
    assert seen == [(number, "loop") for number in range(3)]


@pytest.mark.parametrize("is_task", [False, True], ids=["call", "task"])
def test_a_bug_is_fatal_and_the_loop_continues(rig: Rig, is_task: bool) -> None:
    rig.thread.call((lambda: rig.thread.spawn(fail())) if is_task else lambda: 1 / 0)
    wait_for(lambda: len(rig.died) == 1, "the error")
    assert isinstance(rig.died[0], ZeroDivisionError)
    done = threading.Event()
    rig.thread.call(done.set)
    assert done.wait(DEADLINE_S)


def test_a_stop_cancels_all_tasks_and_later_calls_are_refused(rig: Rig) -> None:
    ended: list[str] = []
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    rig.thread.call(lambda: rig.thread.spawn(wait()))
    assert begun.wait(DEADLINE_S)
    assert rig.thread.stop()
    assert (ended, rig.stopped_on, rig.died) == (["cancelled"], ["loop"], [])
    assert not rig.thread.call(ended.clear)
    assert rig.thread.stop()
    assert Rig().thread.stop(), "it was not started"


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), SystemExit(1)])
def test_the_exception_that_ends_a_thread_is_logged_and_fatal(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    died: list[BaseException] = []

    def fail() -> None:
        raise error

    thread = make_thread("worker", fail, died.append)
    thread.start()
    thread.join(DEADLINE_S)
    assert died == [error]
    assert "the thread worker died" in caplog.text
