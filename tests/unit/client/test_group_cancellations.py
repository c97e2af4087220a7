"""Members of a group whose calls are cancelled anywhere, under faults, by a seed that a failure names.

Checked: while a member owns a partition, it gets its records in order and without a gap, and no records of
other partitions; no commit covers a record that no member got; after the faults the group has got every
record; a closed member leaves no task and is not in the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from barnabas.client.consumer.consumer import Consumer, ConsumerRecord, RebalanceListener
from barnabas.client.errors import BarnabasError, ErrorCode, NoBrokerReachable
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import HeartbeatResponse
from barnabas.protocol.schema import ApiKey
from tests.support.coordinator import Coordinator
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.soak import searched
from tests.support.waiting import DEADLINE_S, until

from .test_consumer import fill

PARTITIONS = 4
MEMBERS = 3
STEPS = 60
RECORDS = 600


class Truth:
    """The records that any member got, and so the offsets that may be committed."""

    def __init__(self) -> None:
        self.seen: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}
        self.wrong: list[str] = []

    def end(self, partition: int) -> int:
        """All before it was seen."""
        offset = 0
        while offset in self.seen[partition]:
            offset += 1
        return offset

    def committed(self, partition: int, offset: int) -> None:
        if offset > self.end(partition):
            self.wrong.append(f"{offset} of {partition} was committed, and {self.end(partition)} not seen")


class Life(RebalanceListener):
    """One member, and a user that cancels calls."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.rng = random.Random(f"{world.seed}-{number}")
        self.consumer = world.consumer()
        self.expected: dict[TopicPartition, int | None] = {}

    async def begin(self) -> None:
        self.expected.clear()
        await until(self.start, "a broker that answers")
        self.consumer.subscribe("t", listener=self)

    async def start(self) -> bool:
        """False if faults have ended the first connections to both brokers."""
        self.consumer = self.world.consumer()
        try:
            await self.consumer.start()
        except NoBrokerReachable:
            return False
        return True

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        self.expected |= dict.fromkeys(partitions)
        await self.linger()

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        await self.linger()
        if self.rng.random() < 0.3:
            with contextlib.suppress(BarnabasError):
                await self.consumer.commit(timeout_ms=20)
        self.forget(partitions)

    async def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        self.forget(partitions)
        await self.linger()

    def forget(self, partitions: set[TopicPartition]) -> None:
        for tp in partitions:
            self.expected.pop(tp, None)

    async def linger(self) -> None:
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)

    def take(self, records: list[ConsumerRecord]) -> None:
        for record in records:
            tp = record.tp
            place = f"member {self.number} got {record.offset} of {record.partition}"
            if tp not in self.expected:
                self.world.truth.wrong.append(f"{place}, which it does not own")
                continue
            expected = self.expected[tp]
            if expected is not None and record.offset != expected:
                self.world.truth.wrong.append(f"{place} instead of {expected}")
            if record.offset > self.world.truth.end(record.partition):
                self.world.truth.wrong.append(f"{place}, and nobody what is before")
            self.expected[tp] = record.offset + 1
            self.world.truth.seen[record.partition].add(record.offset)

    async def step(self) -> None:
        acts = ("poll", "getmany", "getone", "commit", "nowait", "reopen")
        act = self.rng.choices(acts, (30, 20, 20, 20, 10, 2))[0]
        if act == "poll":
            records = await self.cut_short(
                self.consumer.poll(self.rng.choice((0, 5, 30)), self.rng.choice((1, 7, None)))
            )
            self.take(records or [])
        elif act == "getmany":
            owned = sorted(self.consumer.assignment())
            chosen = self.rng.sample(owned, self.rng.randrange(len(owned) + 1))
            lists = await self.cut_short(
                self.consumer.getmany(*chosen, timeout_ms=5, max_records=self.rng.choice((1, 7, None)))
            )
            for tp, records in (lists or {}).items():
                if any(record.tp != tp for record in records) or (chosen and tp not in chosen):
                    self.world.truth.wrong.append(f"getmany of {chosen} returned {tp}: {records}")
                self.take(records)
        elif act == "getone":
            record = await self.cut_short(asyncio.wait_for(self.consumer.getone(), 0.03))
            self.take([record] if record is not None else [])
        elif act == "commit":
            await self.cut_short(self.consumer.commit(timeout_ms=30))
        elif act == "nowait" and self.rng.random() < 0.5:
            self.consumer.commit_nowait(on_commit=lambda offsets, error: None)
        elif act == "reopen":
            await self.cut_short(self.consumer.close(timeout_ms=100))
            await self.consumer.close(timeout_ms=100)
            await self.begin()

    async def cut_short(self, call: Coroutine[Any, Any, Any]) -> Any:
        """The outcome of a call that is cancelled after a while, if it had one before; None without."""
        task = asyncio.create_task(call)
        turns = self.rng.choice((1, 2, 3, 5, 8, 13, 40, 1_000_000))
        while turns and not task.done():
            turns -= 1
            await asyncio.sleep(self.rng.choice((0, 0, 0, 0.0005)))
        for _ in range(self.rng.choice((1, 1, 2))):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait((task,))
        if task.cancelled() or isinstance(task.exception(), BarnabasError | TimeoutError):
            return None
        return task.result()


class World:
    def __init__(self, seed: int, cluster: FakeCluster, strategy: str) -> None:
        self.seed = seed
        self.strategy = strategy
        self.rng = random.Random(seed)
        self.cluster = cluster
        self.truth = Truth()
        self.coordinator = Coordinator(cluster)
        cluster.intercept[ApiKey.OFFSET_COMMIT] = self.see_commit
        self.written = 0
        self.lives = [Life(self, number) for number in range(MEMBERS)]

    def see_commit(self, broker: FakeBroker, body: Any) -> None:
        for topic in body.topics:
            for partition in topic.partitions:
                self.truth.committed(partition.partition_index, partition.committed_offset)

    def consumer(self) -> Consumer:
        return Consumer(
            bootstrap_servers=self.cluster.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            partition_assignment_strategy=self.strategy,
            retry_backoff_ms=2,
            reconnect_backoff_ms=1,
            heartbeat_interval_ms=10,
            session_timeout_ms=250,
            auto_commit_interval_ms=5,
            fetch_max_wait_ms=20,
        )

    def write(self) -> None:
        count = self.rng.randrange(1, 10)
        for number in range(PARTITIONS):
            fill(self.cluster.partition("t", number), self.written, self.written + count)
        self.written += count

    def fault(self) -> None:
        what = self.rng.randrange(searched(6, usual=3))
        members = list(self.coordinator.group("g").members)
        if what == 0:
            self.coordinator.move(self.rng.choice((1, 2)))
        elif what == 1 and members:
            self.coordinator.kick("g", self.rng.choice(members))
        elif what == 2:
            self.cluster.brokers[self.rng.choice((1, 2))].drop_connections()
        elif what == 3:
            code = self.rng.choice((ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION))
            self.cluster.brokers[self.coordinator.node_id].script(
                ApiKey.HEARTBEAT, lambda _: HeartbeatResponse(error_code=code)
            )
        elif what == 4:
            self.cluster.move_leader("t", self.rng.randrange(PARTITIONS), self.rng.choice((1, 2)))

    async def run(self) -> None:
        for life in self.lives:
            await life.begin()
        await asyncio.gather(self.trouble(), *(self.live(life) for life in self.lives))
        while self.written < RECORDS // PARTITIONS:
            self.write()
        await asyncio.gather(*(self.finish(life) for life in self.lives))
        for life in self.lives:
            await life.consumer.close()
        assert not self.truth.wrong, self.truth.wrong[:5]
        # One whose leaving was cancelled may be there until its session ends.
        await until(lambda: not self.coordinator.group("g").members, "the leaving of all")
        await self.conclude()

    async def conclude(self) -> None:
        """One more member, in peace: it begins where the group stopped and commits the end.

        What the others committed last may be less than they saw, if they were thrown out before.
        """
        life = Life(self, MEMBERS)
        await life.begin()
        try:
            group = self.coordinator.group("g")
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while any(
                group.offsets.get(("t", number), (0,))[0] < self.written for number in range(PARTITIONS)
            ):
                assert asyncio.get_running_loop().time() < deadline, group.offsets
                life.take(await life.consumer.poll(20))
        finally:
            await life.consumer.close()
        assert not self.truth.wrong, self.truth.wrong[:5]

    async def live(self, life: Life) -> None:
        for _ in range(STEPS):
            await life.step()

    async def trouble(self) -> None:
        for _ in range(STEPS // 2):
            self.write()
            if self.rng.random() < 0.5:
                self.fault()
            await asyncio.sleep(self.rng.random() / 200)

    async def finish(self, life: Life) -> None:
        """Read on in peace until the group has everything."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_S
        while any(self.truth.end(number) < self.written for number in range(PARTITIONS)):
            assert loop.time() < deadline, [self.truth.end(number) for number in range(PARTITIONS)]
            try:
                life.take(await life.consumer.poll(20))
            except BarnabasError:
                continue


def tasks_of_clients() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if "barnabas/client" in repr(task.get_coro())]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(searched(6, usual=3)))
async def test_calls_of_members_may_be_cancelled_anywhere(seed: int, strategy: str) -> None:
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", PARTITIONS)
        world = World(seed, cluster, strategy)
        try:
            await world.run()
        finally:
            for life in world.lives:
                await life.consumer.close(commits=False)
        await until(lambda: not tasks_of_clients(), "the end of all tasks")
