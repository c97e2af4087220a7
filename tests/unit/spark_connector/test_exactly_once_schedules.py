"""The exactly-once protocol under random schedules, over the brokers' own rules of transactions.

Drivers, committers and attempts of tasks are processes. Before and after each of their requests a process may
be killed, stopped for a while, or get an error in place of the answer; a second driver may start at any time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import pytest

from barnabas.broker.coordinators.transaction_state import TransactionState
from barnabas.client.admin.transactions import TransactionDescription, TransactionListing
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import ProducerFenced
from barnabas.client.producer.transactions import PreparedTransaction
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.spark_connector.exactly_once import (
    Coordination,
    DecidedBatchAborted,
    TaskResult,
    open_attempt,
)
from barnabas.spark_connector.sink_register import Claim, register_id
from tests.support.transacting import TransactionRig, abort, add, commit, init, keep, prepare

NAME, QUERY = "sink", "query"
BATCHES, PARTITIONS = 3, 2
SEEDS = 60
STEPS = 20_000
_LOST = "the answer was lost"

Row = tuple[int, int, int]
"""Batch, partition and number."""


class Cluster:
    """Coordinators of any transactional id, the records of their transactions, and the register."""

    def __init__(self) -> None:
        self.rigs: dict[str, TransactionRig] = {}
        self.visible: Counter[Row] = Counter()
        self.register: bytes | None = None
        self._open: dict[str, list[Row | bytes]] = {}

    def _do(self, transactional_id: str, request: Any) -> Any:
        rig = self.rigs.setdefault(transactional_id, TransactionRig())
        was_ongoing = rig.state is TransactionState.ONGOING
        before = rig.stored.start_timestamp_ms, rig.stored.producer_epoch
        answer = rig.do_all(request)
        is_same = (rig.stored.start_timestamp_ms, rig.stored.producer_epoch) == before
        if was_ongoing and not (rig.state is TransactionState.ONGOING and is_same):
            rows = self._open.pop(transactional_id, [])
            if rig.state is TransactionState.COMPLETE_COMMIT:
                for row in rows:
                    if isinstance(row, bytes):
                        self.register = row
                    else:
                        self.visible[row] += 1
        return answer

    def init(self, transactional_id: str, request: Any) -> Any:
        answer = self._do(transactional_id, request)
        _raise(answer.error, transactional_id)
        return answer

    def write(self, transactional_id: str, producer: ProducerIdAndEpoch, rows: Sequence[Row | bytes]) -> None:
        request = add(producer.producer_epoch, producer_id=producer.producer_id)
        _raise(self._do(transactional_id, request), transactional_id)
        self._open.setdefault(transactional_id, []).extend(rows)

    def prepare(self, transactional_id: str, producer: ProducerIdAndEpoch) -> None:
        request = prepare(producer.producer_epoch, producer_id=producer.producer_id)
        _raise(self._do(transactional_id, request), transactional_id)

    def end(self, target: PreparedTransaction, *, committed: bool) -> Any:
        make = commit if committed else abort
        answer = self._do(target.transactional_id, make(target.epoch, 2, producer_id=target.producer_id))
        _raise(answer.error, target.transactional_id)
        return answer

    def identity(self, transactional_id: str) -> ProducerIdAndEpoch:
        stored = self.rigs[transactional_id].stored
        return ProducerIdAndEpoch(stored.producer_id, stored.producer_epoch)

    def open_ids(self) -> list[str]:
        return [name for name, rig in self.rigs.items() if rig.state is TransactionState.ONGOING]


def _raise(code: ErrorCode, subject: str) -> None:
    if code is not ErrorCode.NONE:
        raise api_error(code, subject)


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


class Requests:
    """The clients of one process."""

    def __init__(self, cluster: Cluster, schedule: Schedule, process: str) -> None:
        self.cluster = cluster
        self.schedule = schedule
        self.process = process

    async def ask(self, work: Callable[[], Any]) -> Any:
        await self.schedule.pass_gate(self.process)
        if self.schedule.happens(self.schedule.losses):
            raise Lost("the request was lost")
        outcome: Any = None
        error: BarnabasError | None = None
        try:
            outcome = work()
        except BarnabasError as raised:
            error = raised
        await self.schedule.pass_gate(self.process)
        if self.schedule.happens(self.schedule.losses):
            raise Lost(_LOST)
        if error is not None:
            raise error
        return outcome

    # As the admin

    async def fence_producers(self, transactional_ids: Iterable[str], /) -> dict[str, ProducerIdAndEpoch]:
        (transactional_id,) = transactional_ids
        given = await self.ask(lambda: self.cluster.init(transactional_id, init()))
        return {transactional_id: ProducerIdAndEpoch(given.producer_id, given.producer_epoch)}

    async def list_transactions(self, *, states: Iterable[str]) -> list[TransactionListing]:
        def listing() -> list[TransactionListing]:
            return [
                TransactionListing(name, BrokerId(1), rig.stored.producer_id, rig.state.value)
                for name, rig in self.cluster.rigs.items()
                if rig.state.value in states
            ]

        listed: list[TransactionListing] = await self.ask(listing)
        return listed

    async def describe_transactions(
        self, transactional_ids: Iterable[str], /
    ) -> dict[str, TransactionDescription]:
        (name,) = transactional_ids

        def described() -> TransactionDescription:
            if name not in self.cluster.rigs:
                raise api_error(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, name)
            rig = self.cluster.rigs[name]
            producer = self.cluster.identity(name)
            return TransactionDescription(
                name, BrokerId(1), rig.state.value, *producer, 0, None, (), rig.stored.is_prepared
            )

        return {name: await self.ask(described)}

    async def describe(self, transactional_id: str) -> TransactionDescription:
        return (await self.describe_transactions([transactional_id]))[transactional_id]

    async def complete_transaction(self, transaction: PreparedTransaction, /, *, commit: bool = True) -> None:
        await self.ask(lambda: self.cluster.end(transaction, committed=commit))

    # As the register

    async def read(self, name: str) -> bytes | None:
        value: bytes | None = await self.ask(lambda: self.cluster.register)
        return value

    async def write(self, name: str, holder: ProducerIdAndEpoch, value: bytes) -> ProducerIdAndEpoch:
        transactional_id = register_id(name)
        try:
            given = await self.ask(lambda: self.cluster.init(transactional_id, init(*holder)))
            producer = ProducerIdAndEpoch(given.producer_id, given.producer_epoch)
            await self.ask(lambda: self.cluster.write(transactional_id, producer, [value]))
            target = PreparedTransaction(transactional_id, *producer)
            ended = await self.ask(lambda: self.cluster.end(target, committed=True))
        except BarnabasError as error:
            if getattr(error, "code", None) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
                raise ProducerFenced(str(error)) from error
            raise
        return ProducerIdAndEpoch(ended.producer_id, ended.producer_epoch)


class Producer:
    """The producer of an attempt."""

    def __init__(self, requests: Requests, transactional_id: str, given: Any) -> None:
        self.requests = requests
        self.transactional_id = transactional_id
        self.producer = ProducerIdAndEpoch(given.producer_id, given.producer_epoch)
        self.prepared_transaction: PreparedTransaction | None = None
        if given.ongoing_producer_id >= 0:
            self.prepared_transaction = PreparedTransaction(
                transactional_id, given.ongoing_producer_id, given.ongoing_producer_epoch
            )

    async def write(self, rows: Sequence[Row]) -> None:
        cluster = self.requests.cluster
        await self.requests.ask(lambda: cluster.write(self.transactional_id, self.producer, rows))

    async def prepare(self) -> PreparedTransaction:
        cluster = self.requests.cluster
        await self.requests.ask(lambda: cluster.prepare(self.transactional_id, self.producer))
        return PreparedTransaction(self.transactional_id, *self.producer)


class Spark:
    """Runs a query until its batches are in the commit log, as Spark does, restarting it when it fails."""

    def __init__(self, seed: int) -> None:
        self.schedule = Schedule(seed)
        self.cluster = Cluster()
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
        # What is left runs to its end, without another claim by a new driver.
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

    def _requests(self, process: str) -> Requests:
        return Requests(self.cluster, self.schedule, process)

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
            aborter = self.start(
                "aborter", lambda name: Coordination(*[self._requests(name)] * 2).abandon(NAME)
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

        async def open_producer(transactional_id: str) -> Producer:
            given = await requests.ask(lambda: self.cluster.init(transactional_id, keep()))
            return Producer(requests, transactional_id, given)

        async def close_producer(producer: Producer) -> None:
            pass

        producer = await open_attempt(
            open_producer, close_producer, requests.describe, claim, number, attempt
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
