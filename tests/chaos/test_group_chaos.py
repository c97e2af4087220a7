"""A group under load while members, coordinators and other brokers die, and coordinators are moved.

The members see every acknowledged record, and no committed offset is beyond an unseen one. One member is a
process that gets SIGKILL.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

from barnabas.chaos.checker import GROUPS, check
from barnabas.chaos.history import Acknowledged, Committed, History, Owned, Read, number_of
from barnabas.client.admin.admin import Admin
from barnabas.client.consumer.assignors import ASSIGNORS
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.subscription import RebalanceListener
from barnabas.client.errors import BarnabasError, CommitFailed
from barnabas.client.producer.batch import RecordMetadata
from barnabas.client.producer.producer import Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.topic_names import OFFSETS_TOPIC

from ..cluster.tools import ClusterView, StartCluster, client_settings_of, clients_word
from .operations import InternalTopic, Operator
from .runs import BROKER, HEALING_S, Run, chaos_run, chaos_test, seconds, takes_turns

SECONDS = seconds(5)
PARTITIONS = 6
OFFSETS_PARTITIONS = 3
MEMBERS = 3
"""The members in this process; one more has its own process."""
GROUP = "g"
TOPIC = "t"
ENOUGH = 600
"""The least number of records that are written."""

Offsets = dict[TopicPartition, set[int]]


class Disaster(Exception):
    """An error of the user's code."""


class Share(RebalanceListener):
    """The partitions of one member; changes become events."""

    def __init__(self, life: Life, number: int) -> None:
        self.name = f"member {number}, life {next(life.lives)}"
        self._life = life
        self._number = number
        self._owned: frozenset[TopicPartition] = frozenset()
        self._enter(self._owned)

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        self._enter(self._owned | partitions)

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        self._enter(self._owned - partitions)

    def see(self, partition: TopicPartition, offset: int, number: int) -> None:
        self._life.history.add(Read(self.name, partition, offset, number))
        self._life.seen[partition].add(offset)

    def _enter(self, owned: frozenset[TopicPartition]) -> None:
        self._owned = owned
        self._life.present[self._number] = set(owned)
        self._life.history.add(Owned(self.name, owned))


class Life:
    """Members that join and leave in several ways, and the events of the records they see."""

    def __init__(self, cluster: LocalCluster, run: Run) -> None:
        self.cluster = cluster
        self.clients = client_settings_of(cluster)
        self.run = run
        self.chance = run.chance
        self.strategy = run.chance.choice(sorted(ASSIGNORS))
        self.seen: Offsets = {TopicPartition(TOPIC, number): set() for number in range(PARTITIONS)}
        self.acknowledged: Offsets = {tp: set() for tp in self.seen}
        self.history = History()
        self.lives = itertools.count(1)
        self.is_quiet = False
        self.is_over = False
        self.ends: dict[str, int] = {}
        self.coordinator: BrokerId | None = None
        self.present: dict[int, set[TopicPartition]] = {}

    def consumer(self) -> Consumer:
        return Consumer(
            **self.clients,
            group_id=GROUP,
            auto_offset_reset="earliest",
            partition_assignment_strategy=self.strategy,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            max_poll_interval_ms=3_000,
            auto_commit_interval_ms=200,
            request_timeout_ms=4_000,
        )

    async def member(self, number: int) -> None:
        """Run one member after another."""
        while not self.is_over:
            end = self.chance.choice(["close", "crash", "raise", "stall", "cancel"])
            consumer = self.consumer()
            try:
                await self._live(number, consumer, end)
            except (Disaster, TimeoutError):
                self.ends[end] = self.ends.get(end, 0) + 1
            finally:
                self.present[number] = set()

    async def _live(self, number: int, consumer: Consumer, end: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.chance.uniform(2, 8)
        share = Share(self, number)
        async with consumer:
            consumer.subscribe([TOPIC], listener=share)
            while not self.is_over:
                records = await consumer.poll(200)
                if consumer._group is not None and consumer._group.member.coordinator is not None:
                    self.coordinator = consumer._group.member.coordinator
                is_due = loop.time() > until and not self.is_quiet
                if is_due and end == "raise":
                    # The program got these records and did not process them.
                    raise Disaster
                for record in records:
                    partition = TopicPartition(TOPIC, record.partition)
                    share.see(partition, record.offset, number_of(record.value))
                if is_due and end == "close":
                    raise TimeoutError
                if is_due and end == "crash":
                    crash(consumer)
                    raise Disaster
                if is_due and end == "cancel":
                    async with asyncio.timeout(self.chance.uniform(0, 0.1)):
                        await consumer.poll(10_000)
                        raise Disaster
                if is_due and end == "stall" and (member_id := member_id_of(consumer)):
                    self.ends[end] = self.ends.get(end, 0) + 1
                    await self.wait_removed(member_id)
                    until = loop.time() + 5
                if self.chance.random() < 0.05:
                    try:
                        await consumer.commit(timeout_ms=3_000)
                    except (CommitFailed, BarnabasError):
                        self.ends["refused commit"] = self.ends.get("refused commit", 0) + 1

    async def wait_removed(self, member_id: str) -> None:
        """Do not poll until the coordinator has removed this member."""
        try:
            async with asyncio.timeout(HEALING_S), Admin(**self.clients) as admin:
                while True:
                    if not await is_member(admin, member_id):
                        return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{member_id} does not poll and is still a member") from None

    async def process(self, number: int) -> None:
        """Run one member process after another, and kill each."""
        words = [sys.executable, str(Path(__file__).parent / "group_member.py")]
        while not self.is_over:
            member = await asyncio.create_subprocess_exec(
                *words,
                *(clients_word(self.cluster), GROUP, TOPIC, self.strategy),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                limit=1 << 20,
            )
            listening = asyncio.create_task(self._listen(Share(self, number), member))
            try:
                async with asyncio.timeout(self.chance.uniform(3, 10)) as lifetime:
                    while not self.is_over:
                        if self.is_quiet:
                            lifetime.reschedule(None)
                        await asyncio.sleep(0.05)
            except TimeoutError:
                self.ends["SIGKILL"] = self.ends.get("SIGKILL", 0) + 1
            finally:
                if member.returncode is None:
                    member.kill()
                await member.wait()
                await listening
                self.present[number] = set()

    async def _listen(self, share: Share, member: asyncio.subprocess.Process) -> None:
        """Record its events, up to an incomplete last line."""
        assert member.stdout is not None
        while (line := await member.stdout.readline()).endswith(b"\n"):
            for what, about in json.loads(line).items():
                if what == "seen":
                    for number, offset, value in about:
                        share.see(TopicPartition(TOPIC, number), offset, value)
                elif what == "gained":
                    share.on_partitions_assigned({TopicPartition(TOPIC, number) for number in about})
                else:
                    share.on_partitions_revoked({TopicPartition(TOPIC, number) for number in about})

    async def write(self) -> None:
        async with Producer(**self.clients, delivery_timeout_ms=60_000) as producer:
            number = 0
            while not self.is_over and (number < ENOUGH or not self.is_quiet):
                await producer.send(
                    TOPIC,
                    b"%d" % number,
                    partition=number % PARTITIONS,
                    on_delivery=partial(self._sent, number),
                )
                number += 1
                await asyncio.sleep(0.003)

    def _sent(self, number: int, metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
        if metadata is not None:
            partition = TopicPartition(TOPIC, metadata.partition)
            self.acknowledged[partition].add(metadata.offset)
            self.history.add(Acknowledged(partition, metadata.offset, number))

    def missing(self) -> Offsets:
        return {tp: found for tp in self.seen if (found := self.acknowledged[tp] - self.seen[tp])}

    async def look_at_commits(self) -> None:
        """Record the committed offsets, while all brokers agree: a resumed one may report old ones."""
        async with Admin(**self.clients) as admin:
            found = await admin.group_offsets(GROUP)
        self.history.add(*(Committed(tp, one.offset) for tp, one in found.items() if one is not None))


def member_id_of(consumer: Consumer) -> str:
    """Empty while it is no member."""
    group = consumer._group
    return "" if group is None else group.member.member_id


async def is_member(admin: Admin, member_id: str) -> bool:
    """True also while no coordinator answers."""
    try:
        found = await admin.describe_groups(GROUP, timeout_ms=2_000)
    except BarnabasError:
        return True
    return member_id in {member.member_id for member in found[GROUP].members}


def crash(consumer: Consumer) -> None:
    """Do what SIGKILL does: close the connections and send nothing more."""
    cluster, group = consumer._cluster, consumer._group
    assert cluster is not None
    assert group is not None
    cluster.close()


async def torment(life: Life, seconds: float) -> None:
    """Kill, pause or restart one broker after another, usually the coordinator."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    offsets = InternalTopic(OFFSETS_TOPIC, OFFSETS_PARTITIONS)
    operator = Operator(life.cluster, offsets, life.chance, life.run.say, deadline_s=HEALING_S)
    while loop.time() < end:
        await asyncio.sleep(life.chance.uniform(1, 3))
        if life.chance.random() < 0.5:
            life.run.say(f"move {OFFSETS_TOPIC}")
            await asyncio.to_thread(operator.move)
        victim = life.coordinator if life.chance.random() < 0.7 else None
        victim = victim if victim is not None else BrokerId(life.chance.randint(1, 3))
        how = life.chance.choice(["kill", "pause", "restart"])
        life.run.say(f"{how} {victim}")
        if how == "restart":
            await asyncio.to_thread(life.cluster.restart, victim)
        elif how == "kill":
            await asyncio.to_thread(life.cluster.kill, victim)
            await asyncio.sleep(life.chance.uniform(0.5, 4))
            await asyncio.to_thread(life.cluster.start_broker, victim)
        else:
            life.cluster.pause(victim)
            await asyncio.sleep(life.chance.uniform(0.5, 4))
            life.cluster.resume(victim)
        # A resumed broker may still believe that it is the coordinator.
        await asyncio.to_thread(ClusterView(life.cluster).wait_agreed, TOPIC, PARTITIONS, 60.0)
        await asyncio.to_thread(operator.settle)
        await life.look_at_commits()


@chaos_test(SECONDS)
@takes_turns(1)
async def test_a_group_sees_everything_and_commits_nothing_unseen(start_cluster: StartCluster) -> None:
    with chaos_run(SECONDS) as run:
        settings = {**BROKER, "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS)}
        security = run.security()
        cluster = start_cluster(settings=settings, own_zookeeper=security is not None, security=security)
        ClusterView(cluster).create_topic(TOPIC, PARTITIONS, 3, min_insync_replicas="2")
        life = Life(cluster, run)
        await live(life)
        print(f"{life.strategy}: {life.ends}", flush=True)
        verdict = check(life.history, GROUPS)
        print(verdict, flush=True)
        assert verdict.is_good, str(verdict)
        assert verdict.acknowledged >= ENOUGH


async def live(life: Life) -> None:
    """Harm the cluster below the members, until they have seen everything."""
    tasks = [asyncio.create_task(life.member(number)) for number in range(MEMBERS)]
    tasks.append(asyncio.create_task(life.process(MEMBERS)))
    tasks.append(asyncio.create_task(life.write()))
    try:
        await torment(life, SECONDS)
        life.is_quiet = True
        await tasks[-1]
        async with asyncio.timeout(HEALING_S):
            while life.missing() or sum(map(len, life.present.values())) != PARTITIONS:
                for task in tasks[:-1]:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.1)
        await life.look_at_commits()
    finally:
        life.is_over = True
        await asyncio.wait(tasks, timeout=60)
    for task in tasks:
        task.result()
    await life.look_at_commits()
