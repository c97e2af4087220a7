"""Runs tests in forks of a process that has collected all tests and run none.

A fork of 100 MB takes some milliseconds, and starts with the same state for every run: empty caches, no
threads, no files of other tests. The child sends the number of each test before it runs it, and the result
afterwards. The parent kills a child whose test runs for too long (a mutant that waits or loops for ever),
with all processes of its session. The time is that of a clock in the child, which a signal advances: while
the machine, a disk or the child stands still, its clock does too.
"""

import gc
import mmap
import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

import pytest

_MAX_DATA_BYTES: Final = 3 << 30
"""Ends a mutant that appends without end."""
_LONGEST_STALL_S: Final = 60.0
"""A clock that stands still for longer does so in a mutant that loops in C, where no Python code runs."""
_TICK_S: Final = 0.05


@dataclass(eq=False)
class Run:
    """Tests for one child, in order, and how they went."""

    items: list[pytest.Item]
    limits_s: list[float]
    """How long each test may take."""
    prepare: Callable[[], Callable[[], object]]
    """Called in the child; what it returns is called after each test, and its result is sent."""
    stops_at_failure: bool = True
    failed: pytest.Item | None = None
    is_timed_out: bool = False
    results: list[tuple[pytest.Item, float, object]] = field(default_factory=list)
    """The duration of each test that ended, and what `prepare`'s function returned."""


class Outcomes:
    """A pytest plugin that knows whether the test that runs has failed."""

    def __init__(self) -> None:
        self.is_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.is_failed = self.is_failed or report.failed


class _Clock:
    """The time that a child has had; its parent reads it."""

    def __init__(self) -> None:
        self._ticks = 0
        self._shared = mmap.mmap(-1, 8)

    def start(self) -> None:
        """In the child's main thread. A signal that is not delivered in time is delivered once."""
        signal.signal(signal.SIGALRM, self._advance)
        signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)

    def _advance(self, *_: object) -> None:
        self._ticks += 1
        self._shared[:] = self._ticks.to_bytes(8)

    def now_s(self) -> float:
        return int.from_bytes(self._shared[:]) * _TICK_S

    def close(self) -> None:
        self._shared.close()


class _Child:
    def __init__(self, run: Run, outcomes: Outcomes) -> None:
        self.run = run
        self.folder = tempfile.mkdtemp(prefix="mutant-")
        self.connection, childs_end = multiprocessing.Pipe(duplex=False)
        self._clock = _Clock()
        self._begin(0)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._clock.start()
                _run(run, outcomes, childs_end, Path(self.folder))
            finally:
                os._exit(1)
        childs_end.close()

    def _begin(self, place: int) -> None:
        self._running = place
        limit_s = self.run.limits_s[place]
        self._deadline_s = self._clock.now_s() + limit_s
        self._wall_deadline_s = time.monotonic() + limit_s + _LONGEST_STALL_S

    def is_ended(self) -> bool:
        """Takes the next message, if there is one; the run is over afterwards, or not."""
        run = self.run
        if self.connection.poll():
            try:
                place, result = self.connection.recv()
            except EOFError:
                run.failed = run.items[self._running]
                return True
            if result is None:
                self._begin(place)
                return False
            is_failed, seconds, said = result
            run.results.append((run.items[place], seconds, said))
            if is_failed:
                run.failed = run.failed or run.items[place]
            return (is_failed and run.stops_at_failure) or place == len(run.items) - 1
        if self._clock.now_s() > self._deadline_s or time.monotonic() > self._wall_deadline_s:
            run.failed, run.is_timed_out = run.items[self._running], True
        return run.is_timed_out

    def end(self) -> None:
        for kill in (os.killpg, os.kill):
            try:
                kill(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                # Before the child has its own session, or after its end.
                continue
        os.waitpid(self._pid, 0)
        self.connection.close()
        self._clock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _run(run: Run, outcomes: Outcomes, connection: Connection, folder: Path) -> None:
    """The child."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_DATA_BYTES, _MAX_DATA_BYTES))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    config = run.items[0].config
    config.pluginmanager.unregister(name="terminalreporter")
    # Its own folder can be removed as a whole, and no other child looks for a free name in it.
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]  # pytest has no public way
    after = run.prepare()
    for place, (item, following) in enumerate(zip(run.items, [*run.items[1:], None], strict=True)):
        outcomes.is_failed = False
        connection.send((place, None))
        start = time.perf_counter()
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        connection.send((place, (outcomes.is_failed, time.perf_counter() - start, after())))
        if outcomes.is_failed and run.stops_at_failure:
            break
    os._exit(0)


def run_all(runs: Iterator[Run], outcomes: Outcomes, jobs: int) -> Iterator[Run]:
    """Each run when it is over, ``jobs`` of them at once. The next is asked for when there is room."""
    gc.collect()
    gc.freeze()
    children: list[_Child] = []
    try:
        while True:
            while len(children) < jobs and (run := next(runs, None)) is not None:
                children.append(_Child(run, outcomes))
            if not children:
                return
            wait([child.connection for child in children], timeout=0.2)
            for child in [child for child in children if child.is_ended()]:
                children.remove(child)
                child.end()
                yield child.run
    finally:
        for child in children:
            child.end()
