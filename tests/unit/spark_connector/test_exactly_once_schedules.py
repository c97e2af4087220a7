"""The exactly-once protocol under random schedules, over the brokers' own rules of transactions.

Drivers, committers and attempts of tasks are processes. Before and after each of their requests a process may
be killed, stopped for a while, or get an error in place of the answer; a second driver may start at any time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from barnabas.protocol.errors import BarnabasError
from barnabas.spark_connector.sink.exactly_once import (
    Coordination,
    DecidedBatchAborted,
    TaskResult,
    open_attempt,
)
from barnabas.spark_connector.sink.sink_register import Claim
from tests.support.sink_cluster import Clients, SinkCluster

NAME, QUERY = "sink", "query"
BATCHES, PARTITIONS = 3, 2
SEEDS = 60
STEPS = 20_000
_LOST = "the answer was lost"


class Lost(BarnabasError):
    """A request without an answer."""


class Schedule:
    """Releases one request of one process at a time.

    The process with the highest priority runs, and sometimes gets a low one: then it stops between any two of
    its requests, until the others have gone on for long. Each seed has its own sorts of faults.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        choose = self.random.choice
        self.fault_steps = choose((200, 500, 1000))
        self.kills, self.losses = choose((0, 0.005, 0.02)), choose((0, 0.005, 0.02))
        self.stops, self.wakes = choose((0.03, 0.1, 0.3)), choose((0.003, 0.01, 0.03))
        self.doubles, self.speculation = choose((0, 0.005, 0.02)), choose((0, 0.02, 0.2))
        self.killed: set[str] = set()
        self.steps = 0
        self._priorities: dict[str, float] = {}
        self._waiting: list[tuple[str, asyncio.Future[None], bool]] = []

    async def pass_gate(self, process: str, *, polls: bool = False) -> None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((process, gate, polls))
        await gate

    def happens(self, probability: float) -> bool:
        return self.steps < self.fault_steps and self.random.random() < probability

    def step(self) -> bool:
        """Release a request; False if none waits."""
        self.steps += 1
        ready = [entry for entry in self._waiting if entry[0] not in self.killed]
        if not ready:
            return False
        working = [entry for entry in ready if not entry[2]]
        chosen = self.random.choice(ready)
        # A process that only waits for others must not keep them from running.
        if working and self.random.random() < 0.8:
            chosen = max(working, key=lambda entry: self._priority(entry[0]))
        if self.happens(self.kills):
            self.killed.add(chosen[0])
            return True
        if self.happens(self.stops):
            self._priorities[chosen[0]] = self.random.random() - 1
            return True
        if self.random.random() < self.wakes:
            self._priorities[self.random.choice(ready)[0]] = self.random.random() + 1
        self._waiting.remove(chosen)
        if not chosen[1].done():
            chosen[1].set_result(None)
        return True

    def _priority(self, process: str) -> float:
        return self._priorities.setdefault(process, self.random.random())

    async def ask(self, process: str, work: Callable[[], Any]) -> Any:
        """Carry out a request of a process; it may be lost, or its answer."""
        await self.pass_gate(process)
        if self.happens(self.losses):
            raise Lost("the request was lost")
        outcome: Any = None
        error: BarnabasError | None = None
        try:
            outcome = work()
        except BarnabasError as raised:
            error = raised
        await self.pass_gate(process)
        if self.happens(self.losses):
            raise Lost(_LOST)
        if error is not None:
            raise error
        return outcome


class Spark:
    """Runs a query until its batches are in the commit log, as Spark does, restarting it when it fails."""

    def __init__(self, seed: int) -> None:
        self.schedule = Schedule(seed)
        self.cluster = SinkCluster()
        self.committed: set[int] = set()
        """The commit log of the checkpoint."""
        self.lost: list[BaseException] = []
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._numbers = 0

    def start(self, kind: str, work: Callable[[str], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        self._numbers += 1
        process = f"{kind}-{self._numbers}"
        task = asyncio.create_task(work(process), name=process)
        # Of a process that nobody waits for any more.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._tasks[task] = process
        return task

    async def run(self) -> None:
        drivers = [self.start("driver", self._drive)]
        while len(self.committed) < BATCHES:
            if self.schedule.steps > STEPS:
                raise AssertionError("the query makes no progress")
            present = drivers[-1]
            is_gone = present.done() or present.get_name() in self.schedule.killed
            # An impatient operator starts a query again that seems to hang.
            is_doubled = self.schedule.happens(self.schedule.doubles)
            if is_gone or is_doubled:
                drivers.append(self.start("driver", self._drive))
            await self._step()
        # The remaining processes run to their end; no new driver claims the name.
        self.schedule.fault_steps = 0
        while await self._step():
            pass
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _step(self) -> bool:
        for _ in range(6):
            await asyncio.sleep(0)
        return self.schedule.step()

    async def _wait_for(self, process: str, task: asyncio.Task[Any]) -> Any:
        """Its result; raises if it fails or is killed."""
        while not task.done():
            if task.get_name() in self.schedule.killed:
                raise Lost(f"{task.get_name()} was killed")
            await self.schedule.pass_gate(process, polls=True)
        return task.result()

    def _requests(self, process: str) -> Clients:
        return Clients(self.cluster, partial(self.schedule.ask, process))

    async def _drive(self, process: str) -> None:
        try:
            while (batch := len(self.committed)) < BATCHES:
                await self._run_batch(process, batch)
                await self.schedule.pass_gate(process)
                self.committed.add(batch)
        except DecidedBatchAborted as error:
            self.lost.append(error)
        except BarnabasError:
            pass

    async def _run_batch(self, process: str, batch: int) -> None:
        planner = self._requests(process)
        claim = await Coordination(planner, planner).claim(NAME)
        waiting = [
            self.start("partition", lambda _, number=number: self._partition(process, claim, batch, number))
            for number in range(PARTITIONS)
        ]
        results: list[TaskResult] = []
        try:
            for task in waiting:
                results.append(await self._wait_for(process, task))
            committer = self.start(
                "committer", lambda name: Coordination(*[self._requests(name)] * 2).commit(results)
            )
            await self._wait_for(process, committer)
        except DecidedBatchAborted:
            raise
        except BarnabasError:
            # There is no claim to pass on if the task that knew it has failed.
            known = self.schedule.random.choice((claim, None))
            aborter = self.start(
                "aborter", lambda name: Coordination(*[self._requests(name)] * 2).abandon(NAME, known)
            )
            await self._wait_for(process, aborter)
            raise

    async def _partition(self, driver: str, claim: Claim, batch: int, number: int) -> TaskResult:
        """The scheduler's part: attempts of a task until one succeeds."""
        attempts: list[asyncio.Task[TaskResult]] = []
        while True:
            is_gone = all(each.done() or each.get_name() in self.schedule.killed for each in attempts)
            if is_gone and len(attempts) == 4:
                raise Lost("a task failed four times")
            if is_gone or (len(attempts) < 3 and self.schedule.happens(self.schedule.speculation)):
                attempts.append(self._start_attempt(claim, batch, number, len(attempts)))
            for each in attempts:
                if each.done() and each.exception() is None:
                    return each.result()
            await self.schedule.pass_gate(driver, polls=True)

    def _start_attempt(self, claim: Claim, batch: int, number: int, attempt: int) -> asyncio.Task[TaskResult]:
        return self.start("attempt", lambda process: self._write(process, claim, batch, number, attempt))

    async def _write(self, process: str, claim: Claim, batch: int, number: int, attempt: int) -> TaskResult:
        if claim.has_decided(QUERY, batch):
            return TaskResult(claim, QUERY, batch, number, was_decided=True)
        requests = self._requests(process)

        producer = await open_attempt(
            requests.open_producer, requests.close_producer, requests.describe, claim, number, attempt
        )
        await producer.write([(batch, number, 0)])
        await producer.write([(batch, number, 1)])
        return TaskResult(claim, QUERY, batch, number, await producer.prepare())


EXPECTED = Counter(
    (batch, partition, row) for batch in range(BATCHES) for partition in range(PARTITIONS) for row in range(2)
)


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_each_batch_is_visible_once_and_nothing_stays_open(first: int) -> None:
    for seed in range(first, first + 20):
        spark = Spark(seed)
        asyncio.run(spark.run())
        assert spark.lost == [], f"seed {seed}"
        assert spark.cluster.visible == EXPECTED, f"seed {seed}"
        assert spark.cluster.open_ids() == [], f"seed {seed}"
